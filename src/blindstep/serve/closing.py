"""Closing a step: freeze, then charge, release and delete the votes in one transaction.

1. *Freeze*, a short transaction of its own: from now on no answer is taken and no slot given out. So
   the votes can no longer change, whichever worker releases them and however often. The salt of
   the noise is drawn with it.
2. *Read* the frozen votes and compile the program, outside any transaction.
3. *Release*, one transaction: lock the study, see that the step still waits, charge the ledger, send
   the votes through the gate, store what it released, delete votes and salt, open the next step.

Exactly one worker wins: the second finds that the step no longer waits. A worker that dies on the way
leaves nothing behind but frozen votes, from which the next one makes the same release, bit for bit; a
release that nobody committed was seen by nobody.
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
from jaxtyping import Float

from blindstep.serve import schema
from blindstep.serve.accounts import LedgerPort, open_ledger, votes_name
from blindstep.serve.database import Database
from blindstep.serve.design import Design
from blindstep.serve.keys import Address
from blindstep.serve.schema import Row
from blindstep.serve.studies import Studies, change, delete_votes, end

_log = logging.getLogger("blindstep.serve")
# How often a worker looks for deadlines that have passed, and after how many seconds it takes over a
# step that another one froze and has not released.
_LOOK_EVERY, _TAKE_OVER = 0.25, 3.0
_SALT = 16


def freeze(studies: Studies, number: int) -> bool:
    """Freeze a study's open step if it is time, and draw its salt; says whether this call did."""
    with studies.database.begin() as connection:
        row = studies.database.locked(connection, number)
        if row is None or row["status"] != "running" or row["frozen"]:
            return False
        due = _due(row, studies.database.now(connection))
        if due:
            change(connection, number, frozen=1, salt=os.urandom(_SALT))
        return due


def _due(row: Row, now: float) -> bool:
    full = row["early"] and row["answered"] >= 2 * row["slots"]
    return bool(row["frozen"] or full or now >= row["deadline"])


def release(studies: Studies, number: int) -> bool:
    """Release a frozen step; says whether this call did (False: another worker was first)."""
    database, secrets = studies.database, studies.secrets
    row = studies.row(number)
    if not row["frozen"]:
        return False
    answers = _read_votes(studies, row)
    design, position, salt = studies.design(number), row["release"], bytes(row["salt"])
    design.compile()
    state = design.state(studies.snapshot(number, position)[0])
    name = votes_name(secrets, row["id"], position, salt, answers.ravel())
    noise = secrets.noise(row["id"], row["attempt"], position, salt, name)
    port = LedgerPort(row, secrets, salt)
    gate = design.gate(noise, port, position)
    if not row["early"]:
        _wait_for_the_tick(database, row)
    with database.begin() as connection:
        now = database.locked(connection, number)
        if now is None or not _still_waits(row, now):
            return False
        port.ledger = open_ledger(connection, row["cohort"])
        made = design.release(gate, state, answers)
        stored = {"study": number, "release": position, "state": made.state}
        stored |= {"outcome": made.to_json(), "shown": row["taken"], "answered": row["answered"]}
        connection.execute(sa.insert(schema.releases), stored)
        deadline = _next_deadline(row, database.now(connection), design)
        opened = {"release": position + 1, "taken": 0, "answered": 0, "deadline": deadline}
        change(connection, number, **opened, frozen=0, salt=None)
        if position + 1 == design.releases:
            end(connection, number, "finished")
        else:
            delete_votes(connection, number, position)
    _log.info("released", extra={"study": row["id"], "step": position + 1})
    return True


def _next_deadline(row: Row, now: float, design: Design) -> float:
    """When the next step ends. Where time is to tell nothing, on a grid that was fixed at the start."""
    length = design.spec.deadline_seconds
    if row["early"]:
        return now + length
    return row["deadline"] + length * max(1, math.ceil((now - row["deadline"]) / length))


def _wait_for_the_tick(database: Database, row: Row) -> None:
    """Wait until a whole number of ticks after the deadline.

    To read many votes takes longer than to read few; released when it is done, a step would tell how
    many people have answered. Ticks are long, so that few votes and many are read within the same one.
    """
    tick = 1.0 + row["slots"] / 20_000
    with database.read() as connection:
        since = database.now(connection) - row["deadline"]
    time.sleep(-since % tick)


def _still_waits(before: Row, now: Row) -> bool:
    kept = ("release", "attempt", "salt", "answered", "taken")
    same = all(now[name] == before[name] for name in kept)
    return same and bool(now["frozen"]) and now["status"] == "running"


def _read_votes(studies: Studies, row: Row) -> Float[np.ndarray, "slots 2"]:
    """The frozen votes as losses, NaN where none came. A person with one of two counts 0."""
    answers = np.full((row["slots"], 2), np.nan)
    columns = schema.votes.c
    chosen = sa.select(columns.slot, columns.part, columns.sealed).where(
        columns.study == row["number"], columns.release == row["release"]
    )
    unseal, where = studies.secrets.unseal, (row["number"], row["release"])
    with studies.database.read() as connection:
        for slot, part, sealed in connection.execute(chosen):
            answers[slot, part] = unseal(Address(*where, slot, part), bytes(sealed))
    return answers


class StepCloser(threading.Thread):
    """A worker's thread that closes steps: when told that one is full, and when deadlines pass."""

    def __init__(self, studies: Studies) -> None:
        super().__init__(name="blindstep-closer", daemon=True)
        self._studies, self._wake, self._ending = studies, threading.Event(), threading.Event()
        self._waiting: dict[tuple[int, int], float] = {}  # steps that others froze, and since when
        self.last_check = time.monotonic()

    def check_now(self) -> None:
        """Check now: a step may be full."""
        self._wake.set()

    def end(self) -> None:
        """End after what is under way."""
        self._ending.set()
        self._wake.set()
        self.join(timeout=10.0)

    def run(self) -> None:
        """Check, close what is due, prepare the questions of open steps, and wait."""
        while not self._ending.is_set():
            try:
                due, open_ones = self.look_at_all()
                for row in due:
                    self._each(row, self._close)
                for row in open_ones:
                    self._each(row, lambda row: self._studies.step(row).prepare())
            except Exception as error:
                # What is wrong is said without its text, which may hold what a statement was given.
                _log.error("looking for due steps failed", extra={"error": type(error).__name__})
            else:
                self.last_check = time.monotonic()
            self._wake.wait(_LOOK_EVERY)
            self._wake.clear()

    def look_at_all(self) -> tuple[list[Row], list[Row]]:
        """Rows of studies with a step to close or to release; and those with another open step."""
        with self._studies.database.read() as connection:
            now = self._studies.database.now(connection)
            chosen = sa.select(schema.studies).where(schema.studies.c.status == "running")
            rows: list[Row] = list(connection.execute(chosen).mappings())
        due = [row for row in rows if _due(row, now)]
        return due, [row for row in rows if not _due(row, now)]

    def _each(self, row: Row, what: Callable[[Row], object]) -> None:
        """One study that cannot be served does not keep others from being served."""
        try:
            what(row)
        except Exception as error:
            _log.error(
                "a step cannot be closed or opened: it is tried again",
                extra={"study": row["id"], "error": type(error).__name__},
            )

    def _close(self, row: Row) -> None:
        """Freeze and release; what another worker froze is left to it for a while."""
        number, now = row["number"], time.monotonic()
        if row["frozen"]:
            if now - self._waiting.setdefault((number, row["release"]), now) < _TAKE_OVER:
                return
        elif not freeze(self._studies, number):
            return
        release(self._studies, number)
