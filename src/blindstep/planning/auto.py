"""The plan of a run that finds its scales itself: one setting for all problems, in natural units.

What is left to choose follows from the sizes and the budget:

- steps T: 64 up to 144 parameters, then as sqrt(d) up to 160, and fewer where noise would drown each
  of them. With all records in every step the noise on a gradient is 2 sqrt(T d) / (n mu) clips long;
  T is such that this is at most 0.8, and at least 20.
- clip: such that the noise on a gradient is 0.06 long, where a record's slopes at the start are 1 long;
  at least 0.45, since much less would count the slopes of all records as equally long, and at most 8.
  A clip that bites leads to the answer of another loss.
- reach: 1.6 up to 144 parameters, then as sqrt(d) up to 3, and more in fewer steps, as T^-0.4. In
  noise a path of T steps gets sqrt(T) x reach far, in a random direction, of which a record feels one
  part in sqrt(d).
- directions q: as many as the evaluations allow, at most d. More directions in fewer steps always
  show more of the gradient at the same noise.
- records in a step: all, unless even a few directions for each would take too many evaluations.
- gradients instead of directions: what all d directions would show, at the cost of 3 evaluations. All
  else is the same, looks included, so that two runs differ in their estimate alone.

The reasons are in docs/decisions.md; `python -m benchmarks.utility` measures how good it is.
"""

from __future__ import annotations

import math

from blindstep.errors import InvalidArgument, count
from blindstep.estimate.bounds import Bounds, Clip
from blindstep.estimate.calibration import MOST_PRODUCTS, CalibrationQuery
from blindstep.estimate.comparison import RELEASES
from blindstep.estimate.gradients import COST
from blindstep.estimate.scales import ScaleFinder
from blindstep.planning.choices import GRADIENT, NO_DIRECTIONS, VALUES
from blindstep.planning.plan import Plan, finished
from blindstep.private.statement import Privacy

# All in natural units: a record's slopes are about 1 long, its loss at the start is about 1.
_STEPS, _MOST_STEPS, _FEWEST_STEPS, _DROWNED = 64, 160, 20, 0.8
_SHORTEST, _LONGEST, _SMOOTHING, _CLIP = 1.6, 3.0, 0.5, 0.45
# Where there is little noise, the clip is such that noise is so long; but no larger than that.
_NOISE, _LARGEST_CLIP = 0.06, 8.0
# Up to so many parameters a plan does not depend on their number.
_FEW = 144
# sqrt(4%) of a step's budget shows the mean loss.
CURVE = 0.2
ROUNDS = 16
_FEWEST_DIRECTIONS = 8
# The share of mu^2 that looks along the axes spend: a run with the rest has 8% more noise. Others show
# histograms alone: they spend what brings noise on these down to 0.04, and at most 6%.
_CALIBRATION_SHARE, _CALIBRATION_NOISE, _FAINT_SHARE = 0.15, 0.04, 0.06
# The most noise in which a histogram for each leaf is worth having.
LEAF_NOISE = 0.08
# The share of the evaluations that looks may take.
CALIBRATION_EVALUATIONS = 0.25
_FEW_CALIBRATION_DIRECTIONS = (16, 4, 1)
EVALUATIONS = 2**24
# The share of mu^2 that the comparison with the start spends, and the evaluations that it may take.
_COMPARISON_SHARE, _COMPARISON_EVALUATIONS = 0.1, 0.1
_CANDIDATES = 2


def plan_auto(
    *,
    dim: int,
    records: int,
    privacy: Privacy,
    evaluations: int | None = None,
    passes: int | None = None,
    directions: int | None = None,
    leaves: tuple[int, ...] | None = None,
    estimate: str = VALUES,
) -> Plan:
    """The plan for `records` records and `dim` parameters.

    Args:
        dim: number of parameters.
        records: number of records.
        privacy: the budget of everything.
        evaluations: the most evaluations of the loss; 2^24 if left out.
        passes: the most times that the steps go through the records.
        directions: directions in each step.
        leaves: the sizes of the arrays that the parameters are made of, in their order.
        estimate: whether a record's vector is made of "values" of its loss or is its "gradient".
    """
    dim, records = count("dim", dim), count("records", records)
    differentiates = estimate == GRADIENT
    if differentiates and directions is not None:
        raise InvalidArgument(
            f"directions={directions!r} beside estimate='gradient', which draws none: leave out one of "
            "the two."
        )
    most = count("evaluations", EVALUATIONS if evaluations is None else evaluations)
    calibration, calibration_batch = _calibration_query(
        dim, records, most, privacy.mu, leaves or (dim,)
    )
    spent = ScaleFinder.calibrations * calibration_batch * calibration.evaluations
    compared = _comparison_batch(records, most)
    spent += RELEASES * compared * (1 + _CANDIDATES)
    share = calibration_share(calibration, calibration_batch, privacy.mu)
    wide = max(1.0, math.sqrt(dim / _FEW))
    most_steps = min(round(_STEPS * wide), _MOST_STEPS)
    steps = _steps(dim, records, privacy.mu * math.sqrt(1 - share - _COMPARISON_SHARE), most_steps)
    if differentiates:  # as long as COST / 2 pairs of values
        pairs = 2 * (most - spent) // COST
        _, batch, steps = _sizes(1, True, records, pairs, steps)
        q = dim
    else:
        wanted = dim if directions is None else count("directions", directions)
        q, batch, steps = _sizes(wanted, directions is not None, records, most - spent, steps)
    if passes is not None:
        steps = max(1, min(steps, count("passes", passes) * (records // batch)))
    horizon = max(1, steps // ROUNDS)
    rounds = max(1, steps // horizon)
    fewer = (most_steps / (rounds * horizon)) ** 0.4
    reach = fewer * min(_SHORTEST * wide, _LONGEST)
    smoothing = fewer * _SMOOTHING
    # Coefficients are (d/q) c_j: of a slope of length 1, about sqrt(d/q) long.
    mu_of_steps = privacy.mu * math.sqrt(1 - share - _COMPARISON_SHARE)
    clip = _clip(dim, math.sqrt(records * batch) * mu_of_steps, rounds * horizon)
    bounds = Clip(clip * math.sqrt(dim / q))
    given = (dim, records, privacy, calibration, calibration_batch, share, rounds, horizon, batch)
    given = (*given, compared)
    if differentiates:
        none = (0, reach, 0.0, bounds, NO_DIRECTIONS)
        return in_natural_units(*given, *none, sharing="record", estimate=estimate)
    sampler = "structured" if q > 1 else "sphere"
    return in_natural_units(*given, q, reach, smoothing, bounds, sampler)


def in_natural_units(
    dim: int,
    records: int,
    privacy: Privacy,
    calibration: CalibrationQuery,
    calibration_batch: int,
    calibration_share: float,
    rounds: int,
    horizon: int,
    batch: int,
    comparison_batch: int,
    directions: int,
    reach: float,
    smoothing: float,
    bounds: Bounds,
    sampler: str,
    sides: int = 2,
    sharing: str = "block",
    estimate: str = VALUES,
) -> Plan:
    """A plan with looks, then steps, each of which shows the loss as well."""
    made = Plan(
        preset="auto",
        mechanism="independent",
        sampler=sampler,
        sharing=sharing,
        records=records,
        dim=dim,
        horizon=horizon,
        period=1,
        rounds=rounds,
        first_batch=batch,
        diff_batch=batch,
        directions=directions,
        smoothing=smoothing,
        radius=smoothing + horizon * reach,
        reach=reach,
        bounds=bounds,
        lipschitz=None,
        gap=None,
        privacy=privacy,
        calibrations=ScaleFinder.calibrations,
        calibration_leaves=calibration.leaves,
        calibration_directions=calibration.each,
        calibration_batch=calibration_batch,
        calibration_share=calibration_share,
        curve=CURVE,
        sides=sides,
        estimate=estimate,
        comparisons=RELEASES if comparison_batch else 0,
        comparison_batch=comparison_batch,
        comparison_share=_COMPARISON_SHARE if comparison_batch else 0.0,
    )
    return finished(made, after=_notes(made))


def _steps(dim: int, records: int, mu: float, most: int) -> int:
    """Steps such that noise does not drown each of them, if every step takes all records."""
    drowned = 2.0 * math.sqrt(most * dim) / (records * mu)
    return round(min(max(most * (_DROWNED / drowned) ** 2, _FEWEST_STEPS), most))


def _clip(dim: int, heard: float, steps: int) -> float:
    """The clip: as large as leaves noise a small part of a step, within limits.

    The noise on a gradient is 2 sqrt(T d) / `heard` clips long, and `heard` n mu with all n records in
    every step.
    """
    return min(max(_NOISE * heard / (2.0 * math.sqrt(steps * dim)), _CLIP), _LARGEST_CLIP)


def calibration_share(calibration: CalibrationQuery, batch: int, mu: float) -> float:
    """The share of mu^2 for the looks.

    Shares and products of slopes are worth all that there may be; histograms are read well enough in
    little noise.
    """
    if calibration.axes:
        return _CALIBRATION_SHARE
    least = (
        _CALIBRATION_SHARE * (calibration_noise(calibration, batch, mu) / _CALIBRATION_NOISE) ** 2
    )
    return min(least, _FAINT_SHARE)


def calibration_noise(calibration: CalibrationQuery, batch: int, mu: float) -> float:
    """Noise on a place of a histogram, if looks spend all that they may, each on the same records."""
    return (
        2.0
        * calibration.clip
        * math.sqrt(ScaleFinder.calibrations / _CALIBRATION_SHARE)
        / (batch * mu)
    )


def _comparison_batch(records: int, evaluations: int) -> int:
    """Records that compare what was found with the start: all, if that is cheap enough."""
    room = _COMPARISON_EVALUATIONS * evaluations / (RELEASES * (1 + _CANDIDATES))
    return max(1, min(records, int(room)))


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


def _calibration_query(
    dim: int, records: int, evaluations: int, mu: float, leaves: tuple[int, ...]
) -> tuple[CalibrationQuery, int]:
    """A look and how many records it asks.

    Of few parameters the axes and everybody, if that is cheap enough. Of more a few directions in each
    leaf, if noise lets a histogram for each be read; else a few in all of them.
    """
    room = CALIBRATION_EVALUATIONS * evaluations / ScaleFinder.calibrations
    kinds = [CalibrationQuery((dim,), dim)]
    if dim > MOST_PRODUCTS and len(leaves) > 1:
        kinds = [CalibrationQuery(leaves, few) for few in _FEW_CALIBRATION_DIRECTIONS]
        kinds = [
            calibration
            for calibration in kinds
            if calibration_noise(calibration, records, mu) <= LEAF_NOISE
        ]
    kinds += [CalibrationQuery((dim,), few) for few in _FEW_CALIBRATION_DIRECTIONS if few < dim]
    for calibration in kinds:
        if records * calibration.evaluations <= room:
            return calibration, records
    calibration = CalibrationQuery((dim,), min(dim, _FEW_CALIBRATION_DIRECTIONS[1]))
    return calibration, max(1, min(records, int(room // calibration.evaluations)))


def _notes(plan: Plan) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    curve = plan.curve**2 / (1 + plan.curve**2)
    counted = f" (a gradient counts as {COST})" if plan.estimate == GRADIENT else ""
    return (
        f"{plan.rounds * plan.horizon} steps {_lengths(plan)}; about "
        f"{plan.evaluations:,} evaluations of the loss{counted}; {curve:.0%} of each step's budget "
        "shows the mean loss.",
        f"{plan.calibrations} looks, with {plan.calibration_share:.0%} of mu^2, find the unit of the loss and the "
        "length of each parameter's unit.",
        *_compared(plan),
    )


def _lengths(plan: Plan) -> str:
    lengths = f"from {plan.reach:.3g} to 0 natural units"
    return (
        f"fall {lengths}, and grow or shrink as gradients agree"
        if plan.heeds
        else f"fall {lengths}"
    )


def _compared(plan: Plan) -> tuple[str, ...]:
    if not plan.comparisons:
        return ()
    return (
        f"{plan.comparisons} releases, with {plan.comparison_share:.0%} of mu^2, compare what was "
        "found with the start.",
    )
