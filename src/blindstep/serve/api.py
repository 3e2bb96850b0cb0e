"""The API: studies for admins, questions and answers for sites and people; and how refusals look.

A refusal is a code for programs, a sentence for people, and nothing of what was sent.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from blindstep.errors import (
    BlindstepError,
    BudgetExceeded,
    InvalidArgument,
    LedgerError,
    VacuousPlan,
)
from blindstep.insight.report import render
from blindstep.insight.report_content import of_result
from blindstep.serve.access import Forbidden, Principal, TooMany
from blindstep.serve.database import is_passing
from blindstep.serve.observe import log, where
from blindstep.serve.schema import Row
from blindstep.serve.service import Service, UnknownQuestion
from blindstep.serve.spec import (
    NAMES,
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
from blindstep.serve.studies import NoSuchStudy, Studies, WrongState, spending
from blindstep.serve.voting import Status, Unavailable

router = APIRouter(prefix="/v1", responses=refused(400, 401, 403, 413, 422, 429, 503))
StudyId = Annotated[str, Path(max_length=32, pattern=r"^[0-9a-f]+$")]


async def service_of(request: Request) -> Service:
    """The worker's service. (A function that is not asynchronous would be sent to a thread.)"""
    return request.app.state.service


Worker = Annotated[Service, Depends(service_of)]


async def maybe_principal(
    request: Request, service: Worker, authorization: Annotated[str | None, Header()] = None
) -> Principal | None:
    """Whom the request's API token stands for; None without one. A wrong one is refused."""
    if authorization is None:
        service.anonymous.take(address_of(request))
        return None
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Forbidden(401)
    return await service.principal(token.strip(), address_of(request))


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else ""


Anyone = Annotated[Principal | None, Depends(maybe_principal)]


async def site(study: StudyId, principal: Anyone) -> Principal:
    """A principal that may use the study of the path."""
    if principal is None or not principal.may_use(study):
        raise Forbidden(401 if principal is None else 403)
    return principal


def only(*scopes: str) -> Any:
    """The dependency of an endpoint for principals of these scopes."""

    async def check(principal: Anyone) -> None:
        if principal is None or principal.scope not in scopes:
            raise Forbidden(401 if principal is None else 403)

    return Depends(check)


FOR_SITES, FOR_ADMINS = [Depends(site)], [only("admin")]

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
async def answer(body: OneAnswer, service: Worker, principal: Anyone) -> JSONResponse:
    """Answer a question with its token. The first answer is kept; repeating it does no harm."""
    (became,) = await service.answer([body], principal)
    if isinstance(became, Exception):
        raise became
    status, following = became
    if status is not Status.ACCEPTED:
        number, error = of_status(status)
        return JSONResponse({"error": error}, number)
    return JSONResponse({"status": "accepted", "next": following})


@router.post("/answers/bulk")
async def answer_many(
    body: ManyAnswers, request: Request, service: Worker, principal: Anyone
) -> dict[str, Any]:
    """Answer many questions; each is accepted or refused on its own, and counts as a request."""
    if principal is None:
        service.anonymous.take(address_of(request), len(body.answers) - 1)
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
def parameters(
    study: StudyId,
    service: Worker,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
) -> dict[str, Any] | Response:
    """The released parameters, for everybody who is not being asked. May be cached."""
    done, found = service.studies.parameters(study)
    headers = {"Cache-Control": "public, max-age=5", "Vary": "Authorization"}
    headers["ETag"] = f'"{study}-{done}"'
    if if_none_match == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return {"steps_released": done, "parameters": found}


# -- operators ----------------------------------------------------------------------------------


@router.post("/studies", status_code=201, dependencies=FOR_ADMINS, responses=refused(409))
def create(body: StudySpec, service: Worker) -> dict[str, Any]:
    """Make a study. It runs from now on; everything but this is chosen by the planner."""
    return study_state(service.studies, service.studies.create(body))


@router.get("/studies", dependencies=FOR_ADMINS)
def list_studies(service: Worker) -> dict[str, Any]:
    """All studies, the newest first."""
    rows = service.studies.all()
    return {"studies": [study_state(service.studies, row["id"], row) for row in rows]}


@router.get("/studies/{study}", dependencies=FOR_SITES, responses=refused(404))
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


@router.get("/studies/{study}/report", dependencies=FOR_ADMINS, responses=refused(404, 409))
def report(study: StudyId, service: Worker) -> HTMLResponse:
    """The report of a finished study: one page, public quantities only."""
    return HTMLResponse(report_of(service.studies, study))


@router.get("/tokens", dependencies=FOR_ADMINS)
def list_tokens(service: Worker) -> dict[str, list[Token]]:
    """All tokens, without their secrets."""
    known = service.access.all()
    return {"tokens": [Token(**who._asdict(), label=label) for who, label, _ in known]}


@router.post("/tokens", status_code=201, dependencies=FOR_ADMINS, responses=refused(404))
def make_token(body: NewToken, service: Worker) -> Token:
    """Make a token: its secret is in this response and nowhere else."""
    if (body.scope == "site") != (body.study is not None):
        raise InvalidArgument("a site token is for one study, and no other token has one.")
    if body.study is not None:
        service.studies.row(body.study)  # refused if there is none
    name, token = service.access.create(body.scope, body.study, body.label)
    return Token(id=name, scope=body.scope, study=body.study, label=body.label, token=token)


@router.delete("/tokens/{name}", status_code=204, dependencies=FOR_ADMINS, responses=refused(404))
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


# -- refusals -----------------------------------------------------------------------------------

_OF_STATUS = {
    Status.LATE: (410, "the step of this question is over: an answer counts if it came before."),
    Status.OVER: (410, "the study is over."),
    Status.UNKNOWN: (404, "no such question is open."),
}

_OF_HTTP = {
    400: ("malformed", "the body cannot be read."),
    404: ("not_found", "there is nothing here."),
    405: ("not_allowed", "this method is not allowed here."),
}


def refusal(status: int, code: str, message: str, **headers: str) -> JSONResponse:
    """A refusal as a response."""
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers=headers)


def too_large() -> JSONResponse:
    """The refusal of a body that is longer than allowed."""
    return refusal(413, "too_large", "the body is larger than allowed.", Connection="close")


def of_status(status: Status) -> tuple[int, dict[str, str]]:
    """The refusal of an answer that was not accepted."""
    number, message = _OF_STATUS[status]
    return number, {"code": str(status), "message": message}


def of_error(error: Exception) -> tuple[int, str, str]:
    """Status, code and message for an error that this package raised on purpose."""
    if isinstance(error, Forbidden):
        return error.status, "unauthorized" if error.status == 401 else "forbidden", str(error)
    kinds: tuple[tuple[type[Exception], int, str], ...] = (
        (NoSuchStudy, 404, "no_such_study"),
        (UnknownQuestion, 401, "unknown_question"),
        (WrongState, 409, "wrong_state"),
        (BudgetExceeded, 409, "budget"),
        (LedgerError, 409, "ledger"),
        (TooMany, 429, "too_many"),
        (Unavailable, 503, "unavailable"),
        (InvalidArgument, 422, "invalid"),
        (VacuousPlan, 422, "invalid"),
    )
    for kind, status, code in kinds:
        if isinstance(error, kind):
            return status, code, str(error)
    if is_passing(error):
        return 503, "unavailable", "the database does not answer: try again."
    return 500, "internal", "something went wrong here; it was logged."


def refuse(error: Exception) -> JSONResponse:
    """The response to an error; one that is the service's own fault is logged."""
    status, code, message = of_error(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    if status >= 500:
        log.error("a request failed", extra={"error": type(error).__name__, "where": where(error)})
    return refusal(status, code, message, **headers)


def install(app: FastAPI) -> None:
    """Answer every error with a refusal."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        return refuse(error)

    async def malformed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return refusal(422, "invalid", _said(error.errors()[0]))

    async def unmatched(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code, message = _OF_HTTP.get(error.status_code, ("refused", "this was refused."))
        return refusal(error.status_code, code, message, **dict(error.headers or {}))

    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unmatched)
    app.add_exception_handler(BlindstepError, known)


def _said(error: dict[str, Any]) -> str:
    """What is wrong with a body, by the names of our fields and the rule that it breaks."""
    if error["type"] == "json_invalid" and error["loc"][:1] == ("body",):
        return "the body is not JSON."
    if error["type"] == "missing" and error["loc"] == ("body",):
        return "the body is missing: send JSON."
    if error["type"] == "extra_forbidden":
        return "the body has a field that is not known here."
    named = [str(part) for part in error["loc"] if isinstance(part, int) or part in NAMES]
    return f"{'.'.join(named)}: {error['msg']}."
