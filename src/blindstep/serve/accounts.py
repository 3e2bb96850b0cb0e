"""The ledger of a cohort in the database: the entries and the rules of `blindstep.ledger`.

A file's journal has a lock and a disk of its own; here both are the transaction that the ledger is
opened in. So an entry is there if and only if what it announces was committed with it. Lines are sealed
and chained as in a file: one that was changed or taken out is found when the ledger is next read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from blindstep.ledger import fingerprints, names
from blindstep.ledger.account import SCHEMA, Account, RunIdentity
from blindstep.ledger.journal import NOTHING_BEFORE, Head, scan
from blindstep.ledger.ledger import Ledger
from blindstep.ledger.refusals import LedgerMismatch
from blindstep.ledger.sealed_json import seal, unseal
from blindstep.optimize.plan import Plan
from blindstep.private.accounting import PERSON
from blindstep.serve import schema
from blindstep.serve.keys import Secrets


class SqlJournal:
    """What a `Ledger` needs of a journal, on the lines of one cohort, inside one transaction."""

    def __init__(self, connection: Connection, cohort: str, account: Account) -> None:
        self.path, self._cohort, self._connection = f"the ledger of {cohort!r}", cohort, connection
        lines = sa.select(schema.ledger.c.line).where(schema.ledger.c.cohort == cohort)
        rows = connection.execute(lines.order_by(schema.ledger.c.number)).scalars().all()
        content = "".join(f"{line}\n" for line in rows).encode("ascii")
        self.head: Head | None = scan(self.path, content, account.apply).head

    def append(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add a line and return its entry. It is durable when the transaction is."""
        number, previous = (0, NOTHING_BEFORE) if self.head is None else self.head[1:]
        today = datetime.now(UTC).date().isoformat()
        line = seal({"n": number, "prev": previous, "at": today, **body})
        # Two transactions that add to one ledger at a time: the primary key lets one of them pass.
        row = {"cohort": self._cohort, "number": number, "line": line.decode("ascii")}
        self._connection.execute(sa.insert(schema.ledger), row)
        entry, digest = unseal(line)
        self.head = Head(self.head.origin if self.head else digest, number + 1, digest)
        return entry

    def check(self) -> None:
        """The transaction is the one writer."""

    def close(self) -> None:
        """The transaction closes itself."""


def open_ledger(connection: Connection, cohort: str, budget: float | None = None) -> Ledger:
    """The ledger of a cohort in this transaction, begun if there is none.

    `budget` is the largest mu that all its studies together may spend. It can be lowered, not raised.
    """
    account = Account()
    journal = SqlJournal(connection, cohort, account)
    if account.cohort is None:
        first = {"kind": "ledger", "schema": SCHEMA, "id": os.urandom(16).hex(), "cohort": cohort}
        account.apply(journal.append(first))
    if budget is not None and budget != account.budget:
        if account.budget is not None and budget > account.budget:
            raise LedgerMismatch(
                f"{journal.path} has a budget of mu = {account.budget:g}, asked for {budget:g}: a "
                "budget can be lowered, never raised. Leave it out."
            )
        account.apply(journal.append({"kind": "budget", "mu": budget}))
    return Ledger(journal, account)


def read_account(connection: Connection, cohort: str) -> Account:
    """What a cohort's ledger says; an empty account if there is none."""
    account = Account()
    SqlJournal(connection, cohort, account)
    return account


@dataclass(frozen=True)
class Run:
    """A study as its ledger knows it."""

    study: str
    cohort: str
    attempt: int
    plan: Plan

    def identity(self, ledger: Ledger, secrets: Secrets) -> RunIdentity:
        """What the ledger compares: the same plan and cost as when the study was registered."""
        schedule, terms = self.plan.schedule, self.plan.terms
        naming = secrets.naming(self.study)
        return RunIdentity(
            run=self.study,
            plan=fingerprints.of_plan(self.plan.to_dict()),
            data=names.data_id(naming, self.cohort),
            noise_key=ledger.name_of(secrets.noise(self.study, self.attempt, None, "")),
            mu_per_pass=terms.mu_per_pass(),
            steps_per_pass=schedule.releases_per_pass,
            passes=schedule.passes,
            delta=self.plan.delta,
            unit=PERSON,
        )


@dataclass(frozen=True)
class LedgerPort:
    """The port of a study's gate: it charges in the transaction that stores the release."""

    ledger: Ledger
    run: Run
    secrets: Secrets

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Announce and charge steps first .. first + count - 1; one that was begun is refused.

        No step is ever repeated: its charge and its release are in one transaction.
        """
        assert answers is not None
        name = votes_name(self.secrets, self.run.study, first, answers)
        self.ledger.register(self.run.identity(self.ledger, self.secrets))
        self.ledger.begin(self.run.study, first, count, answers=name)


def votes_name(secrets: Secrets, study: str, release: int, answers: np.ndarray) -> str:
    """The keyed name of a step's votes: the same for the same votes, and it tells nothing of them."""
    return names.answers_id(secrets.naming(study), release, answers)
