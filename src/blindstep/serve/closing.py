"""Closing a step: freeze, then charge, release and delete the votes in one transaction.

1. *Freeze*, a short transaction of its own: from now on no answer is taken and no slot given out. So
   the votes can no longer change, whoever releases them, and however often that is begun.
2. *Read* the frozen votes and compile the program, outside any transaction.
3. *Release*, one transaction: lock the study, see that the step still waits, charge the ledger, send
   the votes through the gate, store what it released, delete the votes, open the next step.

Exactly one worker wins: whoever comes second finds that the step no longer waits. A worker that dies on
the way leaves nothing behind but frozen votes, from which the next one makes the same release, bit for
bit; a release that nobody committed was seen by nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float
from sqlalchemy.engine import Connection, RowMapping

from blindstep.serve import schema
from blindstep.serve.accounts import LedgerPort, Run, open_ledger, votes_name
from blindstep.serve.keys import Address
from blindstep.serve.studies import Studies, delete_votes

_log = logging.getLogger("blindstep.serve")
# How often a worker looks for deadlines that have passed.
_LOOK_EVERY = 0.25


def freeze(studies: Studies, number: int) -> bool:
    """Freeze a study's open step if it is time; says whether it is frozen now."""
    with studies.database.begin() as connection:
        row = studies.database.locked(connection, number)
        if row is None or row["status"] != "running":
            return False
        if row["frozen"]:
            return True
        if not _due(row, studies.database.now(connection)):
            return False
        chosen = schema.studies.c.number == number
        connection.execute(sa.update(schema.studies).where(chosen).values(frozen=1))
        return True


def _due(row: RowMapping, now: float) -> bool:
    full = row["early"] and row["answered"] >= 2 * row["slots"]
    return bool(full or now >= row["deadline"])


def release(studies: Studies, number: int) -> bool:
    """Release a frozen step; says whether this call did (False: another worker was first)."""
    database, secrets = studies.database, studies.secrets
    with database.read() as connection:
        chosen = sa.select(schema.studies).where(schema.studies.c.number == number)
        row = connection.execute(chosen).mappings().one()
        if not row["frozen"]:
            return False
        answers = _read_votes(studies, connection, row)
    design, position = studies.design(number), row["release"]
    design.compile()
    state = design.state(studies.standing(number, position)[0])
    run = Run(row["id"], row["cohort"], row["attempt"], design.plan)
    name = votes_name(secrets, row["id"], position, answers.ravel())
    noise = secrets.noise(row["id"], row["attempt"], position, name)
    with database.begin() as connection:
        now = database.locked(connection, number)
        if now is None or not _still_waits(row, now):
            return False
        port = LedgerPort(open_ledger(connection, row["cohort"]), run, secrets)
        made = design.release(noise, port, position, state, answers)
        counts = {"shown": row["taken"], "answered": row["answered"]}
        stored = {"study": number, "release": position, "state": made.state}
        stored |= {"outcome": made.to_json(), **counts}
        connection.execute(sa.insert(schema.releases), stored)
        delete_votes(connection, number, position)
        last = position + 1 == design.releases
        opened: dict[str, Any] = {"release": position + 1, "frozen": 0, "taken": 0, "answered": 0}
        opened |= {"deadline": database.now(connection) + design.spec.deadline_seconds}
        if last:
            opened["status"] = "finished"
        chosen = schema.studies.c.number == number
        connection.execute(sa.update(schema.studies).where(chosen).values(**opened))
    _log.info("released", extra={"study": row["id"], "step": position + 1})
    return True


def _still_waits(before: RowMapping, now: RowMapping) -> bool:
    same = all(now[name] == before[name] for name in ("release", "attempt", "answered", "taken"))
    return same and bool(now["frozen"]) and now["status"] == "running"


def _read_votes(
    studies: Studies, connection: Connection, row: RowMapping
) -> Float[np.ndarray, "slots 2"]:
    """The frozen votes as losses, NaN where none came. A person with one of two counts 0."""
    answers = np.full((row["slots"], 2), np.nan)
    columns = schema.votes.c
    chosen = sa.select(columns.slot, columns.part, columns.sealed).where(
        columns.study == row["number"], columns.release == row["release"]
    )
    unseal, where = studies.secrets.unseal, (row["number"], row["release"])
    for slot, part, sealed in connection.execute(chosen):
        answers[slot, part] = unseal(Address(*where, slot, part), bytes(sealed))
    return answers


class Keeper(threading.Thread):
    """A worker's thread that closes steps: when told that one is full, and when deadlines pass."""

    def __init__(self, studies: Studies) -> None:
        super().__init__(name="blindstep-keeper", daemon=True)
        self._studies, self._wake, self._ending = studies, threading.Event(), threading.Event()
        self.last_look = time.monotonic()

    def look(self) -> None:
        """Look now: a step may be full."""
        self._wake.set()

    def end(self) -> None:
        """End after what is under way."""
        self._ending.set()
        self._wake.set()
        self.join(timeout=10.0)

    def run(self) -> None:
        """Look, close what is due, prepare the questions of open steps, and wait."""
        while not self._ending.is_set():
            try:
                due, open_ones = self.look_at_all()
                for number in due:
                    self._close(number)
                for row in open_ones:
                    self._studies.step(row).prepare()
                self.last_look = time.monotonic()
            except Exception as error:
                # What is wrong is said without its text, which may hold what a statement was given.
                _log.error("looking for due steps failed", extra={"error": type(error).__name__})
            self._wake.wait(_LOOK_EVERY)
            self._wake.clear()

    def look_at_all(self) -> tuple[list[int], list[RowMapping]]:
        """Studies with a step that is to be closed or released; and the rows of other open steps."""
        with self._studies.database.read() as connection:
            now = self._studies.database.now(connection)
            chosen = sa.select(schema.studies).where(schema.studies.c.status == "running")
            rows = connection.execute(chosen).mappings().all()
        due = [row["number"] for row in rows if row["frozen"] or _due(row, now)]
        return due, [row for row in rows if row["number"] not in due]

    def _close(self, number: int) -> None:
        try:
            if freeze(self._studies, number):
                release(self._studies, number)
        except Exception as error:
            _log.error(
                "closing a step failed: it is tried again",
                extra={"number": number, "error": type(error).__name__},
            )
            self._ending.wait(1.0)
