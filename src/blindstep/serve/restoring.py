"""After an older copy of the database was restored: what may have been lost is charged.

Steps after the copy was made may have been released, and people who were asked since may be asked
again. No noise is shared, whatever is restored (`Secrets.noise`). But what was released is not in the
copy's ledger, and only the operator knows that a copy was restored, how often, and what was made since.
"""

from __future__ import annotations

import secrets as random
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from blindstep.errors import BudgetExceeded, InvalidArgument, positive
from blindstep.ledger.account import RunIdentity
from blindstep.planning.plan import Plan
from blindstep.private.accounting import PERSON
from blindstep.serve import schema
from blindstep.serve.accounts import Run, open_ledger, require_room
from blindstep.serve.database import Database
from blindstep.serve.keys import Secrets
from blindstep.serve.schema import Row
from blindstep.serve.studies import end, new_attempt


def restored(database: Database, secrets: Secrets, lost: Mapping[str, float]) -> list[str]:
    """Charge what may have been lost with the database that this copy replaces.

    All that an open study had still to release is charged as if it had been, even beyond a budget. Then
    the study goes on as a new attempt, which its ledger charges again; questions of the old attempt can
    no longer be answered. A study for which its cohort has no room any more is closed. Studies that
    were made after the copy are not in it: `lost` says what they took, as mu by the name of the cohort.

    Call it once for each time that this copy was restored. Gives the ids of the studies that go on.
    """
    open_ones = schema.studies.c.status.in_(("running", "paused"))
    with database.begin() as connection:
        for cohort, mu in lost.items():
            _charge_unknown(connection, cohort, mu)
        chosen = sa.select(schema.studies).where(open_ones).order_by(schema.studies.c.number)
        rows = connection.execute(chosen).mappings().all()
        for row in rows:
            _charge_rest(connection, secrets, row)
        return [row["id"] for row in rows if _goes_on(connection, secrets, row)]


def _charge_unknown(connection: Connection, cohort: str, mu: float) -> None:
    """Charge a cohort for studies that are gone."""
    ledger = open_ledger(connection, cohort)
    if not ledger.account.runs:
        raise InvalidArgument(f"no study of this copy has the cohort {cohort!r}: see its spelling.")
    name = f"lost {random.token_hex(8)}"
    delta = next(iter(ledger.account.runs.values())).identity.delta
    charge = positive("lost", mu, "give a mu above 0")
    ledger.register(
        RunIdentity(name, "lost", "lost", random.token_hex(16), charge, 1, 1, delta, PERSON),
        past=True,
    )
    ledger.begin(name, 0, past=True)


def _charge_rest(connection: Connection, secrets: Secrets, row: Row) -> None:
    """Charge what a study had still to release under its old attempt."""
    ledger, plan = open_ledger(connection, row["cohort"]), Plan.from_json(row["plan"])
    old = Run(row["id"], row["cohort"], row["attempt"], plan)
    ledger.register(old.identity(ledger, secrets), past=True)
    ledger.begin(row["id"], row["release"], plan.schedule.releases - row["release"], past=True)


def _goes_on(connection: Connection, secrets: Secrets, row: Row) -> bool:
    """Give a study a new attempt, or close it; says whether it goes on."""
    ledger, plan = open_ledger(connection, row["cohort"]), Plan.from_json(row["plan"])
    new = Run(row["id"], row["cohort"], new_attempt(), plan)
    identity = new.identity(ledger, secrets)
    try:
        require_room(connection, ledger.account, identity)
    except BudgetExceeded:
        end(connection, row["number"], "closed")
        return False
    ledger.register(identity, recharge=True)
    chosen = schema.studies.c.number == row["number"]
    connection.execute(sa.update(schema.studies).where(chosen).values(attempt=new.attempt))
    return True
