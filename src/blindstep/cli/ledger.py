"""`blindstep ledger show`: what was spent, run by run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from blindstep.cli.common import AsJson, fail, print_json
from blindstep.errors import BlindstepError
from blindstep.insight.spending import read_spending, spending_numbers, spending_table

ledger = typer.Typer(no_args_is_help=True, help="What was spent, run by run.")


@ledger.command()
def show(
    path: Annotated[str, typer.Argument(help="A ledger, or a run directory.")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the totals. Default: the largest of the runs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each run in a ledger has spent, their sum and what remains of the budget.

    A run's epsilon is quoted at the delta that the run was made with.
    """
    try:
        account = read_spending(path)
        numbers, table = spending_numbers(account, delta), spending_table(account, delta)
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json(numbers)
    else:
        Console().print(table)
