"""What a worker holds: its settings, the database, the keys, its writer and its step closer.

Workers are separate processes, so `blindstep serve` passes its options on in environment variables;
a container is configured by the same ones.
"""

from __future__ import annotations

import gc
import ipaddress
import json
import os
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ValidationError
from pydantic.dataclasses import dataclass
from starlette.concurrency import run_in_threadpool

from blindstep.errors import InvalidArgument
from blindstep.serve import keys
from blindstep.serve.access import Access, Forbidden, Principal, Rate
from blindstep.serve.administration import Retention
from blindstep.serve.closing import StepCloser
from blindstep.serve.database import Database
from blindstep.serve.design import Design, Shown
from blindstep.serve.identity import Provider
from blindstep.serve.keys import Address, Secrets
from blindstep.serve.lookout import Lookout
from blindstep.serve.sessions import Sessions
from blindstep.serve.spec import OneAnswer
from blindstep.serve.studies import NoSuchStudy, Studies, check_value
from blindstep.serve.voting import Request, Seat, Status, Vote, Writer

# What becomes of an answer: its status and the next question, or why it is refused.
Became = tuple[Status, dict[str, Any] | None] | InvalidArgument | Forbidden


class UnknownQuestion(InvalidArgument):
    """The token is not one of a question that this service asked."""

    def __init__(self) -> None:
        super().__init__("this is not the token of a question that was asked here.")


# For how many seconds released parameters are sent from memory, and of how many studies.
_SHOWN, _MOST_SHOWN = 0.5, 4096


class Released(NamedTuple):
    """Released parameters, ready to be sent."""

    step: int  # steps that were released
    body: bytes
    tag: bytes
    headers: list[tuple[bytes, bytes]]
    until: float

    @classmethod
    def of(cls, study: str, done: int, parameters: dict[str, float], until: float) -> Released:
        """These parameters of a study, good until then."""
        body = json.dumps({"steps_released": done, "parameters": parameters}, separators=(",", ":"))
        tag = f'"{study}-{done}"'.encode()
        headers = [(b"cache-control", b"public, max-age=5"), (b"vary", b"Authorization")]
        return cls(done, body.encode(), tag, [*headers, (b"etag", tag)], until)


class Service:
    """One worker of a service. `start` before use, `stop` at the end."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.secrets = settings, settings.secrets()
        self.database = Database(settings.database, connections=settings.connections)
        self.studies = Studies(self.database, self.secrets)
        self.access = Access(self.database, self.secrets)
        self.sessions = Sessions(self.database, self.secrets)
        self.provider = settings.provider(self.secrets)
        self.rate = Rate(settings.requests_per_second)
        self.anonymous = Rate(settings.anonymous_per_second)
        self.mistaken = Rate(settings.anonymous_per_second)
        self.repeated = Rate(settings.anonymous_per_second)
        self.closer = StepCloser(self.studies, settings.tick_seconds)
        self.writer = Writer(self.studies, lanes=max(1, settings.connections // 2))
        self.lookout = Lookout(self.database, self.secrets, self.access, self.writer, self.closer)
        self.retention = Retention(self.studies, settings.retention_days, settings.audit_days)
        self._shown: dict[str, Released] = {}

    def start(self) -> None:
        """Check schema and key, and start the threads."""
        self.database.check(self.secrets)
        # What is loaded by now stays: to look through it for garbage would stop everybody for 150 ms.
        gc.collect()
        gc.freeze()
        self.writer.start()
        self.closer.start()
        self.lookout.look()
        self.lookout.start()
        self.retention.start()

    def stop(self) -> None:
        """End the threads and close the database."""
        self.lookout.end()
        self.retention.end()
        self.writer.end()
        self.closer.end()
        self.database.close()

    async def principal(self, token: str, address: str) -> Principal:
        """Whom a token stands for; an unknown one is refused, and its address may not try for ever.

        Only who sends a wrong one is kept waiting: a neighbour behind the same address is not.
        """
        principal = await self.access.principal(token)
        if principal is None:
            self.mistaken.take(address)
            raise Forbidden(401)
        self.rate.take(principal.id)
        return principal

    # -- people ---------------------------------------------------------------------------------

    async def ask(self, study: str, person: str) -> dict[str, Any]:
        """A person's question, or why there is none."""
        design = await self._design(study)
        name = self.secrets.person(study, person)
        reply = await self.writer.submit(Request(design.number, people=[name]))
        seat, shown = reply.seats[0]
        return self._question(design.number, reply.row["release"], seat, shown)

    async def answer(
        self, answers: list[OneAnswer], principal: Principal | None, address: str | None = None
    ) -> list[Became]:
        """What becomes of each answer.

        A question's token is all that an answer needs. If an API token comes along, it must be one
        that may use the study. Without one, and with an `address`, answers are limited: those to one
        question, and from one address those to no question of ours. So nobody can use up what is
        allowed to others behind the same address.
        """
        limited = principal is None and address is not None
        results: list[Became] = []
        wanted: dict[int, list[tuple[int, Vote]]] = {}
        for place, given in enumerate(answers):
            results.append((Status.UNKNOWN, None))
            try:
                vote = await self._vote(given, principal)
                if limited:
                    self.repeated.take(vote.address)
            except (InvalidArgument, Forbidden) as error:
                if limited and isinstance(error, UnknownQuestion):
                    self.anonymous.take(address)
                results[place] = error
                continue
            wanted.setdefault(vote.address.study, []).append((place, vote))
        for number, placed in wanted.items():
            reply = await self.writer.submit(Request(number, votes=[vote for _, vote in placed]))
            for (place, vote), (status, shown) in zip(placed, reply.votes, strict=True):
                following = None
                if shown is not None:
                    seat = Seat(Status.ASKED, vote.address.person, 1)
                    following = self._question(number, vote.address.release, seat, shown)
                results[place] = (status, following)
        return results

    async def _vote(self, given: OneAnswer, principal: Principal | None) -> Vote:
        signed = self.secrets.read_question(given.token)
        if signed is None:
            raise UnknownQuestion
        address = signed.address
        try:
            design = await self._design(address.study)
        except NoSuchStudy:
            raise UnknownQuestion from None
        if not self.secrets.genuine(signed, design.attempt):
            raise UnknownQuestion
        if principal is not None and not principal.may_use(design.study):
            raise Forbidden(403)
        value = check_value(design.spec, given.value)
        return Vote(address, self.secrets.seal(address, value))

    async def _design(self, study: str | int) -> Design:
        known = self.studies.kept.known(study)
        return known or await run_in_threadpool(self.studies.design, study)

    async def shown(self, study: str) -> Released:
        """The released parameters as they are sent: from memory, at most half a second old.

        While one request reads them again, the others get what is there.
        """
        known, now = self._shown.get(study), time.monotonic()
        if (
            known is not None
            and now < known.until
            and not self.studies.kept.past(study, known.step)
        ):
            return known
        if known is not None:
            self._shown[study] = known._replace(until=now + _SHOWN)
        done, found = await run_in_threadpool(self.studies.parameters, study)
        if len(self._shown) >= _MOST_SHOWN:
            self._shown.clear()
        made = self._shown[study] = Released.of(study, done, found, now + _SHOWN)
        return made

    def _question(self, number: int, release: int, seat: Seat, shown: Shown) -> dict[str, Any]:
        """A `spec.Question`, ready for JSON."""
        token = part = None
        if seat.status is Status.ASKED:
            address = Address(number, release, seat.person, seat.part)
            token = self.secrets.question(address, self.studies.design(number).attempt)
            part = seat.part + 1
        asked = {"status": str(seat.status), **shown._asdict(), "step": release + 1}
        return asked | {"token": token, "part": part}


PREFIX = "BLINDSTEP_"


def _listed(given: object) -> object:
    """The parts of a text that commas separate; anything else as it is."""
    if not isinstance(given, str):
        return given
    return tuple(part.strip() for part in given.split(",") if part.strip())


def _networks(given: object) -> object:
    """Networks of addresses; a name, or a network that holds more than it says, is no such thing."""
    listed = _listed(given)
    for each in listed if isinstance(listed, tuple) else ():
        ipaddress.ip_network(each)
    return listed


@dataclass(frozen=True)
class Settings:
    """The settings of a service; none of them is secret but what the key file holds."""

    database: str = "sqlite:///blindstep.db"
    key_file: str = "blindstep.key"
    # Pages of these origins may send answers from a browser; "*" for all.
    origins: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    # Networks of proxies, whose X-Forwarded-For is believed.
    proxies: Annotated[tuple[str, ...], BeforeValidator(_networks)] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    requests_per_second: float = 5_000.0  # of one API token, in one worker
    anonymous_per_second: float = 50.0  # of one address without a token, in one worker
    connections: int = 12  # to the database, of one worker
    body_bytes: int = 64 * 1024
    bulk_bytes: int = 4 * 1024 * 1024
    tick_seconds: float = 1.0  # a release waits for a whole number of these after its window
    retention_days: float = 90.0  # a study that was paused for longer is closed
    audit_days: float = 730.0  # lines of the audit log are deleted after these
    secure_cookies: bool = False  # set it where the dashboard is served over https
    address: str = ""  # where browsers find this service
    # A provider of identities, this service's name there, and the file with its secret.
    oidc_issuer: str = ""
    oidc_client: str = ""
    oidc_secret_file: str = ""
    oidc_scopes: str = "openid profile email"
    # Which claim holds somebody's roles, and which of these make an admin or a viewer.
    oidc_claim: str = "roles"
    oidc_admins: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ("blindstep-admin",)
    oidc_viewers: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ("blindstep-viewer",)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings that BLINDSTEP_DATABASE, BLINDSTEP_KEY_FILE and so on give."""
        found = os.environ if environment is None else environment
        names = {field.name: PREFIX + field.name.upper() for field in fields(cls)}
        try:
            return cls(**{name: found[of] for name, of in names.items() if of in found})  # type: ignore[arg-type]
        except ValidationError as error:
            name = names[str(error.errors()[0]["loc"][0])]
            raise InvalidArgument(f"{name} cannot be read.") from None

    def environment(self) -> dict[str, str]:
        """The variables from which `from_environment` makes these settings."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            PREFIX + name.upper(): ",".join(value) if isinstance(value, tuple) else str(value)
            for name, value in given.items()
        }

    def provider(self, secrets: Secrets) -> Provider | None:
        """The provider of identities, if one is named."""
        return Provider(self, secrets) if self.oidc_issuer else None

    def secrets(self, *, make: bool = False) -> Secrets:
        """The keys: of BLINDSTEP_KEY, or of the key file, which `make` makes if it is not there."""
        text = os.environ.get(PREFIX + "KEY")
        return keys.from_text(text) if text else keys.from_file(self.key_file, make=make)
