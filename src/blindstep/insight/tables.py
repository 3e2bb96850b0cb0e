"""Tables for people, with rich."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from blindstep.optimize.plan import Plan
from blindstep.private.statement import Privacy, round_up


def plan_table(plan: Plan) -> Table:
    """A plan, one row for each number."""
    return _table("Plan", "name", plan.rows())


def privacy_numbers(privacy: Privacy) -> dict[str, float]:
    """One budget in every currency."""
    half = privacy.rho**2 / 2
    budget = {"rho": privacy.rho, "epsilon": privacy.epsilon, "delta": privacy.delta}
    return {**budget, "zcdp": half, "rdp_slope": half}


def privacy_table(privacy: Privacy) -> Table:
    """One budget in every currency, for people."""
    meanings = {
        "rho": "Gaussian-DP: no easier than telling N(0,1) from N(rho,1)",
        "epsilon": "of (epsilon, delta)-DP, exact",
        "delta": "where epsilon is quoted",
        "zcdp": "zero-concentrated DP: rho^2 / 2",
        "rdp_slope": "Renyi-DP of order alpha: alpha times this",
    }
    numbers = privacy_numbers(privacy)
    return _table("Privacy", "currency", [(k, round_up(numbers[k]), meanings[k]) for k in numbers])


def _table(title: str, first: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, style="bold")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim")
    for row in rows:
        table.add_row(*row)
    return table
