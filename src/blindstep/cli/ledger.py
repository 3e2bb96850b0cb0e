"""`blindstep ledger show`: what was spent, run by run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blindstep.cli.common import AsJson, fail, print_json
from blindstep.cli.data_files import is_data_file
from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.insight.spending import read_spending, spending_numbers, spending_table
from blindstep.ledger import places

ledger = typer.Typer(no_args_is_help=True, help="What was spent, run by run.")


@ledger.command()
def show(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A ledger, a run directory, a data file, or a problem file that was trained on. "
            "Default: the ledgers of all data files."
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of the totals. Default: the largest of the runs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each run in a ledger has spent, their sum and what remains of the budget.

    A run's epsilon is quoted at the delta that the run was made with.
    """
    try:
        found = [_ledger_at(path)] if path is not None else _all()
        accounts = [(place, read_spending(place)) for place in found]
        numbers = [
            spending_numbers(account, delta) | {"ledger": str(place)} for place, account in accounts
        ]
        tables = [(place, spending_table(account, delta)) for place, account in accounts]
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json(numbers if path is None else numbers[0])
        return
    console = Console()
    for place, table in tables:
        console.print(table)
        print(f"{place}\n")


def _all() -> list[Path]:
    kept = [Path(each.ledger) for each in places.all_kept()]
    if not kept:
        raise InvalidArgument(
            f"no ledger of a data file is kept in {places.home()}: give the path of a ledger or of a "
            "run directory."
        )
    return kept


def _ledger_at(path: Path) -> Path:
    """The ledger that a path leads to; the path itself where it is none of what leads to one."""
    if is_data_file(path):
        found = places.find(path)
        if found is None:
            raise InvalidArgument(
                f"no run on {path} is in a ledger in {places.home()}: if one was given with --ledger, "
                "give the path of that one."
            )
        return Path(found.ledger)
    if path.suffix == ".py":
        path = path.with_name(f"{path.stem}-run")
        if not path.is_dir():
            raise InvalidArgument(
                f"{path} is not there, where a run on this problem would be: give the --checkpoint "
                "that it was given, or a ledger."
            )
    if path.is_dir():
        found = places.of_run(path)
        if found is None:
            raise InvalidArgument(
                f"{path} is no run directory, and has no ledger: give one that is."
            )
        return Path(found)
    return path
