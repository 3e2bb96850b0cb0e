"""The host driver: any Python function over NumPy arrays, evaluated here or by any engine.

    from loky import get_reusable_executor
    result = blindstep.host.minimize(loss, params, data, plan=plan,
                                     executor=lambda: get_reusable_executor(max_workers=4))

The same run as the compiled driver's, through `Optimizer`. A step's work is cut into tasks by its
size alone, so the result does not depend on the number of workers or on the order of answers.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import os
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from blindstep.errors import InvalidArgument, answers_typos, positive
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.scales import Scales
from blindstep.ledger import fingerprints
from blindstep.ledger.storage import Storage
from blindstep.losses import isolation, rehearsal
from blindstep.losses.data_frames import arrays_of
from blindstep.losses.engines import Engine, EngineLost, MakeExecutor, Map, ray_map
from blindstep.losses.people import by_person_on_host
from blindstep.losses.pytrees import Loss, ParameterSpace, count_records
from blindstep.losses.tasks import Task, Work, quietly
from blindstep.planning.plan import Plan
from blindstep.private.statement import Privacy
from blindstep.run import planned
from blindstep.run.ask_tell import Optimizer
from blindstep.run.calibration import calibrate_on_answers, open_calibration, scales_from
from blindstep.run.choice import compare, open_comparison
from blindstep.run.planned import plan_for, refuse_gradients
from blindstep.run.progress import RunProgress, ends_in_one_line
from blindstep.run.query import BatchQuery
from blindstep.run.result import Result, compared_with

__all__ = ["EngineLost", "minimize", "ray_map"]

# Pieces of a step: two workers then wait at most 1/32 of the step for the last one, and dozens of
# workers still find work. Handing out a task costs an engine 1 to 3 ms, so the first three quarters
# go out two pieces at a time: 40 tasks, and the small ones at the end, where they level out.
_PIECES = 64
# Numbers in the points of one task: 2^20 float64 are 8 MiB.
_POINTS = 2**20


@answers_typos
@ends_in_one_line
def minimize(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    *,
    people: ArrayLike | None = None,
    rows: int | None = None,
    privacy: Privacy | None = None,
    radius: float | None = None,
    plan: Plan | None = None,
    preset: str | None = None,
    lipschitz: float | None = None,
    gap: float | None = None,
    bounds: Bounds | None = None,
    oracle: str | None = None,
    horizon: int | None = None,
    period: int | None = None,
    rounds: int | None = None,
    passes: int | None = None,
    first_batch: int | None = None,
    diff_batch: int | None = None,
    directions: int | None = None,
    evaluations: int | None = None,
    mechanism: str | None = None,
    sampler: str | None = None,
    sharing: str | None = None,
    smoothing: float | None = None,
    reach: float | None = None,
    executor: concurrent.futures.Executor | MakeExecutor | None = None,
    map: Map | None = None,
    vectorized: bool = False,
    timeout: float | None = None,
    rehearse: bool = True,
    seed: int | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
) -> Result:
    """Minimize the mean of `loss(params, record)` over records, privately, from its values alone.

    A loss that raises, gives anything but a finite number, is late or takes its worker down makes
    that record count 0 in that step; nothing is raised or written about it. One that fails for
    everybody would look like one that never changes: so it is tried on made-up records first. The
    choices of the plan, `preset` to `reach`, are those of `blindstep.minimize`.

    Args:
        loss: any Python function of parameters and one record (NumPy arrays), giving one number.
        params: where to start: a pytree of floating-point arrays.
        data: a pytree of arrays whose leading axis is the record: one row, one person, unless `people`
            says otherwise.
        people: an identifier for each row, whole numbers or text, if people have several rows. Then
            a person is one record, whose loss is the mean over their rows.
        rows: how many rows of a person are used at most, 8 by default. The loss is called as often for
            everybody, so somebody with one row costs as many calls; a time limit is for all of them.
        privacy: the budget, such as Privacy(epsilon=4, delta=1e-5).
        radius: Goldstein radius of the answer.
        plan: a ready plan (`blindstep.plan`) instead of `privacy`, `radius` and choices.
        executor: a `concurrent.futures` executor, or a function that makes one. With a function,
            or a plain ProcessPoolExecutor, a pool that broke with a worker is replaced, and the tasks
            that were lost are repeated.
        map: a function like the builtin map instead, such as a pool's `map` or `ray_map`.
        vectorized: the loss takes rows: parameters and records with one more leading axis, giving
            one value for each row. A row's value must depend on that row alone: privacy is for
            each record, and a loss that mixes rows would let one record speak for others.
        timeout: seconds for one call of the loss. With it each record is evaluated in a process of
            its own, which is killed when it is late, with all that it started; a vectorised loss is
            called for one record at a time. This keeps the loss from remembering anything between
            records, also what it imports or compiles at its first call; it costs a few milliseconds
            a record, and limits a record's memory to that of the machine / (processors + 1). Who is
            late is up to the machine's total load: give far more than a call takes. Needs fork, as
            on Linux, and a loss that can be pickled; threads are refused.
        rehearse: try the loss on made-up records first, of the shapes of `data` and with none of its
            values. A loss that gives no number for any of them is refused before anything is spent.
        seed: for reproduction only: a seeded run is not private against anyone who knows or can
            guess the seed.
        progress: show progress: steps, privacy spent, time, and the mean loss where the plan has a
            share for it. None: on a terminal, for runs that find their own scales.
        checkpoint: a directory for the run. The same call goes on after a crash where it was, with
            the same releases bit for bit; of a finished run it returns the result and releases
            nothing. The loss need not give the same answer each time: the answers of each step are
            saved before its release, and the step is repeated from them. *The directory holds the
            noise key and these answers*: keep it as secret as the data. All of `data` is read once
            more, for its fingerprint.
        ledger: a file in which several runs on the same people add up what they spend; left out,
            the run directory has its own.
        budget: what all runs in the ledger together may spend; a run that would spend more is
            refused before anything is evaluated.

    Returns:
        Parameters with their privacy statement, the plan and the history of public quantities.

    Raises:
        EngineLost: the workers are gone and cannot be replaced; the current step is not released.
    """
    space, chosen = ParameterSpace.of(params), locals()
    data = arrays_of(data)
    tried = functools.partial(rehearsal.rehearse, loss, params, data, vectorized=vectorized)
    _check_signature(loss)
    loss, data, unit = by_person_on_host(loss, data, people, rows, vectorized)
    plan = plan_for(
        space, count_records(data), plan, chosen, lambda: _effort(loss, space, data, vectorized)
    )
    refuse_gradients(plan)
    data = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, np.memmap) else np.asarray(leaf), data
    )
    engine, storage = Engine(executor, map), Storage(checkpoint, ledger, budget)
    try:
        work, scales = _work(loss, space, data, vectorized, timeout, engine), None
        if rehearse:
            tried(timeout=timeout)
        with RunProgress(plan, show=progress) as bar:
            if plan.calibrations:
                scales = _calibrate(plan, params, data, work, engine, storage, seed, unit, bar)
            with Optimizer(
                plan,
                params,
                data=data,
                seed=seed,
                checkpoint=checkpoint,
                ledger=ledger,
                budget=budget,
                unit=unit,
                scales=scales,
            ) as opt:
                opt.shown_by(bar)
                _answer(opt, data, work, engine)
                found = opt.result()
            if plan.comparisons:
                asked = (plan, params, data, work, engine, storage, seed, unit, bar)
                found = _compared(found, *asked)
    finally:
        engine.close()
        isolation.dismiss()
    return found


def _work(
    loss: Loss,
    space: ParameterSpace,
    data: PyTree,
    vectorized: bool,
    timeout: float | None,
    engine: Engine,
) -> Work:
    """What to do for each record. A time limit that cannot be kept is refused before any charge."""
    if timeout is None:
        return Work(loss, space, vectorized)
    timeout = positive("timeout", timeout, "give seconds, or leave it out")
    nobody = jax.tree.map(lambda leaf: np.asarray(leaf[:0]), data)
    point = np.zeros((1, 1, space.dim))
    sealed = isolation.seal(loss, space.unflatten(point[0, 0]), nobody)
    work = Work(sealed, space, vectorized, timeout)
    engine.check(Task(work, point, nobody, 0))
    return work


def _effort(loss: Loss, space: ParameterSpace, data: PyTree, vectorized: bool) -> int:
    """Evaluations in about a minute, by a made-up record of zeros."""
    rows = 64 if vectorized else 1
    which = [0] * rows if vectorized else 0
    record = jax.tree.map(lambda leaf: leaf[which], rehearsal.made_up(data, 1))
    point = np.zeros((rows, space.dim) if vectorized else space.dim)
    return rows * planned.of_function(lambda: quietly(loss, space.unflatten(point), record))


def _calibrate(
    plan: Plan,
    params: PyTree,
    data: PyTree,
    work: Work,
    engine: Engine,
    storage: Storage,
    seed: int | None,
    unit: str,
    bar: RunProgress,
) -> Scales:
    """Find the scales of the problem."""

    def known() -> fingerprints.Fingerprints:
        return fingerprints.of_questions(storage.cohort, params, data)

    def answer(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
        values = engine.perform(list(_pieces(points, rows, data, work)))
        return np.concatenate(values).reshape(len(rows), -1)

    with jax.enable_x64(True):
        origin = np.asarray(work.space.flatten(params))
        with open_calibration(plan, storage, known, seed, unit) as session:
            bar.follow(session)
            return scales_from(
                plan, session, origin, calibrate_on_answers(session, plan.calibration, answer)
            )


def _compared(
    found: Result,
    plan: Plan,
    params: PyTree,
    data: PyTree,
    work: Work,
    engine: Engine,
    storage: Storage,
    seed: int | None,
    unit: str,
    bar: RunProgress,
) -> Result:
    """Ask the records whether what was found is better than the start."""

    def known() -> fingerprints.Fingerprints:
        return fingerprints.of_questions(storage.cohort, params, data)

    def answer(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
        values = engine.perform(list(_pieces(points, rows, data, work)))
        return np.concatenate(values).reshape(len(rows), -1)

    with jax.enable_x64(True):
        start = np.asarray(work.space.flatten(params))
        with open_comparison(plan, storage, known, seed, unit) as session:
            bar.follow(session)
            release = calibrate_on_answers(session, plan.comparison, answer)
            compared = compare(plan, session, start, found, release)
            return compared_with(found, params, compared)


def _pieces(points: np.ndarray, rows: np.ndarray, data: PyTree, work: Work) -> Iterator[Task]:
    """The work of a look, at the same points for all records."""
    size = -(-len(rows) // _PIECES)
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
        values = engine.perform(list(tasks_of(query, data, work)))
        opt.tell(query, np.concatenate(values).ravel())


def tasks_of(query: BatchQuery, data: PyTree, work: Work) -> Iterator[Task]:
    """A step's work in pieces of whole records: by its size alone, not by who is there to do it."""
    batch, pair, number = query.shape
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


def _check_signature(loss: Loss) -> None:
    """Two arguments, as far as Python can tell: the one mistake that can be seen without a record."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):
        return  # some built-in functions have none
    try:
        signature.bind(None, None)
    except TypeError:
        raise InvalidArgument(
            f"the loss takes {signature}, but it is called as loss(params, record)."
        ) from None
