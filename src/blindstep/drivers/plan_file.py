"""`plan.json` in a run directory: the plan for people to read. The checkpoint has its fingerprint."""

from __future__ import annotations

import os

from blindstep.drivers import fingerprints
from blindstep.optimize.plan import Plan
from blindstep.trusted import durable
from blindstep.trusted.refusals import (
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointUnwritable,
)

PLAN = "plan.json"


def read_plan(path: str) -> Plan:
    """The plan in a file. Whatever else is there is an OSError or a ValueError."""
    return Plan.from_json(durable.read_file(path).decode())


def check(directory: str, plan: Plan, *, resuming: bool) -> None:
    """Refuse a directory with another plan, or with a plan but nothing to resume."""
    path = os.path.join(directory, PLAN)
    if not os.path.lexists(path):
        return
    if not resuming:
        raise CheckpointDamaged(
            f"{path} is of a run whose checkpoint is gone: restore the directory from a copy, or "
            "give another one for a new run. The ledger keeps what this one spent."
        )
    try:
        written = fingerprints.of_plan(read_plan(path))
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(
            f"{path} is not as it was written ({error}): delete it. It is a copy for people, and is "
            "written anew."
        ) from error
    if written != fingerprints.of_plan(plan):
        raise CheckpointMismatch(
            f"{path} is another plan than the one given: resume with the plan it was made with, or "
            "give another directory for a new run."
        )


def write(directory: str, plan: Plan) -> None:
    """Write it, whole or not at all, if it is not there."""
    path = os.path.join(directory, PLAN)
    if os.path.lexists(path):
        return
    try:
        durable.create_file(path + ".tmp", plan.to_json().encode(), exclusive=False)
        os.replace(path + ".tmp", path)
    except OSError as error:
        raise CheckpointUnwritable(
            f"{path} cannot be written ({error.strerror}), so nothing was released: free some space "
            "or make the directory writable."
        ) from error
