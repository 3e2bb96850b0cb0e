"""Plans described by keywords, for tests that go through many combinations."""

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
