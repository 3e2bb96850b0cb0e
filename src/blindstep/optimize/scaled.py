"""The plan of a run that finds its scales itself: one setting for all problems, in natural units.

What is left to choose follows from the sizes and the budget:

- steps T: 160, and fewer where noise would drown each of them. With all records in every step the
  noise on a gradient is 2 sqrt(T d) / (n rho) clips long; T is such that this is at most 0.8, and at
  least 20.
- reach: sqrt(d) / 12, between 1 and 3, times sqrt(160 / T). In noise a path of T steps gets
  sqrt(T) x reach far, in a random direction, of which a record feels one part in sqrt(d).
- directions q: as many as the evaluations allow, at most d. More directions in fewer steps always
  show more of the gradient at the same noise.
- records in a step: all, unless even a few directions for each would take too many evaluations.

The reasons are in docs/decisions.md; `python -m benchmarks.no_knobs` measures how good it is.
"""

from __future__ import annotations

import math

from blindstep.errors import count
from blindstep.estimate.bounds import Clip
from blindstep.estimate.scales import Finder
from blindstep.optimize.plan import LOOKS_SHARE, Plan, finished
from blindstep.private.statement import Privacy

# All in natural units: a record's slopes are about 1 long, its loss at the start is about 1.
_STEPS, _FEWEST_STEPS, _DROWNED = 160, 20, 0.8
_SHORTEST, _LONGEST, _SMOOTHING = 1.0, 3.0, 0.5
# sqrt(4%) of a step's budget shows the mean loss.
CURVE = 0.2
_ROUNDS = 16
_FEWEST_DIRECTIONS = 8
# The share of the evaluations that looks may take.
_LOOKING = 0.25
_FEW_LOOK_DIRECTIONS = (16, 4, 1)
EVALUATIONS = 2**24


def plan_scaled(
    *,
    dim: int,
    records: int,
    privacy: Privacy,
    evaluations: int | None = None,
    passes: int | None = None,
    directions: int | None = None,
) -> Plan:
    """The plan for `records` records and `dim` parameters.

    Args:
        dim: number of parameters.
        records: number of records.
        privacy: the budget of everything.
        evaluations: the most evaluations of the loss; 2^24 if left out.
        passes: the most times that the steps go through the records.
        directions: directions in each step.
    """
    dim, records = count("dim", dim), count("records", records)
    most = count("evaluations", EVALUATIONS if evaluations is None else evaluations)
    shape = _look_shape(dim, records, most)
    spent = Finder.looks * shape[1] * (1 + 2 * shape[0])
    steps = _steps(dim, records, privacy.rho * math.sqrt(1 - LOOKS_SHARE))
    wanted = dim if directions is None else count("directions", directions)
    q, batch, steps = _sizes(wanted, directions is not None, records, most - spent, steps)
    if passes is not None:
        steps = max(1, min(steps, count("passes", passes) * (records // batch)))
    horizon = max(1, steps // _ROUNDS)
    rounds = max(1, steps // horizon)
    fewer = math.sqrt(_STEPS / (rounds * horizon))
    reach = fewer * min(max(math.sqrt(dim) / 12.0, _SHORTEST), _LONGEST)
    smoothing = fewer * _SMOOTHING
    made = Plan(
        preset="scaled",
        mechanism="independent",
        sampler="structured" if q > 1 else "sphere",
        sharing="block",
        records=records,
        dim=dim,
        horizon=horizon,
        period=1,
        rounds=rounds,
        first_batch=batch,
        diff_batch=batch,
        directions=q,
        smoothing=smoothing,
        radius=smoothing + horizon * reach,
        reach=reach,
        # Coefficients are (d/q) c_j: of a slope of length 1, about sqrt(d/q) long.
        bounds=Clip(math.sqrt(dim / q)),
        lipschitz=None,
        gap=None,
        privacy=privacy,
        looks=Finder.looks,
        look_directions=shape[0],
        look_batch=shape[1],
        curve=CURVE,
    )
    return finished(made, after=_notes(made))


def _steps(dim: int, records: int, rho: float) -> int:
    """Steps such that noise does not drown each of them, if every step takes all records."""
    drowned = 2.0 * math.sqrt(_STEPS * dim) / (records * rho)
    return round(min(max(_STEPS * (_DROWNED / drowned) ** 2, _FEWEST_STEPS), _STEPS))


def _sizes(
    wanted: int, fixed: bool, records: int, evaluations: int, steps: int
) -> tuple[int, int, int]:
    """Directions, records in a step and steps, within the evaluations."""
    for_each = evaluations // (2 * steps)  # records x directions in a step
    if for_each < 1:
        steps, for_each = max(1, evaluations // 2), 1
    q = wanted if fixed else max(1, min(wanted, for_each // records))
    if not fixed and for_each < _FEWEST_DIRECTIONS * records:
        # Rather a part of the records than too few directions for each.
        q = min(wanted, _FEWEST_DIRECTIONS, for_each)
        q = 1 if evaluations <= 4 * records else q  # questions to people: a pair for each
    batch = max(1, min(records, for_each // q))
    return q, batch, steps


def _look_shape(dim: int, records: int, evaluations: int) -> tuple[int, int]:
    """Directions and records of a look: the axes and everybody, if that is cheap enough."""
    room = _LOOKING * evaluations / Finder.looks
    for directions in (dim, *(few for few in _FEW_LOOK_DIRECTIONS if few < dim)):
        if records * (1 + 2 * directions) <= room:
            return directions, records
    few = min(dim, _FEW_LOOK_DIRECTIONS[1])
    return few, max(1, min(records, int(room // (1 + 2 * few))))


def _notes(plan: Plan) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    share = plan.curve**2 / (1 + plan.curve**2)
    return (
        f"{plan.rounds * plan.horizon} steps fall from {plan.reach:.3g} to 0 natural units; about "
        f"{plan.evaluations:,} evaluations of the loss; {share:.0%} of each step's budget shows the "
        "mean loss.",
        f"{plan.looks} looks, with {LOOKS_SHARE:.0%} of rho^2, find the unit of the loss and the "
        "length of each parameter's unit.",
    )
