"""The plan of a run on a network: few directions of very many parameters, in natural units.

A step sees the part of the gradient g that lies along q random directions of d. That part is about
sqrt(q/d) |g| long. Moving along it by a length r changes the loss by

    - r sqrt(q/d) |g|  +  r^2 k / 2,      k = (q/d) k_g + (1 - q/d) k_mean,

where k_g is the curvature along the gradient, and k_mean the mean curvature over all directions. The
best r is sqrt(q/d) |g| / k, and what it gains depends on the product of q and the number of steps T
alone. Networks have few directions of large curvature: with k_mean = RANK k_g / d,

    reach = R sqrt(d q) / (q + RANK (1 - q/d)),

with R = 1.5; and in noise less, by the cosine between what records agree on and what is released: a
step along noise only spoils what the network knew. What is left to choose:

- one side: where there are at least four times as many parameters as directions, records are evaluated
  on one side of the point, which gives twice the directions for the same evaluations.
- q T: as many as the evaluations allow with all records in every step. With few evaluations for many
  records, some of the records in each step. In noise, no more than keep the noise on a step at most 0.8
  clips long: it is 2 sqrt(q T) / (n mu).
- q: 16, and more once there are 160 steps.
- calibrations: along 4 random directions in each leaf, at the distance of the steps' own probes.
- secret batches, so small that they leave room for the most directions of all steps together.

*On gradients* a step sees all of g. It goes along a running mean of gradients (`Momentum`), in which
noise averages out, by a length that is a share of that of all parameters, 0.1 at first and falling to
0: networks start with weights in whose lengths they compute, so that this is what learning rates such
as Adam's come to, without their unit. A share of the loss over its slope, as for other losses, is
too long where slopes are small at the start (an LSTM). The clip is half of a record's gradient there.
Batches are secret, and as small as leaves noise the larger part (`batches.fewest`).

Everything else is as in `auto`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from blindstep.estimate.bounds import Bounds
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.comparison import RELEASES
from blindstep.estimate.directions import Signs
from blindstep.estimate.gradients import COST
from blindstep.optimize.learners import Falling, Learner
from blindstep.optimize.momentum import Momentum
from blindstep.planning import natural
from blindstep.planning.batches import (
    CANDIDATES,
    COMPARISON_SHARE,
    SAMPLING,
    Batches,
    comparison_batch,
    fewest,
    some_or_all,
)
from blindstep.planning.estimates import Calibration, Gradients, StartComparison, Values
from blindstep.planning.method import Problem
from blindstep.planning.plan import ADVICE, Plan
from blindstep.private.terms import PRESENCES

# How many directions of the gradient's curvature a network's curvature adds up to.
_RANK = 64.0
_REACH = 1.5
# How much of their slopes records have in common, in clips, once the first steps are made.
_AGREE = 0.3
# Probes lie at this share of the reach, unless rounding asks for more (`Course.widening`).
_PROBE = 0.25
# Of a record's slopes at the start. With half of it losses end higher (`benchmarks.networks`).
_CLIP = 0.5
_DIRECTIONS, _MOST_STEPS, _FEWEST_STEPS, _DROWNED = 16, 160, 20, 0.8
# Secret batches are no smaller than leaves noise at most so much longer than with all records.
_LONGER = 16.0
# One side of a point will do where directions are at most one in so many.
_FEW_OF = 4
# Directions of all steps together that are worth more than having every record in each step.
_ENOUGH = 960
_CALIBRATION_DIRECTIONS = (4, 1)
# Up to so many parameters gradients of single records fit into any memory.
MOST_DIFFERENTIATED = 2**24
# Of a run on gradients: its steps, and how long they are at first.
_GRADIENT_STEPS, _GRADIENT_REACH = (208, 104, 52), 0.1
EVALUATIONS = 2**20


def plan_network(
    problem: Problem,
    name: str,
    evaluations: int | None,
    passes: int | None,
    directions: int | None,
    learner: Learner | None,
    secret: bool,
) -> Plan:
    """The plan for a network; `name` is that of the method.

    Without `evaluations`, 2^20 forward passes of a record are the most.
    """
    dim, records, leaves = problem.dim, problem.records, problem.leaves or (problem.dim,)
    begun = _begun(problem, evaluations or EVALUATIONS, leaves, secret)
    made = _sizes(problem, begun.left, begun.mu, directions, secret)
    q, steps, batch, sides, longer, secret = made
    if passes is not None:
        steps = max(1, min(steps, passes * (records // batch)))
    horizon = max(1, steps // natural.ROUNDS)
    rounds = max(1, steps // horizon)
    # Noise on a step, in clips.
    noise = _noise(problem, begun.mu, q * steps, records if secret else batch, longer)
    heard = _AGREE / math.hypot(_AGREE, noise)
    reach = heard * _reach(dim, q)
    return natural.in_natural_units(
        name,
        problem,
        Values(q, _PROBE * reach, Signs.name, "block", sides),
        begun.calibration,
        bounds=Bounds(clip=_CLIP * math.sqrt(dim / q)),
        rounds=rounds,
        horizon=horizon,
        batch=batch,
        reach=reach,
        # Numbers of 16 bits would swallow closer probes of a network.
        learner=learner or Falling(nearest=1.0),
        comparison=begun.comparison,
        secret=secret and 2 * min(batch, begun.comparison.batch) <= records,
    )


def plan_gradients(
    problem: Problem,
    name: str,
    evaluations: int | None,
    passes: int | None,
    learner: Learner | None,
    secret: bool,
) -> Plan:
    """The plan for a network whose records are differentiated; `name` is that of the method."""
    dim, records, privacy = problem.dim, problem.records, problem.privacy
    begun = _begun(problem, evaluations or EVALUATIONS, (dim,), secret)
    left = int(begun.left / (COST / 2))
    found: list[tuple[float, int, Batches]] = []
    for steps in _GRADIENT_STEPS if secret else ():
        noise = _noise(problem, begun.mu, steps * dim, records)
        made = fewest(records, steps, noise * _CLIP, begun.mu, privacy, left, _LONGER)
        if made is not None:
            found.append((steps / (1.0 + (made.longer * noise / _AGREE) ** 2), steps, made))
    if found:
        _, steps, chosen = max(found, key=lambda each: each[:2])
        batch = chosen.batch
    else:  # all records in fewer steps, or some of them in as few as learn anything
        steps, batch = max(min(_GRADIENT_STEPS[0], left // (2 * records)), 1), records
        if steps < _FEWEST_STEPS:
            steps, batch = _FEWEST_STEPS, max(1, left // (2 * _FEWEST_STEPS))
    if passes is not None:
        steps = max(1, min(steps, passes * (records // batch)))
    horizon = max(1, steps // natural.ROUNDS)
    rounds = max(1, steps // horizon)
    return natural.in_natural_units(
        name,
        problem,
        Gradients(),
        begun.calibration,
        bounds=Bounds(clip=_CLIP),
        rounds=rounds,
        horizon=horizon,
        batch=batch,
        reach=_GRADIENT_REACH * math.sqrt(_GRADIENT_STEPS[0] / (rounds * horizon)),
        learner=learner or Momentum(),
        comparison=begun.comparison,
        secret=bool(found) and 2 * min(batch, begun.comparison.batch) <= records,
    )


class _Begun(NamedTuple):
    """What is before and after the steps, and what it leaves them."""

    calibration: Calibration
    comparison: StartComparison
    left: int  # evaluations
    mu: float


def _begun(problem: Problem, most: int, leaves: tuple[int, ...], secret: bool) -> _Begun:
    dim, records, privacy = problem.dim, problem.records, problem.privacy
    mu = privacy.mu_beside_room if secret else privacy.mu
    asked, asked_of = _calibration_query(dim, records, most, mu, leaves)
    share = natural.calibration_share(asked, asked_of, mu)
    compared = comparison_batch(problem, most, mu, secret)
    return _Begun(
        Calibration(asked.leaves, asked.each, asked_of, share, signs=True),
        StartComparison(compared, COMPARISON_SHARE),
        most
        - natural.ScaleFinder.calibrations * asked_of * asked.evaluations
        - RELEASES * compared * (1 + CANDIDATES),
        mu * math.sqrt(1 - share - COMPARISON_SHARE),
    )


def advised(plan: Plan, differentiable: bool | None) -> Plan:
    """The plan with a note that says which of the two estimates would be the better one.

    A gradient shows what all directions would, at the cost of a few evaluations. `differentiable` is
    None where the loss is not known.
    """
    if plan.dim > MOST_DIFFERENTIATED:
        if not plan.differentiates:
            return plan
        word = f"the gradient of one record has {plan.dim:,} numbers: values take less memory."
    elif plan.differentiates or differentiable is False:
        return plan
    else:
        when = "this loss has a gradient" if differentiable else "if the loss has a gradient"
        word = f"{when}: Auto(estimate='gradient') would learn more at the same privacy."
    return replace(plan, notes=(*plan.notes, f"{ADVICE}{word}"))


def calibration_reach(plan: Plan) -> float:
    """How far out calibrations probe, in natural units: where the steps of a run on values would."""
    few = min(plan.dim, _DIRECTIONS)
    return _PROBE * _reach(plan.dim, few) if plan.differentiates else plan.smoothing


def _reach(dim: int, q: int) -> float:
    return _REACH * math.sqrt(dim * q) / (q + _RANK * (1 - q / dim))


class _Sizes(NamedTuple):
    directions: int
    steps: int
    batch: int
    sides: int
    longer: float
    secret: bool  # few evaluations for many records take public batches


def _sizes(
    problem: Problem, evaluations: int, mu: float, wanted: int | None, secret: bool
) -> _Sizes:
    """Directions, steps, records in a step, and sides of a point on which they are evaluated.

    Of secret batches those which leave room for most directions of all steps together, and beside how
    much longer noise is in them.
    """
    dim, records = problem.dim, problem.records
    # q T such that noise is at most `_DROWNED` clips long with all records in every step.
    quiet = max((0.5 * _DROWNED * records * mu) ** 2, _FEWEST_STEPS)
    sides = 1 if dim >= _FEW_OF * max(wanted or 0, _DIRECTIONS) else 2
    most = wanted or (dim if sides == 2 else dim // _FEW_OF)

    def room(batch: int, longer: float) -> float:
        # Secret batches of a power of two: records are not always a multiple of that.
        each = batch + (batch < records)
        return min(evaluations / (sides * each), quiet / longer**2, most * _MOST_STEPS)

    def gain(each: tuple[int, float]) -> float:
        chance = (each[0] < records) * SAMPLING / each[0]
        noise = _noise(problem, mu, room(*each), records, each[1])
        return room(*each) / (1.0 + chance) / (1.0 + (noise / _AGREE) ** 2)

    choice = max(some_or_all(problem, _MOST_STEPS, mu, secret, _LONGER), key=gain)
    batch, longer, together = *choice, room(*choice)
    # Public batches of few records, which are loud, leave room for more directions.
    more = min(_ENOUGH, quiet)
    few = max(1, min(records, int(evaluations // (sides * more))))
    loud = _noise(problem, mu, more, few)
    short = together < more and (not secret or more / (1.0 + (loud / _AGREE) ** 2) > gain(choice))
    if short:
        together, batch = more, few
    q = wanted or min(most, max(_DIRECTIONS, round(together / _MOST_STEPS)))
    if not wanted and together < q * _FEWEST_STEPS:
        q = max(3 - sides, int(together // _FEWEST_STEPS))
    # More steps along as many directions as there are show nothing new.
    steps = max(1, min(int(together // q), _MOST_STEPS))
    return _Sizes(q, steps, batch, sides, longer, secret and not short)


def _noise(problem: Problem, mu: float, together: float, whole: int, longer: float = 1.0) -> float:
    """How long noise on a step is, in clips, with so many directions of all steps together.

    `whole` are the records that share the noise: those of a public batch, or all of them.
    """
    often = PRESENCES[problem.privacy.neighbours]
    return longer * often * math.sqrt(together / (problem.records * whole)) / mu


def _calibration_query(
    dim: int, records: int, evaluations: int, mu: float, leaves: tuple[int, ...]
) -> tuple[CalibrationQuery, int]:
    """A look and how many records it asks: each leaf on its own, if noise lets it be read."""
    room = natural.CALIBRATION_EVALUATIONS * evaluations / natural.ScaleFinder.calibrations
    apart = [CalibrationQuery(leaves, few, signs=True) for few in _CALIBRATION_DIRECTIONS]
    kinds = [
        calibration
        for calibration in apart
        if natural.calibration_noise(calibration, records, mu) <= natural.LEAF_NOISE
    ]
    kinds += [CalibrationQuery((dim,), few, signs=True) for few in _CALIBRATION_DIRECTIONS]
    for calibration in kinds:
        if records * calibration.evaluations <= room:
            return calibration, records
    return kinds[-1], max(1, min(records, int(room // kinds[-1].evaluations)))
