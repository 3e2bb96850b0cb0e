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

import contextlib
import itertools
import json
import logging
import math
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa

from blindstep.serve import schema
from blindstep.serve.accounts import LedgerPort, open_ledger, votes_name
from blindstep.serve.database import is_passing
from blindstep.serve.design import Design, Votes
from blindstep.serve.keys import Address, DamagedVote, number_of
from blindstep.serve.observe import damaged
from blindstep.serve.schema import Row
from blindstep.serve.studies import THAWED, Studies, change, delete_votes, end

_log = logging.getLogger("blindstep.serve")
# How often a worker looks for windows that have ended, for how many seconds it holds a step that it
# releases, and how often it says that it still does: so one that stops is replaced soon, however many
# votes there are.
_LOOK_EVERY, _HELD, _STILL_HELD = 0.25, 5.0, 1.5
# Seconds that it waits for a study's lock, which another host may have stopped with.
_PATIENCE = 1.0
# Votes that are read in one go. Between two goes others have their turn: a million votes take seconds.
_AT_ONCE = 500
# Steps that a worker has under way, and how many of them it works at: the rest wait for ticks.
_MOST_AT_ONCE, _MOST_AT_WORK = 64, 2
_SALT = 16
_COLUMNS = schema.studies.c
_LOOKED_AT = sa.select(
    *(_COLUMNS[name] for name in ("number", "id", "status", "release", "frozen")),
    *(_COLUMNS[name] for name in ("deadline", "held_until")),
)


def freeze(studies: Studies, number: int, holder: str) -> bool:
    """Freeze a study's step if its window has ended, or take over a frozen one that nobody holds.

    Says whether `holder` now holds it. The salt is drawn when the step is frozen, and not again.
    """
    with studies.database.begin() as connection:
        row = studies.database.locked(connection, number, patience=_PATIENCE)
        now = studies.database.now(connection)
        if row is None or row["status"] != "running" or not _due(row, now):
            return False
        salt = row["salt"] if row["frozen"] else os.urandom(_SALT)
        change(connection, number, frozen=1, salt=salt, holder=holder, held_until=now + _HELD)
        return True


@contextlib.contextmanager
def still_held(studies: Studies, number: int, holder: str) -> Iterator[None]:
    """Say every now and then that `holder` is still at work on a frozen step."""
    ended = threading.Event()
    mine = (_COLUMNS.number == number) & (_COLUMNS.holder == holder) & (_COLUMNS.frozen == 1)

    def say() -> None:
        while not ended.wait(_STILL_HELD):
            # If it fails, another worker may take over, and this one cannot commit: nothing is lost.
            with contextlib.suppress(Exception), studies.database.begin() as connection:
                until = studies.database.now(connection) + _HELD
                held = sa.update(schema.studies).where(mine).values(held_until=until)
                connection.execute(held)

    saying = threading.Thread(target=say, name="blindstep-holder", daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()


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
    history = studies.history(number) if position + 1 == design.releases else []
    name = votes_name(secrets, row["id"], position, salt, votes.ravel())
    noise = secrets.noise(row["id"], row["attempt"], position, salt, name)
    port = LedgerPort(row, secrets, salt)
    gate = design.gate(noise, port, position)
    wait(row)
    with database.begin() as connection:
        now = database.locked(connection, number)
        if now is None or not _still_waits(row, now):
            return False
        port.ledger = open_ledger(connection, row["cohort"])
        with database.working(connection):
            made = design.release(gate, state, votes, history)
        stored = {"study": number, "release": position, "state": made.state}
        outcome = json.dumps(made.outcome)
        connection.execute(sa.insert(schema.releases), stored | {"outcome": outcome})
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


def _far_off(row: Row, studies: Studies) -> bool:
    """Whether a window ends later than one that begins now would: a clock had jumped, and is back."""
    design = studies.kept.known(row["number"])
    return design is not None and row["deadline"] > row["now"] + design.spec.window_seconds + 1.0


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
        .order_by(votes.person, votes.part)
        .limit(_AT_ONCE)
    )

    def frozen() -> Iterator[Any]:
        """In goes, so that little is in memory, and others have their turn in between."""
        some = chosen
        while True:
            with studies.database.read() as connection:
                found = connection.execute(some).all()
            yield from found
            if len(found) < _AT_ONCE:
                return
            time.sleep(0.001)
            last = sa.tuple_(sa.literal(bytes(found[-1].person)), sa.literal(found[-1].part))
            some = chosen.where(sa.tuple_(votes.person, votes.part) > last)

    unseal, design, rows = studies.secrets.unseal, studies.design(number), array("d")
    for whose, own in itertools.groupby(frozen(), lambda vote: bytes(vote.person)):
        losses = [math.nan, math.nan]
        for _, part, sealed in own:
            try:
                losses[part] = unseal(Address(number, release, whose, part), bytes(sealed))
            except DamagedVote:  # it stays NaN: this person counts 0, and nobody else is touched
                damaged.inc()
                _log.error("a stored vote is damaged: it counts 0", extra={"study": row["id"]})
        rows.extend((number_of(whose), design.role(whose, release), *_both(design, losses)))
    return np.frombuffer(rows, float).reshape(-1, 4)


def _both(design: Design, own: list[float]) -> list[float]:
    """A person's two losses: those of a comparison follow from its one answer."""
    return own if design.spec.answer.questions == 2 else [own[0], 1.0 - own[0]]


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
        # Studies that could not be served the last time: number and error.
        self.troubled: dict[int, str] = {}

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
        rows = self.look_at_all()
        self._studies.kept.let_go({row["number"] for row in rows})
        for row in rows:
            if _far_off(row, self._studies):
                self._each(row, lambda row: self._studies.end_window_in_time(row["number"]))
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
        """What there is to know of the studies that run, and what time it is."""
        database = self._studies.database
        chosen = _LOOKED_AT.add_columns(database.clock()).where(_COLUMNS.status == "running")
        with database.read() as connection:
            return list(connection.execute(chosen).mappings())

    def _each(self, row: Row, what: Callable[[Row], object]) -> None:
        """One study that cannot be served does not keep others from being served."""
        try:
            what(row)
            self.troubled.pop(row["number"], None)
        except Exception as error:
            if not is_passing(error):  # a database that is away is everybody's trouble
                self.troubled[row["number"]] = type(error).__name__
            _log.error(
                "a step cannot be closed or opened: it is tried again",
                extra={"study": row["id"], "error": type(error).__name__},
            )

    def close(self, row: Row) -> None:
        """Freeze a step, or take over one that nobody holds any more, and release it."""
        number, studies = row["number"], self._studies
        if freeze(studies, number, self._holder):
            with still_held(studies, number, self._holder), self._at_work:
                self._forgetting |= release(studies, number, self._holder, self._wait)

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
