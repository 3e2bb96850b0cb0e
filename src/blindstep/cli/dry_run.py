"""`blindstep train --dry-run`: all checks of a run and its cost. Nothing is charged or written."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from blindstep.cli.common import print_json
from blindstep.cli.problem_file import ProblemFile
from blindstep.errors import CheckpointUnwritable
from blindstep.insight.tables import plan_table
from blindstep.ledger.storage import Storage, account_at, require_room
from blindstep.losses import rehearsal
from blindstep.losses.rehearsal import check_gradient
from blindstep.planning.plan import Plan
from blindstep.private import accounting

# Made-up records and points of the measurement: enough to fill a processor, few enough for any loss.
_RECORDS, _POINTS, _REPETITIONS = 256, 8, 3


def rehearse_run(
    given: ProblemFile, plan: Plan, storage: Storage, rows: int, as_json: bool
) -> None:
    """Check what `train` would check, and print the plan and its cost.

    Args:
        given: the problem; of its data, names, shapes and dtypes are looked at.
        plan: the plan of the run.
        storage: where the run would be kept.
        rows: calls of the loss for each record.
        as_json: print JSON for machines.
    """
    with jax.enable_x64(True):
        if differentiated := plan.differentiates:
            check_gradient(given.loss, given.params, given.data)
        rehearsal.rehearse_compiled(
            given.loss, given.params, given.data, differentiated=differentiated
        )
        seconds = _seconds_of_one(given)
    _check_place(storage)
    require_room(storage, plan.mu)
    account = account_at(storage)
    spent = account.spent()
    total = accounting.compose([spent, plan.mu])
    evaluations = plan.evaluations * rows
    resumed = storage.begun
    if as_json:
        cost: dict[str, Any] = {"epsilon": plan.epsilon, "delta": plan.delta, "mu": plan.mu}
        cost |= {"spent_mu_before": spent, "spent_mu_after": spent if resumed else total}
        cost |= {"evaluations": evaluations, "seconds": evaluations * seconds}
        print_json({"dry_run": True, "goes_on": resumed, "cost": cost, "plan": plan.to_dict()})
        return
    console = Console(highlight=False, markup=False)
    console.print(plan_table(plan))
    print("\nA dry run: the loss works on made-up records; nothing was charged, nothing written.")
    if resumed:
        print(
            f"There is a run in {storage.directory}: it would go on, and spend what it was begun for."
        )
    else:
        budget = f"epsilon {plan.epsilon:.4g} at delta {plan.delta:g} (mu {plan.mu:.4g})"
        print(f"The run would spend {budget}.")
        if spent:
            secrecy = account.secrecy() + plan.secrecy
            epsilon = accounting.epsilon(total, plan.delta, secrecy)
            print(
                f"With what the ledger holds: mu {total:.4g}, epsilon {epsilon:.4g} at that delta."
            )
    print(
        f"{evaluations:,} evaluations of the loss, which take about {_time(evaluations * seconds)} at "
        "the speed of the bare loss on made-up records; directions and noise come on top."
    )


def _seconds_of_one(given: ProblemFile) -> float:
    """How long one evaluation takes, compiled, among many at once. Made-up records are public."""
    records = rehearsal.made_up(given.data, _RECORDS)
    points = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * _POINTS), given.params)
    of_records = jax.vmap(given.loss, in_axes=(None, 0))
    program = jax.jit(jax.vmap(of_records, in_axes=(0, None)))
    jax.block_until_ready(program(points, records))  # compiled now
    times = []
    for _ in range(_REPETITIONS):
        began = time.perf_counter()
        jax.block_until_ready(program(points, records))
        times.append(time.perf_counter() - began)
    return min(times) / (_RECORDS * _POINTS)


def _check_place(storage: Storage) -> None:
    """Refuse a place where the run could not be written."""
    for path in (Path(storage.directory or "."), Path(storage.ledger_path).parent):
        there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            reason = os.strerror(errno.EACCES if there.is_dir() else errno.ENOTDIR)
            raise CheckpointUnwritable(
                f"{path} cannot be written ({reason}: {there}): check its permissions, or give another "
                "place."
            )


def _time(seconds: float) -> str:
    """Seconds in words that promise no more than is known."""
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else "a second or two"
