"""What a ledger says, for people and for machines: who spent how much of whose privacy."""

from __future__ import annotations

import math
import os
from typing import Any

from rich.table import Table
from rich.text import Text

from blindstep.trusted import accounting
from blindstep.trusted.account import Account
from blindstep.trusted.ledger import read_ledger


def read_spending(path: str) -> Account:
    """The account of a ledger, or of a run directory's own. Takes no lock and writes nothing."""
    return read_ledger(os.path.join(path, "ledger.jsonl") if os.path.isdir(path) else path)


def spending_numbers(account: Account, delta: float) -> dict[str, Any]:
    """Every run of the ledger and their sum; `epsilon` is exact at `delta`, None means no budget."""
    remaining = account.remaining()
    unlimited = math.isinf(remaining)
    return {
        "records": account.records,
        "delta": delta,
        "runs": [
            {
                "run": name,
                "plan": run.identity.plan,
                "data": run.identity.data,
                "since": run.since,
                "steps_begun": run.next_step,
                "steps_replayed": sum(attempt.replayed for attempt in run.attempts),
                "attempts": len(run.attempts),
                "mu": account.spent(name),
                "epsilon": _epsilon(account.spent(name), delta),
            }
            for name, run in account.runs.items()
        ],
        "mu": account.spent(),
        "epsilon": _epsilon(account.spent(), delta),
        "budget_mu": account.budget,
        "budget_epsilon": None if account.budget is None else _epsilon(account.budget, delta),
        "remaining_mu": None if unlimited else remaining,
        "remaining_epsilon": None if unlimited else _epsilon(remaining, delta),
    }


def spending_table(account: Account, delta: float) -> Table:
    """The same as a table. Epsilons do not add up: mu does, in squares."""
    numbers = spending_numbers(account, delta)
    # As Text: names are the user's own, and may look like markup.
    title = Text(f"Spent on the records {str(account.records)[:16]}", style="table.title")
    table = Table(title=title, title_justify="left")
    table.add_column("run", style="bold", overflow="fold")
    table.add_column("plan")
    table.add_column("since")
    for heading in ("steps begun", "mu", f"epsilon at delta {delta:g}"):
        table.add_column(heading, justify="right")
    for run in numbers["runs"]:
        steps, spent = f"{run['steps_begun']:,}", (run["mu"], run["epsilon"])
        names = (Text(run["run"]), Text(run["plan"][:8]), Text(run["since"][:10]))
        table.add_row(*names, steps, *map(_number, spent))
    table.add_section()
    for title, prefix in (("total", ""), ("budget", "budget_"), ("remaining", "remaining_")):
        amounts = (numbers[prefix + "mu"], numbers[prefix + "epsilon"])
        table.add_row(title, "", "", "", *map(_number, amounts))
    return table


def _epsilon(mu: float, delta: float) -> float:
    return accounting.epsilon(mu, delta) if mu > 0 else 0.0


def _number(value: float | None) -> str:
    return "no limit" if value is None else f"{value:.6g}"
