"""Limits that keep one client from taking the service away from others: body size and rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindstep.errors import BlindstepError

_MOST_KEPT = 10_000


class TooMany(BlindstepError):
    """More requests than the limit allows: come back in a second."""


class Rate:
    """A bucket for each name: `rate` requests a second, and as many at once after a rest."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: OrderedDict[Any, tuple[float, float]] = OrderedDict()

    def take(self, name: Any, many: int = 1) -> None:
        """Take so many, or raise. Who takes more than a second's worth pays for it in the next ones."""
        left, now = self.look(name)
        self._buckets[name] = (left - many, now)
        if len(self._buckets) > _MOST_KEPT:
            self._buckets.popitem(last=False)

    def look(self, name: Any) -> tuple[float, float]:
        """Raise if nothing is left to take; else what is left, and the time."""
        now, most = time.monotonic(), max(self._rate, 1.0)
        left, at = self._buckets.get(name, (most, now))
        left = min(most, left + (now - at) * self._rate)
        if left < 1.0:
            raise TooMany("too many requests: try again in a second.")
        return left, now


class BodyLimit:
    """Refuses a body that is longer than allowed, before it is read to its end."""

    def __init__(self, app: ASGIApp, usual: int, bulk: int) -> None:
        self._app, self._usual, self._bulk = app, usual, bulk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._bulk if scope["path"] == "/v1/answers/bulk" else self._usual
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told) > most:
            await _refuse(send)
            return
        begun, seen = False, 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            return message if seen <= most else {"type": "http.disconnect"}

        async def noted(message: Message) -> None:
            nonlocal begun
            if seen <= most or begun:  # what the app says of a body that was cut off is not sent
                begun = True
                await send(message)

        try:
            await self._app(scope, counted, noted)
        finally:
            if seen > most and not begun:
                await _refuse(send)


async def _refuse(send: Send) -> None:
    body = b'{"error":{"code":"too_large","message":"the body is larger than allowed."}}'
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
