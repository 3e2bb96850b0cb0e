"""`plan.json` in a run directory: the plan, for people to read. The checkpoint has its fingerprint."""

from __future__ import annotations

import json
import os
from typing import Any

from blindstep.ledger import durable, fingerprints, sealed_json
from blindstep.ledger.refusals import CheckpointDamaged, CheckpointMismatch, CheckpointUnwritable

PLAN = "plan.json"


def read(path: str) -> dict[str, Any]:
    """The JSON object in a plan file. Anything else there is an OSError or a ValueError."""
    plan = sealed_json.parse(durable.read_file(path).decode())
    if not isinstance(plan, dict):
        raise ValueError("it is no JSON object")
    return plan


def check(directory: str, plan: dict[str, Any], *, resuming: bool) -> None:
    """Refuse a directory that holds another plan, or a plan but nothing to resume."""
    path = os.path.join(directory, PLAN)
    if not os.path.lexists(path):
        return
    if not resuming:
        raise CheckpointDamaged(
            f"{path} is of a run whose checkpoint is gone: restore the directory from a copy, or "
            "give another one for a new run. The ledger keeps what this one spent."
        )
    try:
        written = read(path)
        found = fingerprints.of_plan(written)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(
            f"{path} is not as it was written ({error}): delete it. It is a copy for people, and is "
            "written anew."
        ) from error
    if found != fingerprints.of_plan(plan):
        names = [name for name in {**plan, **written} if name != "notes"]
        others = [name for name in names if written.get(name) != plan.get(name)]
        raise CheckpointMismatch(
            f"{path} is another plan than the one given, with another {', '.join(others[:3])}: resume "
            "with the plan it was made with, or give another directory for a new run."
        )


def write(directory: str, plan: dict[str, Any]) -> None:
    """Write the plan, whole or not at all, if there is none yet."""
    path = os.path.join(directory, PLAN)
    if os.path.lexists(path):
        return
    text = json.dumps(plan, indent=2, allow_nan=False) + "\n"
    try:
        durable.put_file(path, text.encode("ascii"))
    except OSError as error:
        raise CheckpointUnwritable(
            f"{path} cannot be written ({error.strerror}), so nothing was released: free some space "
            "or make the directory writable."
        ) from error
