"""What a loss does for one person or one made-up record, without JAX: this code also runs in sandboxes.

*A person* is a record (rows, used): `rows` slots, of which the first `used` hold rows that count. The
other slots repeat a row of the same person. They are evaluated too and do not count, so that the number
of calls does not reveal how many rows a person has:

    f_person(params, (rows, used)) = sum over k < used of f(params, rows_k) / used

Guarantee: a value that is not finite, or an exception, in a row that counts voids that person. One in
any other slot changes nothing. The value depends on this person's rows alone.

*A made-up record* is public, so what a loss says about one may be repeated to the user (`try_loss`).
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blindstep.losses.isolation_worker import number, numbers_of_rows


@dataclass(frozen=True)
class PersonLoss:
    """For a Python function of parameters and one row. Slots are a sequence of rows."""

    loss: Callable[[Any, Any], Any]

    def __call__(self, params: Any, person: tuple[Sequence[Any], Any]) -> float:
        """The mean over the rows that count; every slot is evaluated, whatever another one does."""
        slots, used = person
        values = [self._value(params, row) for row in slots]
        return sum(values[: int(used)]) / int(used)

    def _value(self, params: Any, row: Any) -> float:
        try:
            return number(self.loss(params, row))
        except BaseException:  # the driver looks for the user's own Ctrl-C after each call
            return math.nan


@dataclass(frozen=True)
class SeededLoss:
    """For a Python function of parameters, a record and a seed: the record's own number, a whole one.

    Of many records at once it gets an array of seeds.
    """

    loss: Callable[[Any, Any, Any], Any]

    def __call__(self, params: Any, numbered: tuple[Any, Any]) -> Any:
        """The loss at the draws of the record."""
        record, seed = numbered
        return self.loss(params, record, np.asarray(seed).astype(np.int64).tolist())


@dataclass(frozen=True)
class VectorizedPersonLoss:
    """For a function of many parameters and rows at once: one call for each slot, of all people."""

    loss: Callable[[Any, Any], Any]

    def __call__(self, params: Any, people: tuple[Sequence[Any], Any]) -> np.ndarray | None:
        """The mean of each person; None if a call failed in which a row counts.

        Then the driver asks each person alone, as it does for any vectorised call that fails.
        """
        slots, used = people
        total, failed = np.zeros(len(used)), False
        for place, rows in enumerate(slots):
            counts = place < used
            try:
                values = numbers_of_rows(self.loss(params, rows), len(used))
            except BaseException:
                values = None
            if values is None:
                failed |= bool(np.any(counts))
            else:
                total += np.where(counts, values, 0.0)
        return None if failed else total / used


# Characters of an error's text that are repeated.
_MOST_WORDS = 300


class Trial(NamedTuple):
    """How one call of the loss went."""

    number: bool  # it gave one real number, or one for each row
    finite: bool  # and a finite one
    said: str  # what is wrong; "" where nothing is
    value: float = math.nan  # that number, or the sum of those of all rows, if finite


def try_loss(loss: Callable[..., Any], params: Any, record: Any, rows: int | None) -> Trial:
    """Call the loss once. Never raises; `rows` is how many numbers a vectorised loss gives."""
    try:
        value = loss(params, record)
    except BaseException as error:
        return Trial(False, False, f"raises {words(error)}")
    wanted = "one real number"
    try:
        if rows is None:
            numbers = [value.item() if hasattr(value, "item") else value]
        else:
            wanted = f"one number for each of {rows} rows (shape ({rows},))"
            numbers = numbers_of_rows(value, rows)
    except BaseException:  # an array of several numbers has no item
        numbers = None
    if numbers is None or not all(isinstance(each, Real) for each in numbers):
        return Trial(False, False, f"gives {_described(value)}, not {wanted}")
    try:
        finite = all(map(math.isfinite, numbers))
    except OverflowError:  # an integer past all floats
        finite = False
    if not finite:
        return Trial(True, False, "gives a number that is not finite")
    return Trial(True, True, "", float(sum(numbers)))


class Reporting:
    """A loss that writes its `Trial` to a file: apart from numbers, the only way out of a sandbox."""

    def __init__(self, loss: Callable[..., Any], path: str, rows: int | None) -> None:
        self.loss, self.path, self.rows = loss, path, rows

    def __call__(self, params: Any, record: Any) -> float:
        """Try the loss and write down how it went; the value does not matter."""
        Path(self.path).write_text(json.dumps(try_loss(self.loss, params, record, self.rows)))
        return 0.0


def reported(path: str, otherwise: str) -> Trial:
    """What a `Reporting` wrote there; `otherwise` says what happened if it wrote nothing."""
    try:
        return Trial(*json.loads(Path(path).read_text()))
    except (OSError, ValueError):
        return Trial(False, False, otherwise)


def _described(value: Any) -> str:
    """What a value is: its kind and shape."""
    if value is None:
        return "nothing (None)"
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    return f"a value of type {getattr(value, 'dtype', type(value).__name__)}"


def words(error: BaseException) -> str:
    """An error's type and text, and the line of the loss that it came from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What went wrong in a callback stands at the end of JAX's account of it.
    text = lines[-1] if lines and "callback" in lines[0] else " ".join(lines)
    steps = traceback.extract_tb(error.__traceback__)[1:2]
    own = [step for step in steps if Path(step.filename).parent != Path(__file__).parent]
    where = f" (line {own[0].lineno} of {Path(own[0].filename).name})" if own else ""
    return f"{type(error).__name__}{text and f': {text[:_MOST_WORDS]}'}{where}"
