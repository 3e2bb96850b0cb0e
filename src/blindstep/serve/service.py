"""What a worker holds: the database, the keys, its writer and its keeper."""

from __future__ import annotations

import gc
import time
from typing import Any

from starlette.concurrency import run_in_threadpool

from blindstep.errors import InvalidArgument
from blindstep.serve.access import Access, Forbidden, Principal
from blindstep.serve.api_models import OneAnswer
from blindstep.serve.closing import StepCloser
from blindstep.serve.config import Settings
from blindstep.serve.database import Database
from blindstep.serve.design import Design
from blindstep.serve.keys import Address
from blindstep.serve.limits import Rate
from blindstep.serve.studies import NoSuchStudy, Studies, check_value
from blindstep.serve.voting import Seat, Status, Vote
from blindstep.serve.writer import Request, Writer

_STALE = 120.0  # seconds after which a keeper that has not looked is taken for stuck
_UNKNOWN = "this is not the token of a question that was asked here."


class UnknownQuestion(InvalidArgument):
    """The token is not one of a question that this service asked."""


class Service:
    """One worker of a service. `start` before use, `stop` at the end."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.secrets = settings, settings.secrets()
        self.database = Database(settings.database)
        self.studies = Studies(self.database, self.secrets)
        self.access = Access(self.database, self.secrets)
        self.rate = Rate(settings.requests_per_second)
        self.anonymous = Rate(settings.anonymous_per_second)
        self.mistaken = Rate(settings.anonymous_per_second)
        self.keeper = StepCloser(self.studies)
        self.writer = Writer(self.studies, self.keeper.look)

    def start(self) -> None:
        """Check schema and key, and start the threads."""
        self.database.check(self.secrets)
        # What is loaded by now stays: to look through it for garbage would stop everybody for 150 ms.
        gc.collect()
        gc.freeze()
        self.writer.start()
        self.keeper.start()

    def stop(self) -> None:
        """End the threads and close the database."""
        self.writer.end()
        self.keeper.end()
        self.database.close()

    def ready(self) -> bool:
        """Whether the database answers, its schema is known and both threads are at work."""
        try:
            self.database.check(self.secrets)
        except Exception:
            return False
        looked = time.monotonic() - self.keeper.last_look < _STALE
        return looked and self.writer.is_alive() and self.keeper.is_alive()

    async def principal(self, token: str, address: str) -> Principal:
        """Whom a token stands for; an unknown one is refused, and its address may not try for ever."""
        name, principal, recent = self.access.believed(token)
        if not recent:
            if principal is None:  # a token that was known here a moment ago is not kept out
                self.mistaken.look(address)
            principal = await run_in_threadpool(self.access.look_up, name)
        if principal is None:
            self.mistaken.take(address)
            raise Forbidden(401)
        self.rate.take(principal.id)
        return principal

    # -- people ---------------------------------------------------------------------------------

    async def ask(self, study: str, person: str) -> dict[str, Any]:
        """A person's question, or why there is none."""
        number = self.studies.known_number(study)
        if number is None:
            number = await run_in_threadpool(self.studies.number, study)
        name = self.secrets.person(study, person)
        reply = await self.writer.submit(Request(number, people=[name]))
        (seat, shown), release = reply.seats[0], reply.row["release"]
        return self._question(number, release, seat, shown)

    async def answer(
        self, answers: list[OneAnswer], principal: Principal | None
    ) -> list[tuple[Status, dict[str, Any] | None] | InvalidArgument | Forbidden]:
        """What becomes of each answer: its status and the next question, or why it is refused.

        A question's token is all that an answer needs. If an API token comes along, it must be one
        that may use the study.
        """
        results: list[tuple[Status, dict[str, Any] | None] | InvalidArgument | Forbidden] = []
        wanted: dict[int, list[tuple[int, Vote]]] = {}
        for place, given in enumerate(answers):
            results.append((Status.UNKNOWN, None))
            try:
                vote = await self._vote(given, principal)
            except (InvalidArgument, Forbidden) as error:
                results[place] = error
                continue
            wanted.setdefault(vote.address.study, []).append((place, vote))
        for number, placed in wanted.items():
            reply = await self.writer.submit(Request(number, votes=[vote for _, vote in placed]))
            for (place, vote), (status, shown) in zip(placed, reply.votes, strict=True):
                following = None
                if shown is not None:
                    seat = Seat(Status.ASKED, vote.address.slot, 1)
                    following = self._question(number, vote.address.release, seat, shown)
                results[place] = (status, following)
        return results

    async def _vote(self, given: OneAnswer, principal: Principal | None) -> Vote:
        signed = self.secrets.read_question(given.token)
        if signed is None:
            raise UnknownQuestion(_UNKNOWN)
        address = signed.address
        try:
            design = await self._design(address.study)
        except NoSuchStudy:
            raise UnknownQuestion(_UNKNOWN) from None
        if not self.secrets.genuine(signed, design.attempt):
            raise UnknownQuestion(_UNKNOWN)
        if principal is not None:
            study = self.studies.name(address.study)
            if study is None or not principal.may_use(study):
                raise Forbidden(403)
        value = check_value(design.spec, given.value)
        return Vote(address, self.secrets.seal(address, value))

    async def _design(self, number: int) -> Design:
        known = self.studies.known(number)
        return known or await run_in_threadpool(self.studies.design, number)

    def _question(
        self, number: int, release: int, seat: Seat, shown: dict[str, float]
    ) -> dict[str, Any]:
        """An `api_models.Question`, ready for JSON."""
        token = part = None
        if seat.status is Status.ASKED:
            address = Address(number, release, seat.slot, seat.part)
            token = self.secrets.question(address, self.studies.design(number).attempt)
            part = seat.part + 1
        step = release + 1
        return {"status": str(seat.status), "parameters": shown, "step": step, "token": token,
                "part": part}  # fmt: skip
