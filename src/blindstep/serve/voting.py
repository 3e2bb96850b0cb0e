"""Asking and answering: many requests of one study share one short transaction.

The writer collects the requests that arrive during a study's last transaction. So the cost of a durable
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
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blindstep.errors import BlindstepError
from blindstep.serve.database import Database, is_passing
from blindstep.serve.design import Shown, Step
from blindstep.serve.keys import Address
from blindstep.serve.schema import Row
from blindstep.serve.studies import Studies
from blindstep.serve.turns import turn


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


def serve(
    database: Database,
    number: int,
    people: Sequence[bytes],
    votes: Sequence[Vote],
    questions: int = 2,
) -> Served:
    """Take these votes and ask these people of one study, in one transaction.

    Each person is asked so many `questions`.
    """
    everybody = dict.fromkeys([*people, *(vote.address.person for vote in votes)])
    with turn(database, number, list(everybody)) as taken:
        row, known = taken.row, taken.known
        statuses = [_status_of(row, vote.address, known) for vote in votes]
        # In order, so that two transactions with the same votes do not wait for each other.
        # (Of two answers to one question that come together, the first counts.)
        accepted = [
            (vote.address.person, vote.address.part, vote.sealed)
            for vote, status in zip(votes, statuses, strict=True)
            if status is Status.ACCEPTED
        ]
        accepted.sort(key=lambda each: each[:2])
        again = [person for person in people if known.get(person) == row["release"]]
        given = taken.given(again) if again else set()
        given |= {(person, part) for person, part, _ in accepted}
        seats = [_seat(row, person, known, given, questions) for person in people]
        new = {s.person for s in seats if s.status is Status.ASKED and s.person not in known}
        taken.commit(sorted(new), accepted)
    return Served(row, seats, statuses)


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
    row: Row,
    person: bytes,
    known: Mapping[bytes, int],
    given: set[tuple[bytes, int]],
    questions: int,
) -> Seat:
    """What a person gets."""
    part = next((part for part in range(questions) if (person, part) not in given), None)
    if row["status"] in ("closed", "finished"):
        status = Status.OVER
    elif part is None or known.get(person, row["release"]) != row["release"]:
        status = Status.ANSWERED
    elif row["frozen"] or (person not in known and row["status"] == "paused"):
        status = Status.PAUSED
    else:
        status = Status.ASKED
    return Seat(status, person, part or 0)


_log = logging.getLogger("blindstep.serve")
_MOST = 512  # requests in one transaction
# Seconds in which more requests gather, where many come at a time: as long as their transaction took.
# So a worker spends at most half of its time on what a transaction costs whatever is in it, and where
# workers wait for each other (for a lock, or a processor) they take fewer turns, not shorter ones.
_GATHER, _MOST_GATHER = 0.003, 0.05
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
    seats: list[tuple[Seat, Shown]]
    votes: list[tuple[Status, Shown | None]]


class Writer:
    """Threads that serve what is waiting: a study's requests together, different studies side by side.

    A study is served by one thread at a time, so that its requests share transactions; and what one
    study waits for (a lock of a host that was stopped, a program to compile) no other one waits for.
    """

    def __init__(self, studies: Studies, lanes: int = 1) -> None:
        self._studies = studies
        # Studies that are waiting or being served, with their requests; and which wait for a thread.
        self._waiting: dict[int, list[Request]] = {}
        self._due: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._lock, self._many, self._ending = threading.Lock(), 0, False
        self._lanes = [
            threading.Thread(target=self._run, name=f"blindstep-writer-{lane}", daemon=True)
            for lane in range(lanes)
        ]

    def start(self) -> None:
        """Start the threads."""
        for lane in self._lanes:
            lane.start()

    def is_alive(self) -> bool:
        """Whether all threads are at work."""
        return all(lane.is_alive() for lane in self._lanes)

    async def submit(self, request: Request) -> Reply:
        """Serve a request in its study's next transaction. (Called from the event loop.)"""
        if self._many > _MOST_WAITING or self._ending:
            raise Unavailable("too many requests are waiting: try again in a second.")
        request.done = asyncio.get_running_loop().create_future()
        with self._lock:
            self._many += 1
            if (waiting := self._waiting.get(request.number)) is not None:
                waiting.append(request)
            else:
                self._waiting[request.number] = [request]
                self._due.put(request.number)
        return await request.done

    def end(self) -> None:
        """End after what is waiting."""
        self._ending = True
        for _ in self._lanes:
            self._due.put(None)
        until = time.monotonic() + 10.0
        for lane in self._lanes:
            if lane.is_alive():
                lane.join(timeout=max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        """Take the study that has waited longest, serve its requests, and tell."""
        while (number := self._due.get()) is not None:
            with self._lock:
                waiting = self._waiting[number]
                requests, self._waiting[number] = waiting[:_MOST], waiting[_MOST:]
                self._many -= len(requests)
            began = time.monotonic()
            self._serve(number, requests)
            if len(requests) > 1:  # many come at a time: more of them share the next transaction
                took = time.monotonic() - began
                time.sleep(min(max(took, _GATHER), _MOST_GATHER))
            with self._lock:
                if self._waiting[number]:
                    self._due.put(number)
                else:
                    del self._waiting[number]
                if self._ending:
                    self._due.put(None)  # behind what is still waiting

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
        questions = self._studies.design(number).spec.answer.questions
        try:
            return serve(self._studies.database, number, people, votes, questions)
        except Exception as error:
            if not is_passing(error):
                raise
        return serve(self._studies.database, number, people, votes, questions)


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


def _shown(step: Step, seat: Seat) -> Shown:
    """What to show to a person: what their question is about, or what was released."""
    if seat.status is Status.ASKED:
        return step.show(seat.person, seat.part)
    return Shown(step.parameters)


def _next(step: Step, vote: Vote, status: Status) -> Shown | None:
    """What a person's second question is about, after the first was answered."""
    if status is Status.ACCEPTED and vote.address.part + 1 < step.questions:
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
