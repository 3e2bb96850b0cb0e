"""What is secret or private in a run, and whether a text for others holds any of it."""

import functools
import json
import re
import tempfile
from pathlib import Path

import numpy as np

import blindstep as bs
from blindstep.insight.report import report_run_directory
from driver_runs import DATA, run
from losses import capped_distance_numpy

# The arrays of a checkpoint that the report may tell about.
PUBLIC = {"saved.norms", "key.seeded", "memory.0.position", "state.7.round", "state.8.step"}


def private_values(directory, *also):
    """Everything secret or private in a run, as it could be written: keys, sums, records, losses.

    But for what a run on other records under another key says too, which is its plan's: of hundreds of
    numbers of six digits one is, now and then, that of a plan.
    """
    return [value for value in _values(directory, *also) if value not in _said_of_any_run()]


@functools.cache
def _said_of_any_run():
    """The words of all pages and files about a run whose records are nobody's here."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        result = run("compiled", folder / "run", data=100.0 + DATA, seed=None)
        bs.hand_over(result, folder / "given", ledger=folder / "run")
        pages = [report_run_directory(folder / "run"), *(folder / "given").glob("*.[!n]*")]
        texts = [result._repr_html_(), *(page.read_text() for page in pages)]
        return set().union(*map(_words, texts))


def _words(page):
    """What can be read in a page: not where the lines of its pictures are."""
    text = re.sub(r"<defs>.*?</defs>", " ", page, flags=re.DOTALL)
    text = re.sub(r'\s(?:d|x|y|points|transform|viewBox)="[^"]*"', " ", text)
    return set(re.findall(r"[0-9a-zA-Z_.+-]+", text))


def _values(directory, *also):
    state = json.loads((directory / "checkpoint.json").read_text())["state"]
    with np.load(directory / state) as arrays:
        secret = {name: arrays[name] for name in arrays.files if name not in PUBLIC}
    assert {"key.noise", "key.names", "memory.1.buffers", "known.data", *also} <= set(secret)
    losses = [
        capped_distance_numpy(x, z) for x in np.atleast_2d(secret["saved.means"]) for z in DATA
    ]
    for array in (*secret.values(), DATA, np.asarray(losses)):
        if array.dtype.kind == "f":
            for value in map(float, array.ravel()):
                yield from (repr(value), f"{value:.6g}", f"{value:.5f}")
        else:
            yield from (str(int(word)) for word in array.ravel())
            yield array.tobytes().hex()
    for word in secret["key.noise"]:
        yield from (f"{int(word):x}", f"{int(word):08x}")


def leaks(page, values):
    """Which values stand in the page, as whole numbers or words. Short ones say nothing."""
    words = _words(page)
    return {value for value in values if len(value.strip("-0.")) >= 5 and value in words}
