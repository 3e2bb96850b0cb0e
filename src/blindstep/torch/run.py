"""A run on a network: calibrations, steps, the comparison, through one gate each; charged and resumed.

What a run directory holds of a run on values is small: its keys, the released numbers, and the answers
of the step that is being made. After a crash the weights are made again from the start and these
numbers. That of a run on gradients holds its points.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from blindstep.errors import InvalidArgument
from blindstep.estimate.comparison import Comparison
from blindstep.estimate.estimators import ValueEstimator, from_values
from blindstep.estimate.gradients import GradientEstimator
from blindstep.estimate.scales import ScaleFinder, Units
from blindstep.estimate.vectors import Query, of_answers, together
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.optimize.machine import State, StepInfo
from blindstep.planning.networks import calibration_reach
from blindstep.planning.plan import Plan
from blindstep.private.gate import Memory, Permit
from blindstep.private.schedule import Kind
from blindstep.run.calibration import (
    calibrate_on_answers,
    open_calibration,
    open_comparison,
    run_calibration,
)
from blindstep.run.choice import compare_at, compared_of
from blindstep.run.loop import Run
from blindstep.run.progress import Placed, RunProgress
from blindstep.run.result import History, best_round, history_of
from blindstep.torch.evaluate import Shift
from blindstep.torch.first_order import ModelGradients, Points, stepping
from blindstep.torch.group import ModelGroup
from blindstep.torch.replay import ModelPath, ModelSpace, Replay, Signed, calibration_shifts

# Asked after each round, with the model at the mean of its points, and at the start: from how many
# rounds there were to whether the run ends.
AfterRound = Callable[[int], bool]
# How much longer a tensor's unit may be than that of the largest one, were it as large.
_LONGEST = 8.0
# The longest step of a run on gradients, in losses over their slope.
_FARTHEST = 0.7


class Finished(NamedTuple):
    """What a finished run leaves, beside the weights at its answer."""

    history: History
    best_round: int | None  # None: the answer is the start
    comparison: Comparison | None
    road: Signed | Points
    seeded: bool


def run(
    plan: Plan,
    group: ModelGroup,
    storage: Storage,
    known: Fingerprints,
    seed: int | None,
    unit: str,
    bar: RunProgress,
    after_round: AfterRound | None = None,
) -> Finished:
    """Make all releases that are still to come, and move the weights to the answer."""
    # States of 64 bits: what was released comes back as it was, also after a crash.
    with jax.enable_x64(True), bar:
        with open_calibration(plan, storage, lambda: known, seed, unit) as session:
            bar.follow(session)
            units = _calibrate(plan, group, session)
        begun = plan.build().begin(jnp.zeros(plan.dim if plan.differentiates else 1))
        if not plan.differentiates:
            path = ModelPath.before(plan.schedule.releases, plan.directions)
            begun = replace(begun, path=path)
        about = (plan.terms, plan.to_dict(), begun, storage, lambda: known)
        with Session(*about, seed=seed, unit=unit) as session:
            take = _along_gradients if plan.differentiates else _along_signs
            run, road = take(plan, session, units, group, bar, after_round)
        history = history_of(plan, run.info(), units.unit)
        best, compared = best_round(history), None
        if plan.comparison is not None:
            with open_comparison(plan, storage, lambda: known, seed, unit) as session:
                bar.follow(session)
                compared = _compare(plan, session, road, history, units.unit)
            best = compared.best
        road.to(best)
        return Finished(history, best, compared, road, session.gate.seeded)


# What losses of networks are expected to differ by, in the unit of the loss.
_DIFFERS = 0.2


def _compare(
    plan: Plan, session: Session, road: Signed | Points, history: History, unit: float
) -> Comparison:
    """Ask the records whether what was found is better than the start."""
    tensors = len(road.group.weights.tensors)
    here = [Shift(np.zeros(tensors, np.int64), np.zeros(tensors))]

    def answer(rounds: list[int | None], rows: np.ndarray) -> np.ndarray:
        found = []
        for number in rounds:
            road.to(number)
            found.append(road.group.values(rows, here))
        return np.concatenate(found, axis=1)

    points: list[int | None] = [None, *compared_of(plan, history)]
    release = calibrate_on_answers(session, plan.comparison_query, answer)
    # Losses of networks differ by a part of their own size.
    expected = np.full(len(plan.compared), _DIFFERS * unit)
    return compare_at(plan, session, points, release, history, road.means, expected)


def _calibrate(plan: Plan, group: ModelGroup, session: Session) -> Units:
    """What the calibrations find, in units of each tensor's own size; on gradients in the user's."""
    weights, noise = group.weights, float(session.gate.terms.noise_std)
    lengths = np.ones(len(weights.sizes)) if plan.differentiates else weights.lengths()
    about = (weights.size, noise, calibration_reach(plan))
    finder, public = ScaleFinder(plan.calibration_query, *about), _words(session.gate.public)
    shifts = functools.partial(calibration_shifts, plan, public, lengths, finder=finder)

    def answer(shifts: list[Shift], rows: np.ndarray) -> np.ndarray:
        return group.values(rows, shifts)

    release = calibrate_on_answers(session, plan.calibration_query, answer)
    run_calibration(plan, session, finder, shifts, release)
    if finder.heard_nobody:
        raise InvalidArgument(
            "nearly every record counts 0: as far as the noise lets see, none has a loss that is a "
            "number other than 0 at the start, or changes around it. Are labels within 0 .. classes - "
            f"1? The run stops after its calibrations (mu {session.spent:.3g} of {plan.mu:.3g} spent)."
        )
    return finder.units()


def _along_gradients(
    plan: Plan,
    session: Session,
    units: Units,
    group: ModelGroup,
    bar: RunProgress,
    after_round: AfterRound | None,
) -> tuple[Run, Points]:
    """All steps of a run on gradients.

    Its natural unit is the length of all parameters together. Where the loss is steep for that, as it
    is for an adapter of a model that has learned, it is such that no step is longer than `_FARTHEST`
    times the loss over its slope, however few steps there are.
    """
    run = Run(plan.build(), session, plan.rounds)
    bar.follow(session, run.values, run, Placed(units.unit))
    near = float(units.lengths[0])
    length = min(group.weights.length, _FARTHEST * near / plan.reach)
    slope = units.unit / near
    estimator = run.machine.estimator
    assert isinstance(estimator, GradientEstimator)
    step = stepping(run, ModelGradients(estimator, group, length, slope, units.unit, plan.records))

    def road() -> Points:
        return Points(group, np.stack(run.means) if run.means else np.zeros((0, plan.dim)), length)

    take_rounds(run, plan, after_round, road, step)
    return run, road()


def take_rounds(
    run: Run,
    plan: Plan,
    after_round: AfterRound | None,
    road: Callable[[], Signed | Points],
    step: Callable[[], None],
    back: Callable[[], None] = lambda: None,
) -> None:
    """Make the steps that are still to come, unless `after_round` ends the run before.

    A run that goes on after a crash asks about all of its rounds again, so that whoever counts them
    counts the same. `back` puts the weights where the steps had led them.
    """

    def ends(done: int) -> bool:
        if after_round is None:
            return False
        road().to(done - 1 if done else None)
        found = after_round(done)
        back()
        return found and done > 0

    def asks(rounds: range) -> None:
        if any(ends(done) for done in rounds):
            run.stop()
            run.keep()

    asks(range(run.session.position // plan.horizon + 1))
    while not run.done:
        step()
        done, inside = divmod(run.session.position, plan.horizon)
        asks(range(done, done + (not inside)))


def within_reason(
    units: Units,
    lengths: Float[np.ndarray, " tensors"],
    sizes: Sequence[int],
    own: Float[np.ndarray, " tensors"],
) -> Float[np.ndarray, " tensors"]:
    """The scales of the tensors that calibrations found, where there is reason to believe them.

    A calibration sees a few directions of a tensor. If the loss does not depend on one of them (such as
    the same change to both scores of a softmax), the slope looks like 0 and the scale infinite. This is
    likelier for small tensors, where a large scale is also less plausible: each of their numbers moves
    everything that the layer computes. So scales are bounded by that of the largest tensor.

    A tensor in which no calibration saw a slope moves by no more than its own size: the first factor
    of an adapter matters as soon as the second one, which starts at 0, has moved.

    Args:
        units: what the calibrations found, in units of `lengths`.
        lengths: scales to begin with.
        sizes: the number of elements of each tensor.
        own: the usual size of its numbers.
    """
    found, seen, numbers = units.lengths, units.seen, np.array(sizes)
    if len(found) == 1:  # one unit for all tensors
        return found * lengths
    largest = int(np.argmax(np.where(seen, numbers, 0)))
    if seen[largest]:
        most = _LONGEST * found[largest] * np.sqrt(numbers / numbers[largest])
        found = np.minimum(found, most)
    return np.where(seen, found * lengths, np.minimum(found * lengths, own))


def _along_signs(
    plan: Plan,
    session: Session,
    units: Units,
    group: ModelGroup,
    bar: RunProgress,
    after_round: AfterRound | None,
) -> tuple[Run, Signed]:
    """Move the weights along what was released before, then make the steps that are still to come."""
    weights = group.weights
    about = (weights.lengths(), weights.sizes, weights.sizes_of_numbers())
    lengths = within_reason(units, *about)
    widening = max(1.0, weights.nearest(lengths) / plan.smoothing)
    replay = Replay(plan, _words(session.gate.public), lengths, units.unit, units.jumps, widening)
    machine = replace(plan.build(jumps=replay.jumps), space=ModelSpace(replay, weights))
    run = Run(machine, session, plan.rounds)
    bar.follow(session, run.values, run, Placed(units.unit))
    estimator, gate = from_values(plan.estimator), session.gate

    def road() -> Signed:
        return Signed(group, replay, run.state.path)

    def back() -> None:
        group.put_back()
        for number in range(session.position):
            _move(replay, run.state.path, number, group)

    def step() -> None:
        number, query = session.position, run.ask()
        near = replay.widening * (1.0 if query.nearness is None else float(query.nearness))
        if int(session.saved.get("step", -1)) != number:
            values = group.values(gate.rows(number), replay.shifts(number, near))
            kept = {"answers": values, "step": np.asarray(number)}
            session.save(session.state, {**run.arrays(), **kept})
        answers = session.saved["answers"]
        placed = gate.in_places(number, answers.reshape(-1, plan.sides, plan.directions))
        values = jnp.asarray(placed / replay.unit)

        def program(permit: Permit, memory: Memory) -> tuple[Memory, tuple[State, StepInfo]]:
            given = (estimator, jnp.asarray(near), values, gate.public)
            memory, release = _release(permit, memory, *given)
            return memory, machine.tell(run.state, release, gate.public)

        run.release(program, answers=answers.ravel())
        _move(replay, run.state.path, number, group)
        run.keep()

    back()
    take_rounds(run, plan, after_round, road, step, back)
    return run, road()


def _move(replay: Replay, path: ModelPath, number: int, group: ModelGroup) -> None:
    for move in replay.moves(path, number):
        group.move(move)


@eqx.filter_jit
def _release(
    permit: Permit,
    memory: Memory,
    estimator: ValueEstimator,
    nearness: Float[Array, ""],
    answers: Float[Array, "batch sides q"],
    public: Key[Array, ""],
) -> tuple[Memory, Float[Array, " size"]]:
    """A step's release. A record's vector comes from its own answers and from public numbers."""
    nowhere = jnp.zeros(1)  # coefficients do not depend on where the points are
    query = Query(nowhere, nowhere, public, Kind.GRAD, nearness)
    vectors = estimator.coefficients(query, answers)
    size = together(permit.terms, Kind.GRAD, math.prod(vectors.shape[1:]))
    return permit.release(memory, Kind.GRAD, of_answers(vectors, lambda own: own, size))


def _words(public: Key[Array, ""]) -> np.ndarray:
    return np.asarray(jax.random.key_data(public))
