"""The plan of a run, ready or by a method: what every driver asks for first.

How many evaluations a run makes unless the user says: about what a laptop does in a minute.

Public: it depends on the loss and on shapes, never on a record's value.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from blindstep.errors import InvalidArgument
from blindstep.ledger import storage
from blindstep.ledger.budget import Privacy
from blindstep.losses.people import People
from blindstep.losses.pytrees import Loss, ParameterSpace, check_loss, rounding, shapes_of
from blindstep.planning.auto import Auto
from blindstep.planning.checks import check_delta, check_privacy, check_prospects
from blindstep.planning.method import Method, Problem
from blindstep.planning.plan import Plan
from blindstep.planning.planner import require_method
from blindstep.processes.jax_group import JaxGroup
from blindstep.run.callbacks import Callback
from blindstep.run.progress import RunProgress

_NOWHERE = storage.Storage()


@dataclass(frozen=True)
class Call:
    """What a driver was asked for, besides the loss, the start and the data."""

    privacy: Privacy | None = None
    method: Method | Plan | None = None
    people: People | None = None
    storage: storage.Storage = _NOWHERE
    seed: int | None = None
    progress: bool | None = None
    rehearse: bool = True
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.callbacks, Sequence) or not all(map(callable, self.callbacks)):
            raise InvalidArgument(
                f"callbacks must be a list of functions, such as [print], got {self.callbacks!r}."
            )

    def shown(self, plan: Plan) -> RunProgress:
        """What shows the run of this plan, and tells the callbacks."""
        return RunProgress(plan, show=self.progress, callbacks=self.callbacks)


def plan_for(
    call: Call,
    space: ParameterSpace,
    records: int,
    start: PyTree,
    effort: Callable[[], int],
    group: JaxGroup | None = None,
) -> Plan:
    """The plan that was given, if it fits, or the one that the method makes.

    What is left to check is checked here: the deltas of the plan and of the ledger's budget against the
    number of records, and whether the plan can work at all from this start.
    """
    if isinstance(call.method, Plan):
        made = ready(call.method, call)
        refuse_for_networks(made)
        if made.dim != space.dim or made.records != records:
            raise InvalidArgument(
                f"the plan is for {made.records} records in dimension {made.dim}, but there are "
                f"{records} records and {space.dim} parameters: plan again."
            )
    else:
        problem = problem_of(call, space.dim, records, space.sizes, effort)
        made = planned(call, problem, group or JaxGroup())
        refuse_for_networks(made)
    check_delta(made.privacy, made.records)
    check_delta(call.storage.budget, made.records, "budget")
    check_prospects(made, rounding(start))
    return made


def ready(plan: Plan, call: Call) -> Plan:
    """The plan that was given; it has the budget already."""
    if call.privacy is not None:
        raise InvalidArgument(
            "give privacy or a ready plan, not both: the plan has fixed the budget. Leave out one of "
            "the two."
        )
    return plan


def problem_of(
    call: Call,
    dim: int,
    records: int,
    leaves: tuple[int, ...],
    effort: Callable[[], int],
    *,
    network: bool = False,
) -> Problem:
    """The problem, as a method takes it."""
    if call.privacy is None:
        raise InvalidArgument(
            "give privacy, such as privacy=Privacy(epsilon=4, delta=1e-5), or a ready plan."
        )
    check_privacy(call.privacy)
    return Problem(dim, records, call.privacy, leaves, network, effort)


def planned(call: Call, problem: Problem, group: JaxGroup) -> Plan:
    """The plan that the method makes, or the one in the run directory, where an earlier call made it.

    Of several processes the first one looks into the directory.
    """
    method = Auto() if call.method is None else call.method
    require_method(method)
    assert isinstance(method, Method)
    found = group.led("plan", lambda: _earlier(call.storage.directory, method, problem))
    return method.plan(problem) if found is None else Plan.from_json(found)


def _earlier(directory: Any, method: Method, problem: Problem) -> str | None:
    """The plan that a run directory holds, if it is for the same problem and by the same method."""
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, storage.PLAN), encoding="ascii") as file:
            text = file.read()
        found = Plan.from_json(text)
    except (OSError, TypeError, ValueError):  # none, or not readable: the session says so
        return None
    same = (found.dim, found.records, found.privacy) == (
        *(problem.dim, problem.records),
        problem.privacy,
    )
    return text if same and method.made(found) else None


def refuse_gradients(plan: Plan) -> None:
    """Raise if the plan differentiates the loss, for a driver that gets values alone."""
    if plan.differentiates:
        raise InvalidArgument(
            "this plan is of gradients, and here the loss gives values alone: run it with "
            "blindstep.minimize without evaluate=, on a loss that JAX can differentiate, or plan "
            "without estimate='gradient'."
        )


def refuse_for_networks(plan: Plan) -> None:
    """Raise if the plan is one of `blindstep.torch`, which has no other driver."""
    if plan.network:
        raise InvalidArgument("this plan is for a network: run it with blindstep.torch.minimize.")


# Operations in a minute on two cores, for losses of small matrices under XLA.
_OPERATIONS = 1.6e12
# What an evaluation costs at least, whatever is computed.
_LEAST = 64.0
_SECONDS = 60.0
_FEWEST, _MOST = 2**12, 2**34


def of_compiled(loss: Loss, params: PyTree, data: PyTree) -> int:
    """Evaluations of a loss that JAX can trace, by the number of operations that XLA counts.

    They are counted for records of floats wherever the loss takes floats: whole numbers become floats
    where one cell of a table is missing, and that must not show in a plan.
    """
    with jax.enable_x64(True):
        check_loss(loss, params, data)
        like, record = shapes_of(params, data)
        floats = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), record)
        try:
            found: Any = jax.jit(loss).lower(like, floats).cost_analysis()
        except Exception:  # such as a label that is an index: of whole numbers in any data set
            found = jax.jit(loss).lower(like, record).cost_analysis()
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
