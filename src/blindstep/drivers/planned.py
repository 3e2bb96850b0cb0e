"""The plan of a run, ready or described: what every driver asks for first."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from blindstep.drivers.pytrees import ParameterSpace, rounding
from blindstep.errors import InvalidArgument
from blindstep.estimate.signs import Signs
from blindstep.ledger import plan_file
from blindstep.ledger.processes import Company
from blindstep.optimize.choices import GRADIENT, VALUES
from blindstep.optimize.delta import check_delta
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import plan as make_plan
from blindstep.optimize.prospects import check_prospects
from blindstep.private.statement import Privacy

# What a plan is described by: the arguments of `blindstep.plan`, but for the sizes, which a driver
# takes from the parameters and the data, and for questions, which none of them asks. The estimate is a
# choice of the compiled driver alone: others get values from outside, which have no gradient.
CHOICES = tuple(
    name
    for name in inspect.signature(make_plan).parameters
    if name not in ("dim", "records", "tolerance", "leaves", "questions", "estimate")
)


def earlier(directory: Any, wanted: Mapping[str, Any]) -> Plan | None:
    """The plan in natural units that a run directory holds, if it is for the same problem.

    How many evaluations take a minute is measured anew in each process: a resumed run keeps its own.
    """
    try:
        with open(os.path.join(directory, plan_file.PLAN), encoding="ascii") as file:
            found = Plan.from_json(file.read())
    except (OSError, TypeError, ValueError):  # none, or not readable: the session says so
        return None
    same = all(getattr(found, name) == value for name, value in wanted.items() if name != "preset")
    return found if same and found.preset == "scaled" else None


def _as_text(plan: Plan | None) -> str | None:
    return None if plan is None else plan.to_json()


def plan_for(
    space: ParameterSpace,
    records: int,
    plan: Plan | None,
    arguments: Mapping[str, Any],
    effort: Callable[[], int] | None = None,
    company: Company | None = None,
) -> Plan:
    """The plan that was given, if it fits, or the one that the other arguments describe.

    Without a radius it is one in natural units, of as many evaluations as `effort` says unless the
    arguments do; and if the run directory holds such a plan already, that one. Of the processes in
    `company` the first one looks into the directory.

    `arguments` are those that the driver was called with, by name, such as its `locals()`: those
    named in `CHOICES` count, unless they are None. What is left to check is checked here: the deltas of
    the plan and of the `budget` against the number of records, and whether the plan can work at all.
    """
    made = _plan_for(space, records, plan, arguments, effort, company or Company())
    check_delta(made.privacy, made.records)
    check_delta(arguments.get("budget"), made.records, "budget")
    check_prospects(made, rounding(arguments.get("params")))
    return made


def _plan_for(
    space: ParameterSpace,
    records: int,
    plan: Plan | None,
    arguments: Mapping[str, Any],
    effort: Callable[[], int] | None,
    company: Company,
) -> Plan:
    names = (*CHOICES, "estimate")
    given = {name: arguments[name] for name in names if arguments.get(name) is not None}
    if plan is None:
        if "privacy" not in given:
            raise InvalidArgument(
                "give privacy, such as privacy=Privacy(epsilon=4, delta=1e-5), or a ready plan."
            )
        if not isinstance(given["privacy"], Privacy):
            raise InvalidArgument(
                f"privacy must be a budget such as Privacy(epsilon=4, delta=1e-5), got "
                f"{given['privacy']!r}."
            )
        sizes = {"records": records, "dim": space.dim}
        if given.get("preset", "scaled") != "scaled" or "radius" in given:
            return make_plan(**sizes, **given)
        if "evaluations" not in given:
            directory, wanted = arguments.get("checkpoint"), sizes | {"estimate": VALUES} | given
            found = company.led("plan", lambda: _as_text(earlier(directory, wanted)))
            if found is not None:
                return Plan.from_json(found)
            given["evaluations"] = None if effort is None else effort()
        return make_plan(**sizes, leaves=space.sizes, **given)
    if given:
        names = ", ".join(given)
        raise InvalidArgument(
            f"give a ready plan or {names}, not both: the plan has fixed all choices. Leave out one "
            "of the two."
        )
    refuse_for_networks(plan)
    if plan.dim != space.dim or plan.records > records:
        raise InvalidArgument(
            f"the plan is for {plan.records} records in dimension {plan.dim}, but there are "
            f"{records} records and {space.dim} parameters: plan again."
        )
    return plan


def refuse_gradients(plan: Plan) -> None:
    """Raise if the plan differentiates the loss, for a driver that gets values alone."""
    if plan.estimate == GRADIENT:
        raise InvalidArgument(
            "this plan has estimate 'gradient', and here the loss gives values alone: run it with "
            "blindstep.minimize, on a loss that JAX can differentiate, or plan without estimate."
        )


def refuse_for_networks(plan: Plan) -> None:
    """Raise if the plan is one of `blindstep.torch`, whose directions have no other driver."""
    if plan.sampler == Signs.name:
        raise InvalidArgument("this plan is for a network: run it with blindstep.torch.minimize.")
