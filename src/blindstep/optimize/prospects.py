"""Plans that cannot work, found before anything is spent.

Of m steps, each released with noise of standard deviation s on each of k coordinates, the mean has
noise of norm s sqrt(k / m), and no signal in it is longer than the clip norm C. So for all losses and
data these are hopeless:

    one coordinate:   s / (C sqrt(m)) > 1            even records that all agree on it are outweighed
    all of them:      s sqrt(k) / (C sqrt(m)) > 10   a tenth of a step, at most, is the records' doing

With full batches s / (C sqrt(m)) = 2 / (records rho), whatever the number of steps. Noise of steps
that share some is larger than that of a mean of independent ones: the quotients are lower bounds, so
that a warning is right. A plan without a warning may fail all the same.
"""

from __future__ import annotations

import math
import warnings

from blindstep.errors import HopelessPlan
from blindstep.optimize.plan import Plan

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
        f"signal is longer than that. Give about {short:.2g} times as many records, or as large a rho "
        f"(now {plan.rho:.3g}), larger batches, or fewer parameters or directions.",
    )


def _stuck(plan: Plan, rounding: float) -> tuple[str, ...]:
    if plan.looks:  # such a plan finds the lengths of its steps itself
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
