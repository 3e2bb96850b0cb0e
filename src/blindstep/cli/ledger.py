"""`blindstep ledger show`: what was spent, run by run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from blindstep.cli.common import AsJson, Delta, fail, print_json
from blindstep.errors import BlindstepError
from blindstep.insight.spending import read_spending, spending_numbers, spending_table
from blindstep.trusted.privacy import DEFAULT_DELTA


def show(
    path: Annotated[str, typer.Argument(help="A ledger, or a run directory.")],
    delta: Delta = DEFAULT_DELTA,
    as_json: AsJson = False,
) -> None:
    """Show what each run in a ledger has spent, their sum and what remains of the budget."""
    try:
        account = read_spending(path)
        numbers, table = spending_numbers(account, delta), spending_table(account, delta)
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json(numbers)
    else:
        Console().print(table)
