"""The plan of a run, ready or described: what every driver asks for first."""

from __future__ import annotations

from typing import Any

from blindstep.drivers.pytrees import ParameterSpace
from blindstep.errors import InvalidArgument
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import plan as make_plan
from blindstep.trusted.privacy import Privacy


def plan_for(
    space: ParameterSpace,
    records: int,
    plan: Plan | None,
    privacy: Privacy | None,
    radius: float | None,
    choices: dict[str, Any],
) -> Plan:
    """The plan that was given, if it fits, or the one that was described."""
    if plan is None:
        if privacy is None or radius is None:
            raise InvalidArgument(
                "give privacy and radius, such as privacy=Privacy(epsilon=4, delta=1e-5), "
                "radius=0.1, or a ready plan."
            )
        return make_plan(records=records, dim=space.dim, privacy=privacy, radius=radius, **choices)
    if privacy is not None or radius is not None or choices:
        raise InvalidArgument("give either a plan, or privacy, radius and choices: not both.")
    if plan.dim != space.dim or plan.records > records:
        raise InvalidArgument(
            f"the plan is for {plan.records} records in dimension {plan.dim}, but there are "
            f"{records} records and {space.dim} parameters: plan again."
        )
    return plan
