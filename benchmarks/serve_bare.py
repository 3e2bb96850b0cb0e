"""A bare FastAPI with the two routes of the service and nothing of what it is for, to compare with.

The same requests and responses and as durable an acknowledgement, but no signatures, limits or study: a
question is a row of random numbers, an answer is a row. `BARE_COMMIT=row` commits each request by
itself, `group` gathers what arrives during the last commit, as the service does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

ASKED = "INSERT INTO asked (person, token) VALUES ({0}, {0}) ON CONFLICT DO NOTHING"
VOTES = "INSERT INTO votes (token, value) VALUES ({0}, {0}) ON CONFLICT DO NOTHING"
TABLES = (
    "CREATE TABLE IF NOT EXISTS asked (person TEXT PRIMARY KEY, token TEXT)",
    "CREATE TABLE IF NOT EXISTS votes (token TEXT PRIMARY KEY, value DOUBLE PRECISION)",
)


class Person(BaseModel):
    """Whom to ask."""

    person: str


class Answer(BaseModel):
    """An answer."""

    token: str
    value: float


class Rows:
    """Rows on their way to the database; `store` returns when its row is durable."""

    def __init__(self, url: str, together: bool) -> None:
        self._url, self._together = url, together
        self._sqlite = url.startswith("sqlite")
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._free: asyncio.Queue[Any] = asyncio.Queue()

    def _connect(self) -> Any:
        if self._sqlite:
            made = sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=30)
            made.isolation_level = None
            made.execute("PRAGMA journal_mode=WAL")
            made.execute("PRAGMA synchronous=FULL")
            return made
        import psycopg

        return psycopg.connect(self._url, prepare_threshold=None)

    async def start(self) -> None:
        """Make the tables; start a thread, or open connections of PostgreSQL."""
        with contextlib.closing(self._connect()) as first:
            for table in TABLES:
                with contextlib.suppress(Exception):  # workers that start together
                    first.execute(table)
                    first.commit()
        if self._together or self._sqlite:
            threading.Thread(target=self._write, daemon=True).start()
            return
        import psycopg

        for _ in range(8):
            opened = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
            self._free.put_nowait(opened)

    async def store(self, statement: str, row: tuple[Any, ...]) -> None:
        """Store a row."""
        statement = statement.format("?" if self._sqlite else "%s")
        if self._together or self._sqlite:
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            self._waiting.put((statement, row, done, loop))
            await done
            return
        connection = await self._free.get()
        try:
            await connection.execute(statement, row)
        finally:
            self._free.put_nowait(connection)

    def _write(self) -> None:
        connection = self._connect()
        while True:
            batch = [self._waiting.get()]
            while self._together and not self._waiting.empty():
                batch.append(self._waiting.get())
            if self._sqlite:
                connection.execute("BEGIN IMMEDIATE")
            cursor = connection.cursor()
            for statement in {each[0] for each in batch}:
                cursor.executemany(statement, sorted(e[1] for e in batch if e[0] == statement))
            connection.commit()
            done = [each[2] for each in batch]
            batch[0][3].call_soon_threadsafe(lambda done=done: [d.set_result(None) for d in done])


def build() -> FastAPI:
    """The app: what each uvicorn worker calls."""
    rows = Rows(os.environ["BARE_DATABASE"], os.environ["BARE_COMMIT"] == "group")

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        await rows.start()
        yield

    app = FastAPI(lifespan=running)

    @app.get("/readyz")
    async def readyz() -> PlainTextResponse:
        return PlainTextResponse("ready")

    def question(part: int) -> dict[str, Any]:
        shown = {f"weight_{number}": random.random() for number in range(6)}
        asked = {"status": "asked", "parameters": shown, "step": 1}
        return asked | {"token": secrets.token_urlsafe(32), "part": part}

    @app.post("/v1/studies/{study}/questions")
    async def ask(study: str, body: Person) -> JSONResponse:
        asked = question(1)
        await rows.store(ASKED, (body.person, asked["token"]))
        return JSONResponse(asked)

    @app.post("/v1/answers")
    async def answer(body: Answer) -> JSONResponse:
        await rows.store(VOTES, (body.token, body.value))
        # Every other answer is a person's first one, and the second question comes with it.
        following = None if body.token.startswith("2") else question(2)
        if following is not None:
            following["token"] = "2" + following["token"]
        return JSONResponse({"status": "accepted", "next": following})

    return app
