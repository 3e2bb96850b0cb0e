"""Asking and answering: many requests of one study share one short transaction.

The writer collects the requests that arrive during its last transaction. So the cost of a durable
commit is shared under load, and a single request waits for nobody. All statements use primary keys
and none reads a study's other slots, so a study of a million slots is as fast as one of a thousand.

Transactions of one study take turns (its row is locked first). Within one, answers are taken while
the step is open, then people get the next slots, in order of arrival. Everything may be repeated:
the same person gets the same slot, and of two answers to one question the first counts. So a
transaction whose outcome is unknown is run again, and a client may repeat a request that failed with
`Unavailable`: nothing of it was acknowledged.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from blindstep.errors import BlindstepError
from blindstep.serve import schema
from blindstep.serve.database import Database, is_passing
from blindstep.serve.design import Step
from blindstep.serve.keys import Address
from blindstep.serve.schema import Row
from blindstep.serve.studies import Studies


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

    row: Row
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
            connection.execute(_COUNT, {"study": number, "seats": new, "fresh": fresh})
            key = {"study": number, "hour": int(database.now(connection) // 3600)}
            database.add_to(connection, schema.traffic, key, {"questions": new, "answers": fresh})
        full = row["answered"] + fresh >= 2 * row["slots"] and not row["frozen"]
    return Served(row, seats, statuses, full)


def _take(
    connection: Connection, database: Database, row: Row, votes: Sequence[Vote]
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


def _status_of(row: Row, address: Address) -> Status:
    """Whether the answer to this question can be taken now."""
    if address.release > row["release"] or address.slot >= row["slots"]:
        return Status.UNKNOWN  # asked by a newer copy of this database than the one in use
    if address.release < row["release"] or row["frozen"]:
        return Status.LATE
    if row["status"] in ("closed", "finished"):
        return Status.OVER
    return Status.ACCEPTED if address.slot < row["taken"] else Status.UNKNOWN


def _seat(
    connection: Connection, row: Row, turn: int, people: Sequence[bytes]
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
            slot = slots[person] = taken + len(new)
            place = {"release": release, "slot": slot}
            new.append({"study": study, "turn": turn, "person": person, **place})
            seat = Seat(Status.ASKED, slot, 0)
        seats.append(seat)
    if new:
        connection.execute(sa.insert(schema.asked), new)
    return seats, len(new)


_log = logging.getLogger("blindstep.serve")
_MOST = 512  # requests in one transaction
_MOST_WAITING = 20_000  # requests that wait: more are refused, not queued


class Unavailable(BlindstepError):
    """The database is away, full or too busy: nothing was stored, try again."""


@dataclass
class Request:
    """People to seat and votes to take of one study; `done` gets what came of them."""

    number: int
    people: list[bytes] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    done: asyncio.Future[Reply] | None = None


@dataclass(frozen=True)
class Reply:
    """The study's row as it was, a seat for each person and a status for each vote.

    With each seat come the parameters to show; with each vote those of the person's second question,
    if that comes next.
    """

    row: Row
    seats: list[tuple[Seat, dict[str, float]]]
    votes: list[tuple[Status, dict[str, float] | None]]


class Writer(threading.Thread):
    """The thread. `submit` is called from the event loop, everything else happens here."""

    def __init__(self, studies: Studies, full: Callable[[], None]) -> None:
        """`full` is called when the last answer of a step came in."""
        super().__init__(name="blindstep-writer", daemon=True)
        self._studies, self._full = studies, full
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()

    async def submit(self, request: Request) -> Reply:
        """Serve a request in the next transaction."""
        if self._waiting.qsize() > _MOST_WAITING or not self.is_alive():
            raise Unavailable("too many requests are waiting: try again in a second.")
        loop = asyncio.get_running_loop()
        request.done = loop.create_future()
        self._waiting.put(request)
        return await request.done

    def end(self) -> None:
        """End after what is waiting."""
        self._waiting.put(None)
        self.join(timeout=10.0)

    def run(self) -> None:
        """Take what is waiting, serve it, and tell."""
        ending = False
        while not ending:
            batch = [self._waiting.get()]
            while len(batch) < _MOST and not self._waiting.empty():
                batch.append(self._waiting.get())
            ending = None in batch
            by_study: dict[int, list[Request]] = defaultdict(list)
            for request in batch:
                if request is not None:
                    by_study[request.number].append(request)
            for number, requests in by_study.items():
                self._serve(number, requests)

    def _serve(self, number: int, requests: list[Request]) -> None:
        people = [person for request in requests for person in request.people]
        votes = [vote for request in requests for vote in request.votes]
        try:
            served = self._try(number, people, votes)
            _tell(_replies(requests, served, self._studies.step(served.row)))
            if served.full:
                self._full()
        except Exception as error:  # whatever it is, the next batch is served
            _log.error("a batch failed", extra={"error": type(error).__name__})
            failed = Unavailable("the service cannot answer now: try again.")
            _tell([(request, failed) for request in requests])

    def _try(self, number: int, people: list[bytes], votes: list[Vote]) -> Served:
        length = self._studies.design(number).plan.schedule.releases_per_pass
        given = (self._studies.database, number, length, people, votes)
        try:
            return serve(*given)
        except Exception as error:
            if not is_passing(error):
                raise
        return serve(*given)


def _replies(requests: list[Request], served: Served, step: Step) -> list[tuple[Request, Reply]]:
    """To each request what became of its people and its votes."""
    seats, statuses, replies = iter(served.seats), iter(served.votes), []
    for request in requests:
        own = [next(seats) for _ in request.people]
        taken = [(vote, next(statuses)) for vote in request.votes]
        shown = [(seat, _shown(step, seat)) for seat in own]
        followed = [(status, _next(step, vote, status)) for vote, status in taken]
        replies.append((request, Reply(served.row, shown, followed)))
    return replies


def _shown(step: Step, seat: Seat) -> dict[str, float]:
    """What to show to a person: their question's point, or what was released."""
    return step.show(seat.slot, seat.part) if seat.status is Status.ASKED else step.parameters


def _next(step: Step, vote: Vote, status: Status) -> dict[str, float] | None:
    """The point of a person's second question, after the first was answered."""
    if status is Status.ACCEPTED and vote.address.part == 0:
        return step.show(vote.address.slot, 1)
    return None


def _tell(replies: list[tuple[Request, Any]]) -> None:
    """Hand the results to the event loop, in one go."""
    done = [(request.done, reply) for request, reply in replies if request.done is not None]
    if not done:
        return

    def resolve() -> None:
        for future, reply in done:
            if future.done():  # its client has gone
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    try:
        done[0][0].get_loop().call_soon_threadsafe(resolve)
    except RuntimeError:  # the loop is closed: nobody waits any more
        _log.debug("a reply came after the end")
