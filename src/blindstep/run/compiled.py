"""The compiled driver: losses that JAX can trace, a whole round as one compiled program."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.estimate.comparison import Comparison
from blindstep.estimate.gradients import vectors_of_loss
from blindstep.estimate.scales import Scales
from blindstep.estimate.vectors import Vectors, worth_a_call
from blindstep.ledger import fingerprints
from blindstep.ledger.session import Session
from blindstep.losses import pytrees, rehearsal
from blindstep.losses.data_frames import arrays_of
from blindstep.losses.error_checks import telling_failures, voiding
from blindstep.losses.people import by_person
from blindstep.losses.pytrees import Loss, ParameterSpace, check_loss, count_records, on_disk
from blindstep.losses.streams import with_streams
from blindstep.optimize.machine import Machine, State, StepInfo
from blindstep.planning.plan import Plan
from blindstep.private.gate import Memory, Permit
from blindstep.private.schedule import Kind
from blindstep.processes.jax_group import JaxGroup
from blindstep.run import planned
from blindstep.run.calibration import (
    ScaledLoss,
    calibrate_on_loss,
    open_calibration,
    open_comparison,
    scaled_start,
    scales_from,
)
from blindstep.run.choice import compare
from blindstep.run.loop import Run, records_of, take_step, traced
from blindstep.run.planned import Call
from blindstep.run.progress import Placed, RunProgress, placed_by
from blindstep.run.result import Result, compared_with, result_of

Carry = tuple[Memory, State]
# Evaluations beside which calling the program, and an entry in the ledger, take little time.
_WORTH_A_CALL = 2**20


def run_compiled(loss: Loss, params: PyTree, data: PyTree, call: Call) -> Result:
    """One run on a loss that JAX can trace; the arguments are those of `blindstep.minimize`."""
    space, storage, seed = ParameterSpace.of(params), call.storage, call.seed
    with JaxGroup() as group:
        loss, data = with_streams(loss, arrays_of(data))
        tried = functools.partial(rehearsal.rehearse_compiled, loss, params, data)
        loss, data, unit = by_person(loss, params, data, call.people)
        minute = functools.partial(planned.of_compiled, loss, params, data)
        plan = planned.plan_for(call, space, count_records(data), params, minute, group)
        with jax.enable_x64(True), call.shown(plan) as bar:
            check_loss(loss, params, data)
            if plan.differentiates:
                rehearsal.check_gradient(loss, params, data)
            if call.rehearse:
                tried(differentiated=plan.differentiates)
            known = functools.partial(fingerprints.of_run, loss, params, data, group)
            run, start, scales = loss, params, None
            if plan.calibration is not None:
                with open_calibration(plan, storage, known, seed, unit, group) as session:
                    bar.follow(session)
                    calibration = functools.partial(
                        _calibrate, loss, params, data, plan, space, session
                    )
                    scales = telling_failures(calibration)
                run, start = ScaledLoss(loss, space, scales), scaled_start(space)
                known = functools.partial(fingerprints.of_run, run, start, data, group)
            machine = plan.build(jumps=scales is not None and scales.jumps)
            inside = ParameterSpace.of(start)
            begun = machine.begin(inside.flatten(start))
            about = (plan.terms, plan.to_dict(), begun, storage, known)
            placed = placed_by(space, scales)
            with Session(*about, seed=seed, unit=unit, group=group) as session:
                done = telling_failures(
                    lambda: _run(run, data, plan, inside, machine, session, bar, placed)
                )
                about = (plan, space, session.gate, done.means, done.info(), scales)
                found = result_of(*about, protected=unit)
            if plan.comparison is None:
                return found
            known = functools.partial(fingerprints.of_run, loss, params, data, group)
            with open_comparison(plan, storage, known, seed, unit, group) as session:
                bar.follow(session)
                compared = telling_failures(
                    lambda: _compare(loss, params, data, plan, space, session, found)
                )
            return compared_with(found, params, compared)


def _calibrate(
    loss: Loss, params: PyTree, data: PyTree, plan: Plan, space: ParameterSpace, session: Session
) -> Scales:
    """Find the scales of the problem."""
    origin = np.asarray(space.flatten(params))
    placed = data if on_disk(data) else pytrees.place(data)
    release = calibrate_on_loss(session.gate, loss, space, placed, plan.calibration_query)
    return scales_from(plan, session, origin, release)


def _compare(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    plan: Plan,
    space: ParameterSpace,
    session: Session,
    found: Result,
) -> Comparison:
    """Ask the records whether what was found is better than the start."""
    placed = data if on_disk(data) else pytrees.place(data)
    release = calibrate_on_loss(session.gate, loss, space, placed, plan.comparison_query)
    return compare(plan, session, np.asarray(space.flatten(params)), found, release)


def _run(
    loss: Loss,
    data: PyTree,
    plan: Plan,
    space: ParameterSpace,
    machine: Machine,
    session: Session,
    bar: RunProgress,
    placed: Placed,
) -> Run:
    """All steps that are still to come, some blocks of a round in one program."""
    run = Run(prepare(machine, space), session, plan.rounds)
    data = data if on_disk(data) else pytrees.place(data)
    sharding, blocks = pytrees.over_records(data), _blocks_at_once(plan)

    def program(permit: Permit, memory: Memory) -> tuple[Memory, tuple[State, StepInfo]]:
        permit, records = records_of(permit, data)
        state, public = run.state, session.gate.public
        if sharding is not None:
            memory, state = pytrees.put_everywhere((memory, state), sharding)
        some = (run.machine, loss, space, permit, memory, state, records, public, blocks, sharding)
        memory, state, info = run_part(*some)
        return memory, (state, info)

    bar.follow(session, run.values, run, placed)
    while not run.done:
        # Loss and noise are functions: what was begun before a crash comes out the same.
        run.advance(program, blocks * machine.period)
    return run


def _blocks_at_once(plan: Plan) -> int:
    """Blocks of one call of the program: a round's, or the fewest that are worth a call of their own.

    A call is charged, saved and shown as one. By the plan alone, and the same for all calls: one
    program is compiled, and a resumed run repeats the very same calls.
    """
    blocks = plan.horizon // plan.period
    each = max(1, plan.evaluations * plan.period // plan.schedule.releases)
    least = min(blocks, -(-_WORTH_A_CALL // each))
    return next(some for some in range(least, blocks + 1) if blocks % some == 0)


def prepare(machine: Machine, space: ParameterSpace) -> Machine:
    """The machine as `run_round` takes it.

    Runs that differ in a step size share a program. Probe points are made in the precision of the
    parameters.
    """
    estimator = machine.estimator.working_in(np.result_type(*space.dtypes))
    return traced(eqx.tree_at(lambda m: m.estimator, machine, estimator))


def run_blocks(
    machine: Machine,
    loss: Loss,
    space: ParameterSpace,
    permit: Permit,
    memory: Memory,
    state: State,
    data: PyTree,
    public: Key[Array, ""],
    blocks: int,
    sharding: NamedSharding | None = None,
) -> tuple[Memory, State, StepInfo]:
    """The next blocks, each a GRAD and a loop over its DIFFs. `data` holds the permit's rows.

    `sharding` is how the records are spread over devices.
    """

    checked = voiding(loss)

    def at(point: Float[Array, " dim"], record: PyTree) -> Any:
        return checked(space.unflatten(point), record)

    spread = None if sharding is None else functools.partial(pytrees.spread, sharding=sharding)
    vectors = vectors_of_loss(machine.estimator, at, data, spread)
    steps = functools.partial(_steps, machine, permit, public)

    def block(carry: Carry, _: None) -> tuple[Carry, tuple[StepInfo, StepInfo]]:
        # One shared frame for all steps of the block.
        ready = vectors.ready(machine.ask(carry[1], Kind.GRAD, public).key)
        carry, first = steps(ready, Kind.GRAD, 1, carry)
        carry, later = steps(ready, Kind.DIFF, machine.period - 1, carry)
        return carry, (first, later)

    if machine.period == 1:
        (memory, state), info = steps(vectors, Kind.GRAD, blocks, (memory, state))
        return memory, state, info
    (memory, state), (first, later) = jax.lax.scan(block, (memory, state), length=blocks)
    info = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1).ravel(), first, later)
    return memory, state, info


@eqx.filter_jit
def run_part(machine: Machine, *run: Any) -> tuple[Memory, State, StepInfo]:
    """Some blocks of a round, as `run_blocks` takes them, in one program.

    The last argument is how the records are spread over devices; then the result is on all of them.
    """
    out, sharding = run_blocks(machine, *run), run[-1]
    return out if sharding is None else pytrees.everywhere(out, sharding)


def _steps(
    machine: Machine,
    permit: Permit,
    public: Key[Array, ""],
    vectors: Vectors,
    kind: Kind,
    number: int,
    carry: Carry,
) -> tuple[Carry, StepInfo]:
    """Steps of one kind, one after the other, with directions and noise of several drawn at once.

    Directions and noise are functions of keys, known before the steps that need them. A step with
    few records is short: drawing for one alone would take longer than the step.
    """
    batch = worth_a_call(permit.terms.schedule, kind)
    ahead = vectors.steps_ahead(number, batch)

    def one(vectors: Vectors, permit: Permit, carry: Carry) -> tuple[Carry, StepInfo]:
        memory, state, info = take_step(machine, vectors, permit, *carry, kind, public)
        return (memory, state), info

    if ahead < 2:
        return jax.lax.scan(lambda carry, _: one(vectors, permit, carry), carry, length=number)
    like = jax.eval_shape(lambda carry: one(vectors, permit, carry)[1], carry)

    def group(carry: Carry, start: Int[Array, ""]) -> tuple[Carry, StepInfo]:
        def key_of(later: Int[Array, ""]) -> Key[Array, ""]:
            return machine.ask(carry[1], kind, public, later).key

        numbers = jnp.arange(ahead, dtype=carry[1].step.dtype)
        vectors_of = vectors.ahead(jax.vmap(key_of)(numbers), batch)
        stocked = permit.drawn(carry[0], ahead)

        def turn(i: Int[Array, ""], done: tuple[Carry, StepInfo]) -> tuple[Carry, StepInfo]:
            after, info = one(vectors_of(i), stocked, done[0])
            return after, jax.tree.map(lambda all, new: all.at[i].set(new), done[1], info)

        empty = jax.tree.map(lambda leaf: jnp.zeros((ahead, *leaf.shape), leaf.dtype), like)
        # The last group may be short: a loop that ends earlier, not steps that do not count.
        end = jnp.minimum(ahead, number - start) if number % ahead else ahead
        return jax.lax.fori_loop(0, end, turn, (carry, empty))

    carry, info = jax.lax.scan(group, carry, jnp.arange(0, number, ahead))
    return carry, jax.tree.map(lambda leaf: leaf.ravel()[:number], info)
