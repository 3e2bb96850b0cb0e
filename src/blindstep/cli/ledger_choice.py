"""Which ledger `blindstep train` uses, and what it says about it."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from blindstep.cli.problem_file import ProblemFile
from blindstep.errors import BlindstepError
from blindstep.ledger import places
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.storage import Storage
from blindstep.optimize.plan import Plan
from blindstep.private import accounting
from blindstep.private.statement import round_up


def ledger_of(given: ProblemFile, directory: Path, *, write: bool) -> Path | None:
    """The ledger where the user named none; None: the one in the run directory.

    A run goes on with the ledger that it was begun with. A new one on a data file takes the ledger of
    that file (`ledger.places`), which is begun, if `write` is true, where there is none.
    """
    begun = places.of_run(directory)
    if begun is not None:
        return None if Path(begun).parent == directory.absolute() else Path(begun)
    if given.source is None:
        return None
    found = places.keep(given.source) if write else places.find(given.source)
    return None if found is None else Path(found.ledger)


def ledger_notes(plan: Plan, storage: Storage, source: Path | None) -> list[str]:
    """Where spending is written down, whose it is, and what other runs have spent."""
    spent, path = 0.0, storage.ledger_path
    with contextlib.suppress(BlindstepError):  # none yet; or damaged, which the run itself says
        spent = read_ledger(path).spent()
    if storage.ledger is None:
        notes = [
            f"What it spends is written to {path}. Runs on the same people add up where they share a "
            "ledger: give all of them the same --ledger."
        ]
    else:
        notes = [f"Runs on these people are counted together, in {path}."]
        kept = None if source is None else places.find(source)
        if kept is not None and kept.ledger == path and len(kept.contents) > 1:
            notes.append(
                f"{source} has held other records before. They are taken for the same people; if they "
                "are others, give --ledger."
            )
    if spent and not storage.begun:
        before, after = (
            round_up(accounting.epsilon(mu, plan.delta), 4)
            for mu in (spent, accounting.compose([spent, plan.mu]))
        )
        notes.append(
            f"They have spent epsilon {before} at delta {plan.delta:g} so far, and with this run it is "
            f"{after}. --budget sets a limit for all of them."
        )
    return notes


def about_ledger(storage: Storage, delta: float) -> str:
    """What somebody needs to know whose run a ledger refused, in epsilons."""
    left = ""
    with contextlib.suppress(BlindstepError):
        account = read_ledger(storage.ledger_path)
        spent = accounting.epsilon(account.spent(), delta) if account.spent() else 0.0
        left = f", in which epsilon {round_up(spent, 4)} is spent"
        if account.budget is not None:
            budget = accounting.epsilon(account.budget, delta)
            left += f" of a budget of {round_up(budget, 4)}"
            rest = account.remaining()
            less = accounting.epsilon(rest, delta) if rest else 0.0
            left += f": what is left is epsilon {math.floor(1000 * less) / 1000:g}"
        left += f" (at delta {delta:g})"
    return f"(The ledger is {storage.ledger_path}{left}. --ledger gives another one.)"
