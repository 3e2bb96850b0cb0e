"""Who is signed in to the dashboard: sessions in the database, so that they end everywhere.

A cookie is 32 random bytes; the database holds its keyed hash, as it does of tokens. A session that was
opened with a token ends with that token; one of somebody whom a provider of identities has named ends
after a few hours, since only the provider knows whether they still have their role.
"""

from __future__ import annotations

import secrets as random
import time

import sqlalchemy as sa

from blindstep.serve import schema
from blindstep.serve.access import Principal
from blindstep.serve.database import Database
from blindstep.serve.keys import Secrets

# Whose sessions open the dashboard, and for how many seconds: with a token, and without one.
_PAGES = ("admin", "viewer")
_LASTS, _LASTS_WITHOUT = 12 * 3600, 4 * 3600


class Sessions:
    """The sessions of a service."""

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database, self._secrets = database, secrets

    def open(self, who: Principal, token: str | None = None) -> str | None:
        """A cookie for an admin or a viewer, whose token has this id; None for anybody else."""
        if who.scope not in _PAGES:
            return None
        cookie, now = random.token_urlsafe(32), time.time()
        row = {
            "hash": self._secrets.token_name(cookie),
            "who": who.id,
            "scope": who.scope,
            "label": who.label[:100],
            "token": token,
            "until": now + (_LASTS_WITHOUT if token is None else _LASTS),
        }
        with self._database.begin() as connection:
            old = schema.sessions.c.until < now
            connection.execute(sa.delete(schema.sessions).where(old))
            connection.execute(sa.insert(schema.sessions), row)
        return cookie

    def holder(self, cookie: str) -> Principal | None:
        """Whose session this is: while it lasts, and the token that it was opened with is there."""
        session, token = schema.sessions.c, schema.tokens.c
        mine = (session.hash == self._secrets.token_name(cookie)) & (session.until > time.time())
        chosen = (
            sa.select(session.who, session.scope, session.label)
            .join_from(schema.sessions, schema.tokens, token.id == session.token, isouter=True)
            .where(mine, session.token.is_(None) | token.id.is_not(None))
        )
        with self._database.read() as connection:
            row = connection.execute(chosen).first()
        return None if row is None else Principal(row.who, row.scope, None, row.label)

    def close(self, cookie: str) -> None:
        """End a session: its cookie opens nothing any more, at any worker."""
        mine = schema.sessions.c.hash == self._secrets.token_name(cookie)
        with self._database.begin() as connection:
            connection.execute(sa.delete(schema.sessions).where(mine))

    def close_all(self) -> int:
        """End all sessions, and say how many there were."""
        with self._database.begin() as connection:
            return connection.execute(sa.delete(schema.sessions)).rowcount
