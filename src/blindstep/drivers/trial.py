"""What a loss does with one made-up record, in words.

This runs in the user's process or, with a time limit, in a cell (`cells.py`). So it imports the
standard library alone: a cell that needs no JAX stays without it. A made-up record is public. What a
loss says about one may be told.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from blindstep.drivers.cells import numbers_of_rows

# Characters of an error's text that are repeated.
_MOST_WORDS = 300


class Outcome(NamedTuple):
    """What came of one call of the loss."""

    number: bool  # it gave one real number, or one for each row
    finite: bool  # and a finite one
    said: str  # what is wrong; "" where nothing is


def outcome(loss: Callable[..., Any], params: Any, record: Any, rows: int | None) -> Outcome:
    """Call the loss once. Never raises; `rows` is how many numbers a vectorised loss gives."""
    try:
        value = loss(params, record)
    except BaseException as error:
        return Outcome(False, False, f"raises {words(error)}")
    if rows is not None:
        values = numbers_of_rows(value, rows)
        if values is None:
            wanted = f"one number for each of {rows} rows (shape ({rows},))"
            return Outcome(False, False, f"gives {_described(value)}, not {wanted}")
        return _judged(all(map(math.isfinite, values)))
    try:
        alone = value.item() if hasattr(value, "item") else value
    except BaseException:  # an array of several numbers has no item
        alone = None
    if not isinstance(alone, Real):
        return Outcome(False, False, f"gives {_described(value)}, not one real number")
    try:
        return _judged(math.isfinite(alone))
    except OverflowError:  # an integer past all floats
        return _judged(False)


class Telling:
    """A loss that writes what came of it to a file: the only way out of a cell but numbers."""

    def __init__(self, loss: Callable[..., Any], path: str, rows: int | None) -> None:
        self.loss, self.path, self.rows = loss, path, rows

    def __call__(self, params: Any, record: Any) -> float:
        """The value itself is nobody's concern here."""
        Path(self.path).write_text(json.dumps(outcome(self.loss, params, record, self.rows)))
        return 0.0


def told(path: str, otherwise: str) -> Outcome:
    """What a `Telling` wrote there; `otherwise` says what happened if it wrote nothing."""
    try:
        return Outcome(*json.loads(Path(path).read_text()))
    except (OSError, ValueError):
        return Outcome(False, False, otherwise)


def _judged(finite: bool) -> Outcome:
    return Outcome(True, finite, "" if finite else "gives a number that is not finite")


def _described(value: Any) -> str:
    """What a value is: its kind and shape."""
    if value is None:
        return "nothing (None)"
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    kind = getattr(value, "dtype", type(value).__name__)
    return f"a value of type {kind}"


def words(error: BaseException) -> str:
    """An error's type and text, and the line of the loss that it came from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What went wrong in a callback stands at the end of JAX's account of it.
    text = lines[-1] if lines and "callback" in lines[0] else " ".join(lines)
    steps = traceback.extract_tb(error.__traceback__)[1:2]
    own = [step for step in steps if Path(step.filename).parent != Path(__file__).parent]
    where = f" (line {own[0].lineno} of {Path(own[0].filename).name})" if own else ""
    return f"{type(error).__name__}{text and f': {text[:_MOST_WORDS]}'}{where}"
