"""What plans in natural units share: steps that show the loss, and a share of the budget for scales.

In natural units a record's slopes at the start are about 1 long, and its loss is about 1.
"""

from __future__ import annotations

import math

from blindstep.estimate.bounds import Bounds
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.gradients import COST
from blindstep.estimate.scales import ScaleFinder
from blindstep.optimize.learners import Learner
from blindstep.planning.estimates import Calibration, Estimate, StartComparison
from blindstep.planning.method import Problem
from blindstep.planning.plan import Plan, finished

# sqrt(4%) of a step's budget shows the mean loss.
CURVE = 0.2
ROUNDS = 16
# The share of mu^2 that calibrations along the axes spend: a run with the rest has 8% more noise.
# Others show histograms alone: they spend what brings noise on these down to 0.04, and at most 6%.
_CALIBRATION_SHARE, _CALIBRATION_NOISE, _FAINT_SHARE = 0.15, 0.04, 0.06
# The most noise in which a histogram for each leaf is worth having.
LEAF_NOISE = 0.08
# The share of the evaluations that calibrations may take.
CALIBRATION_EVALUATIONS = 0.4


def in_natural_units(
    name: str,
    problem: Problem,
    estimate: Estimate,
    calibration: Calibration,
    *,
    bounds: Bounds,
    rounds: int,
    horizon: int,
    batch: int,
    reach: float,
    learner: Learner,
    comparison: StartComparison | None = None,
    secret: bool = False,
) -> Plan:
    """A plan with calibrations, then steps, each of which shows the loss as well."""
    made = Plan(
        method=name,
        estimate=estimate,
        mechanism="independent",
        records=problem.records,
        dim=problem.dim,
        horizon=horizon,
        period=1,
        rounds=rounds,
        first_batch=batch,
        diff_batch=batch,
        radius=getattr(estimate, "smoothing", 0.0) + horizon * reach,
        reach=reach,
        bounds=bounds,
        lipschitz=None,
        gap=None,
        privacy=problem.privacy,
        natural_units=True,
        calibration=calibration,
        curve=CURVE,
        learner=learner,
        comparison=comparison,
        secret=secret,
    )
    return finished(made, after=_notes(made, calibration))


def calibration_share(calibration: CalibrationQuery, batch: int, mu: float) -> float:
    """The share of mu^2 for the calibrations.

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
    """Noise on a place of a histogram, if calibrations of the same records spend all that they may."""
    return (
        2.0
        * calibration.clip
        * math.sqrt(ScaleFinder.calibrations / _CALIBRATION_SHARE)
        / (batch * mu)
    )


def _notes(plan: Plan, calibration: Calibration) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    curve = plan.curve**2 / (1 + plan.curve**2)
    counted = f" (a gradient counts as {COST})" if plan.differentiates else ""
    return (
        f"{plan.rounds * plan.horizon} steps {_lengths(plan)}; about "
        f"{plan.evaluations:,} evaluations of the loss{counted}; {curve:.0%} of each step's budget "
        "shows the mean loss.",
        f"{calibration.number} calibrations, with {calibration.share:.0%} of mu^2, find the unit of "
        "the loss and the length of each parameter's unit.",
        *_compared(plan.comparison),
    )


def _lengths(plan: Plan) -> str:
    lengths = f"fall from {plan.reach:.3g} to 0 natural units"
    return f"{lengths}, and grow or shrink as gradients agree" if plan.heeds else lengths


def _compared(comparison: StartComparison | None) -> tuple[str, ...]:
    if comparison is None:
        return ()
    return (
        f"{comparison.number} releases, with {comparison.share:.0%} of mu^2, compare what was found "
        "with the start.",
    )
