"""Plans described by keywords, for tests that go through many combinations."""

import dataclasses
from typing import Any

from blindstep import Auto, Klt, Paper, Plan, Questions, Tight, plan
from blindstep.planning.method import Method

_SIZES = ("dim", "records", "privacy", "tolerance", "leaves")
_METHODS = {each.name: each for each in (Auto, Tight, Paper, Klt, Questions)}


def method_of(method: str | None = None, **choices: Any) -> Method:
    """The method of this name with these fields: `tight` where there is a radius, else `auto`."""
    name = method or ("tight" if "radius" in choices else "auto")
    return _METHODS[name](**choices)


def plan_of(*, method: str | None = None, **given: Any) -> Plan:
    """The plan that a method makes of its fields and of the sizes, all given by keyword."""
    sizes = {name: given.pop(name) for name in _SIZES if name in given}
    return plan(method_of(method, **given), **sizes)


def with_noise(made: Plan, share: float) -> Plan:
    """The same plan, as if its gate had been given so much of its noise."""
    spoiled = dataclasses.replace(made)
    less = dataclasses.replace(made.terms, noise_std=share * made.terms.noise_std)
    vars(spoiled)["terms"] = less
    return spoiled
