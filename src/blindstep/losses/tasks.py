"""One piece of a step's work: some records, their points, and a loss that may do anything.

A task is plain arrays and a function, so it can be sent to any worker. It always comes back with
numbers: where a loss raised, was late or gave no number there is a NaN, and that record counts 0.

A record that fails may void its own values, never a neighbour's: else the loss of one record would
depend on another. With a time limit each record has a process of its own (`isolation`). Without one,
what a record raises or says stays with it (`silence`), and a vectorised call that fails is taken apart.
"""

from __future__ import annotations

import functools
import math
import pickle
import threading
from dataclasses import dataclass, field, fields
from typing import Any

import cloudpickle
import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.errors import InvalidArgument
from blindstep.losses.isolation import Sealed, points_message, ready, values_apart
from blindstep.losses.isolation_worker import number, numbers_of_rows
from blindstep.losses.pytrees import Loss, ParameterSpace
from blindstep.losses.silence import interrupt, silence, this_process, this_terminal


def _this_thread() -> tuple[str, int]:
    return this_process(), threading.get_ident()


@dataclass(frozen=True)
class Work:
    """What all tasks of a run have in common."""

    loss: Loss | Sealed  # the user's function; with a time limit, as bytes
    space: ParameterSpace  # how points map to parameters
    # whether the loss takes rows of parameters and records, and gives as many values
    vectorized: bool
    timeout: float | None = None  # seconds for one call of the loss; None: as long as it takes
    # the process and the thread of the run, which need not be those that perform a task
    home: tuple[str, int] = field(default_factory=_this_thread)
    terminal: str = field(default_factory=this_terminal)  # whose Ctrl-C ends the run

    def __reduce__(self) -> tuple[Any, ...]:
        """To a worker it goes by value: a lambda, or a function of the user's script, can be sent."""
        return _work_from, (self._content,)

    @functools.cached_property
    def _content(self) -> bytes:
        return cloudpickle.dumps(tuple(getattr(self, each.name) for each in fields(self)))


@functools.lru_cache(maxsize=4)
def _work_from(content: bytes) -> Work:
    """The work in these bytes: one object for all tasks, so that a loss is compiled once."""
    return Work(*pickle.loads(content))


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
    work, here = task.work, task.work.home[0] == this_process()
    if not here:
        interrupt.left_to(work.terminal)
    if isinstance(work.loss, Sealed):
        return _apart(task, work.loss)
    if task.number == 0:
        return task.voided()
    with silence(worker=not here), interrupt.watched(here=here):
        if not work.vectorized:
            return _one_by_one(task, work.loss)
        values = _at_once(task, work.loss)
        if values is None and task.number > 1:
            parts = (_at_once(task.only(place), work.loss) for place in range(task.number))
            empty = np.full((1, task.each), math.nan)
            values = np.concatenate([empty if part is None else part for part in parts])
        return task.voided() if values is None else values


def _apart(task: Task, loss: Sealed) -> Float[np.ndarray, "number each"]:
    """Each record in a process of its own, and one record in a call."""
    work, values = task.work, task.voided()
    assert work.timeout is not None
    worker = work.home[0] != this_process()
    if not worker and work.home[1] != threading.get_ident():
        raise InvalidArgument(
            "`timeout` with threads: they share one interpreter, through which one record's work "
            "delays another's, and who is late would depend on others. Give processes, such as "
            "executor=lambda: get_reusable_executor(max_workers=2) of loky, or leave `timeout` out."
        )
    ready(loss, work.timeout)  # also for no record: shows whether the loss can be loaded here
    message = b""
    for i in range(task.number):
        if i == 0 or len(task.points) > 1:
            calls = task.points[i][None] if work.vectorized else task.points[i]
            params = [work.space.unflatten(each) for each in calls]
            message = points_message(params, task.each if work.vectorized else None)
        which = [i] * task.each if work.vectorized else i
        record = jax.tree.map(lambda leaf, which=which: leaf[which], task.records)
        values[i] = values_apart(loss, work.timeout, message, record, task.each, worker=worker)
    return values


def _one_by_one(task: Task, loss: Loss) -> Float[np.ndarray, "number each"]:
    work, values = task.work, task.voided()
    for i in range(task.number):
        record = jax.tree.map(lambda leaf, i=i: leaf[i], task.records)
        points = task.points[i if len(task.points) > 1 else 0]
        for j, point in enumerate(points):
            values[i, j] = number(quietly(loss, work.space.unflatten(point), record))
    return values


def _at_once(task: Task, loss: Loss) -> Float[np.ndarray, "number each"] | None:
    """All values by one call; None if it failed or gave anything but one number for each row."""
    rows = task.number * task.each
    points = np.broadcast_to(task.points, (task.number, *task.points.shape[1:]))
    records = jax.tree.map(lambda leaf: np.repeat(leaf, task.each, axis=0), task.records)
    out = quietly(loss, task.work.space.unflatten(points.reshape(rows, -1)), records)
    values = numbers_of_rows(out, rows)
    return None if values is None else values.reshape(task.number, task.each)


def quietly(loss: Loss, params: PyTree, records: PyTree) -> Any:
    """The loss's value; None if it raised, nobody learns what. The user's own Ctrl-C goes on."""
    try:
        with np.errstate(all="ignore"):
            value = loss(params, records)
    except BaseException:
        value = None
    interrupt.passed_on()
    return value
