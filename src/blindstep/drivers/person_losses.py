"""The loss of one person: the mean of the loss over the rows of theirs that are used.

A person is a record (rows, used): `rows` slots, of which the first `used` hold rows that count. The
other slots repeat a row of the same person. They are evaluated, too, and do not count, so that how
often the loss is called tells nothing of how many rows somebody has:

    f_person(params, (rows, used)) = sum over k < used of f(params, rows_k) / used

Guarantee: a value that is not finite, or an exception, in a row that counts voids that person. One in
any other slot changes nothing. The value depends on this person's rows alone.

A time limit sends these losses to processes of their own, so this file needs NumPy and no JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindstep.drivers.cells import number, numbers_of_rows


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
class VectorizedPersonLoss:
    """For a function of many parameters and rows at once: one call for each slot, of all people."""

    loss: Callable[[Any, Any], Any]

    def __call__(self, params: Any, people: tuple[Sequence[Any], Any]) -> np.ndarray | None:
        """The mean of each person; None if a call failed in which somebody's row counts.

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
