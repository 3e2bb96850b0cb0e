"""The compiled driver: JAX-traceable losses, a whole epoch as one compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from blindstep.drivers.progress import RunProgress
from blindstep.drivers.pytrees import ParameterSpace, check_loss, count_records, take_rows
from blindstep.drivers.result import History, Result
from blindstep.errors import InvalidArgument
from blindstep.optimize.conversion import Conversion, Released, State
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import plan as make_plan
from blindstep.trusted.estimators import Kind
from blindstep.trusted.increments import chunk_for, increment
from blindstep.trusted.privacy import Privacy, statement
from blindstep.trusted.randomness import Keys, NoiseKey, fresh_keys, public_stream

Loss = Callable[[PyTree, PyTree], Any]


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
        **choices: passed to `blindstep.plan`: lipschitz, gap, bounds, horizon, ...

    Returns:
        Parameters with their privacy statement, the plan and the history of public quantities.
    """
    space = ParameterSpace.of(params)
    records = count_records(data)
    if plan is None:
        if privacy is None or radius is None:
            raise InvalidArgument(
                "give privacy and radius, such as privacy=Privacy(epsilon=4, delta=1e-5), "
                "radius=0.1, or a ready plan."
            )
        plan = make_plan(records=records, dim=space.dim, privacy=privacy, radius=radius, **choices)
    elif privacy is not None or radius is not None or choices:
        raise InvalidArgument("give either a plan, or privacy, radius and choices: not both.")
    if plan.dim != space.dim or plan.records > records:
        raise InvalidArgument(
            f"the plan is for {plan.records} records in dimension {plan.dim}, but there are "
            f"{records} records and {space.dim} parameters: plan again."
        )
    with jax.enable_x64(True):
        check_loss(loss, params, data)
        return _run(loss, params, data, plan, space, fresh_keys(seed), progress)


def _run(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    plan: Plan,
    space: ParameterSpace,
    keys: Keys,
    progress: bool,
) -> Result:
    machine = plan.build()
    # Floats become traced arguments: a run that differs in noise or step size compiles nothing.
    traced = jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, float) else v, machine)
    state = machine.begin(space.flatten(params))
    means, norms, seconds = [], [], []
    began = time.perf_counter()
    with RunProgress(machine.oracle, machine.epochs, plan.delta, show=progress) as bar:
        for first, diffs in _epochs_of_records(machine, data, keys.public):
            state, mean, released = run_epoch(
                traced, loss, space, state, first, diffs, keys.public, keys.noise
            )
            means.append(np.asarray(mean))
            norms.append(jax.tree.map(np.asarray, released))
            seconds.append(time.perf_counter() - began)
            bar.advance(len(means))
    chosen = int(
        jax.random.randint(public_stream(keys.public, "chosen epoch"), (), 0, machine.epochs)
    )
    return Result(
        params=space.unflatten(jnp.asarray(means[chosen])),
        last=space.unflatten(jnp.asarray(means[-1])),
        final=space.unflatten(state.position),
        chosen_epoch=chosen,
        means=np.stack(means),
        privacy=statement(machine.oracle, plan.delta, seeded=keys.seeded),
        plan=plan,
        history=History(
            gradient_norm=np.stack([n.gradient_norm for n in norms]),
            move_norm=np.stack([n.move_norm for n in norms]),
            seconds=np.asarray(seconds),
        ),
        space=space,
    )


def _epochs_of_records(
    machine: Conversion, data: PyTree, public: Key[Array, ""]
) -> Iterator[tuple[PyTree, PyTree]]:
    """The records of each epoch: its blocks' GRAD batches, and their DIFF batches."""
    schedule, per_epoch = machine.oracle.schedule, machine.blocks_per_epoch
    for pass_index in range(schedule.passes):
        order = schedule.order(public, pass_index)
        for start in range(0, schedule.blocks, per_epoch):
            blocks = range(start, start + per_epoch)
            splits = [schedule.split(schedule.rows(order, block)) for block in blocks]
            first, diffs = (np.stack(rows) for rows in zip(*splits, strict=True))
            yield take_rows(data, first), take_rows(data, diffs)


@eqx.filter_jit
def run_epoch(
    machine: Conversion,
    loss: Loss,
    space: ParameterSpace,
    state: State,
    first: PyTree,
    diffs: PyTree,
    public: Key[Array, ""],
    noise: NoiseKey,
) -> tuple[State, Float[Array, " dim"], Released]:
    """One epoch: a scan over blocks, each a GRAD and a scan over its DIFFs.

    `first` has axes (block, record), `diffs` (block, step, record).
    """
    estimator, schedule = machine.oracle.estimator, machine.oracle.schedule

    def evaluate(points: Float[Array, "2 q dim"], record: PyTree) -> Float[Array, "2 q"]:
        return jax.vmap(jax.vmap(lambda point: loss(space.unflatten(point), record)))(points)

    def step(kind: Kind, size: int, state: State, records: PyTree) -> tuple[State, Released]:
        query = machine.ask(state, kind, public)
        chunk = chunk_for(size, estimator.number, estimator.dim)
        moved = increment(estimator, query, evaluate, records, chunk)
        return machine.tell(state, moved, public, noise)

    def block(state: State, records: tuple[PyTree, PyTree]) -> tuple[State, Released]:
        state, start = step(Kind.GRAD, schedule.first_batch, state, records[0])
        start = jax.tree.map(lambda leaf: leaf[None], start)
        if schedule.period == 1:
            return state, start
        state, later = jax.lax.scan(
            lambda s, r: step(Kind.DIFF, schedule.diff_batch, s, r), state, records[1]
        )
        return state, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), start, later)

    state, released = jax.lax.scan(block, state, (first, diffs))
    state, mean = machine.end_epoch(state)
    return state, mean, jax.tree.map(jnp.ravel, released)
