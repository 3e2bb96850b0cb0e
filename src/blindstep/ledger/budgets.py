"""Whether a run fits into what a ledger has left, found out without opening the ledger for writing."""

from __future__ import annotations

import os

from blindstep.ledger.account import Account
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.processes import Company
from blindstep.ledger.refusals import BudgetExceeded, LedgerMismatch
from blindstep.ledger.storage import Storage


def account_at(storage: Storage) -> Account:
    """What the ledger of a storage says, with the storage's budget as its own. Changes nothing."""
    path, budget = storage.ledger_path, storage.budget
    there = os.path.exists(path) and os.path.getsize(path) > 0
    account = read_ledger(path) if there else Account()
    if budget is not None:
        if account.budget is not None and budget.rho > account.budget:
            raise LedgerMismatch(
                f"{path} has a budget of mu = {account.budget:g}, asked for {budget.rho:g}: a budget "
                "can be lowered, never raised. Leave it out."
            )
        account.budget = budget.rho
    return account


def require_room(storage: Storage, mu: float, company: Company | None = None) -> None:
    """Refuse a run of several parts that does not fit into the budget as a whole, before it begins.

    One that has begun is not asked again: what it has spent is in the ledger already. Of several
    processes, process 0 looks into the ledger.
    """
    (company or Company()).led("room", lambda: _require_room(storage, mu))


def _require_room(storage: Storage, mu: float) -> None:
    if not storage or storage.begun:
        return
    account = account_at(storage)
    if account.would_exceed(mu):
        raise BudgetExceeded(
            f"{storage.ledger_path}: this run asks for mu = {mu:g} in all, but of the budget "
            f"{account.budget:g} only {account.remaining():g} is left ({account.spent():g} spent): "
            "nothing was released. Ask for a smaller epsilon."
        )
