"""A plan in words: the rows of its table, and what it certifies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blindstep.optimize import promise
from blindstep.optimize.choices import GRADIENT

if TYPE_CHECKING:
    from blindstep.optimize.plan import Plan


def verdict(plan: Plan) -> tuple[str, ...]:
    """What is certified about stationarity, for whose F, and what that is made of, in sentences."""
    parts, why_not = plan.bound, promise.obstacle(plan)
    if parts is None or why_not is not None:
        return (why_not or "",)
    sentences = (
        f"Certified for {_whose(plan)}.",
        f"Tolerance {parts.total:.4g} = progress {parts.progress:.3g} + regret "
        f"{parts.regret:.3g} + estimation {parts.estimation:.3g} + noise {parts.noise:.3g} + "
        f"bias {parts.bias:.3g}. The largest part is {parts.largest}.",
    )
    if not plan.vacuous:
        return sentences
    return (
        *sentences,
        f"VACUOUS: the bound {parts.total:.4g} is no better than L = {plan.lipschitz:g}, which "
        "holds at every point: nothing is certified about stationarity with "
        f"{plan.records} records. The privacy guarantee is not affected.",
    )


def _whose(plan: Plan) -> str:
    """The F of the tolerance, with what it takes."""
    if plan.takes_all:
        return "F = the mean over the records: every step takes all of them, whoever they are"
    return "F = the mean over the population, if the records are independent draws from it"


def rows(plan: Plan) -> list[tuple[str, str, str]]:
    """The plan as (name, value, meaning): what a table shows."""
    step = "adaptive" if plan.step is None else f"{plan.step:.4g}"
    tolerance = "nothing certified" if plan.tolerance is None else f"{plan.tolerance:.4g}"
    if plan.vacuous:
        tolerance += "  (vacuous: no better than L)"
    whose = "bound on the Goldstein norm, in expectation"
    if plan.certifies is not None:
        whose += f", for {_whose(plan)}"
    made_of = f"{plan.sampler} directions for each {plan.sharing}"
    if plan.estimate == GRADIENT:
        made_of = "the gradient of each record"
    return [
        ("preset", plan.preset, f"{plan.oracle} oracle, {made_of}"),
        ("records", f"{plan.records:,}", "people in the data set"),
        ("dim", f"{plan.dim:,}", "parameters"),
        ("horizon", f"{plan.horizon:,}", f"T: steps in a round, a GRAD every {plan.period:,}"),
        ("rounds", f"{plan.rounds:,}", f"K, in {plan.passes} pass(es) over the records"),
        ("first_batch", f"{plan.first_batch:,}", "B1: records of a GRAD"),
        ("diff_batch", f"{plan.diff_batch:,}", "B2: records of a DIFF"),
        ("directions", f"{plan.directions:,}", "for each record"),
        ("smoothing", f"{plan.smoothing:.4g}", "radius of the smoothed loss (paper's delta)"),
        ("reach", f"{plan.reach:.4g}", "D: the longest step"),
        ("step", step, "eta of the online learner"),
        ("sensitivity", f"{plan.sensitivity:.4g}", "of the most sensitive increment"),
        ("noise_std", f"{plan.noise_std:.4g}", f"of one draw, {plan.mechanism} mechanism"),
        (
            "release_std",
            f"{plan.release_std_mean:.4g} .. {plan.release_std_max:.4g}",
            "noise on a released gradient per coordinate: mean, worst step",
        ),
        ("rho", f"{plan.rho:.6g}", f"budget; the run spends mu = {plan.mu:.6g}"),
        ("epsilon", f"{plan.epsilon:.6g}", f"at delta = {plan.delta:g}"),
        ("radius", f"{plan.radius:.4g}", "Goldstein radius of the answer"),
        ("tolerance", tolerance, whose),
    ]
