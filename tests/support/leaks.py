"""What is secret or private in a run, and whether a text for others holds any of it."""

import json
import re

import numpy as np

from driver_runs import DATA
from losses import capped_distance_numpy

# The arrays of a checkpoint that the report may tell about.
PUBLIC = {"saved.norms", "key.seeded", "memory.0.position", "state.7.round", "state.8.step"}


def private_values(directory, *also):
    """Everything secret or private in a run, as it could be written: keys, sums, records, losses."""
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
    words = set(re.findall(r"[0-9a-zA-Z_.+-]+", page))
    return {value for value in values if len(value.strip("-0.")) >= 5 and value in words}
