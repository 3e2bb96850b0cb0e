"""Plans as JSON: choices, and the numbers that follow from them, which a reader works out anew.

A file cannot say how much noise there is: its `noise_std` is compared with what its choices give, and
a plan with another one is refused.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from blindstep.errors import InvalidArgument, count, finite
from blindstep.estimate.bounds import Bounds
from blindstep.ledger import sealed_json
from blindstep.optimize.choices import VALUES
from blindstep.private.statement import Privacy

if TYPE_CHECKING:
    from blindstep.optimize.plan import Plan

_BUDGET = ("epsilon", "delta", "rho")
_NUMBERS = (
    *("oracle", "passes", "step", "sensitivity", "noise_std", "release_std_max"),
    *("release_std_mean", "mu", "certifies", "tolerance", "vacuous"),
)
# Another machine may round the last digits in another way; a run uses its own, not those in the file.
_ROUNDING = 1e-6
_REMEDY = "make it anew with blindstep.plan, or restore the file that to_json wrote"


def choices_of(plan: Plan) -> dict[str, Any]:
    """The fields of a plan, ready for JSON; bounds not in force are left out.

    So is an estimate from values: files and fingerprints are those of plans that knew no other.
    """
    made = asdict(plan)
    if plan.estimate == VALUES:
        del made["estimate"]
    made["bounds"] = {name: at for name, at in made["bounds"].items() if at != math.inf}
    made |= {"notes": list(plan.notes), "look_leaves": list(plan.look_leaves)}
    return made | made.pop("privacy")


def numbers_of(plan: Plan) -> dict[str, Any]:
    """The numbers that follow from a plan's choices, for people."""
    return {name: getattr(plan, name) for name in _NUMBERS}


def read(text: str, plan_type: type[Plan]) -> Plan:
    """The plan that `Plan.to_json` wrote.

    Unknown names, missing ones, values of another type and numbers that do not follow from the
    choices are refused.
    """
    try:
        raw = sealed_json.parse(text)
    except ValueError as error:
        raise _refused(str(error)) from error
    if not isinstance(raw, dict):
        raise _refused("it is no JSON object")
    raw = {"estimate": VALUES, **raw}
    hints = get_type_hints(plan_type)
    del hints["privacy"]
    names = {*hints, *_BUDGET, *_NUMBERS}
    if raw.keys() != names:
        missing, unknown = sorted(names - raw.keys()), sorted(raw.keys() - names)
        raise _refused(f"missing {missing}, unknown {unknown}")
    privacy = _privacy(*(finite(name, raw[name]) for name in _BUDGET))
    fields = {name: _value(name, raw[name], hint) for name, hint in hints.items()}
    made = plan_type(**fields, privacy=privacy)
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
    if hint is Bounds and isinstance(value, dict) and value.keys() <= Bounds.__annotations__.keys():
        return Bounds(**{each: finite(each, number) for each, number in value.items()})
    for each_hint in (str, int):
        if hint == tuple[each_hint, ...] and isinstance(value, list):
            return tuple(_value(name, each, each_hint) for each in value)
    if (hint == float | None) or (hint is str and isinstance(value, str)):
        return value
    raise _refused(f"{name} cannot be {value!r}")


def _privacy(epsilon: float, delta: float, rho: float) -> Privacy:
    """The budget of these three numbers, which was made from rho or from epsilon."""
    by_rho = Privacy(rho=rho, delta=delta)
    if not math.isclose(by_rho.epsilon, epsilon, rel_tol=_ROUNDING):
        raise _refused(f"epsilon {epsilon:g} is not what rho {rho:g} gives at delta {delta:g}")
    if by_rho.epsilon == epsilon:
        return by_rho
    by_epsilon = Privacy(epsilon, delta)
    return by_epsilon if by_epsilon.rho == rho else by_rho
