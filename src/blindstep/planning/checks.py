"""What the choices of a plan must be, each alone and together.

Whether a budget's delta is small enough for the number of records.

Plans that cannot work, found before anything is spent.

Of m steps, each released with noise of standard deviation s on each of k coordinates, the mean has
noise of norm s sqrt(k / m), and no signal in it is longer than the clip norm C. So for all losses and
data these are hopeless:

    one coordinate:   s / (C sqrt(m)) > 1            even records that all agree on it are outweighed
    all of them:      s sqrt(k) / (C sqrt(m)) > 10   a tenth of a step, at most, is the records' doing

With full batches s / (C sqrt(m)) = 2 / (records mu), whatever the number of steps. Noise of steps
that share some is larger than that of a mean of independent ones: the quotients are lower bounds, so
that a warning is right. A plan without a warning may fail all the same.
"""

from __future__ import annotations

import math
import warnings
from decimal import Decimal
from typing import TYPE_CHECKING

from blindstep.errors import HopelessPlan, InvalidArgument, LargeDelta, count, finite
from blindstep.estimate.directions import Signs
from blindstep.optimize.prefix import MECHANISMS
from blindstep.planning.choices import (
    AUTO_SAMPLERS,
    ESTIMATES,
    GRADIENT,
    NO_DIRECTIONS,
    PRESETS,
    SAMPLERS,
    SHARINGS,
    moderate_bounds,
    one_of,
    plain_numbers,
)
from blindstep.private.statement import Privacy

if TYPE_CHECKING:
    from blindstep.planning.plan import Plan


_COUNTS = ("records", "dim", "horizon", "period", "rounds", "first_batch", "diff_batch")
_AMOUNTS = ("radius", "reach", "lipschitz", "gap")
# The largest amount, and one over the smallest: quotients of a user's amounts and counts fit.
_MOST = 1e60


def check(plan: Plan) -> None:
    """Raise unless a run can be made of the plan's choices; makes its numbers Python's own."""
    one_of("preset", plan.preset, PRESETS)
    one_of("mechanism", plan.mechanism, MECHANISMS)
    one_of("estimate", plan.estimate, ESTIMATES)
    one_of("sharing", plan.sharing, SHARINGS)
    plain_numbers(plan, _COUNTS, _AMOUNTS, _MOST)
    if plan.estimate == GRADIENT:
        _check_gradients(plan)
    else:
        scaled = plan.preset == "auto"
        one_of("sampler", plan.sampler, AUTO_SAMPLERS if scaled else SAMPLERS)
        plain_numbers(plan, ("directions",), ("smoothing",), _MOST)
    moderate_bounds(plan.bounds, _MOST)
    for name in (
        "calibrations",
        "calibration_directions",
        "calibration_batch",
        "comparisons",
        "comparison_batch",
    ):
        count(name, getattr(plan, name), 0)
    if not 0.0 <= finite("curve", plan.curve) <= 1.0 or (plan.curve and not _has_room(plan)):
        raise InvalidArgument(
            f"curve {plan.curve:g}: a weight from 0 to 1, in a plan of GRADs alone (period 1) along "
            "shared directions or by differentiating, with a clip. Leave it out."
        )
    if not 0.0 <= finite("calibration_share", plan.calibration_share) < 1.0:
        raise InvalidArgument(f"look_share {plan.calibration_share:g}: a share from 0 to below 1.")
    if not 0.0 <= finite("comparison_share", plan.comparison_share) < 1.0 - plan.calibration_share:
        raise InvalidArgument(
            f"comparison_share {plan.comparison_share:g}: looks and comparison together leave nothing."
        )
    if (plan.comparisons > 1) != (plan.comparison_batch * plan.comparison_share > 0):
        raise InvalidArgument(
            "comparisons (at least 2), comparison_batch and comparison_share go together: give all."
        )
    for leaf in plan.calibration_leaves:
        count("calibration_leaves", leaf)
    if plan.sides != 2 and (plan.sides != 1 or plan.sampler != Signs.name):
        raise InvalidArgument(f"sides must be 2, or 1 along signs, got {plan.sides!r}.")
    if (plan.calibrations > 0) != (
        plan.calibration_directions * plan.calibration_batch * plan.calibration_share > 0
    ):
        raise InvalidArgument(
            "looks, look_directions, look_batch and look_share go together: give all."
        )
    if sum(plan.calibration_leaves) != (plan.dim if plan.calibrations else 0):
        raise InvalidArgument("look_leaves must add up to dim in a plan with looks.")
    if plan.horizon % plan.period:
        raise InvalidArgument(
            f"horizon {plan.horizon} is not a multiple of the period {plan.period}: a round is "
            "a whole number of blocks. Change one of them."
        )


def _has_room(plan: Plan) -> bool:
    """Whether the loss can be a coordinate of a record's vector."""
    clipped = plan.bounds.first_clip < math.inf
    apart = plan.sharing == "block" or plan.estimate == GRADIENT
    return plan.period == 1 and apart and clipped


def _check_gradients(plan: Plan) -> None:
    """Raise unless the plan says that there are no directions and that nothing is certified."""
    fixed = {"sampler": NO_DIRECTIONS, "sharing": "record", "directions": 0, "smoothing": 0.0}
    fixed |= {"sides": 2, "lipschitz": None, "gap": None}
    for name, value in fixed.items():
        if getattr(plan, name) != value:
            raise InvalidArgument(
                f"a plan with estimate 'gradient' has {name} {value!r}, got {getattr(plan, name)!r}: "
                "no directions are drawn, and nothing is certified."
            )
    one_of("preset", plan.preset, ("auto", "tight"))
    plan.bounds.require_finite(needs_diff=plan.period > 1, by_slope=True)


def check_delta(privacy: Privacy | None, records: int, name: str = "privacy") -> None:
    """Raise if delta >= 1 / records; warn (`LargeDelta`) if delta > 0.1 / records.

    A program that publishes one record, chosen at random, with probability p is (0, p / records)-DP.
    So delta = 1 / records forbids nothing, and 0.1 / records allows it one time in ten.

    Only a delta that is spent counts: that of a budget given as epsilon. A budget given as mu is met
    exactly, for every delta at once, and its delta is merely where epsilon is quoted. `name` is the
    argument that the budget came in.

    The warning is attributed to this line, not to the caller's: so Python shows it once for the same
    numbers, although plan, driver and ledger all check.
    """
    if not isinstance(privacy, Privacy) or not privacy.spends_delta:
        return
    # As people write them: 1e-5 for 10,000 records is 0.1 / records, and not a rounding above it.
    share = Decimal(repr(privacy.delta)) * records
    if share <= Decimal("0.1"):
        return
    given = f"{name} has delta {privacy.delta:g} for {records:,} records"
    remedy = f"Give a delta of {fitting_delta(records):g} or less, or a budget in mu."
    if share >= 1:
        raise InvalidArgument(
            f"{given}, which is not below 1 / records = {1 / records:.3g}: publishing one record at "
            f"random would meet it, so it protects nobody. {remedy}"
        )
    warnings.warn(
        f"{given}, which is above 0.1 / records = {0.1 / records:.3g}: publishing one record at random "
        f"with probability {float(share):.2g} would meet it. {remedy}",
        LargeDelta,
        stacklevel=1,
    )


def fitting_delta(records: int) -> float:
    """The largest power of ten that is at most 0.1 / records."""
    return float(f"1e-{1 + math.ceil(math.log10(records))}")


_ONE, _ALL = 1.0, 10.0
# A move shorter than this share of what rounding does to the parameters changes hardly any of them.
_LOST = 0.1


def doubts(plan: Plan, rounding: float = 0.0) -> tuple[str, ...]:
    """Why the plan cannot work, in sentences with numbers and remedies; empty for nearly every plan.

    `rounding` is the norm of what rounding to their own dtype can do to the start parameters.
    """
    return (*_drowned(plan), *_stuck(plan, rounding))


def check_prospects(plan: Plan, rounding: float = 0.0) -> None:
    """Warn (`HopelessPlan`) for each of the plan's `doubts`."""
    for doubt in doubts(plan, rounding):
        # Attributed to this line: Python shows it once, although command and driver both check.
        warnings.warn(doubt, HopelessPlan, stacklevel=1)


def _drowned(plan: Plan) -> tuple[str, ...]:
    steps = plan.rounds * plan.horizon
    clip = plan.clips[0]
    one = plan.release_std_mean / (clip * math.sqrt(steps))
    every = one * math.sqrt(plan.size)
    if one <= _ONE and every <= _ALL:
        return ()
    short = max(one / _ONE, every / _ALL)
    coordinates = "" if one > _ONE else f" over {plan.size:,} coordinates"
    return (
        f"noise outweighs whatever {plan.records:,} records can say: averaged over all {steps:,} steps "
        f"it is {one if one > _ONE else every:.3g} times the clip norm {clip:.3g}{coordinates}, and no "
        f"signal is longer than that. Give about {short:.2g} times as many records, or as large a mu "
        f"(now {plan.privacy.mu:.3g}), larger batches, or fewer parameters or directions.",
    )


def _stuck(plan: Plan, rounding: float) -> tuple[str, ...]:
    if plan.calibrations:  # such a plan finds the lengths of its steps itself
        return ()
    travel = plan.rounds * plan.horizon * plan.reach
    probes = plan.smoothing or travel  # gradients are taken at the point itself
    shortest = min(travel, probes)
    if shortest < _LOST * rounding:
        name = "smoothing" if probes < travel else "the way of all steps"
        return (
            f"{name} is {shortest:.3g}, and rounding moves the start parameters by up to {rounding:.3g}"
            ": moves so short are lost. Give parameters of a longer dtype, such as float64, or a "
            "larger radius, smoothing and reach.",
        )
    if travel < 0.99 * plan.smoothing:
        return (
            f"all {plan.rounds * plan.horizon:,} steps of at most {plan.reach:.3g} lead {travel:.3g} "
            f"away from the start, less than the smoothing {plan.smoothing:.3g}, below which the loss "
            "is not seen: such an answer is as good as the start. Give a larger reach, more passes, "
            "or a smaller smoothing.",
        )
    return ()
