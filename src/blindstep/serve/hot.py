"""The routes of people, past the framework: ask, answer, and the released parameters; and health.

A framework's routing, validation and responses cost four fifths of a vote. Here a request that is as
it should be is answered by the same functions as in `api`: its body is read by the same parser and the
same model, its token by the same rule, and its refusals are the same responses. Whatever is unusual
about a request (another content type, a body that the model refuses) is handed on to the framework
before anything was done, so all that is said about it is said in one place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindstep.errors import BlindstepError
from blindstep.serve import api, refusals
from blindstep.serve.service import Service
from blindstep.serve.spec import OneAnswer, Person

_OF_STUDY = re.compile(r"/v1/studies/([0-9a-f]{1,32})/(questions|parameters)")
_JSON = (b"application/json", b"application/json; charset=utf-8")
_person, _answer = TypeAdapter(Person).validate_python, TypeAdapter(OneAnswer).validate_python
# As Starlette writes JSON, with an encoder that is made once.
_written = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Named(NamedTuple):
    """Stands for the route in the log and the metrics."""

    path: str


_ASK, _TAKE = Named("/v1/studies/{study}/questions"), Named("/v1/answers")
_SHOW = Named("/v1/studies/{study}/parameters")
_HEALTH = {"/healthz": Named("/healthz"), "/readyz": Named("/readyz")}
# The status, the headers but the length, and the body.
_Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
_AS_JSON = [(b"content-type", b"application/json")]
_AS_TEXT = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]


class Hot:
    """The middleware in front of the framework."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of people, or hand it on."""
        found = _found(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        route, study = found
        service, sent = scope["app"].state.service, dict[bytes, bytes]()
        for name, value in reversed(scope["headers"]):
            sent[name] = value  # the first of several, as everywhere
        body: Any = None
        if scope["method"] == "POST":
            read = await _body(receive)
            body = _parsed(_answer if route is _TAKE else _person, sent, read)
            if body is None:
                await self._app(scope, _again(read, receive), send)
                return
        scope["route"] = route
        try:
            status, headers, content = await _ROUTES[route](scope, service, sent, study, body)
        except BlindstepError as error:
            await refusals.refuse(error)(scope, receive, send)
            return
        length = b"%d" % len(content)
        if status != 304:
            headers = [(b"content-length", length), *headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _found(scope: Scope) -> tuple[Named, str] | None:
    """The route, and the study if it has one."""
    path, method = scope["path"], scope["method"]
    if method == "POST" and path == _TAKE.path:
        return _TAKE, ""
    if path in _HEALTH and method in ("GET", "HEAD"):
        return _HEALTH[path], ""
    if (match := _OF_STUDY.fullmatch(path)) is None:
        return None
    study, what = match.groups()
    if what == "questions":
        return (_ASK, study) if method == "POST" else None
    return (_SHOW, study) if method == "GET" else None


async def _body(receive: Receive) -> list[Message]:
    """All that comes of a body, to its end or until its sender goes."""
    read = [await receive()]
    while read[-1].get("more_body", False):
        read.append(await receive())
    return read


def _again(read: list[Message], receive: Receive) -> Receive:
    """Give what was read once more, then what comes."""
    kept = iter(read)

    async def again() -> Message:
        return next(kept, None) or await receive()

    return again


def _parsed(
    model: Callable[[Any], BaseModel], sent: dict[bytes, bytes], read: list[Message]
) -> BaseModel | None:
    """The body as its model; None if there is anything to be said about it."""
    if sent.get(b"content-type") not in _JSON or read[-1]["type"] != "http.request":
        return None
    try:
        content = b"".join(each.get("body", b"") for each in read)
        return model(json.loads(content))
    except (ValueError, RecursionError, ValidationError):
        return None


def _authorization(sent: dict[bytes, bytes]) -> str | None:
    found = sent.get(b"authorization")
    return None if found is None else found.decode("latin-1")


async def _ask(
    scope: Scope, service: Service, sent: dict[bytes, bytes], study: str, body: Person
) -> _Answer:
    await api.of_site(service, study, api.address_in(scope), _authorization(sent))
    return 200, _AS_JSON, _written(await service.ask(study, body.person)).encode()


async def _take(
    scope: Scope, service: Service, sent: dict[bytes, bytes], study: str, body: OneAnswer
) -> _Answer:
    address = api.address_in(scope)
    number, said = await api.take(service, address, _authorization(sent), body)
    return number, _AS_JSON, _written(said).encode()


async def _show(
    scope: Scope, service: Service, sent: dict[bytes, bytes], study: str, body: None
) -> _Answer:
    await api.of_site(service, study, api.address_in(scope), _authorization(sent))
    shown = await service.shown(study)
    if sent.get(b"if-none-match") == shown.tag:
        return 304, shown.headers, b""
    return 200, _AS_JSON + shown.headers, shown.body


async def _health(
    scope: Scope, service: Service, sent: dict[bytes, bytes], study: str, body: None
) -> _Answer:
    """Whether the process answers; and what the lookout saw last, so that asking costs nothing."""
    if scope["path"] == "/healthz":
        return 200, _AS_TEXT, b"ok\n"
    ready, said = service.lookout.seen()
    return 200 if ready else 503, _AS_TEXT, said.encode() + b"\n"


_ROUTES: dict[Named, Callable[..., Awaitable[_Answer]]] = {
    _ASK: _ask,
    _TAKE: _take,
    _SHOW: _show,
    **dict.fromkeys(_HEALTH.values(), _health),
}
