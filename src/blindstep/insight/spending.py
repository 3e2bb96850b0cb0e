"""What a ledger says, for people and for machines: who spent how much of whose privacy."""

from __future__ import annotations

import math
import os
from typing import Any

from rich.table import Table
from rich.text import Text

from blindstep.ledger import places
from blindstep.ledger.account import Account
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.storage import LEDGER
from blindstep.private import accounting
from blindstep.private.statement import DEFAULT_DELTA, round_up


def read_spending(path: str | os.PathLike[str]) -> Account:
    """The account of a ledger, or of that of a run directory. Takes no lock and writes nothing."""
    if os.path.isdir(path):
        path = places.of_run(path) or os.path.join(path, LEDGER)
    return read_ledger(path)


def spending_numbers(account: Account, delta: float | None = None) -> dict[str, Any]:
    """Every run of a ledger, and their sum. `None` for a budget means that there is no limit.

    A run's `epsilon` is at the run's own `delta`, as its statement quotes it. Totals, budget and
    what remains are at `delta`; left out, it is the largest delta of the runs.
    """
    runs = account.runs
    if delta is None:
        delta = max((run.identity.delta for run in runs.values()), default=DEFAULT_DELTA)
    remaining = account.remaining()
    unlimited = math.isinf(remaining)
    return {
        "cohort": account.cohort,
        "unit": account.unit,
        "delta": delta,
        "runs": [
            {
                "run": name,
                "plan": run.identity.plan,
                "data": run.identity.data,
                "since": run.since,
                "unit": run.identity.unit,
                "steps_begun": run.next_step,
                "steps_replayed": sum(attempt.replayed for attempt in run.attempts),
                "attempts": len(run.attempts),
                "mu": account.spent(name),
                "epsilon": _epsilon(account.spent(name), run.identity.delta),
                "delta": run.identity.delta,
            }
            for name, run in runs.items()
        ],
        "mu": account.spent(),
        "epsilon": _epsilon(account.spent(), delta),
        "budget_mu": account.budget,
        "budget_epsilon": None if account.budget is None else _epsilon(account.budget, delta),
        "remaining_mu": None if unlimited else remaining,
        "remaining_epsilon": None if unlimited else _epsilon(remaining, delta),
    }


def spending_table(account: Account, delta: float | None = None) -> Table:
    """The same as a table. Epsilons do not add up: mu does, in squares."""
    numbers = spending_numbers(account, delta)
    # As Text: names are the user's own, and may look like markup.
    title = Text(f"Spent on the people of {str(account.cohort)[:40]}", style="table.title")
    table = Table(
        title=title,
        title_justify="left",
        caption=Text(
            "A run's epsilon is at the run's own delta; total, budget and remaining are at delta "
            f"{numbers['delta']:g}. All are for replacing {account.unit or 'nobody yet'}."
        ),
        caption_justify="left",
    )
    table.add_column("run", style="bold", overflow="fold")
    table.add_column("plan")
    table.add_column("since")
    for heading in ("steps begun", "mu", "epsilon", "at delta"):
        table.add_column(heading, justify="right")
    for run in numbers["runs"]:
        names = (Text(run["run"]), Text(run["plan"][:8]), Text(run["since"]))
        amounts = map(_number, (run["mu"], run["epsilon"], run["delta"]))
        table.add_row(*names, f"{run['steps_begun']:,}", *amounts)
    table.add_section()
    for name, prefix in (("total", ""), ("budget", "budget_"), ("remaining", "remaining_")):
        amounts = (numbers[prefix + "mu"], numbers[prefix + "epsilon"], numbers["delta"])
        table.add_row(name, "", "", "", *map(_number, amounts))
    return table


def _epsilon(mu: float, delta: float) -> float:
    return accounting.epsilon(mu, delta) if mu > 0 else 0.0


def _number(value: float | None) -> str:
    return "no limit" if value is None else round_up(value)
