"""The compiled driver: JAX-traceable losses, a whole epoch as one compiled program."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.drivers import evaluation, fingerprints, mesh
from blindstep.drivers.callbacks import telling_failures
from blindstep.drivers.planned import plan_for
from blindstep.drivers.progress import RunProgress
from blindstep.drivers.pytrees import ParameterSpace, check_loss, count_records
from blindstep.drivers.result import History, Result
from blindstep.drivers.session import Session
from blindstep.drivers.storage import Storage
from blindstep.optimize.conversion import Conversion, Released, State
from blindstep.optimize.plan import Plan
from blindstep.trusted import increments
from blindstep.trusted.estimators import Kind, Sharing
from blindstep.trusted.oracle import NoiseAhead
from blindstep.trusted.privacy import Privacy, statement
from blindstep.trusted.randomness import NoiseKey, public_stream

Loss = Callable[[PyTree, PyTree], Any]
# What is kept of each epoch; after its mean, the fields of History.
_PAST = ("means", "gradient_norm", "move_norm", "seconds")


def minimize(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    *,
    privacy: Privacy | None = None,
    radius: float | None = None,
    plan: Plan | None = None,
    seed: int | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
    **choices: Any,
) -> Result:
    """Minimize the mean of `loss(params, record)` over records, privately, from its values alone.

    Args:
        loss: a JAX function of parameters and one record, giving one number. It may be nonsmooth
            and nonconvex. A value that is not finite makes that record count 0 in that step.
        params: where to start: a pytree of floating-point arrays.
        data: a pytree of arrays whose leading axis is the record: one row, one person.
        privacy: the budget, such as Privacy(epsilon=4, delta=1e-5).
        radius: Goldstein radius of the answer.
        plan: a ready plan instead of `privacy`, `radius` and `choices`.
        seed: for reproduction only: a seeded run is not private against who knows the seed, and
            its privacy statement says so. Leave it out and the noise is from the operating system.
        progress: show a progress bar (epoch, privacy spent, time; never a loss).
        checkpoint: a directory for the run. The same call goes on after a crash where it was, with
            the same result bit for bit; of a finished run it returns the result and releases
            nothing. The loss must be a function: the same answer each time. *The directory holds
            the noise key*: keep it as secret as the data. All of `data` is read once more, for its
            fingerprint.
        ledger: a file in which several runs on the same people add up what they spend; left out,
            the run directory has its own.
        budget: what all runs in the ledger together may spend; a run that would spend more is
            refused before anything is evaluated.
        **choices: passed to `blindstep.plan`: lipschitz, gap, bounds, horizon, ...

    Returns:
        Parameters with their privacy statement, the plan and the history of public quantities.
    """
    space = ParameterSpace.of(params)
    plan = plan_for(space, count_records(data), plan, privacy, radius, choices)
    storage = Storage(checkpoint, ledger, budget)
    with jax.enable_x64(True):
        check_loss(loss, params, data)
        machine = plan.build()
        start = machine.begin(space.flatten(params))
        known = functools.partial(fingerprints.of_run, loss, params, data)
        with Session(machine, plan, start, storage, known, seed=seed) as session:
            return telling_failures(
                lambda: _run(loss, data, plan, space, machine, session, progress)
            )


def _run(
    loss: Loss,
    data: PyTree,
    plan: Plan,
    space: ParameterSpace,
    machine: Conversion,
    session: Session,
    progress: bool,
) -> Result:
    traced = prepare(machine, space)
    state, keys, horizon = session.state, session.keys, machine.horizon
    on_disk = any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data))
    if not on_disk:
        data = mesh.place(data)
    sharding = mesh.over_records(data)
    past = {name: list(session.saved.get(name, ())) for name in _PAST}
    began = time.perf_counter() - (past["seconds"][-1] if past["seconds"] else 0.0)
    with RunProgress(machine.oracle, machine.epochs, plan.delta, show=progress) as bar:
        for epoch in range(session.position // horizon):
            bar.advance(epoch + 1)
        for first, diffs in epochs_of_rows(machine, keys.public, session.position // horizon):
            held = _only(data, first, diffs) if on_disk else (data, first, diffs)
            # Loss and noise are functions: an epoch begun before a crash comes out the same.
            session.before_release(session.position, horizon, replay=True)
            state, mean, released = run_epoch(
                traced, loss, space, state, *held, keys.public, keys.noise, sharding
            )
            seconds = time.perf_counter() - began
            for name, value in zip(_PAST, (mean, *jax.tree.leaves(released), seconds), strict=True):
                past[name].append(np.asarray(value))
            session.after(
                state, session.position + horizon, lambda: {n: np.stack(past[n]) for n in _PAST}
            )
            bar.advance(len(past["means"]))
    chosen = int(
        jax.random.randint(public_stream(keys.public, "chosen epoch"), (), 0, machine.epochs)
    )
    means = np.stack(past["means"])
    return Result(
        params=space.unflatten(jnp.asarray(means[chosen])),
        last=space.unflatten(jnp.asarray(means[-1])),
        final=space.unflatten(state.position),
        chosen_epoch=chosen,
        means=means,
        privacy=statement(machine.oracle, plan.delta, seeded=keys.seeded),
        plan=plan,
        history=History(**{name: np.stack(past[name]) for name in _PAST[1:]}),
        space=space,
    )


def epochs_of_rows(
    machine: Conversion, public: Key[Array, ""], done: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers of each epoch after `done`: GRAD (block, record), DIFF (block, step, record)."""
    schedule, per_epoch = machine.oracle.schedule, machine.blocks_per_epoch
    order_of = functools.lru_cache(maxsize=1)(functools.partial(schedule.order, public))
    for start in range(done * per_epoch, machine.epochs * per_epoch, per_epoch):
        splits = [
            schedule.split(schedule.rows(order_of(block // schedule.blocks_per_pass), block))
            for block in range(start, start + per_epoch)
        ]
        first, diffs = (np.stack(rows) for rows in zip(*splits, strict=True))
        yield first, diffs


def _only(
    data: PyTree, first: np.ndarray, diffs: np.ndarray
) -> tuple[PyTree, np.ndarray, np.ndarray]:
    """The records of one epoch alone, with their new row numbers: for data that stays on disk."""
    rows = np.concatenate([first.ravel(), diffs.ravel()])
    number = np.arange(rows.size)
    taken = jax.tree.map(lambda leaf: leaf[rows], data)
    return (
        taken,
        number[: first.size].reshape(first.shape),
        number[first.size :].reshape(diffs.shape),
    )


def prepare(machine: Conversion, space: ParameterSpace) -> Conversion:
    """The machine as `run_epoch` takes it.

    Floats become traced arguments: a run that differs in noise or step size compiles nothing. Probe
    points are made in the precision that the loss is handed.
    """
    estimator = machine.oracle.estimator.working_in(np.result_type(*space.dtypes))
    machine = eqx.tree_at(lambda m: m.oracle.estimator, machine, estimator)
    return jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, float) else v, machine)


@eqx.filter_jit
def run_epoch(
    machine: Conversion,
    loss: Loss,
    space: ParameterSpace,
    state: State,
    data: PyTree,
    first: Int[Array | np.ndarray, "blocks first"],
    diffs: Int[Array | np.ndarray, "blocks steps batch"],
    public: Key[Array, ""],
    noise: NoiseKey,
    sharding: NamedSharding | None = None,
) -> tuple[State, Float[Array, " dim"], Released]:
    """One epoch: its blocks, then its mean and the state in which the next one starts."""
    state, released = run_blocks(
        machine, loss, space, state, data, first, diffs, public, noise, sharding
    )
    state, mean = machine.end_epoch(state)
    return state, mean, released


def run_blocks(
    machine: Conversion,
    loss: Loss,
    space: ParameterSpace,
    state: State,
    data: PyTree,
    first: Int[Array | np.ndarray, "blocks first"],
    diffs: Int[Array | np.ndarray, "blocks steps batch"],
    public: Key[Array, ""],
    noise: NoiseKey,
    sharding: NamedSharding | None = None,
) -> tuple[State, Released]:
    """A scan over blocks, each a GRAD and a loop over its DIFFs.

    `first` and `diffs` are row numbers in `data`: no record is in memory twice. `sharding` is how
    the records are spread over devices.
    """
    estimator = machine.oracle.estimator
    evaluator = evaluation.Evaluator(loss, space, estimator, sharding)
    shared = estimator.sharing is not Sharing.RECORD

    def step(
        kind: Kind,
        state: State,
        rows: Int[Array, " batch"],
        prepared: increments.Prepared | None = None,
        noise: NoiseKey | NoiseAhead = noise,
    ) -> tuple[State, Released]:
        query = machine.ask(state, kind, public)
        frame = None
        if shared:
            prepared = prepared or increments.prepare_frame(estimator, query.key)
            frame = prepared(0, 1)
        records = jax.tree.map(lambda leaf: leaf[rows], data)
        chunk = evaluation.chunk_of(estimator, records)
        moved = increments.increment(
            estimator, query, evaluator.of(rows.size), records, chunk, prepared
        )
        return machine.tell(state, moved, public, noise, frame)

    def steps(
        kind: Kind,
        state: State,
        rows: Int[Array, "steps batch"],
        like: Released | None = None,
        prepared: increments.Prepared | None = None,
    ) -> tuple[State, Released]:
        one = functools.partial(step, kind)
        ahead = evaluation.steps_ahead(estimator, *rows.shape, spread=sharding is not None)
        if ahead < 2:
            return jax.lax.scan(lambda state, rows: one(state, rows, prepared), state, rows)

        def key_of(state: State, later: Int[Array, ""]) -> Key[Array, ""]:
            step = state.step + later.astype(state.step.dtype)
            return machine.ask(eqx.tree_at(lambda s: s.step, state, step), kind, public).key

        def draw(state: State) -> Callable[[Int[Array, ""]], increments.Prepared]:
            if (of_all := prepared) is not None:
                return lambda _: of_all
            keys = jax.vmap(key_of, (None, 0))(state, jnp.arange(ahead))
            return increments.prepare_steps(estimator, keys, rows.shape[1])

        told = like if like is not None else jax.eval_shape(one, state, rows[0])[1]
        return _drawing_ahead(machine, one, draw, state, rows, ahead, noise, told)

    def block(state: State, rows: tuple[Array, Array]) -> tuple[State, Released]:
        prepared = None
        if estimator.sharing is Sharing.BLOCK:  # one frame for all its steps
            key = machine.ask(state, Kind.GRAD, public).key
            prepared = increments.prepare_frame(estimator, key)
        state, told = step(Kind.GRAD, state, rows[0], prepared)
        state, later = steps(Kind.DIFF, state, rows[1], told, prepared)
        return state, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), told, later)

    if machine.period == 1:
        return steps(Kind.GRAD, state, jnp.asarray(first))
    state, released = jax.lax.scan(block, state, (jnp.asarray(first), jnp.asarray(diffs)))
    return state, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), released)


def _drawing_ahead(
    machine: Conversion,
    step: Callable[..., tuple[State, Released]],
    draw: Callable[[State], Callable[[Int[Array, ""]], increments.Prepared]],
    state: State,
    rows: Int[Array, "steps batch"],
    ahead: int,
    noise: NoiseKey,
    like: Released,
) -> tuple[State, Released]:
    """Steps of one kind, one after the other, with directions and noise of several drawn at once.

    Directions and noise are functions of keys, known before the steps that need them. A step with
    few records is short: drawing for one alone would take longer than the step. `draw` tells of the
    next `ahead` steps what their directions are made of; `like` is what a step tells.
    """
    steps = len(rows)

    def group(state: State, start: Int[Array, ""]) -> tuple[State, Released]:
        prepared, stock = draw(state), machine.noise_ahead(state, ahead, noise)

        def one(i: Int[Array, ""], carry: tuple[State, Released]) -> tuple[State, Released]:
            state, released = step(carry[0], rows[start + i], prepared(i), stock)
            return state, jax.tree.map(lambda all, new: all.at[i].set(new), carry[1], released)

        empty = jax.tree.map(lambda leaf: jnp.zeros((ahead, *leaf.shape), leaf.dtype), like)
        # The last group may be short: a loop that ends earlier, not steps that do not count.
        end = jnp.minimum(ahead, steps - start) if steps % ahead else ahead
        return jax.lax.fori_loop(0, end, one, (state, empty))

    state, released = jax.lax.scan(group, state, jnp.arange(0, steps, ahead))
    return state, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:steps], released)
