"""The host driver: any Python function over NumPy arrays, evaluated here or by any engine.

    from loky import get_reusable_executor
    host = bs.Host(executor=lambda: get_reusable_executor(max_workers=4))
    result = bs.minimize(loss, params, data, privacy, evaluate=host)

The same run as the compiled driver's, through `Optimizer`. A step's work is cut into tasks by its
size alone, so the result does not depend on the number of workers or on the order of answers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.estimate.scales import Scales
from blindstep.ledger import fingerprints
from blindstep.ledger.session import Session
from blindstep.losses import isolation, rehearsal
from blindstep.losses.data_frames import arrays_of
from blindstep.losses.engines import Engine, Host, Task, Work, perform, quietly
from blindstep.losses.people import by_person_on_host
from blindstep.losses.pytrees import Loss, ParameterSpace, count_records
from blindstep.losses.streams import with_streams
from blindstep.planning.plan import Plan
from blindstep.run import planned
from blindstep.run.ask_tell import Optimizer
from blindstep.run.calibration import (
    calibrate_on_answers,
    open_calibration,
    open_comparison,
    scales_from,
)
from blindstep.run.choice import compare
from blindstep.run.planned import Call, plan_for, refuse_gradients
from blindstep.run.progress import RunProgress
from blindstep.run.query import BatchQuery
from blindstep.run.result import Result, compared_with

# Pieces of a step: two workers then wait at most 1/32 of the step for the last one, and dozens of
# workers still find work. Handing out a task costs an engine 1 to 3 ms, so the first three quarters
# go out two pieces at a time: 40 tasks, and the small ones at the end, where they level out.
_PIECES = 64
# Numbers in the points of one task: 2^20 float64 are 8 MiB.
_POINTS = 2**20
# Points at which a record is timed in a process of its own: about as many as a step asks of it.
_TIMED = 4


def run_on_host(loss: Loss, params: PyTree, data: PyTree, call: Call, host: Host) -> Result:
    """One run on any Python function; the arguments are those of `blindstep.minimize`.

    A loss that raises, gives anything but a finite number, is late or takes its worker down makes
    that record count 0 in that step; nothing is raised or written about it. One that fails for
    everybody would look like one that never changes: so it is tried on made-up records first.
    """
    space, storage, seed = ParameterSpace.of(params), call.storage, call.seed
    loss, data = with_streams(loss, arrays_of(data), host=True)
    tried = functools.partial(rehearsal.rehearse, loss, params, data, vectorized=host.vectorized)
    loss, data, unit = by_person_on_host(loss, data, call.people, host.vectorized)
    effort = functools.partial(_effort, loss, space, data, host)
    plan = plan_for(call, space, count_records(data), params, effort)
    refuse_gradients(plan)
    data = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, np.memmap) else np.asarray(leaf), data
    )
    engine = Engine(host)
    try:
        work, scales = _work(loss, space, data, host, engine), None
        if call.rehearse:
            tried(timeout=host.timeout)
        with call.shown(plan) as bar:
            beside = _Beside(plan, params, data, work, engine, call, unit, bar)
            if plan.calibration is not None:
                scales = beside.scales()
            with Optimizer(
                plan,
                params,
                data=data,
                seed=seed,
                checkpoint=storage.directory,
                ledger=storage.ledger,
                budget=storage.budget,
                unit=unit,
                scales=scales,
            ) as opt:
                opt.shown_by(bar)
                _answer(opt, data, work, engine)
                found = opt.result()
            if plan.comparison is not None:
                found = beside.compared(found)
    finally:
        engine.close()
        isolation.dismiss()
    return found


def _work(
    loss: Loss,
    space: ParameterSpace,
    data: PyTree,
    host: Host,
    engine: Engine,
) -> Work:
    """What to do for each record. A time limit that cannot be kept is refused before any charge."""
    if host.timeout is None:
        return Work(loss, space, host.vectorized)
    nobody = jax.tree.map(lambda leaf: np.asarray(leaf[:0]), data)
    point = np.zeros((1, 1, space.dim))
    sealed = isolation.seal(loss, space.unflatten(point[0, 0]), nobody)
    work = Work(sealed, space, host.vectorized, host.timeout)
    engine.check(Task(work, point, nobody, 0))
    return work


def _effort(loss: Loss, space: ParameterSpace, data: PyTree, host: Host) -> int:
    """Evaluations in about a minute, by a made-up record of zeros, as the run evaluates it.

    With a time limit each record has a process of its own, which may take longer than the loss.
    """
    alone = rehearsal.made_up(data, 1)
    if host.timeout is not None:
        sealed = isolation.seal(loss, space.unflatten(np.zeros(space.dim)), alone)
        work = Work(sealed, space, host.vectorized, host.timeout)
        task = Task(work, np.zeros((1, _TIMED, space.dim)), alone, 1)
        try:
            return _TIMED * planned.of_function(lambda: perform(task))
        finally:
            isolation.dismiss()
    rows = 64 if host.vectorized else 1
    which = [0] * rows if host.vectorized else 0
    record = jax.tree.map(lambda leaf: leaf[which], alone)
    point = np.zeros((rows, space.dim) if host.vectorized else space.dim)
    return rows * planned.of_function(lambda: quietly(loss, space.unflatten(point), record))


@dataclass(frozen=True)
class _Beside:
    """What a run asks before its first step and after its last, of all at the same points."""

    plan: Plan
    params: PyTree
    data: PyTree
    work: Work
    engine: Engine
    call: Call
    unit: str
    bar: RunProgress

    def scales(self) -> Scales:
        """Find the scales of the problem."""
        with self._session(open_calibration) as (session, start):
            release = calibrate_on_answers(session, self.plan.calibration_query, self._answer)
            return scales_from(self.plan, session, start, release)

    def compared(self, found: Result) -> Result:
        """Ask the records whether what was found is better than the start."""
        with self._session(open_comparison) as (session, start):
            release = calibrate_on_answers(session, self.plan.comparison_query, self._answer)
            compared = compare(self.plan, session, start, found, release)
            return compared_with(found, self.params, compared)

    @contextlib.contextmanager
    def _session(
        self, opened: Callable[..., Session]
    ) -> Iterator[tuple[Session, Float[np.ndarray, " dim"]]]:
        storage, call = self.call.storage, self.call
        with jax.enable_x64(True):
            start = np.asarray(self.work.space.flatten(self.params))
            with opened(self.plan, storage, self._known, call.seed, self.unit) as session:
                self.bar.follow(session)
                yield session, start

    def _known(self) -> fingerprints.Fingerprints:
        return fingerprints.of_questions(self.call.storage.cohort, self.params, self.data)

    def _answer(self, points: np.ndarray, rows: np.ndarray) -> np.ndarray:
        pieces = _pieces(points, rows, self.data, self.work)
        return _values(self.engine, pieces).reshape(len(rows), len(points))


def _pieces(points: np.ndarray, rows: np.ndarray, data: PyTree, work: Work) -> Iterator[Task]:
    """The work of a calibration, at the same points for all records."""
    size = max(1, -(-len(rows) // _PIECES))
    for start in range(0, len(rows), size):
        yield _task(work, points[None], rows[start : start + size], data)


def _task(work: Work, points: np.ndarray, rows: np.ndarray, data: PyTree) -> Task:
    """The work for the records in these rows."""
    records = jax.tree.map(lambda leaf: np.asarray(leaf[rows]), data)
    return Task(work, points, records, len(rows))


def _answer(opt: Optimizer, data: PyTree, work: Work, engine: Engine) -> None:
    """Answer every step that is still to come."""
    while not opt.done:
        query = opt.ask()
        opt.tell(query, _values(engine, tasks_of(query, data, work)))


def _values(engine: Engine, tasks: Iterator[Task]) -> np.ndarray:
    """The answers to these tasks, in their order; none for a secret batch that is empty."""
    return np.concatenate([np.zeros(0), *(each.ravel() for each in engine.perform(list(tasks)))])


def tasks_of(query: BatchQuery, data: PyTree, work: Work) -> Iterator[Task]:
    """A step's work in pieces of whole records: by its size alone, not by who is there to do it."""
    batch, pair, number = query.shape
    if not batch:
        return
    each = pair * number * work.space.dim
    small = -(-batch // max(_PIECES, 1 if query.shared else -(-2 * batch * each // _POINTS)))
    large = 2 * small
    in_large = batch * 3 // 4 // large * large
    # Points are computed for several tasks at once, as many as fit.
    group = large * max(1, min(-(-batch // large), _POINTS // (each * large)))
    for first in range(0, batch, group):
        points = query.points_of(0 if query.shared else first, group)
        start = first
        while start < min(first + group, batch):
            size = large if start < in_large else small
            own = points if query.shared else points[start - first : start - first + size]
            yield _task(work, own, query.rows[start : start + size], data)
            start += size
