"""What evaluates a loss: tasks, and the executors and maps of other libraries that perform them.

A *task* is one piece of a step's work: some records, their points, and a loss that may do anything. It
is plain arrays and a function, so it can be sent to any worker: to a `concurrent.futures` executor
(processes, loky, Dask, MPI, ...) or through a map-like function (a pool's, Ray's). It always comes back
with numbers: where a loss raised, was late or gave no number there is a NaN, and that record counts 0.

A record that fails may void its own values, never a neighbour's: else the loss of one record would
depend on another. With a time limit each record has a process of its own (`isolation`). Without one,
what a record raises or says stays with it (`silence`), and a vectorised call that fails is taken apart.
Tasks that were lost with a worker are given out again: a pure evaluation may be repeated, only its
value enters the step, once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import math
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

import cloudpickle
import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.errors import EngineLost, InvalidArgument, positive, typed_record
from blindstep.losses.isolation import Sealed, points_message, ready, values_apart
from blindstep.losses.isolation_worker import number, numbers_of_rows
from blindstep.losses.pytrees import Loss, ParameterSpace
from blindstep.losses.silence import interrupt, silence, this_process, this_terminal

Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
MakeExecutor = Callable[[], concurrent.futures.Executor]
# A cancelled task of asyncio's kind is no Exception.
_Lost = (Exception, asyncio.CancelledError)
Answer = np.ndarray | BaseException

# How often tasks are given out before those that are lost are taken apart, record by record.
_TRIES = 3


@typed_record
class Host:
    """How a loss that JAX cannot trace is evaluated: any Python function, here or on workers.

        bs.minimize(simulator, params, data, privacy, evaluate=bs.Host(timeout=5))
        bs.minimize(simulator, params, data, privacy, evaluate=bs.Host(map=bs.Host.ray))

    A loss that raises, gives anything but a finite number, is late or takes its worker down makes that
    record count 0 in that step; nothing is raised or written about it. The result does not depend on
    the number of workers or on the order of their answers.

    Attributes:
        executor: a `concurrent.futures` executor, or a function that makes one. With a function, or a
            plain ProcessPoolExecutor, a pool that broke with a worker is replaced, and the tasks that
            were lost are repeated.
        map: a function like the builtin map instead, such as a pool's `map` or `Host.ray`.
        vectorized: the loss takes rows: parameters and records with one more leading axis, giving one
            value for each row. A row's value must depend on that row alone: privacy is for each record,
            and a loss that mixes rows would let one record speak for others.
        timeout: seconds for one call of the loss. With it each record is evaluated in a process of its
            own, which is killed when it is late, with all that it started; a vectorised loss is called
            for one record at a time. This keeps the loss from remembering anything between records,
            also what it imports or compiles at its first call; it costs a few milliseconds a record,
            and limits a record's memory to that of the machine / (processors + 1). Whether a call is
            late is up to the machine's total load: give far more than a call takes. Needs fork, as on
            Linux, and a loss that can be pickled; threads are refused.
    """

    executor: concurrent.futures.Executor | MakeExecutor | None = None
    map: Map | None = None
    vectorized: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.executor is not None and self.map is not None:
            raise InvalidArgument("give an executor or a map, not both.")
        if not (
            self.executor is None or callable(self.executor) or hasattr(self.executor, "submit")
        ):
            raise InvalidArgument(
                f"executor must be a concurrent.futures executor, or a function that makes one, got "
                f"{self.executor!r}: for two processes, give executor=lambda: ProcessPoolExecutor(2)."
            )
        if not (self.map is None or callable(self.map)):
            raise InvalidArgument(f"map must be a function like the builtin map, got {self.map!r}.")
        if self.timeout is not None:
            seconds = positive("timeout", self.timeout, "give seconds, or leave it out")
            object.__setattr__(self, "timeout", seconds)

    @staticmethod
    def ray(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """A map over Ray tasks, which Ray itself repeats when their worker dies: map=Host.ray.

        Call `ray.init(...)` first; needs the extra `blindstep[ray]`. An item whose worker died each
        time gets Ray's error as its value, so that the others keep theirs.
        """
        import ray
        from ray.exceptions import RayError

        remote = _ray_function(function)
        for answer in [remote.remote(item) for item in items]:
            try:
                yield ray.get(answer)
            except RayError as error:
                yield error


class Engine:
    """A map or an executor, used until every task has its values."""

    def __init__(self, host: Host) -> None:
        self._map, executor = host.map, host.executor
        # A class of executors has `submit` too, but is a function that makes one.
        ready = hasattr(executor, "submit") and not isinstance(executor, type)
        self._given: Any = executor if ready else None
        self._make: Any = None if ready else executor
        self._made: Any = None

    def perform(self, tasks: Sequence[Task]) -> list[np.ndarray]:
        """The values of all tasks, in their order. What is lost is tried again, then record by record.

        A record that takes its worker down whenever it is alone counts 0. Whether it was the record
        or the engine shows in a task without records: where that fails too, `EngineLost` is raised.
        """
        results: dict[int, np.ndarray] = {}
        for _ in range(_TRIES):
            left = [place for place in range(len(tasks)) if place not in results]
            for place, outcome in self._answers([tasks[place] for place in left]):
                if isinstance(outcome, np.ndarray):
                    results[left[place]] = outcome
            if len(results) == len(tasks):
                break
            self._renew()
        for place, task in enumerate(tasks):
            if place not in results:
                alone = [self._alone(task.only(i)) for i in range(task.number)]
                results[place] = np.concatenate(alone)
        return [results[place] for place in range(len(tasks))]

    def check(self, nobody: Task) -> None:
        """Refuse, before a step is asked for, what the workers say that they can never do.

        A task without a record finds the workers in threads that cannot keep a time limit, and a loss
        that cannot be loaded there. Workers that do not answer at all are left to `perform`.
        """
        for _ in self._answers([nobody]):
            pass

    def close(self) -> None:
        """Shut down what was made here; an executor that the user gave is the user's."""
        if self._made is not None:
            self._made.shutdown(wait=True)
            self._made = None

    def _alone(self, task: Task) -> np.ndarray:
        """One record's values, with nobody else at work that it could take down."""
        for _ in range(2):
            ((_, outcome),) = self._answers([task])
            if isinstance(outcome, np.ndarray):
                return outcome
            self._renew()
        ((_, outcome),) = self._answers([task.nobody()])
        if not isinstance(outcome, np.ndarray):
            raise EngineLost(
                f"the workers do not answer any more ({type(outcome).__name__}, after {_TRIES} "
                "tries): the step was not released. Give `executor` as a function that makes a "
                "new one, such as lambda: get_reusable_executor(max_workers=2), and see that the "
                "loss can be sent to a worker: open files, locks and connections cannot."
            ) from None
        return task.voided()

    def _answers(self, tasks: list[Task]) -> Iterator[tuple[int, Answer]]:
        """Each task's number with its values, or with the engine's error, in any order."""
        through_map = self._given is None and self._make is None
        for place, outcome in (self._through_map if through_map else self._through_executor)(tasks):
            # Ray hands on what was raised as the cause of an error of its own.
            reason = getattr(outcome, "cause", None) or outcome
            if isinstance(reason, InvalidArgument):  # no record has a part in it
                raise InvalidArgument(str(reason)) from None
            yield place, outcome

    def _through_map(self, tasks: list[Task]) -> Iterator[tuple[int, Answer]]:
        done = 0
        try:
            for values in (self._map or map)(perform, tasks):
                yield done, values
                done += 1
        except _Lost as error:
            yield from ((place, error) for place in range(done, len(tasks)))

    def _through_executor(self, tasks: list[Task]) -> Iterator[tuple[int, Answer]]:
        futures: dict[Any, int] = {}
        for place, task in enumerate(tasks):
            try:
                futures[self._executor().submit(perform, task)] = place
            except _Lost as error:  # broken between two submissions
                yield place, error
        # Not concurrent.futures.as_completed: Dask's futures are none of its own.
        try:
            for future, place in futures.items():
                try:
                    yield place, future.result()
                except _Lost as error:
                    yield place, error
        except BaseException:
            # Also Ctrl-C. A pool would finish all that waits in it; Dask drops what nobody waits for.
            if isinstance(self._executor(), ProcessPoolExecutor | ThreadPoolExecutor):
                for future in futures:
                    future.cancel()
            raise

    def _executor(self) -> Any:
        if self._given is not None:
            return self._given
        if self._made is None:
            self._made = self._make()
        return self._made

    def _renew(self) -> None:
        """Leave a broken executor behind, if there is a way to make another."""
        if type(self._given) is ProcessPoolExecutor and self._given._broken:
            # Broken for good, and of no more use to the user: this one is made after it.
            self._make, self._given = _twin_of(self._given), None
        if self._made is not None:
            self._made.shutdown(wait=False)
            self._made = None


def _twin_of(pool: Any) -> MakeExecutor:
    """Makes process pools like this one."""
    return functools.partial(
        ProcessPoolExecutor,
        pool._max_workers,
        pool._mp_context,
        pool._initializer,
        pool._initargs,
        max_tasks_per_child=pool._max_tasks_per_child,
    )


@functools.lru_cache(maxsize=8)
def _ray_function(function: Callable[[Any], Any]) -> Any:
    """The function as Ray's workers know it; it is sent to them once, not in every step."""
    import ray

    return ray.remote(max_retries=_TRIES)(function)


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
            "delays another's, so that being late would depend on others. Give processes, such as "
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
