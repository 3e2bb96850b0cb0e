"""Tables for people, with rich."""

from __future__ import annotations

from rich.table import Table

from blindstep.optimize.plan import Plan
from blindstep.private.statement import Privacy


def plan_table(plan: Plan) -> Table:
    """A plan, one row for each number."""
    table = Table(title="Plan", title_justify="left")
    table.add_column("name", style="bold")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim")
    for row in plan.rows():
        table.add_row(*row)
    return table


def privacy_numbers(privacy: Privacy) -> dict[str, float]:
    """One budget in every currency."""
    return {
        "rho": privacy.rho,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "zcdp": privacy.rho**2 / 2,
        "rdp_slope": privacy.rho**2 / 2,
    }


def privacy_table(privacy: Privacy) -> Table:
    """One budget in every currency, for people."""
    numbers = privacy_numbers(privacy)
    meanings = {
        "rho": "Gaussian-DP: no easier than telling N(0,1) from N(rho,1)",
        "epsilon": "of (epsilon, delta)-DP, exact",
        "delta": "where epsilon is quoted",
        "zcdp": "zero-concentrated DP: rho^2 / 2",
        "rdp_slope": "Renyi-DP of order alpha: alpha times this",
    }
    table = Table(title="Privacy", title_justify="left")
    table.add_column("currency", style="bold")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim")
    for name, value in numbers.items():
        table.add_row(name, f"{value:.6g}", meanings[name])
    return table
