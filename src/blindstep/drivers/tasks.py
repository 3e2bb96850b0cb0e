"""One piece of a step's work: some records, their points, and a loss that may do anything.

A task is plain arrays and a function, so it can be sent to any worker. It always comes back with
numbers: what a loss raised, did not finish in time or gave that is no number is a NaN, which makes
that record count 0.

Records must not touch each other: a record that fails may void its own values, never a neighbour's.
Else the loss of one record would depend on another. So a vectorised call that fails is taken apart.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from blindstep.drivers.pytrees import Loss, ParameterSpace


@dataclass(frozen=True)
class Work:
    """What all tasks of a run have in common."""

    loss: Loss  # the user's function
    space: ParameterSpace  # how points map to parameters
    # whether the loss takes rows of parameters and records, and gives as many values
    vectorized: bool
    timeout: float | None  # seconds for one call of the loss; None: as long as it takes


@dataclass(frozen=True)
class Task:
    """Records and the points at which to evaluate each of them."""

    work: Work  # what to do
    # one set of points for each record, or one set for all
    points: Float[np.ndarray, "sets each dim"]
    records: PyTree  # the records: a pytree whose leaves have one row for each
    number: int  # how many records

    @property
    def each(self) -> int:
        """Values that each record gives."""
        return self.points.shape[1]

    def only(self, place: int) -> Task:
        """The task of one of the records alone."""
        points = self.points if len(self.points) == 1 else self.points[place : place + 1]
        alone = jax.tree.map(lambda leaf: leaf[place : place + 1], self.records)
        return Task(self.work, points, alone, 1)

    def nobody(self) -> Task:
        """The same work for no record: shows whether an engine works at all."""
        none = jax.tree.map(lambda leaf: leaf[:0], self.records)
        return Task(self.work, self.points[:1], none, 0)

    def voided(self) -> Float[np.ndarray, "number each"]:
        """The answer of records that cannot be evaluated."""
        return np.full((self.number, self.each), math.nan)


def perform(task: Task) -> Float[np.ndarray, "number each"]:
    """All values of a task, NaN where there is none. Raises nothing that depends on a record."""
    if task.number == 0:
        return task.voided()
    if not task.work.vectorized:
        return _one_by_one(task)
    values = _at_once(task)
    if values is None and task.number > 1:
        parts = (_at_once(part) for part in map(task.only, range(task.number)))
        empty = np.full((1, task.each), math.nan)
        values = np.concatenate([empty if part is None else part for part in parts])
    return task.voided() if values is None else values


def _one_by_one(task: Task) -> Float[np.ndarray, "number each"]:
    work, values = task.work, task.voided()
    for i in range(task.number):
        record = jax.tree.map(lambda leaf, i=i: leaf[i], task.records)
        points = task.points[i if len(task.points) > 1 else 0]
        for j, point in enumerate(points):
            values[i, j] = number(_call(work, work.space.unflatten(point), record))
    return values


def _at_once(task: Task) -> Float[np.ndarray, "number each"] | None:
    """All values by one call; None if it failed or gave anything but one number for each row."""
    rows = task.number * task.each
    points = np.broadcast_to(task.points, (task.number, *task.points.shape[1:]))
    records = jax.tree.map(lambda leaf: np.repeat(leaf, task.each, axis=0), task.records)
    out = _call(task.work, task.work.space.unflatten(points.reshape(rows, -1)), records)
    try:
        values = np.asarray(out)
        if values.shape != (rows,) or values.dtype.kind not in "biuf":
            return None
        return values.astype(np.float64).reshape(task.number, task.each)
    except Exception:
        return None


def _call(work: Work, params: PyTree, records: PyTree) -> Any:
    """The loss's value; None if it raised or was late. Nobody learns which, or with what words."""
    if work.timeout is None:
        return _quietly(work.loss, params, records)
    box: list[Any] = []
    # A thread works in every kind of worker. One that is late cannot be stopped: it is left to
    # itself, its value unread; a daemon does not keep the worker alive.
    thread = threading.Thread(
        target=lambda: box.append(_quietly(work.loss, params, records)), daemon=True
    )
    thread.start()
    thread.join(work.timeout)
    return box[0] if box else None


def _quietly(loss: Loss, params: PyTree, records: PyTree) -> Any:
    """The loss's value; None if it raised anything but Ctrl-C. NumPy's warnings are not printed."""
    try:
        with np.errstate(all="ignore"):
            return loss(params, records)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # without the loss's words, if it was the loss
    except BaseException:
        return None


def numbers(values: Sequence[Any] | Shaped[np.ndarray | Array, " some"]) -> Float[np.ndarray, " n"]:
    """Answers as float64; NaN for whatever is not a real number. Never raises on a value."""
    if isinstance(values, np.ndarray | jax.Array) and np.asarray(values).dtype.kind in "biuf":
        return np.asarray(values, dtype=np.float64)
    return np.asarray([number(value) for value in values], dtype=np.float64)


def number(value: object) -> float:
    """One answer as a float, NaN if it is not one real number."""
    try:
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            value = value.item()
        return float(value) if isinstance(value, Real) else float("nan")
    except Exception:
        return float("nan")
