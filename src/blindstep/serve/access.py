"""Who may do what, and how often: tokens with scopes, dashboard sessions, limits on the rate.

A token is 32 random bytes. The database holds its keyed hash, so neither the database nor its backup
opens anything. Scopes: *admin* does everything; *site* asks for one study and reads its state;
*metrics* reads `/metrics`. To replace a token, make a new one and then revoke the old one.
"""

from __future__ import annotations

import hmac
import secrets as random
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from blindstep.errors import BlindstepError
from blindstep.serve import schema
from blindstep.serve.database import Database
from blindstep.serve.keys import Secrets

Rights = Literal["admin", "site", "metrics"]
# For how long a worker believes what it has read: a revoked token ends everywhere after this.
_BELIEVED = 2.0
_SESSION = 12 * 3600
_MOST_TOKENS = 4096


class Forbidden(BlindstepError):
    """The request has no token, a wrong one, or one that may not do this."""

    def __init__(self, status: int) -> None:
        said = "a valid token is needed." if status == 401 else "this token may not do that."
        super().__init__(said)
        self.status = status


class Principal(NamedTuple):
    """The holder of a token."""

    id: str
    scope: str
    study: str | None

    def may_use(self, study: str) -> bool:
        """Whether it may ask for this study and read its state."""
        return self.scope == "admin" or (self.scope == "site" and self.study == study)


class Access:
    """The tokens of a service."""

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database, self._secrets = database, secrets
        self._known: dict[bytes, tuple[float, Principal | None]] = {}

    def create(self, scope: Rights, study: str | None, label: str) -> tuple[str, str]:
        """A new token: its id, and the token itself, which is kept nowhere."""
        token, name = f"bs_{scope}_{random.token_urlsafe(32)}", random.token_hex(6)
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
        return name, token

    def first_admin(self) -> str | None:
        """An admin token if there is none yet."""
        if any(principal.scope == "admin" for principal, _, _ in self.all()):
            return None
        return self.create("admin", None, "made at the first start")[1]

    def all(self) -> list[tuple[Principal, str, str]]:
        """Every token's principal, label and day."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(schema.tokens).order_by(schema.tokens.c.made_on))
            return [(Principal(r.id, r.scope, r.study), r.label, r.made_on) for r in rows]

    def revoke(self, name: str) -> bool:
        """Delete a token; says whether it was there."""
        with self._database.begin() as connection:
            gone = connection.execute(sa.delete(schema.tokens).where(schema.tokens.c.id == name))
        self._known.clear()
        return gone.rowcount > 0

    def believed(self, token: str) -> tuple[bytes, Principal | None, bool]:
        """A token's hash, its principal as far as it is known, and whether that is recent enough."""
        name = self._secrets.token_name(token)
        until, principal = self._known.get(name, (0.0, None))
        return name, principal, time.monotonic() < until

    def look_up(self, name: bytes) -> Principal | None:
        """The principal of a token with this hash, from the database."""
        with self._database.read() as connection:
            chosen = sa.select(schema.tokens).where(schema.tokens.c.hash == name)
            row = connection.execute(chosen).first()
        principal = None if row is None else Principal(row.id, row.scope, row.study)
        if len(self._known) > _MOST_TOKENS:
            self._known.clear()
        self._known[name] = (time.monotonic() + _BELIEVED, principal)
        return principal

    def session(self, token: str) -> str | None:
        """A cookie for anyone who has an admin token; None for others."""
        principal = self.look_up(self._secrets.token_name(token))
        if principal is None or principal.scope != "admin":
            return None
        content = f"{principal.id}.{int(time.time()) + _SESSION}"
        return f"{content}.{self._signature(content)}"

    def _signature(self, content: str) -> str:
        return self._secrets.sign(content.encode()).hex()

    def of_session(self, cookie: str) -> Principal | None:
        """The admin of a cookie, if it is genuine, not too old, and the token still there."""
        content, _, signature = cookie.rpartition(".")
        name, _, until = content.partition(".")
        expected = self._signature(content).encode()
        if not hmac.compare_digest(expected, signature.encode()) or int(until) < time.time():
            return None
        with self._database.read() as connection:
            chosen = sa.select(schema.tokens.c.scope).where(schema.tokens.c.id == name)
            scope = connection.execute(chosen).scalar()
        return Principal(name, scope, None) if scope == "admin" else None


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
        left, now = self.require(name)
        self._buckets[name] = (left - many, now)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)

    def require(self, name: Any) -> tuple[float, float]:
        """Return the balance and the time; raise if the balance is used up."""
        now, most = time.monotonic(), max(self._rate, 1.0)
        left, at = self._buckets.get(name, (most, now))
        left = min(most, left + (now - at) * self._rate)
        if left < 1.0:
            raise TooMany("too many requests: try again in a second.")
        return left, now
