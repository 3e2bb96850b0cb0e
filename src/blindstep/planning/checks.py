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
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING

from blindstep.errors import (
    HopelessPlan,
    InvalidArgument,
    LargeDelta,
    count,
    finite,
    positive,
    warn,
)
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Signs
from blindstep.ledger.budget import Privacy
from blindstep.private.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from blindstep.planning.plan import Plan


_COUNTS = ("records", "dim", "horizon", "period", "rounds", "first_batch", "diff_batch")
_AMOUNTS = ("radius", "reach", "lipschitz", "gap")
# The largest amount, and one over the smallest: quotients of a user's amounts and counts fit.
_MOST = 1e60


def check(plan: Plan) -> None:
    """Raise unless a run can be made of the plan's choices; makes its numbers Python's own."""
    MECHANISMS.find(plan.mechanism)
    plain_numbers(plan, _COUNTS, _AMOUNTS, _MOST)
    moderate_bounds(plan.bounds, _MOST)
    if plan.differentiates:
        _check_gradients(plan)
    elif plan.sampler == Signs.name and not plan.natural_units:
        raise InvalidArgument(
            "sampler signs is for networks, whose plans are in natural units: give another one."
        )
    if not 0.0 <= finite("curve", plan.curve) <= 1.0 or (plan.curve and not _has_room(plan)):
        raise InvalidArgument(
            f"curve {plan.curve:g}: a weight from 0 to 1, in a plan of GRADs alone (period 1) along "
            "shared directions or by differentiating, with a clip. Leave it out."
        )
    if plan.calibration is not None and sum(plan.calibration.leaves) != plan.dim:
        raise InvalidArgument("the leaves of a calibration must add up to dim.")
    if plan.secret and (plan.period > 1 or plan.by_corollary):
        raise InvalidArgument(
            "secret batches are for steps whose noise is independent, not for a block of "
            f"{plan.period} releases that share theirs: fix period 1, or leave batches public."
        )
    if plan.windows and (plan.sharing != "record" or plan.secret):
        raise InvalidArgument(
            "windows are for people who are asked, each along a direction of their own: method "
            "questions, without secret batches."
        )
    if plan.horizon % plan.period:
        raise InvalidArgument(
            f"horizon {plan.horizon} is not a multiple of the period {plan.period}: a round is "
            "a whole number of blocks. Change one of them."
        )


def _has_room(plan: Plan) -> bool:
    """Whether the loss can be a coordinate of a record's vector."""
    clipped = plan.bounds.clip < math.inf
    apart = plan.differentiates or plan.sharing == "block"
    return plan.period == 1 and apart and clipped


def _check_gradients(plan: Plan) -> None:
    """Raise unless the plan says that nothing is certified."""
    for name in ("lipschitz", "gap"):
        if getattr(plan, name) is not None:
            raise InvalidArgument(
                f"a plan of gradients has {name} None, got {getattr(plan, name)!r}: nothing is "
                "certified."
            )
    plan.bounds.require_finite(needs_diff=plan.period > 1, by_slope=True)


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise unless the value is one of the known names."""
    if value not in tuple(known):
        raise InvalidArgument(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def plain_numbers(
    record: object, counts: Iterable[str], amounts: Iterable[str], most: float = 1e30
) -> None:
    """Check the numbers of a frozen record and make them Python's own; those not given stay None."""
    for name in counts:
        value = getattr(record, name)
        if value is not None:
            plain_count(record, name)
    for name in amounts:
        if (value := getattr(record, name)) is not None:
            object.__setattr__(record, name, moderate(name, value, most))


def moderate(name: str, value: object, most: float = 1e30) -> float:
    """The amount as a float; raises unless its powers and products are numbers too."""
    number = value if type(value) is float and value > 0 else positive(name, value)
    if not 1 / most <= number <= most:
        raise InvalidArgument(
            f"{name} must lie between {1 / most:g} and {most:g}, got {value!r}: change the unit that "
            "it is in."
        )
    return number


def moderate_bounds(bounds: object, most: float = 1e30) -> None:
    """Raise unless these are bounds, and those in force are moderate."""
    if not isinstance(bounds, Bounds):
        raise InvalidArgument(
            f"bounds must be blindstep.Bounds, such as bounds=Bounds(clip=1.0), got {bounds!r}."
        )
    for name, value in bounds.in_force.items():
        moderate(name, value, most)


def plain_count(record: object, name: str) -> None:
    """Check a whole number of a frozen record and make it Python's own."""
    value = getattr(record, name)
    if type(value) is not int or not 0 < value < 2**63:
        object.__setattr__(record, name, count(name, value))


def check_privacy(privacy: object) -> None:
    """Raise unless this is a budget."""
    if not isinstance(privacy, Privacy):
        raise InvalidArgument(
            f"privacy must be a budget such as Privacy(epsilon=4, delta=1e-5), got {privacy!r}."
        )


def check_delta(privacy: Privacy | None, records: int, name: str = "privacy") -> None:
    """Raise if delta >= 1 / records; warn (`LargeDelta`) if delta > 0.1 / records.

    A program that publishes one record, chosen at random, with probability p is (0, p / records)-DP.
    So delta = 1 / records forbids nothing, and 0.1 / records allows it one time in ten.

    Only a delta that is spent counts: that of a budget given as epsilon. A budget given as mu is met
    exactly, for every delta at once, and its delta is merely where epsilon is quoted. `name` is the
    argument that the budget came in.
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
    warn(
        f"{given}, which is above 0.1 / records = {0.1 / records:.3g}: publishing one record at random "
        f"with probability {float(share):.2g} would meet it. {remedy}",
        LargeDelta,
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
        warn(doubt, HopelessPlan)


def _drowned(plan: Plan) -> tuple[str, ...]:
    steps = plan.rounds * plan.horizon
    clip = plan.clips[0]
    one = plan.release_std_mean / (clip * math.sqrt(steps))
    every = one * math.sqrt(plan.size)
    # A run that finds its own scales has nothing else to go by.
    most = _ALL if plan.calibration is None else _ONE
    if one <= _ONE and every <= most:
        return ()
    short = max(one / _ONE, every / most)
    begins = plan.records * max(short, every * math.sqrt(steps) / 2.0)
    coordinates = "" if one > _ONE else f" over {plan.size:,} coordinates"
    return (
        f"noise outweighs whatever {plan.records:,} records can say: averaged over all {steps:,} steps "
        f"it is {one if one > _ONE else every:.3g} times the clip norm {clip:.3g}{coordinates}, and no "
        f"signal is longer than that. This warning ends at about {math.ceil(plan.records * short):,} "
        f"records, and learning begins at about {math.ceil(begins):,}; or give as much larger a mu "
        f"(now {plan.privacy.mu:.3g}), larger batches, or fewer parameters or directions.",
    )


def _stuck(plan: Plan, rounding: float) -> tuple[str, ...]:
    if plan.calibration is not None:  # such a plan finds the lengths of its steps itself
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
