"""What administrators do and must be able to show: an audit log, deletion, retention, a new key.

The audit log says who did what, when: a line for each request of an administrator that changes
something, and for each command. It is written before the action, so nothing is done without a line; a
line does not say that the action succeeded. It names nobody who votes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from blindstep.serve import schema
from blindstep.serve.access import Principal
from blindstep.serve.accounts import OPEN
from blindstep.serve.database import Database
from blindstep.serve.keys import Secrets
from blindstep.serve.studies import Studies, WrongState, end

_log = logging.getLogger("blindstep.serve")
_HOUR, _DAY = 3600.0, 86_400.0
COMMAND = "command line"


def note(
    database: Database,
    who: Principal | str,
    action: str,
    study: str | None = None,
    detail: str = "",
) -> None:
    """Write a line: who (a principal, or the command line) does what, to which study."""
    name, label = (who, None) if isinstance(who, str) else (who.id, who.label)
    row = {"at": time.time(), "who": name, "label": label, "action": action}
    with database.begin() as connection:
        connection.execute(sa.insert(schema.audit), row | {"study": study, "detail": detail})


def lines(database: Database, most: int = 500) -> list[dict[str, Any]]:
    """The last lines, the newest first, each with the name of who did it."""
    columns, token = schema.audit.c, schema.tokens.c
    others = [column for column in columns if column.name != "label"]
    # Lines of before schema 0004 have the label of their token, as long as it is there.
    label = sa.func.coalesce(columns.label, token.label).label("label")
    chosen = (
        sa.select(*others, label)
        .join_from(schema.audit, schema.tokens, token.id == columns.who, isouter=True)
        .order_by(columns.number.desc())
        .limit(most)
    )
    with database.read() as connection:
        return [dict(row) for row in connection.execute(chosen).mappings()]


def forget_person(studies: Studies, identifier: str) -> int:
    """Delete what a person said and is not released yet, in all open studies; gives how many these are.

    That they were asked stays in a study until it ends, as a keyed hash: else they could be asked
    again. What was released with their answer in it holds no more of them than the statement says,
    and cannot be taken back. A study whose step is being released right now is refused: try again.
    """
    with studies.database.begin() as connection:
        rows = connection.execute(sa.select(schema.studies).where(OPEN)).mappings().all()
        for row in rows:
            now = studies.database.locked(connection, row["number"])
            if now is not None and now["frozen"]:
                raise WrongState(f"a step of study {row['id']} is being released: try again.")
            person = studies.secrets.person(row["id"], identifier)
            columns = schema.votes.c
            mine = (columns.study == row["number"]) & (columns.person == person)
            connection.execute(sa.delete(schema.votes).where(mine))
    studies.database.forget()
    return len(rows)


def enforce_retention(studies: Studies, paused_days: float, audit_days: float) -> list[str]:
    """Close studies that have been paused for so long, and delete older lines of the audit log.

    A study that is closed keeps no votes and no hashes of people. Gives the ids of those.
    """
    closed = []
    with studies.database.begin() as connection:
        now = studies.database.now(connection)
        columns = schema.studies.c
        # While a study is paused its deadline says since when.
        old = (columns.status == "paused") & (columns.deadline < now - paused_days * _DAY)
        for row in connection.execute(sa.select(schema.studies).where(old)).mappings().all():
            studies.database.locked(connection, row["number"])
            end(connection, row["number"], "closed")
            closed.append(row["id"])
        late = schema.audit.c.at < time.time() - audit_days * _DAY
        connection.execute(sa.delete(schema.audit).where(late))
        connection.execute(sa.delete(schema.sessions).where(schema.sessions.c.until < time.time()))
    for study in closed:
        note(studies.database, "retention", "close", study, f"paused for {paused_days:g} days")
    if closed:
        studies.database.forget()
    return closed


class Retention(threading.Thread):
    """A worker's thread that enforces retention at its start and then each hour."""

    def __init__(self, studies: Studies, paused_days: float, audit_days: float) -> None:
        super().__init__(name="blindstep-retention", daemon=True)
        self._studies, self._days, self._ending = (
            studies,
            (paused_days, audit_days),
            threading.Event(),
        )

    def run(self) -> None:
        """Enforce it, and wait."""
        while True:
            try:
                enforce_retention(self._studies, *self._days)
            except Exception as error:
                _log.error("retention was not enforced", extra={"error": type(error).__name__})
            if self._ending.wait(_HOUR):
                return

    def end(self) -> None:
        """End after what is under way."""
        self._ending.set()
        self.join(timeout=10.0)


def rotate_key(database: Database, new: Secrets) -> None:
    """Make the database belong to a new key, when no study is open; all tokens end.

    What a key protects in an open study (sealed votes, hashes of who was asked) is under the old one,
    so studies must be finished or closed before.
    """
    with database.begin() as connection:
        if _open(connection):
            raise WrongState("a study is open: its people and votes are under the old key.")
        connection.execute(sa.delete(schema.tokens))
        connection.execute(sa.delete(schema.sessions))
        named = schema.settings.c.name == "key"
        connection.execute(sa.update(schema.settings).where(named).values(value=new.name))


def _open(connection: Connection) -> bool:
    return connection.execute(sa.select(schema.studies.c.id).where(OPEN)).first() is not None


def put_secret(path: str, secret: str) -> None:
    """Write a secret into a new file that its owner alone may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secret + "\n")
