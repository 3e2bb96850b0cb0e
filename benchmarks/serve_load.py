"""Simulated people on plain sockets: the least that a client can cost, so that the service is measured.

Each of `connections` takes the next person, asks, and answers both questions. With a pace, requests
are sent at a fixed rate whatever the answers take, and a late one counts from when it was due.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from dataclasses import dataclass, field


@dataclass
class Load:
    """What a load measured: seconds of every request, by kind, and how many of each status came."""

    questions: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Questions and answers a second."""
        return (len(self.questions) + len(self.answers)) / self.seconds

    def percentile(self, share: float) -> float:
        """The time in which this share of all requests was answered."""
        times = sorted(self.questions + self.answers)
        return times[min(len(times) - 1, int(share * len(times)))]


class Wire:
    """One connection that is kept open, with HTTP/1.1 written by hand."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._where, self._token = (host, port), token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Send JSON, get a status and JSON."""
        content = json.dumps(body).encode()
        more = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return await self._send("POST", path, more, content)

    async def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Get a status and JSON."""
        return await self._send("GET", path, "", b"")

    async def _send(
        self, method: str, path: str, more: str, content: bytes
    ) -> tuple[int, dict[str, object]]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._where)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._where[0]}\r\n"
            f"Authorization: Bearer {self._token}\r\n{more}\r\n"
        )
        writer.write(head.encode() + content)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length"))
        said = json.loads(await reader.readexactly(length))
        if "connection: close" in lines:
            self.close()
        return int(lines[0].split()[1]), said

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run(
    host: str,
    port: int,
    token: str,
    study: str | list[str],
    *,
    seconds: float,
    connections: int,
    pace: float | None = None,
    prefix: str = "person",
) -> Load:
    """Ask and answer for so long; with `pace`, so many requests a second and no more.

    Of several studies each person takes part in one, in turn.
    """
    load, numbers, began = Load(), itertools.count(), time.perf_counter()
    studies = itertools.cycle([study] if isinstance(study, str) else study)
    due = itertools.count()

    async def timed(wire: Wire, path: str, body: dict[str, object], into: list[float]) -> dict:
        start = time.perf_counter()
        if pace is not None:
            planned = began + next(due) / pace
            await asyncio.sleep(max(0.0, planned - start))
            start = planned
        status, said = await wire.post(path, body)
        into.append(time.perf_counter() - start)
        word = str(said.get("status", status))
        load.statuses[word] = load.statuses.get(word, 0) + 1
        return said

    async def person_after_person() -> None:
        wire = Wire(host, port, token)
        while time.perf_counter() - began < seconds:
            who = f"{prefix} {next(numbers)}"
            path = f"/v1/studies/{next(studies)}/questions"
            question = await timed(wire, path, {"person": who}, load.questions)
            if question.get("status") == "paused":
                await asyncio.sleep(0.01)
            while question is not None and question.get("token"):
                body = {"token": question["token"], "value": random.randint(0, 1)}
                question = (await timed(wire, "/v1/answers", body, load.answers)).get("next")
        wire.close()

    await asyncio.gather(*(person_after_person() for _ in range(connections)))
    load.seconds = time.perf_counter() - began
    return load


async def look(
    host: str, port: int, token: str, study: str, *, seconds: float, connections: int
) -> Load:
    """`GET /parameters` for so long: what everybody does who is not asked."""
    load, began = Load(), time.perf_counter()

    async def one_after_another() -> None:
        wire = Wire(host, port, token)
        while time.perf_counter() - began < seconds:
            start = time.perf_counter()
            status, _ = await wire.get(f"/v1/studies/{study}/parameters")
            load.questions.append(time.perf_counter() - start)
            load.statuses[str(status)] = load.statuses.get(str(status), 0) + 1
        wire.close()

    await asyncio.gather(*(one_after_another() for _ in range(connections)))
    load.seconds = time.perf_counter() - began
    return load
