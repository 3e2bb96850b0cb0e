"""Ending a window: freeze, then charge, release and delete the votes in one transaction.

1. *Freeze*, a short transaction of its own: from now on no answer is taken and nobody is asked. So
   the votes can no longer change, whichever worker releases them and however often. The salt of
   the noise is drawn with it, and the worker says that it holds the step.
2. *Read* the frozen votes and compile the program, outside any transaction.
3. *Release*, one transaction: lock the study, see that the step still waits and is still held by this
   worker, charge the ledger, send the votes through the gate, store what it released, delete votes and
   salt, open the next window. Then the write-ahead log is cut off, which holds the votes as well.

Exactly one worker wins. One that stops holds its step for a while only: then another one takes it over,
and the first, should it go on, finds that it holds it no more. A worker that dies on the way leaves
nothing behind but frozen votes, from which the next one makes the same release, bit for bit; a release
that nobody committed was seen by nobody.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import sqlalchemy as sa

from blindstep.serve import schema
from blindstep.serve.accounts import LedgerPort, open_ledger, votes_name
from blindstep.serve.design import Design, Votes
from blindstep.serve.keys import Address, number_of
from blindstep.serve.schema import Row
from blindstep.serve.studies import THAWED, Studies, change, delete_votes, end

_log = logging.getLogger("blindstep.serve")
# How often a worker looks for windows that have ended, and for how many seconds it holds a step that it
# releases: so long, and longer for many votes.
_LOOK_EVERY, _HELD, _HELD_FOR_EACH = 0.25, 5.0, 1 / 10_000
# Steps that a worker has under way, and how many of them it works at: the rest wait for ticks.
_MOST_AT_ONCE, _MOST_AT_WORK = 64, 2
_SALT = 16


def freeze(studies: Studies, number: int, holder: str) -> bool:
    """Freeze a study's step if its window has ended, or take over a frozen one that nobody holds.

    Says whether `holder` now holds it. The salt is drawn when the step is frozen, and not again.
    """
    with studies.database.begin() as connection:
        row = studies.database.locked(connection, number)
        now = studies.database.now(connection)
        if row is None or row["status"] != "running" or not _due(row, now):
            return False
        until = now + _HELD + _HELD_FOR_EACH * studies.design(number).planned
        salt = row["salt"] if row["frozen"] else os.urandom(_SALT)
        change(connection, number, frozen=1, salt=salt, holder=holder, held_until=until)
        return True


def _due(row: Row, now: float) -> bool:
    """Whether a step waits for somebody to freeze or to release it."""
    return bool(now >= (row["held_until"] if row["frozen"] else row["deadline"]))


def release(
    studies: Studies, number: int, holder: str, wait: Callable[[Row], None] = lambda row: None
) -> bool:
    """Release a frozen step; says whether this call did (False: `holder` holds it no more).

    It calls `wait` when all is prepared, and releases when that comes back.
    """
    database, secrets = studies.database, studies.secrets
    row = studies.row(number)
    if not row["frozen"] or row["holder"] != holder:
        return False
    votes = _read_votes(studies, row)
    design, position, salt = studies.design(number), row["release"], bytes(row["salt"])
    design.compile(len(votes))
    state = design.state(studies.snapshot(number, position)[0])
    name = votes_name(secrets, row["id"], position, salt, votes.ravel())
    noise = secrets.noise(row["id"], row["attempt"], position, salt, name)
    port = LedgerPort(row, secrets, salt)
    gate = design.gate(noise, port, position)
    wait(row)
    with database.begin() as connection:
        now = database.locked(connection, number)
        if now is None or not _still_waits(row, now):
            return False
        database.working(connection, _HELD + _HELD_FOR_EACH * design.planned)
        port.ledger = open_ledger(connection, row["cohort"])
        made = design.release(gate, state, votes)
        stored = {"study": number, "release": position, "state": made.state}
        connection.execute(sa.insert(schema.releases), stored | {"outcome": made.to_json()})
        deadline = _next_deadline(row, database.now(connection), design)
        change(connection, number, release=position + 1, deadline=deadline, **THAWED)
        if position + 1 == design.releases:
            end(connection, number, "finished")
        else:
            delete_votes(connection, number, position)
    _log.info("released", extra={"study": row["id"], "step": position + 1})
    return True


def _next_deadline(row: Row, now: float, design: Design) -> float:
    """When the next window ends: on a grid that was fixed before, however long the release took."""
    length = design.spec.window_seconds
    return row["deadline"] + length * max(1, math.ceil((now - row["deadline"]) / length))


def until_tick(row: Row, now: float, tick: float) -> float:
    """Seconds until a whole number of ticks after the window's end.

    To read many votes takes longer than to read few; released when it is done, a step would tell how
    many people have answered. Ticks are long, so that few votes and many are read within the same one.
    """
    return -(now - row["deadline"]) % tick if tick > 0 else 0.0


def _still_waits(before: Row, now: Row) -> bool:
    same = all(now[name] == before[name] for name in ("release", "attempt", "salt", "holder"))
    return same and bool(now["frozen"]) and now["status"] == "running"


def _read_votes(studies: Studies, row: Row) -> Votes:
    """The frozen votes as losses, NaN where none came: of people who were asked in this step alone.

    In the order of their keyed hashes, so that the same votes always have the same name.
    """
    votes, asked = schema.votes.c, schema.asked.c
    number, release = row["number"], row["release"]
    same = (asked.study == votes.study) & (asked.person == votes.person)
    chosen = (
        sa.select(votes.person, votes.part, votes.sealed)
        .join_from(schema.votes, schema.asked, same & (asked.release == votes.release))
        .where(votes.study == number, votes.release == release)
        .order_by(votes.person)
    )
    unseal, losses = studies.secrets.unseal, dict[bytes, list[float]]()
    with studies.database.read() as connection:
        for person, part, sealed in connection.execute(chosen):
            own = losses.setdefault(bytes(person), [math.nan, math.nan])
            own[part] = unseal(Address(number, release, bytes(person), part), bytes(sealed))
    rows = [[number_of(person), *own] for person, own in losses.items()]
    return np.asarray(rows, float).reshape(-1, 3)


class StepCloser(threading.Thread):
    """A worker's thread that looks for windows that have ended; each is closed in a thread of its own.

    So one study's trouble, or its many votes, keep no other one from being released.
    """

    def __init__(self, studies: Studies, tick: float) -> None:
        """A release waits for a whole number of ticks: so many seconds, and more for more people."""
        super().__init__(name="blindstep-closer", daemon=True)
        self._studies, self._tick, self._ending = studies, tick, threading.Event()
        self._holder = os.urandom(8).hex()
        self._under_way: dict[int, threading.Thread] = {}
        self._at_work = threading.Semaphore(_MOST_AT_WORK)
        self._forgetting = True  # whether deleted votes may still be in the write-ahead log
        self.last_check = time.monotonic()

    def end(self) -> None:
        """End after what is under way."""
        self._ending.set()
        until = time.monotonic() + 10.0
        for thread in (self, *self._under_way.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def run(self) -> None:
        """Check, close what is due, prepare the questions of open steps, and wait."""
        while not self._ending.is_set():
            try:
                self._look()
            except Exception as error:
                # What is wrong is said without its text, which may hold what a statement was given.
                _log.error("looking for due steps failed", extra={"error": type(error).__name__})
            else:
                self.last_check = time.monotonic()
            self._ending.wait(_LOOK_EVERY)

    def _look(self) -> None:
        alive = {number: each for number, each in self._under_way.items() if each.is_alive()}
        self._under_way = alive
        for row in self.look_at_all():
            if not _due(row, row["now"]):
                self._each(row, lambda row: self._studies.step(row).prepare())
            elif row["number"] not in alive and len(alive) < _MOST_AT_ONCE:
                closing = threading.Thread(target=self._each, args=(row, self.close), daemon=True)
                alive[row["number"]] = closing
                closing.start()
        # Again if somebody was reading; and at the start, for one who died after a release.
        if self._forgetting:
            self._forgetting = False
            self._forgetting |= not self._studies.database.forget()

    def look_at_all(self) -> list[Row]:
        """Rows of the studies that run, and what time it is."""
        with self._studies.database.read() as connection:
            now = self._studies.database.now(connection)
            chosen = sa.select(schema.studies).where(schema.studies.c.status == "running")
            return [{**row, "now": now} for row in connection.execute(chosen).mappings()]

    def _each(self, row: Row, what: Callable[[Row], object]) -> None:
        """One study that cannot be served does not keep others from being served."""
        try:
            what(row)
        except Exception as error:
            _log.error(
                "a step cannot be closed or opened: it is tried again",
                extra={"study": row["id"], "error": type(error).__name__},
            )

    def close(self, row: Row) -> None:
        """Freeze a step, or take over one that nobody holds any more, and release it."""
        number = row["number"]
        with self._at_work:
            if freeze(self._studies, number, self._holder):
                self._forgetting |= release(self._studies, number, self._holder, self._wait)

    def _wait(self, row: Row) -> None:
        """Wait for the tick, while others work."""
        tick = self._tick * (1.0 + self._studies.design(row["number"]).planned / 20_000)
        with self._studies.database.read() as connection:
            now = self._studies.database.now(connection)
        self._at_work.release()
        try:
            time.sleep(until_tick(row, now, tick))
        finally:
            self._at_work.acquire()
