"""The plan of a run, ready or described: what every driver asks for first.

How many evaluations a run makes unless the user says: about what a laptop does in a minute.

Public: it depends on the loss and on shapes, never on a record's value.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from blindstep.errors import InvalidArgument
from blindstep.estimate.directions import Signs
from blindstep.ledger import storage
from blindstep.losses.pytrees import Loss, ParameterSpace, check_loss, rounding
from blindstep.planning.checks import check_delta, check_prospects
from blindstep.planning.choices import GRADIENT, VALUES
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan as make_plan
from blindstep.private.statement import Privacy
from blindstep.processes.jax_group import ProcessGroup

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
        with open(os.path.join(directory, storage.PLAN), encoding="ascii") as file:
            found = Plan.from_json(file.read())
    except (OSError, TypeError, ValueError):  # none, or not readable: the session says so
        return None
    same = all(getattr(found, name) == value for name, value in wanted.items() if name != "preset")
    return found if same and found.preset == "auto" else None


def _as_text(plan: Plan | None) -> str | None:
    return None if plan is None else plan.to_json()


def plan_for(
    space: ParameterSpace,
    records: int,
    plan: Plan | None,
    arguments: Mapping[str, Any],
    effort: Callable[[], int] | None = None,
    group: ProcessGroup | None = None,
) -> Plan:
    """The plan that was given, if it fits, or the one that the other arguments describe.

    Without a radius it is one in natural units, of as many evaluations as `effort` says unless the
    arguments do; and if the run directory holds such a plan already, that one. Of the processes in
    `company` the first one looks into the directory.

    `arguments` are those that the driver was called with, by name, such as its `locals()`: those
    named in `CHOICES` count, unless they are None. What is left to check is checked here: the deltas of
    the plan and of the `budget` against the number of records, and whether the plan can work at all.
    """
    made = _plan_for(space, records, plan, arguments, effort, group or ProcessGroup())
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
    group: ProcessGroup,
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
        if given.get("preset", "auto") != "auto" or "radius" in given:
            return make_plan(**sizes, **given)
        if "evaluations" not in given:
            directory, wanted = arguments.get("checkpoint"), sizes | {"estimate": VALUES} | given
            found = group.led("plan", lambda: _as_text(earlier(directory, wanted)))
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


# Operations in a minute on two cores, for losses of small matrices under XLA.
_OPERATIONS = 1.6e12
# An evaluation costs at least so many, whatever is computed.
_LEAST = 64.0
_SECONDS = 60.0
_FEWEST, _MOST = 2**12, 2**34


def of_compiled(loss: Loss, params: PyTree, data: PyTree) -> int:
    """Evaluations of a loss that JAX can trace, by the number of operations that XLA counts."""
    with jax.enable_x64(True):
        check_loss(loss, params, data)
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), params
    )
    found: Any = jax.jit(loss).lower(like, record).cost_analysis()
    counted = found.get("flops", 0.0) if isinstance(found, dict) else 0.0
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(record))
    return _rounded(_OPERATIONS / max(_LEAST, 2.0 * size, float(counted)))


def of_function(call: Any) -> int:
    """Evaluations of a Python function, by how long one call on a made-up record takes."""
    began, calls = time.perf_counter(), 0
    while calls < 3 or (time.perf_counter() - began < 0.02 and calls < 1000):
        call()
        calls += 1
    return _rounded(_SECONDS * calls / (time.perf_counter() - began))


def _rounded(evaluations: float) -> int:
    """Down to a power of two: other numbers would promise too much."""
    return 2 ** int(math.log2(min(max(evaluations, _FEWEST), _MOST)))
