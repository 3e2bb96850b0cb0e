"""The plan of a run, ready or described: what every driver asks for first."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from blindstep.drivers.pytrees import ParameterSpace
from blindstep.errors import InvalidArgument
from blindstep.optimize.delta import check_delta
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import plan as make_plan

# What a plan is described by: the arguments of `blindstep.plan`, but for the sizes, which a driver
# takes from the parameters and the data.
CHOICES = tuple(
    name
    for name in inspect.signature(make_plan).parameters
    if name not in ("dim", "records", "tolerance")
)


def plan_for(
    space: ParameterSpace, records: int, plan: Plan | None, arguments: Mapping[str, Any]
) -> Plan:
    """The plan that was given, if it fits, or the one that the other arguments describe.

    `arguments` are those that the driver was called with, by name, such as its `locals()`: those
    named in `CHOICES` count, unless they are None. What is left to check, the deltas of the plan and of
    the `budget` against the number of records, is checked here.
    """
    made = _plan_for(space, records, plan, arguments)
    check_delta(made.privacy, made.records)
    check_delta(arguments.get("budget"), made.records, "budget")
    return made


def _plan_for(
    space: ParameterSpace, records: int, plan: Plan | None, arguments: Mapping[str, Any]
) -> Plan:
    given = {name: arguments[name] for name in CHOICES if arguments.get(name) is not None}
    if plan is None:
        if not {"privacy", "radius"} <= given.keys():
            raise InvalidArgument(
                "give privacy and radius, such as privacy=Privacy(epsilon=4, delta=1e-5), "
                "radius=0.1, or a ready plan."
            )
        return make_plan(records=records, dim=space.dim, **given)
    if given:
        names = ", ".join(given)
        raise InvalidArgument(
            f"give a ready plan or {names}, not both: the plan has fixed all choices. Leave out one "
            "of the two."
        )
    if plan.dim != space.dim or plan.records > records:
        raise InvalidArgument(
            f"the plan is for {plan.records} records in dimension {plan.dim}, but there are "
            f"{records} records and {space.dim} parameters: plan again."
        )
    return plan
