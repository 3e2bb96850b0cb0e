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
from blindstep.ledger.budget import Privacy
from blindstep.optimize.learners import ConstantStep, Learner, learner_from_dict, learner_to_dict
from blindstep.planning import bound
from blindstep.planning.estimates import ESTIMATES, Calibration, Estimate, StartComparison, Watch
from blindstep.private.terms import PRESENCES

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
        if value["neighbours"] not in tuple(PRESENCES):
            raise InvalidArgument(f"{name}: neighbours {value['neighbours']!r} are not known.")
        return _privacy(epsilon, delta, mu, value["neighbours"])
    # In a spoiled file a kind may be a list.
    if hint == Estimate and isinstance(value, dict) and value.get("kind") in tuple(ESTIMATES):
        parts = {each: part for each, part in value.items() if each != "kind"}
        return _record(name, parts, ESTIMATES[value["kind"]])
    for part in (Calibration, StartComparison, Watch):
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
    parts = (Calibration | None, StartComparison | None, Watch | None, Learner | None)
    if hint in parts and value is None:
        return None
    raise _refused(f"{name} cannot be {value!r}")


def _bound(name: str, value: Any) -> Any:
    """A limit: a number, or the two of a range."""
    if name == "range" and isinstance(value, list):
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


def rows(plan: Plan) -> list[tuple[str, str, str]]:
    """The plan as (name, value, meaning): what a table shows.

    A plan in units of the parameters has the paper's symbols in brackets; one that finds its own scales
    has no need of them, and leaves out what it promises nothing about.
    """
    paper = not plan.natural_units

    def also(symbol: str) -> str:
        return f" ({symbol})" if paper else ""

    units = "" if paper else ", in natural units"
    made = [
        ("method", plan.method, _made_of(plan)),
        ("records", f"{plan.records:,}", "people in the data set"),
        ("dim", f"{plan.dim:,}", "parameters"),
        (
            "rounds",
            f"{plan.rounds:,}",
            f"each gives a mean of its points; the last is the answer{also('K')}",
        ),
        ("horizon", f"{plan.horizon:,}", f"steps in a round{also('T')}"),
        ("passes", f"{plan.passes:,}", "over the records"),
        (
            "first_batch",
            f"{plan.first_batch:,}",
            f"people that a step asks{_which(plan)}{also('B1')}",
        ),
    ]
    if plan.period > 1:
        between = f"that the steps between ask; every {plan.period:,}th step asks as above"
        made.append(("diff_batch", f"{plan.diff_batch:,}", f"people {between}{also('B2')}"))
    if not plan.differentiates:
        far = f"how far away the loss is evaluated{units}{also('delta')}"
        made.append(("directions", f"{plan.directions:,}", "along which a step evaluates the loss"))
        made.append(("smoothing", f"{plan.smoothing:.4g}", far))
    made += [
        ("reach", f"{plan.reach:.4g}", f"the longest step{units}{also('D')}"),
        ("step", _step(plan), f"what turns released gradients into steps{also('eta')}"),
        ("sensitivity", f"{plan.sensitivity:.4g}", "the most that one person can move a release"),
        (
            "noise_std",
            f"{plan.noise_std:.4g}",
            f"of the noise of a draw, {plan.mechanism} mechanism",
        ),
        (
            "release_std",
            f"{plan.release_std_mean:.4g} .. {plan.release_std_max:.4g}",
            "noise on a released gradient along each coordinate: usual, largest",
        ),
        ("mu", f"{plan.privacy.mu:.6g}", f"budget; the run spends mu = {plan.mu:.6g}"),
        ("epsilon", f"{plan.epsilon:.6g}", f"at delta = {plan.delta:g}, {plan.privacy.neighbours}"),
    ]
    if not paper:
        return made
    tolerance = "nothing certified" if plan.tolerance is None else f"{plan.tolerance:.4g}"
    if plan.vacuous:
        tolerance += "  (vacuous: no better than L)"
    whose = "bound on the Goldstein norm, in expectation"
    if plan.certifies is not None:
        whose += f", for {_whose(plan)}"
    around = "how far around the answer gradients are averaged (Goldstein radius)"
    return [*made, ("radius", f"{plan.radius:.4g}", around), ("tolerance", tolerance, whose)]


def _made_of(plan: Plan) -> str:
    """What a record's vector is made of."""
    if plan.differentiates:
        return "from the gradient of each record's loss"
    whose = "the same for all who are asked" if plan.sharing == "block" else "each person's own"
    oracle = "" if plan.natural_units else f"{plan.oracle} oracle: "
    return f"{oracle}from values along random directions ({plan.sampler}), {whose}"


def _which(plan: Plan) -> str:
    if not plan.schedule.secret:
        return ""
    return f", about: one of {plan.schedule.blocks_per_pass} steps a pass for each, in secret"


def _step(plan: Plan) -> str:
    if not isinstance(plan.chosen_learner, ConstantStep) or plan.step is None:
        return plan.chosen_learner.name
    return f"{plan.step:.4g}"
