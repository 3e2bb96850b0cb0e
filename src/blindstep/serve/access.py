"""Who may do what, and how often: tokens with scopes, limits on the rate.

A token is 32 random bytes. The database holds its keyed hash, so neither the database nor its backup
opens anything. Scopes: *admin* does everything; *viewer* sees studies, reports and the audit log and
changes nothing; *site* asks for one study and reads its state;
*metrics* reads `/metrics`. To replace a token, make a new one and then revoke the old one.
"""

from __future__ import annotations

import asyncio
import math
import secrets as random
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from starlette.concurrency import run_in_threadpool

from blindstep.errors import BlindstepError
from blindstep.serve import schema
from blindstep.serve.database import Database
from blindstep.serve.keys import Secrets

Rights = Literal["admin", "viewer", "site", "metrics"]
# For how long a worker believes what it has read: a revoked token ends everywhere after this. And how
# long it must wait before it reads again, because somebody came with a token that it does not know.
_BELIEVED, _AGAIN = 2.0, 0.25


class Forbidden(BlindstepError):
    """The request has no token, a wrong one, or one that may not do this."""

    def __init__(self, status: int) -> None:
        said = "a valid token is needed." if status == 401 else "this token may not do that."
        super().__init__(said)
        self.status = status


class LastAdmin(BlindstepError):
    """The last token of an admin is not revoked: nobody could make another one here."""

    def __init__(self) -> None:
        super().__init__("this is the last admin token: make another one first.")


class Principal(NamedTuple):
    """The holder of a token, or of a session on the dashboard."""

    id: str
    scope: str
    study: str | None
    label: str = ""

    def may_use(self, study: str) -> bool:
        """Whether it may ask for this study and read its state."""
        return self.scope == "admin" or (self.scope == "site" and self.study == study)


class Access:
    """The tokens of a service.

    A worker keeps the whole table in memory. So a wrong token costs a look into a dictionary, whoever
    sends how many, and nobody's right one waits behind them.
    """

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database, self._secrets = database, secrets
        self._known: dict[bytes, Principal] = {}
        self._read_at, self.patience = -math.inf, _AGAIN
        self._reading: asyncio.Future[None] | None = None

    @staticmethod
    def new_token(scope: Rights) -> str:
        """A random token that stands for nobody yet."""
        return f"bs_{scope}_{random.token_urlsafe(32)}"

    def create(
        self, scope: Rights, study: str | None, label: str, token: str | None = None
    ) -> tuple[str, str]:
        """A new token (or this one): its id, and the token itself, which is kept nowhere."""
        token, name = token or self.new_token(scope), random.token_hex(6)
        row = {
            "id": name,
            "hash": self._secrets.token_name(token),
            "scope": scope,
            "study": study,
            "label": label[:100],
            "made_on": datetime.now(UTC).date().isoformat(),
        }
        with self._database.begin() as connection:
            connection.execute(sa.insert(schema.tokens), row)
        self._read_at = -math.inf
        return name, token

    def has_admin(self) -> bool:
        """Whether there is a token of an admin."""
        return any(principal.scope == "admin" for principal in self.all())

    def all(self) -> list[Principal]:
        """Every token's principal."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(schema.tokens).order_by(schema.tokens.c.made_on))
            return [_principal(row) for row in rows]

    def revoke(self, name: str) -> bool:
        """Delete a token; says whether it was there. The last one of an admin is refused."""
        token, session = schema.tokens.c, schema.sessions.c
        with self._database.begin() as connection:
            # Locked: of two admins who revoke each other's at a time, one is refused.
            admins = sa.select(token.id).where(token.scope == "admin").order_by(token.id)
            if connection.execute(admins.with_for_update()).scalars().all() == [name]:
                raise LastAdmin
            gone = connection.execute(sa.delete(schema.tokens).where(token.id == name))
            connection.execute(sa.delete(schema.sessions).where(session.token == name))
        self._read_at = -math.inf
        return gone.rowcount > 0

    def refresh(self) -> None:
        """Read all tokens."""
        began = time.monotonic()
        with self._database.read() as connection:
            rows = connection.execute(sa.select(schema.tokens)).all()
        self._known = {bytes(row.hash): _principal(row) for row in rows}
        self._read_at = began

    async def principal(self, token: str) -> Principal | None:
        """Whom a token stands for, as far as was known seconds ago; None for a wrong one.

        One that is not known may have been made a moment ago by another worker: it waits for the next
        reading, of which there are few, however many come.
        """
        name, came = self._secrets.token_name(token), time.monotonic()
        while True:
            found, age = self._known.get(name), time.monotonic() - self._read_at
            if (found is not None and age <= _BELIEVED) or self._read_at >= came:
                return found
            if found is None:
                await asyncio.sleep(max(0.0, self.patience - age))
            if self._reading is None or self._reading.done():  # one reads, the others wait for it
                self._reading = asyncio.ensure_future(run_in_threadpool(self.refresh))
            await asyncio.shield(self._reading)

    def look_up(self, name: bytes) -> Principal | None:
        """The principal of a token with this hash, from the database."""
        with self._database.read() as connection:
            chosen = sa.select(schema.tokens).where(schema.tokens.c.hash == name)
            row = connection.execute(chosen).first()
        return None if row is None else _principal(row)


def _principal(row: Any) -> Principal:
    return Principal(row.id, row.scope, row.study, row.label)


_MOST_BUCKETS = 10_000


class TooMany(BlindstepError):
    """More requests than the limit allows: come back in a second."""


class Rate:
    """Token buckets, one for each name: `rate` requests a second, with bursts of the same size."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: OrderedDict[Any, tuple[float, float]] = OrderedDict()

    def take(self, name: Any, many: int = 1) -> None:
        """Consume `many` tokens or raise; the balance may go negative."""
        now, most = time.monotonic(), max(self._rate, 1.0)
        left, at = self._buckets.get(name, (most, now))
        left = min(most, left + (now - at) * self._rate)
        if left < 1.0:
            raise TooMany("too many requests: try again in a second.")
        self._buckets[name] = (left - many, now)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
