"""Asking and answering: many requests of one study share one short transaction.

The writer collects the requests that arrive during its last transaction. So the cost of a durable
commit is shared under load, and a single request waits for nobody. All statements use primary keys
and none reads what other people said, so a study of a million people is as fast as one of a thousand.

What a person is told follows from that person and the study's step alone, never from who else came:
their question is made of their keyed hash, there is room for everybody, and nothing is counted.

Workers do this at the same time; only a step that is being frozen or changed keeps them out. Everything
may be repeated: the same person gets the same question, and of two answers to one question the first
counts. So a transaction whose outcome is unknown is run again, and a client may repeat a request that
failed with `Unavailable`: nothing of it was acknowledged.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    PAUSED = "paused"  # nobody is asked now: the study is paused, or between two windows
    OVER = "over"  # the study is finished or closed
    ACCEPTED = "accepted"
    LATE = "late"  # the step of this question is over
    UNKNOWN = "unknown"  # no such question was asked


class Vote(NamedTuple):
    """An answer on its way to the database."""

    address: Address
    sealed: bytes


class Seat(NamedTuple):
    """What a person gets: a status, and with ASKED which of their two points is due."""

    status: Status
    person: bytes
    part: int = 0


class Served(NamedTuple):
    """The results of one transaction, in the order of its requests; and the study's row."""

    row: Row
    seats: list[Seat]
    votes: list[Status]


# Written out once: composing a statement costs more than running it.
_KNOWN = sa.select(schema.asked.c.person, schema.asked.c.release).where(
    schema.asked.c.study == sa.bindparam("study"),
    schema.asked.c.person.in_(sa.bindparam("people", expanding=True)),
)
_GIVEN = sa.select(schema.votes.c.person, schema.votes.c.part).where(
    schema.votes.c.study == sa.bindparam("study"),
    schema.votes.c.release == sa.bindparam("release"),
    schema.votes.c.person.in_(sa.bindparam("people", expanding=True)),
)


def serve(
    database: Database, number: int, people: Sequence[bytes], votes: Sequence[Vote]
) -> Served:
    """Take these votes and ask these people of one study, in one transaction."""
    with database.begin() as connection:
        row = database.shared(connection, number)
        everybody = dict.fromkeys([*people, *(vote.address.person for vote in votes)])
        found = connection.execute(_KNOWN, {"study": number, "people": list(everybody)})
        known = {bytes(each.person): each.release for each in found}
        statuses = _take(connection, database, row, votes, known)
        return Served(row, _seat(connection, database, row, people, known), statuses)


def _take(
    connection: Connection,
    database: Database,
    row: Row,
    votes: Sequence[Vote],
    known: Mapping[bytes, int],
) -> list[Status]:
    """Store the votes of the open step; give a status for each."""
    statuses = [_status_of(row, vote.address, known) for vote in votes]
    # In order, so that two transactions with the same votes do not wait for each other.
    rows = [
        {**vote.address._asdict(), "sealed": vote.sealed}
        for vote, status in sorted(
            zip(votes, statuses, strict=True), key=lambda each: each[0].address
        )
        if status is Status.ACCEPTED
    ]
    if rows:
        connection.execute(database.insert_new(schema.votes), rows)
    return statuses


def _status_of(row: Row, address: Address, known: Mapping[bytes, int]) -> Status:
    """Whether the answer to this question can be taken now: from who was asked it in this step."""
    if address.release > row["release"]:
        return Status.UNKNOWN  # asked by a newer copy of this database than the one in use
    if address.release < row["release"] or row["frozen"]:
        return Status.LATE
    if row["status"] in ("closed", "finished"):
        return Status.OVER
    return Status.ACCEPTED if known.get(address.person) == row["release"] else Status.UNKNOWN


def _seat(
    connection: Connection,
    database: Database,
    row: Row,
    people: Sequence[bytes],
    known: Mapping[bytes, int],
) -> list[Seat]:
    """What each person gets; who is asked for the first time is written down."""
    study, release = row["number"], row["release"]
    again = [person for person in people if known.get(person) == release]
    given: set[tuple[bytes, int]] = set()
    if again:
        looked = {"study": study, "release": release, "people": again}
        given = {(bytes(v.person), v.part) for v in connection.execute(_GIVEN, looked)}
    new: set[bytes] = set()
    seats = []
    for person in people:
        part = next((part for part in (0, 1) if (person, part) not in given), None)
        if row["status"] in ("closed", "finished"):
            status = Status.OVER
        elif part is None or known.get(person, release) != release:
            status = Status.ANSWERED
        elif row["frozen"] or (person not in known and row["status"] == "paused"):
            status = Status.PAUSED
        else:
            status = Status.ASKED
            if person not in known:
                new.add(person)
        seats.append(Seat(status, person, part or 0))
    if new:
        rows = [{"study": study, "person": person, "release": release} for person in sorted(new)]
        connection.execute(database.insert_new(schema.asked), rows)
    return seats


_log = logging.getLogger("blindstep.serve")
_MOST = 512  # requests in one transaction
_MOST_WAITING = 20_000  # requests that wait: more are refused, not queued


class Unavailable(BlindstepError):
    """The database is away, full or too busy: nothing was stored, try again."""


@dataclass
class Request:
    """People to ask and votes to take of one study; `done` gets what came of them."""

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

    def __init__(self, studies: Studies) -> None:
        super().__init__(name="blindstep-writer", daemon=True)
        self._studies = studies
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
        except Exception as error:  # whatever it is, the next batch is served
            _log.error("a batch failed", extra={"error": type(error).__name__})
            failed = Unavailable("the service cannot answer now: try again.")
            _tell([(request, failed) for request in requests])

    def _try(self, number: int, people: list[bytes], votes: list[Vote]) -> Served:
        try:
            return serve(self._studies.database, number, people, votes)
        except Exception as error:
            if not is_passing(error):
                raise
        return serve(self._studies.database, number, people, votes)


def _replies(requests: list[Request], served: Served, step: Step) -> list[tuple[Request, Reply]]:
    """To each request what became of its people and its votes."""
    seats, statuses, replies = iter(served.seats), iter(served.votes), []
    step.make(_to_be_shown(requests, served))
    for request in requests:
        own = [next(seats) for _ in request.people]
        taken = [(vote, next(statuses)) for vote in request.votes]
        shown = [(seat, _shown(step, seat)) for seat in own]
        followed = [(status, _next(step, vote, status)) for vote, status in taken]
        replies.append((request, Reply(served.row, shown, followed)))
    return replies


def _to_be_shown(requests: list[Request], served: Served) -> Iterable[bytes]:
    """The people whose points are shown now."""
    votes = (vote.address for request in requests for vote in request.votes)
    yield from (seat.person for seat in served.seats if seat.status is Status.ASKED)
    yield from (
        address.person
        for address, status in zip(votes, served.votes, strict=True)
        if status is Status.ACCEPTED and address.part == 0
    )


def _shown(step: Step, seat: Seat) -> dict[str, float]:
    """What to show to a person: their question's point, or what was released."""
    return step.show(seat.person, seat.part) if seat.status is Status.ASKED else step.parameters


def _next(step: Step, vote: Vote, status: Status) -> dict[str, float] | None:
    """The point of a person's second question, after the first was answered."""
    if status is Status.ACCEPTED and vote.address.part == 0:
        return step.show(vote.address.person, 1)
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
