"""Plans as JSON: choices, and the numbers that follow from them, which a reader works out anew.

A file cannot say how much noise there is: its `noise_std` is compared with what its choices give, and
a plan with another one is refused.

A plan in words: the rows of its table, and what it certifies.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from blindstep.errors import InvalidArgument, count, finite
from blindstep.estimate.bounds import Bounds
from blindstep.ledger import files
from blindstep.optimize.learners import ConstantStep, Learner, learner_from_dict, learner_to_dict
from blindstep.planning import bound
from blindstep.planning.estimates import ESTIMATES, Calibration, Estimate, StartComparison
from blindstep.private.statement import Privacy

if TYPE_CHECKING:
    from blindstep.planning.plan import Plan


_BUDGET = ("epsilon", "delta", "mu", "neighbours")
_NUMBERS = (
    *("oracle", "passes", "step", "sensitivity", "noise_std", "release_std_max"),
    *("release_std_mean", "epsilon", "delta", "mu", "secrecy", "certifies", "tolerance", "vacuous"),
)
# Another machine may round the last digits in another way; a run uses its own, not those in the file.
_ROUNDING = 1e-6
_REMEDY = "make it anew with blindstep.plan, or restore the file that to_json wrote"


def choices_of(plan: Plan) -> dict[str, Any]:
    """The fields of a plan, ready for JSON; bounds not in force are left out."""
    made = asdict(plan)
    made["bounds"] = {
        name: list(at) if isinstance(at, tuple) else at
        for name, at in made["bounds"].items()
        if at is not None and at != math.inf
    }
    made["estimate"] = {"kind": plan.estimate.kind, **made["estimate"]}
    if plan.calibration is not None:
        made["calibration"]["leaves"] = list(plan.calibration.leaves)
    made["notes"] = list(plan.notes)
    made["learner"] = None if plan.learner is None else learner_to_dict(plan.learner)
    return made


def numbers_of(plan: Plan) -> dict[str, Any]:
    """The numbers that follow from a plan's choices, for people."""
    return {name: getattr(plan, name) for name in _NUMBERS}


def read(text: str, plan_type: type[Plan]) -> Plan:
    """The plan that `Plan.to_json` wrote.

    Unknown names, missing ones, values of another type and numbers that do not follow from the
    choices are refused.
    """
    try:
        raw = files.parse(text)
    except ValueError as error:
        raise _refused(str(error)) from error
    if not isinstance(raw, dict):
        raise _refused("it is no JSON object")
    hints = get_type_hints(plan_type)
    names = {*hints, *_NUMBERS}
    if raw.keys() != names:
        missing, unknown = sorted(names - raw.keys()), sorted(raw.keys() - names)
        raise _refused(f"missing {missing}, unknown {unknown}")
    fields = {name: _value(name, raw[name], hint) for name, hint in hints.items()}
    made = plan_type(**fields)
    with np.errstate(all="ignore"):  # numbers that are none are refused like other wrong ones
        numbers = numbers_of(made)
    for name, number in numbers.items():
        if not _agree(raw[name], number):
            raise _refused(
                f"{name} is {raw[name]!r} there, and {number!r} follows from the choices"
            )
    return made


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument(f"this is not a plan ({reason}): {_REMEDY}.")


def _agree(told: Any, number: Any) -> bool:
    """Whether a value in a file is the one that follows, up to rounding."""
    if isinstance(number, float) and isinstance(told, float):
        return math.isclose(told, number, rel_tol=_ROUNDING)
    return type(told) is type(number) and told == number


def _value(name: str, value: Any, hint: Any) -> Any:
    """The value as a field of this type has it."""
    if hint is int:
        return count(name, value, 0)
    if hint is float or (hint == float | None and value is not None):
        return finite(name, value)
    if hint is Privacy and isinstance(value, dict) and value.keys() == set(_BUDGET):
        epsilon, delta, mu = (finite(each, value[each]) for each in _BUDGET[:3])
        return _privacy(epsilon, delta, mu, value["neighbours"])
    if hint == Estimate and isinstance(value, dict) and value.get("kind") in ESTIMATES:
        parts = {each: part for each, part in value.items() if each != "kind"}
        return _record(name, parts, ESTIMATES[value["kind"]])
    for part in (Calibration, StartComparison):
        if hint == part | None and isinstance(value, dict):
            return _record(name, value, part)
    if hint is Bounds and isinstance(value, dict) and value.keys() <= Bounds.__annotations__.keys():
        return Bounds(**{each: _bound(each, at) for each, at in value.items()})
    for each_hint in (str, int):
        if hint == tuple[each_hint, ...] and isinstance(value, list):
            return tuple(_value(name, each, each_hint) for each in value)
    if hint is bool and isinstance(value, bool):
        return value
    if (hint == float | None) or (hint is str and isinstance(value, str)):
        return value
    if hint == Learner | None and isinstance(value, dict):
        return learner_from_dict(value)
    if hint in (Calibration | None, StartComparison | None, Learner | None) and value is None:
        return None
    raise _refused(f"{name} cannot be {value!r}")


def _bound(name: str, value: Any) -> Any:
    """A limit: a number, or the two of a range."""
    if isinstance(value, list):
        return tuple(finite(name, each) for each in value)
    return finite(name, value)


def _record(name: str, value: dict[str, Any], kind: type[Any]) -> Any:
    """A part of a plan, of a type that has fields of its own."""
    hints = {each.name: get_type_hints(kind)[each.name] for each in fields(kind)}
    if value.keys() != hints.keys():
        raise _refused(f"{name} has {sorted(value)}, and not {sorted(hints)}")
    return kind(**{each: _value(each, value[each], hint) for each, hint in hints.items()})


def _privacy(epsilon: float, delta: float, mu: float, neighbours: str) -> Privacy:
    """The budget of these three numbers, which was made from mu or from epsilon."""
    by_mu = Privacy(mu=mu, delta=delta, neighbours=neighbours)
    if not math.isclose(by_mu.epsilon, epsilon, rel_tol=_ROUNDING):
        raise _refused(f"epsilon {epsilon:g} is not what mu {mu:g} gives at delta {delta:g}")
    if by_mu.epsilon == epsilon:
        return by_mu
    by_epsilon = Privacy(epsilon, delta, neighbours=neighbours)
    return by_epsilon if by_epsilon.mu == mu else by_mu


def verdict(plan: Plan) -> tuple[str, ...]:
    """What is certified about stationarity, for whose F, and what that is made of, in sentences."""
    parts, why_not = plan.bound, bound.obstacle(plan)
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


def _batches(plan: Plan) -> str:
    if not plan.schedule.secret:
        return "B1: records of a GRAD"
    return f"B1, about: one of {plan.schedule.blocks_per_pass} steps a pass for each, in secret"


def rows(plan: Plan) -> list[tuple[str, str, str]]:
    """The plan as (name, value, meaning): what a table shows."""
    step = (
        plan.chosen_learner.name
        if not isinstance(plan.chosen_learner, ConstantStep) or plan.step is None
        else f"{plan.step:.4g}"
    )
    tolerance = "nothing certified" if plan.tolerance is None else f"{plan.tolerance:.4g}"
    if plan.vacuous:
        tolerance += "  (vacuous: no better than L)"
    whose = "bound on the Goldstein norm, in expectation"
    if plan.certifies is not None:
        whose += f", for {_whose(plan)}"
    made_of = f"{plan.sampler} directions for each {plan.sharing}"
    if plan.differentiates:
        made_of = "the gradient of each record"
    return [
        ("method", plan.method, f"{plan.oracle} oracle, {made_of}"),
        ("records", f"{plan.records:,}", "people in the data set"),
        ("dim", f"{plan.dim:,}", "parameters"),
        ("horizon", f"{plan.horizon:,}", f"T: steps in a round, a GRAD every {plan.period:,}"),
        ("rounds", f"{plan.rounds:,}", f"K, in {plan.passes} pass(es) over the records"),
        ("first_batch", f"{plan.first_batch:,}", _batches(plan)),
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
        ("mu", f"{plan.privacy.mu:.6g}", f"budget; the run spends mu = {plan.mu:.6g}"),
        ("epsilon", f"{plan.epsilon:.6g}", f"at delta = {plan.delta:g}, {plan.privacy.neighbours}"),
        ("radius", f"{plan.radius:.4g}", "Goldstein radius of the answer"),
        ("tolerance", tolerance, whose),
    ]
