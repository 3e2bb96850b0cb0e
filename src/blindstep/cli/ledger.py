"""`blindstep ledger show`: what was spent, run by run.

Which ledger `blindstep train` uses, and what it says about it.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blindstep.cli import AsJson, print_json
from blindstep.cli.data_files import is_data_file
from blindstep.cli.problem_file import ProblemFile
from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.insight.tables import read_spending, spending_numbers, spending_table
from blindstep.ledger import data_ledger
from blindstep.ledger.account import Account
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.storage import Storage
from blindstep.planning.plan import Plan
from blindstep.planning.statement import round_up
from blindstep.private import accounting

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
    found = [_ledger_at(path)] if path is not None else _all()
    accounts = [(place, read_spending(place)) for place in found]
    if as_json:
        numbers = [spending_numbers(each, delta) | {"ledger": str(at)} for at, each in accounts]
        print_json(numbers if path is None else numbers[0])
        return
    tables = [(place, spending_table(account, delta)) for place, account in accounts]
    for place, table in tables:
        Console().print(table)
        print(f"{place}\n")


def _all() -> list[Path]:
    kept = [Path(each.ledger) for each in data_ledger.all_kept()]
    if not kept:
        raise InvalidArgument(
            f"no ledger of a data file is kept in {data_ledger.home()}: give the path of a ledger or "
            "of a run directory."
        )
    return kept


def _ledger_at(path: Path) -> Path:
    """The ledger of a data file, a problem file or a run directory; any other path is one itself."""
    if is_data_file(path):
        found = data_ledger.find(path)
        if found is None:
            raise InvalidArgument(
                f"no run on {path} is in a ledger in {data_ledger.home()}: if one was given with "
                "--ledger, give the path of that one."
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
        found = data_ledger.of_run(path)
        if found is None:
            raise InvalidArgument(
                f"{path} is no run directory, and has no ledger: give one that is."
            )
        return Path(found)
    return path


def ledger_of(given: ProblemFile, directory: Path, *, write: bool) -> Path | None:
    """The ledger where the user named none; None: the one in the run directory.

    A run goes on with the ledger that it was begun with. A new one on a data file takes the ledger of
    that file (`ledger.places`), which is begun, if `write` is true, where there is none.
    """
    begun = data_ledger.of_run(directory)
    if begun is not None:
        return None if Path(begun).parent == directory.absolute() else Path(begun)
    if given.source is None:
        return None
    found = data_ledger.keep(given.source) if write else data_ledger.find(given.source)
    return None if found is None else Path(found.ledger)


def ledger_notes(plan: Plan, storage: Storage, source: Path | None) -> list[str]:
    """Where spending is written down, whose it is, and what other runs have spent."""
    account, path = Account(), storage.ledger_path
    with contextlib.suppress(BlindstepError):  # none yet; or damaged, which the run itself says
        account = read_ledger(path)
    if storage.ledger is None:
        notes = [
            f"What it spends is written to {path}. Runs on the same people add up where they share a "
            "ledger: give all of them the same --ledger."
        ]
    else:
        notes = [f"Runs on these people are counted together, in {path}."]
        kept = None if source is None else data_ledger.find(source)
        if kept is not None and kept.ledger == path and len(kept.contents) > 1:
            notes.append(
                f"{source} has held other records before. They are taken for the same people; if they "
                "are others, give --ledger."
            )
    if account.spent() and not storage.begun:
        both = accounting.compose([account.spent(), plan.mu])
        secrecy = account.secrecy() + plan.secrecy
        together = accounting.epsilon(both, plan.delta, secrecy=secrecy)
        before, after = (round_up(each, 4) for each in (account.epsilon(plan.delta), together))
        notes.append(
            f"They have spent epsilon {before} at delta {plan.delta:g} so far, and with this run it is "
            f"{after}. --budget sets a limit for all of them."
        )
    return notes


def about_ledger(storage: Storage, delta: float) -> str:
    """What the ledger that refused a run holds, in epsilons."""
    left = ""
    with contextlib.suppress(BlindstepError):
        account = read_ledger(storage.ledger_path)
        numbers = spending_numbers(account, delta)
        left = f", in which epsilon {round_up(numbers['epsilon'], 4)} is spent"
        if account.budget is not None:
            rest = math.floor(1000 * numbers["remaining_epsilon"]) / 1000
            left += f" of a budget of {round_up(numbers['budget_epsilon'], 4)}"
            left += f": what is left is epsilon {rest:g}"
        left += f" (at delta {delta:g})"
    return f"(The ledger is {storage.ledger_path}{left}. --ledger gives another one.)"
