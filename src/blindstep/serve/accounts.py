"""The ledger of a cohort in the database: the entries and the rules of `blindstep.ledger`.

A file's journal has a lock and a disk of its own; here both are the transaction that the ledger is
opened in. So an entry is there if and only if what it announces was committed with it. Lines are sealed
and chained as in a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from blindstep.errors import BudgetExceeded
from blindstep.ledger import fingerprints
from blindstep.ledger.account import ROUNDING, Account, RunAccount, RunIdentity
from blindstep.ledger.budget import Privacy
from blindstep.ledger.journal import Entries, follow, scan
from blindstep.ledger.ledger import Ledger
from blindstep.planning.plan import Plan
from blindstep.private import accounting
from blindstep.private.accounting import PERSON
from blindstep.serve import schema
from blindstep.serve.keys import Secrets
from blindstep.serve.schema import Row

OPEN = schema.studies.c.status.in_(("running", "paused"))


class SqlJournal(Entries):
    """The entries of one cohort, inside one transaction, which is the one writer."""

    def __init__(self, connection: Connection, cohort: str, account: Account) -> None:
        self.path, self._cohort, self._connection = f"the ledger of {cohort!r}", cohort, connection
        lines = sa.select(schema.ledger.c.line).where(schema.ledger.c.cohort == cohort)
        rows = connection.execute(lines.order_by(schema.ledger.c.number)).scalars().all()
        content = "".join(f"{line}\n" for line in rows).encode("ascii")
        self.head = scan(self.path, content, account.apply).head

    def append(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add a line and return its entry. It is durable when the transaction is."""
        line, entry, head = follow(self.head, body)
        row = {"cohort": self._cohort, "number": head.length - 1, "line": line.decode("ascii")}
        # Two transactions that add to one ledger at a time: the primary key lets one of them pass.
        self._connection.execute(sa.insert(schema.ledger), row)
        self.head = head
        return entry


def open_ledger(
    connection: Connection, cohort: str, budget: Privacy | float | None = None
) -> Ledger:
    """The ledger of a cohort in this transaction, begun if there is none.

    `budget` is what all its studies together may spend. It can be lowered, not raised.
    """
    account = Account()
    journal = SqlJournal(connection, cohort, account)
    return Ledger.on(journal, account, cohort=cohort, budget=budget)


def read_account(connection: Connection, cohort: str) -> Account:
    """What a cohort's ledger says; an empty account if there is none."""
    account = Account()
    SqlJournal(connection, cohort, account)
    return account


def require_room(connection: Connection, account: Account, identity: RunIdentity) -> None:
    """Refuse a study that does not fit beside all that the cohort's open studies will spend.

    The ledger itself counts what was charged: it would let in two studies that run at the same time,
    and one would be stopped after people have answered.
    """
    if account.budget is None:
        return
    going_on = set(connection.execute(sa.select(schema.studies.c.id).where(OPEN)).scalars())
    asked = identity.mu_per_pass * math.sqrt(identity.passes)
    taken = [_reserved(run, name in going_on) for name, run in account.runs.items()]
    if accounting.compose([asked, *taken]) > account.budget * (1 + ROUNDING):
        raise BudgetExceeded(
            f"this study asks for mu = {asked:g}; its cohort's budget is {account.budget:g}, and "
            f"studies that ran or run take {accounting.compose(taken):g} of it: ask for a smaller "
            "epsilon."
        )


def _reserved(run: RunAccount, going_on: bool) -> float:
    """What a study has spent, or, if it goes on, will have spent when its last attempt is over."""
    if not going_on:
        return accounting.compose(run.charges)
    earlier = [mu for attempt in run.attempts[:-1] for mu in attempt.charges.values()]
    return accounting.compose([*earlier, *[run.identity.mu_per_pass] * run.identity.passes])


def identity_of(row: Row, ledger: Ledger, secrets: Secrets) -> RunIdentity:
    """The study of this row as its ledger knows it: the same plan and cost each time."""
    study, plan = row["id"], Plan.from_json(row["plan"])
    return RunIdentity.of(
        plan.terms,
        run=study,
        plan=fingerprints.of_plan(plan.to_dict()),
        data=fingerprints.data_id(secrets.naming(study), row["cohort"]),
        noise_key=ledger.name_of(secrets.run_name(study, row["attempt"])),
        delta=plan.delta,
        unit=PERSON,
    )


@dataclass
class LedgerPort:
    """The port of a study's gate: it charges in the transaction that stores the release.

    Until that transaction has given it the `ledger`, it refuses.
    """

    row: Row  # of the study
    secrets: Secrets
    salt: bytes
    ledger: Ledger | None = None

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Announce and charge steps first .. first + count - 1; one that was begun is refused.

        No step is ever repeated: its charge and its release are in one transaction.
        """
        assert answers is not None
        assert self.ledger is not None, "a release is charged inside its transaction"
        name = votes_name(self.secrets, self.row["id"], first, self.salt, answers)
        self.ledger.register(identity_of(self.row, self.ledger, self.secrets))
        self.ledger.begin(self.row["id"], first, count, answers=name)


def votes_name(secrets: Secrets, study: str, release: int, salt: bytes, answers: np.ndarray) -> str:
    """The keyed name of a step's votes: the same for the same votes, and it tells nothing of them."""
    return fingerprints.answers_id(secrets.naming(study, salt), release, answers)
