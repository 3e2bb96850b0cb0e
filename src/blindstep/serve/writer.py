"""A worker's one writer: it collects what came in while its last transaction was under way.

Requests of one study share a transaction (`voting.serve`). At rest a request is served at once; under
load the batches grow by themselves. When the database was away, the batch is tried once more: all of
it may be repeated (`voting`). After that its requests fail with `Unavailable`, and nothing was
acknowledged; whoever repeats a request gets what the first try may have stored.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import RowMapping

from blindstep.errors import BlindstepError
from blindstep.serve.database import is_passing
from blindstep.serve.design import Step
from blindstep.serve.studies import Studies
from blindstep.serve.voting import Seat, Served, Status, Vote, serve

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

    row: RowMapping
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
        for again in (True, False):
            try:
                return serve(self._studies.database, number, length, people, votes)
            except Exception as error:
                if not again or not is_passing(error):
                    raise
        raise AssertionError  # the loop returns or raises


def _replies(requests: list[Request], served: Served, step: Step) -> list[tuple[Request, Reply]]:
    """To each request what became of its people and its votes."""
    seats, statuses, replies = iter(served.seats), iter(served.votes), []
    for request in requests:
        shown = [(seat, _shown(step, seat)) for _, seat in zip(request.people, seats, strict=False)]
        taken = [
            (status, _next(step, vote, status))
            for vote, status in zip(request.votes, statuses, strict=False)
        ]
        replies.append((request, Reply(served.row, shown, taken)))
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
