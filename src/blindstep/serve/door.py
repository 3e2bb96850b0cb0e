"""The door: what a connection may do before its request is one. uvicorn's protocol, with limits.

uvicorn waits for ever for a header that does not end, takes one of any length, and opens as many
connections as come; the system then refuses everybody. Here a connection has so many seconds for a
header, and so many for a body; and where there are too many, the one that has said nothing for longest
makes room. Without a proxy in front, that is all that stands between a stranger and the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_log = logging.getLogger("blindstep.serve")

# Bytes of a request's line and headers together, and requests that may wait for their turn on one
# connection. (The limit of a body is `app.Boundary`'s.)
HEAD_BYTES, WAITING = 16 * 1024, 16
# Seconds for a whole header, from the connection or the first byte; for a whole body; and for
# a client to take what it was sent. A connection in between two requests is uvicorn's matter.
HEAD_SECONDS, BODY_SECONDS, TAKE_SECONDS = 10.0, 60.0, 30.0
# How often connections are looked through, and for how long after a worker was told to end a connection
# that is silent is kept, for a client that is just sending its next request.
_EVERY, GRACE = 1.0, 2.0
# Files that a worker needs besides its connections, and the most that it asks the system for.
_OTHER_FILES, _MOST_FILES = 100, 65_536


def room_for_connections() -> int:
    """How many connections a worker may hold: what the system allows, raised as far as it goes."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return _MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(1, (_MOST_FILES if soft == resource.RLIM_INFINITY else soft) - _OTHER_FILES)


class Connections:
    """The connections of a worker: looked through every second, and how many there may be."""

    def __init__(self) -> None:
        self.most = room_for_connections()
        self.all: dict[Door, None] = {}  # in the order in which they were opened
        self._sweeping: asyncio.TimerHandle | None = None
        self._told = False

    def add(self, door: Door) -> None:
        """One more; if there are too many, the one that has been silent for longest is closed."""
        self.all[door] = None
        if self._sweeping is None:
            self._sweeping = door.loop.call_later(_EVERY, self._sweep, door.loop)
        if len(self.all) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "there are as many connections as the system allows: silent ones are closed",
                extra={"number": self.most},
            )
        # Who has never sent a whole request goes before who is between two; of each, the oldest.
        silent = (door for door in self.all if door.silent and not door.served)
        idle = (door for door in self.all if door.silent and door.served)
        busy = (door for door in self.all if not door.silent)
        next(itertools.chain(silent, idle, busy)).drop()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for door in [door for door in self.all if now > door.until]:
            door.too_slow()
        self._told = self._told and len(self.all) > self.most // 2
        self._sweeping = loop.call_later(_EVERY, self._sweep, loop) if self.all else None


_connections: Connections | None = None


class Door(HttpToolsProtocol):
    """One connection. `until` is when it will have taken too long for what it is doing."""

    def __init__(self, *given: Any, **named: Any) -> None:
        global _connections
        super().__init__(*given, **named)
        self._of = _connections = _connections or Connections()
        self.until = self.loop.time() + HEAD_SECONDS
        self.served = False  # whether a request of it was answered
        # Headers that were begun, whether one is being read, and its bytes so far.
        self._begun, self._in_head, self._head = 0, False, 0
        self._ending = False

    @property
    def silent(self) -> bool:
        """Whether no request of it is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Count it."""
        super().connection_made(transport)
        self._of.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._of.all.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, if it is not too much of a header."""
        begun, whole = self._begun, self._in_head or self.silent
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            # What came is all of one header, unless others ended in it.
            self._head = self._head + len(data) if whole and self._begun - begun <= 1 else 0
            if self._head > HEAD_BYTES:
                self._refuse(431, "Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """The first byte of a header."""
        super().on_message_begin()
        self._begun, self._in_head, self._head = self._begun + 1, True, 0
        self.until = self.loop.time() + HEAD_SECONDS

    def on_headers_complete(self) -> None:
        """A header has come to its end: what follows is a body, or the next request."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_BYTES or len(self.pipeline) >= WAITING:
            self._refuse(431, "Request Header Fields Too Large")
            return
        super().on_headers_complete()
        self.until = self.loop.time() + BODY_SECONDS
        if self._ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A part of a body; one of a request that was refused is not kept."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole: from now on it waits for us."""
        self.until = math.inf
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request was answered."""
        self.served = True
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take what it was sent: it may not hold that up for ever."""
        self.until = self.loop.time() + TAKE_SECONDS
        super().pause_writing()

    def resume_writing(self) -> None:
        """It takes it again."""
        self.until = math.inf
        super().resume_writing()

    def shutdown(self) -> None:
        """The worker ends: what is under way is answered, and so is what a client is just sending.

        uvicorn would close a connection between two requests at once, and the next one, which may be
        on its way, would find nobody.
        """
        self._ending = True
        if self.silent:
            self.until = self.loop.time() + GRACE
            self._unset_keepalive_if_required()
        else:
            super().shutdown()

    def too_slow(self) -> None:
        """It has taken too long."""
        if (self.silent and not self._in_head) or self.flow.write_paused:
            self.drop()
        else:
            self._refuse(408, "Request Timeout")

    def drop(self) -> None:
        """Close it without a word."""
        if not self.transport.is_closing():
            self.transport.abort()

    def _refuse(self, status: int, said: str) -> None:
        """Say why, and close. What a request has brought so far goes nowhere."""
        if self.transport.is_closing():
            return
        if self.silent or not self.cycle.response_started:
            answer = f"HTTP/1.1 {status} {said}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(answer.encode())
        self.transport.close()


# What of uvicorn's protocol, its requests and its flow control is used here and is not documented.
_USED = {
    HttpToolsProtocol: {
        *("connection_made", "connection_lost", "data_received", "shutdown"),
        *("on_message_begin", "on_headers_complete", "on_body", "on_message_complete"),
        *("on_response_complete", "pause_writing", "resume_writing"),
        *("_unset_keepalive_if_required", "loop", "cycle", "transport", "flow", "pipeline"),
        *("url", "headers"),
    },
    RequestResponseCycle: {"response_complete", "response_started", "keep_alive"},
    FlowControl: {"write_paused"},
}


def missing() -> list[str]:
    """What this version of uvicorn has not: methods, or attributes that its methods set."""
    found = []
    for kind, names in _USED.items():
        codes = [each.__code__ for each in vars(kind).values() if hasattr(each, "__code__")]
        known = set(dir(kind)).union(*(code.co_names for code in codes))
        found += [f"{kind.__name__}.{name}" for name in sorted(names - known)]
    return found
