"""The API: studies for admins, questions and answers for sites and people."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from blindstep.errors import (
    InvalidArgument,
)
from blindstep.insight.report import render
from blindstep.insight.report_content import of_result
from blindstep.serve import administration, reading
from blindstep.serve.access import Forbidden, Principal
from blindstep.serve.refusals import of_error, of_status
from blindstep.serve.schema import Row
from blindstep.serve.service import Service
from blindstep.serve.spec import (
    AnswerTaken,
    ManyAnswers,
    NewToken,
    OneAnswer,
    OpenStep,
    Person,
    Question,
    StudySpec,
    Token,
    refused,
)
from blindstep.serve.studies import NoSuchStudy, Studies, spending
from blindstep.serve.voting import Status

router = APIRouter(prefix="/v1", responses=refused(400, 401, 403, 413, 422, 429, 503))
_ID = r"^[0-9a-f]+$"
StudyId = Annotated[str, Path(max_length=32, pattern=_ID)]
Earlier = Annotated[str | None, Query(max_length=32, pattern=_ID)]
Most = Annotated[int, Query(ge=1, le=100)]


async def service_of(request: Request) -> Service:
    """The worker's service. (A function that is not asynchronous would be sent to a thread.)"""
    return request.app.state.service


Worker = Annotated[Service, Depends(service_of)]


async def maybe_principal(
    request: Request, service: Worker, authorization: Annotated[str | None, Header()] = None
) -> Principal | None:
    """Whom the request's API token stands for; None without one. A wrong one is refused."""
    return await principal_of(service, address_of(request), authorization)


async def principal_of(
    service: Service, address: str, authorization: str | None
) -> Principal | None:
    """Whom an Authorization header stands for; None without one. A wrong one is refused."""
    if authorization is None:
        return None
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Forbidden(401)
    return await service.principal(token.strip(), address)


async def of_site(
    service: Service, study: str, address: str, authorization: str | None
) -> Principal:
    """A principal that may use this study; anyone else is refused."""
    principal = await principal_of(service, address, authorization)
    if principal is None:
        service.anonymous.take(address)
        raise Forbidden(401)
    if not principal.may_use(study):
        raise Forbidden(403)
    return principal


def address_of(request: Request) -> str:
    """Where a request comes from, as far as limits go."""
    return address_in(request.scope)


def address_in(scope: Scope) -> str:
    """Where a request comes from: an IPv4 address, or the half of an IPv6 one that names a network."""
    client = scope.get("client")
    return network_of(client[0]) if client else ""


@functools.lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """What of an address is counted as one: whoever has an IPv6 address has 2^64 of them."""
    if ":" not in host:
        return host
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
    return host


Anyone = Annotated[Principal | None, Depends(maybe_principal)]


async def site(
    study: StudyId,
    request: Request,
    service: Worker,
    authorization: Annotated[str | None, Header()] = None,
) -> Principal:
    """A principal that may use the study of the path."""
    return await of_site(service, study, address_of(request), authorization)


def only(*scopes: str) -> Any:
    """The dependency of an endpoint for principals of these scopes."""

    async def check(principal: Anyone, request: Request, service: Worker) -> None:
        if principal is None:
            service.anonymous.take(address_of(request))
        if principal is None or principal.scope not in scopes:
            raise Forbidden(401 if principal is None else 403)
        if request.method not in ("GET", "HEAD"):
            await run_in_threadpool(audit, request, service, principal)

    return Depends(check)


def audit(request: Request, service: Service, principal: Principal) -> None:
    """Write into the audit log what somebody is about to do."""
    action, given = request.scope["route"].name, request.path_params
    detail = given.get("action") or given.get("name") or ""
    administration.note(service.database, principal, action, given.get("study"), detail)


async def reader(
    study: StudyId,
    request: Request,
    service: Worker,
    authorization: Annotated[str | None, Header()] = None,
) -> None:
    """Whoever may read the state of the study of the path: its sites, viewers and admins."""
    address = address_of(request)
    principal = await principal_of(service, address, authorization)
    if principal is None or principal.scope != "viewer":
        await of_site(service, study, address, authorization)


FOR_SITES, FOR_READERS = [Depends(site)], [Depends(reader)]
FOR_ADMINS, FOR_VIEWERS = [only("admin")], [only("admin", "viewer")]

# -- people -------------------------------------------------------------------------------------

# These two return a finished response: to validate what was made here costs as much as to make it.


@router.post(
    "/studies/{study}/questions",
    dependencies=FOR_SITES,
    response_model=Question,
    responses=refused(404),
)
async def ask(study: StudyId, body: Person, service: Worker) -> JSONResponse:
    """A person's question: the parameters to show them. Asking again gives the same one."""
    return JSONResponse(await service.ask(study, body.person))


@router.post("/answers", response_model=AnswerTaken, responses=refused(404, 410))
async def answer(
    body: OneAnswer,
    request: Request,
    service: Worker,
    authorization: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Answer a question with its token. The first answer is kept; repeating it does no harm."""
    number, said = await take(service, address_of(request), authorization, body)
    return JSONResponse(said, number)


async def take(
    service: Service, address: str, authorization: str | None, body: OneAnswer
) -> tuple[int, dict[str, Any]]:
    """Take one answer: the status and the content of the response."""
    principal = await principal_of(service, address, authorization)
    (became,) = await service.answer([body], principal, address)
    if isinstance(became, Exception):
        raise became
    status, following = became
    if status is not Status.ACCEPTED:
        number, error = of_status(status)
        return number, {"error": error}
    return 200, {"status": "accepted", "next": following}


@router.post("/answers/bulk")
async def answer_many(
    body: ManyAnswers, request: Request, service: Worker, principal: Anyone
) -> dict[str, Any]:
    """Answer many questions; each is accepted or refused on its own, and counts as a request."""
    if principal is None:
        service.anonymous.take(address_of(request), len(body.answers))
    else:
        service.rate.take(principal.id, len(body.answers) - 1)
    results: list[dict[str, Any]] = []
    for became in await service.answer(body.answers, principal):
        if isinstance(became, Exception):
            _, code, message = of_error(became)
            results.append({"status": "refused", "error": {"code": code, "message": message}})
        elif became[0] is Status.ACCEPTED:
            results.append({"status": "accepted", "next": became[1]})
        else:
            results.append({"status": "refused", "error": of_status(became[0])[1]})
    return {"results": results}


@router.get(
    "/studies/{study}/parameters",
    dependencies=FOR_SITES,
    responses=refused(404),
    response_model=dict[str, Any],
)
async def parameters(
    study: StudyId,
    service: Worker,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The released parameters, for everybody who is not being asked. May be cached."""
    shown = await service.shown(study)
    headers = {name.decode(): value.decode() for name, value in shown.headers}
    if if_none_match == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(shown.body, headers=headers, media_type="application/json")


# -- operators ----------------------------------------------------------------------------------


@router.post("/studies", status_code=201, dependencies=FOR_ADMINS, responses=refused(409))
def create(body: StudySpec, service: Worker) -> dict[str, Any]:
    """Make a study. It runs from now on; everything but this is chosen by the planner."""
    return study_state(service.studies, service.studies.create(body))


@router.get("/studies", dependencies=FOR_VIEWERS, responses=refused(404))
def list_studies(service: Worker, before: Earlier = None, most: Most = 50) -> dict[str, Any]:
    """Studies, the newest first; `next`, if there are more, is the `before` that gives them."""
    rows = service.studies.all(most + 1, before)
    states = [study_state(service.studies, row["id"], row) for row in rows[:most]]
    return {"studies": states, "next": states[-1]["id"] if len(rows) > most else None}


@router.get("/studies/{study}", dependencies=FOR_READERS, responses=refused(404))
def state(study: StudyId, service: Worker) -> dict[str, Any]:
    """A study's state: how far it is, what it has spent, where its parameters stand.

    Not how many people came: that is counted nowhere.
    """
    return study_state(service.studies, study)


@router.post("/studies/{study}/pause", dependencies=FOR_ADMINS, responses=refused(404, 409))
def pause(study: StudyId, service: Worker) -> dict[str, Any]:
    """Ask nobody new and hold the end of the window."""
    service.studies.pause(study)
    return study_state(service.studies, study)


@router.post("/studies/{study}/resume", dependencies=FOR_ADMINS, responses=refused(404, 409))
def resume(study: StudyId, service: Worker) -> dict[str, Any]:
    """Go on after a pause."""
    service.studies.resume(study)
    return study_state(service.studies, study)


@router.post("/studies/{study}/end-window", dependencies=FOR_ADMINS, responses=refused(404, 409))
def end_window(study: StudyId, body: OpenStep, service: Worker) -> dict[str, Any]:
    """End the open window now: its votes are released, and the next one begins.

    Decide by what is public, such as the clock: a window that ends because many came tells it.
    """
    service.studies.end_window(study, body.step)
    return study_state(service.studies, study)


@router.post("/studies/{study}/close", dependencies=FOR_ADMINS, responses=refused(404, 409))
def close(study: StudyId, service: Worker) -> dict[str, Any]:
    """End a study for good; what was released stays."""
    service.studies.close(study)
    return study_state(service.studies, study)


@router.get("/studies/{study}/report", dependencies=FOR_VIEWERS, responses=refused(404, 409))
def report(study: StudyId, service: Worker) -> HTMLResponse:
    """The report of a finished study: one page, public quantities only."""
    return HTMLResponse(report_of(service.studies, study))


@router.post("/people/forget", dependencies=FOR_ADMINS, responses=refused(409))
def forget(body: Person, service: Worker) -> dict[str, int]:
    """Delete what a person has said in open windows. What was released cannot be taken back."""
    return {"open_studies": administration.forget_person(service.studies, body.person)}


@router.get("/audit", dependencies=FOR_VIEWERS)
def audit_log(service: Worker) -> dict[str, Any]:
    """Who did what, when: the last 500 lines."""
    return {"lines": administration.lines(service.database)}


@router.get("/tokens", dependencies=FOR_ADMINS)
def list_tokens(service: Worker) -> dict[str, list[Token]]:
    """All tokens, without their secrets."""
    return {"tokens": [Token(**who._asdict()) for who in service.access.all()]}


@router.post("/tokens", status_code=201, dependencies=FOR_ADMINS, responses=refused(404))
def make_token(body: NewToken, service: Worker) -> Token:
    """Make a token: its secret is in this response and nowhere else."""
    if (body.scope == "site") != (body.study is not None):
        raise InvalidArgument("a site token is for one study, and no other token has one.")
    if body.study is not None:
        service.studies.row(body.study)  # refused if there is none
    name, token = service.access.create(body.scope, body.study, body.label)
    return Token(id=name, scope=body.scope, study=body.study, label=body.label, token=token)


@router.delete(
    "/tokens/{name}", status_code=204, dependencies=FOR_ADMINS, responses=refused(404, 409)
)
def revoke(name: StudyId, service: Worker) -> Response:
    """Revoke a token; it ends at every worker within seconds."""
    if not service.access.revoke(name):
        raise NoSuchStudy
    return Response(status_code=204)


# -- responses -------------------------------------------------------------------------------


def study_state(studies: Studies, study: str, row: Row | None = None) -> dict[str, Any]:
    """A study as the API and the dashboard show it; its `row` is read unless it is given."""
    row, design = row or studies.row(study), studies.design(study)
    plan, account = design.plan, studies.account(row["cohort"])
    released = studies.snapshot(row["number"], row["release"])[1]
    return {
        **{name: row[name] for name in ("id", "name", "status", "made_on")},
        "people_per_step": design.planned,
        "steps": design.releases,
        "steps_released": row["release"],
        "window_ends": row["deadline"] if row["status"] == "running" else None,
        "parameters": released,
        "content": reading.contentment(design, studies.history(row["number"])),
        "forecast": design.spec.forecast()._asdict(),
        "privacy": {
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "mu": plan.mu,
            "spent": spending(account, row["id"], plan.delta),
            "unit": "one person",
            "neighbours": plan.privacy.neighbours,
        },
        "spec": design.spec.model_dump(),
    }


def report_of(studies: Studies, study: str) -> str:
    """The report of a finished study, as a page."""
    title = f"Study {studies.row(study)['name']}"
    return render(of_result(studies.result(study), title, None, None, None))
