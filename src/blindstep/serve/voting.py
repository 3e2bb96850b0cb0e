"""Asking and answering: many requests of one study in one short transaction.

A worker hands in what came in while its last transaction was under way. So the cost of making it
durable is shared, and one request alone waits for nobody. All statements go by primary keys: none
reads a study's other slots, so a study of a million slots is as quick as one of a thousand.

Transactions of one study take turns (its row is locked first). Within one: answers are taken while the
step is open, then people are given the next slots, in order of arrival. Everything may be repeated: the
same person gets the same slot, and of two answers to one question the first is kept. So a transaction
whose end was not heard of is simply run again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from blindstep.serve import schema
from blindstep.serve.database import Database
from blindstep.serve.keys import Address


class Status(enum.StrEnum):
    """What became of a request."""

    ASKED = "asked"  # here is the person's question
    ANSWERED = "answered"  # the person has answered both, or had their turn in an earlier step
    FULL = "full"  # every slot of this step is taken: come back in the next one
    CLOSING = "closing"  # the step is being released
    PAUSED = "paused"
    OVER = "over"  # the study is finished or closed
    ACCEPTED = "accepted"
    LATE = "late"  # the step of this question is over
    UNKNOWN = "unknown"  # no such question was asked


class Vote(NamedTuple):
    """An answer on its way to the database."""

    address: Address
    sealed: bytes


class Seat(NamedTuple):
    """What a person gets: a status, and with ASKED the slot and which of its points is due."""

    status: Status
    slot: int = 0
    part: int = 0


class Served(NamedTuple):
    """The results of one transaction, in the order of its requests; and the study's row after it."""

    row: RowMapping
    seats: list[Seat]
    votes: list[Status]
    full: bool  # the last answer of the step is in


# Written out once: composing a statement costs more than running it.
_KNOWN = sa.select(schema.asked.c.person, schema.asked.c.release, schema.asked.c.slot).where(
    schema.asked.c.study == sa.bindparam("study"),
    schema.asked.c.turn == sa.bindparam("turn"),
    schema.asked.c.person.in_(sa.bindparam("people", expanding=True)),
)
_GIVEN = sa.select(schema.votes.c.slot, schema.votes.c.part).where(
    schema.votes.c.study == sa.bindparam("study"),
    schema.votes.c.release == sa.bindparam("release"),
    schema.votes.c.slot.in_(sa.bindparam("slots", expanding=True)),
)
_COUNT = (
    sa.update(schema.studies)
    .where(schema.studies.c.number == sa.bindparam("study"))
    .values(
        taken=schema.studies.c.taken + sa.bindparam("seats"),
        answered=schema.studies.c.answered + sa.bindparam("fresh"),
    )
)
_SEAT = sa.insert(schema.asked)


def serve(
    database: Database,
    number: int,
    turn_length: int,
    people: Sequence[bytes],
    votes: Sequence[Vote],
) -> Served:
    """Take these votes and seat these people of one study, in one transaction.

    `turn_length` is the number of steps in a pass.
    """
    with database.begin() as connection:
        row = database.locked(connection, number)
        assert row is not None
        statuses, fresh = _take(connection, database, row, votes)
        seats, new = _seat(connection, row, row["release"] // turn_length, people)
        if fresh or new:
            counted = {"study": number, "seats": new, "fresh": fresh}
            connection.execute(_COUNT, counted)
            key = {"study": number, "hour": int(database.now(connection) // 3600)}
            database.add_to(connection, schema.traffic, key, {"questions": new, "answers": fresh})
        full = row["answered"] + fresh >= 2 * row["slots"] and not row["frozen"]
    return Served(row, seats, statuses, full)


def _take(
    connection: Connection, database: Database, row: RowMapping, votes: Sequence[Vote]
) -> tuple[list[Status], int]:
    """Store the votes of the open step; give a status for each, and how many were new."""
    statuses = [_status_of(row, vote.address) for vote in votes]
    rows = [
        {**vote.address._asdict(), "sealed": vote.sealed}
        for vote, status in zip(votes, statuses, strict=True)
        if status is Status.ACCEPTED
    ]
    if not rows:
        return statuses, 0
    # Counted by what comes back: not every driver knows how many rows it has inserted.
    stored = database.insert_new(schema.votes).returning(schema.votes.c.slot)
    return statuses, len(connection.execute(stored, rows).all())


def _status_of(row: RowMapping, address: Address) -> Status:
    """Whether the answer to this question can be taken now."""
    if address.release > row["release"] or address.slot >= row["slots"]:
        return Status.UNKNOWN  # asked by a newer copy of this database than the one in use
    if address.release < row["release"] or row["frozen"]:
        return Status.LATE
    if row["status"] in ("closed", "finished"):
        return Status.OVER
    return Status.ACCEPTED if address.slot < row["taken"] else Status.UNKNOWN


def _seat(
    connection: Connection, row: RowMapping, turn: int, people: Sequence[bytes]
) -> tuple[list[Seat], int]:
    """A seat for each person, and how many of them are new."""
    if not people:
        return [], 0
    study, release, taken = row["number"], row["release"], row["taken"]
    wanted = {"study": study, "turn": turn, "people": list(dict.fromkeys(people))}
    known = {bytes(found.person): found for found in connection.execute(_KNOWN, wanted)}
    slots = {person: found.slot for person, found in known.items() if found.release == release}
    given: set[tuple[int, int]] = set()
    if slots:
        looked = {"study": study, "release": release, "slots": list(slots.values())}
        given = {(vote.slot, vote.part) for vote in connection.execute(_GIVEN, looked)}
    over, new = row["status"] in ("closed", "finished"), []
    seats = []
    for person in people:
        if over:
            seat = Seat(Status.OVER)
        elif person in slots:
            slot = slots[person]
            part = next((part for part in (0, 1) if (slot, part) not in given), None)
            if part is None or row["frozen"]:
                seat = Seat(Status.ANSWERED if part is None else Status.CLOSING)
            else:
                seat = Seat(Status.ASKED, slot, part)
        elif person in known:
            seat = Seat(Status.ANSWERED)
        elif row["status"] == "paused":
            seat = Seat(Status.PAUSED)
        elif row["frozen"]:
            seat = Seat(Status.CLOSING)
        elif taken + len(new) >= row["slots"]:
            seat = Seat(Status.FULL)
        else:
            slots[person] = taken + len(new)
            new.append({"study": study, "turn": turn, "person": person, "release": release,
                        "slot": slots[person]})  # fmt: skip
            seat = Seat(Status.ASKED, slots[person], 0)
        seats.append(seat)
    if new:
        connection.execute(_SEAT, new)
    return seats, len(new)
