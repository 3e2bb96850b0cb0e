"""The dashboard: pages and forms, without a script and with nothing from elsewhere.

It is for admins. All that it shows is public or follows from what is: parameters, noise, spending, and
how far what was heard stands out of the noise. How many people came is counted nowhere.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from pydantic import ValidationError

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.serve import administration, charts, reading
from blindstep.serve.access import Forbidden
from blindstep.serve.api import (
    Earlier,
    StudyId,
    Worker,
    address_of,
    audit,
    list_studies,
    report_of,
    study_state,
)
from blindstep.serve.api_page import operations
from blindstep.serve.identity import RETURN, NotSignedIn
from blindstep.serve.observe import log
from blindstep.serve.service import Service
from blindstep.serve.spec import StudySpec
from blindstep.serve.studies import Studies

COOKIE, _UNDER_WAY = "blindstep_session", "blindstep_sign_in"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_pages = Environment(
    loader=PackageLoader("blindstep.serve"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)
_pages.filters["short"] = lambda value: f"{value:.3g}"
_pages.filters["percent"] = lambda value: f"{100 * value:.0f}%"
_pages.filters["moment"] = lambda at: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
_pages.filters["thousands"] = lambda value: f"{value:,}"


def signed_in(request: Request, service: Worker) -> None:
    """Let an admin with a cookie pass, and a viewer who looks; send anyone else to the sign-in page.

    What an admin is about to change is written into the audit log.
    """
    principal = service.sessions.holder(request.cookies.get(COOKIE, ""))
    if principal is None:
        raise HTTPException(303, headers={"Location": "/login", "Cache-Control": "no-store"})
    if request.method != "GET":
        if principal.scope != "admin":
            raise Forbidden(403)
        audit(request, service, principal)


async def form(request: Request) -> dict[str, str]:
    """The fields of a form that was sent from one of our own pages."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden(403)
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, max_num_fields=20)
    except ValueError:
        raise InvalidArgument("this form has more fields than any of ours.") from None
    return {name: values[-1] for name, values in fields.items()}


Fields = Annotated[dict[str, str], Depends(form)]
router = APIRouter(include_in_schema=False)
pages = APIRouter(dependencies=[Depends(signed_in)])


def _page(name: str, status: int = 200, **content: Any) -> HTMLResponse:
    return HTMLResponse(_pages.get_template(name).render(**content), status, headers=_HEADERS)


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, headers={"Cache-Control": "no-store"})


def _sign_in_page(service: Service, status: int = 200, error: str | None = None) -> HTMLResponse:
    return _page("login.html", status, error=error, provider=service.provider is not None)


def _signed_in(response: Response, cookie: str, service: Service) -> Response:
    """The response that sets the cookie of a session."""
    secure = service.settings.secure_cookies
    response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=secure)
    return response


@router.get("/login")
def login_page(service: Worker) -> HTMLResponse:
    """The form for the admin token."""
    return _sign_in_page(service)


@router.post("/login")
def login(fields: Fields, request: Request, service: Worker) -> Response:
    """Sign in with an admin token."""
    service.anonymous.take(address_of(request))
    name = service.secrets.token_name(fields.get("token", "").strip())
    principal = service.access.look_up(name)
    cookie = None if principal is None else service.sessions.open(principal, principal.id)
    if cookie is None:
        return _sign_in_page(service, 401, "This is not an admin token.")
    return _signed_in(_to("/"), cookie, service)


@router.get("/login/provider")
def to_provider(request: Request, service: Worker) -> Response:
    """Send somebody to the provider of identities, with a cookie for the way back."""
    service.anonymous.take(address_of(request))
    if service.provider is None:
        raise HTTPException(404)
    try:
        under_way = service.provider.begin()
    except NotSignedIn as error:
        return _sign_in_page(service, error.status, str(error))
    response = _to(under_way.address)
    secure = service.settings.secure_cookies
    # Lax: the way back begins at the provider's page.
    response.set_cookie(
        _UNDER_WAY, under_way.cookie, path=RETURN, httponly=True, samesite="lax", secure=secure
    )
    return response


@router.get(RETURN)
def from_provider(request: Request, service: Worker) -> Response:
    """Sign in whoever the provider says may come in."""
    service.anonymous.take(address_of(request))
    if service.provider is None:
        raise HTTPException(404)
    begun = request.cookies.get(_UNDER_WAY, "")
    try:
        principal = service.provider.finish(dict(request.query_params), begun)
    except NotSignedIn as error:
        log.warning("not signed in", extra={"error": type(error.__cause__ or error).__name__})
        response: Response = _sign_in_page(service, error.status, str(error))
    else:
        administration.note(service.database, principal, "sign_in", detail=principal.scope)
        cookie = service.sessions.open(principal)
        assert cookie is not None
        # A page of ours that goes on by itself: a redirect would still be the provider's request,
        # with which a browser sends no strict cookie.
        response = _signed_in(_page("signed_in.html", who=principal.label), cookie, service)
    response.delete_cookie(_UNDER_WAY, path=RETURN)
    return response


@router.post("/logout")
def logout(_: Fields, request: Request, service: Worker) -> Response:
    """Sign out: the cookie opens nothing any more, wherever a copy of it is."""
    service.sessions.close(request.cookies.get(COOKIE, ""))
    response = _to("/login")
    response.delete_cookie(COOKIE)
    return response


@router.get("/docs")
def docs(request: Request) -> Response:
    """The page about the API."""
    return _page("api.html", operations=operations(request.app.openapi()))


@pages.get("/")
def home(service: Worker, before: Earlier = None) -> Response:
    """The studies, the newest first."""
    return _page("home.html", before=before, **list_studies(service, before))


@pages.get("/new")
def new_page() -> Response:
    """The form for a new study."""
    return _page("new.html", fields={})


@pages.post("/new")
def new(fields: Fields, service: Worker) -> Response:
    """Make a study; what cannot be read is said beside the form."""
    try:
        study = service.studies.create(_spec(fields))
    except ValidationError as error:
        return _page("new.html", 422, fields=fields, error=_said(error))
    except (BlindstepError, ValueError) as error:
        return _page("new.html", 422, fields=fields, error=str(error))
    return _to(f"/studies/{study}")


@pages.get("/audit")
def audit_page(service: Worker) -> Response:
    """Who did what, when."""
    return _page("audit.html", lines=administration.lines(service.database))


@pages.get("/studies/{study}")
def study_page(study: StudyId, service: Worker) -> Response:
    """One study."""
    return _page("study.html", **_content(service.studies, study))


@pages.get("/studies/{study}/report")
def report_page(study: StudyId, service: Worker) -> Response:
    """The report of a finished study, which carries its own style."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
    headers = _HEADERS | {"Content-Security-Policy": policy}
    return HTMLResponse(report_of(service.studies, study), headers=headers)


@pages.post("/studies/{study}/token")
def token(study: StudyId, _: Fields, service: Worker) -> Response:
    """A new site token, shown this once."""
    service.studies.row(study)  # refused if there is none
    made = service.access.create("site", study, "made on the dashboard")[1]
    return _page("study.html", **_content(service.studies, study), token=made)


@pages.post("/studies/{study}/{action}")
def act(
    study: StudyId,
    action: Literal["pause", "resume", "end-window", "close"],
    _: Fields,
    service: Worker,
) -> Response:
    """Pause, resume, end the window or close."""
    try:
        getattr(service.studies, action.replace("-", "_"))(study)
    except BlindstepError as error:
        return _page("study.html", 409, **_content(service.studies, study), error=str(error))
    return _to(f"/studies/{study}")


router.include_router(pages)


def _content(studies: Studies, study: str) -> dict[str, Any]:
    """Everything that the page of a study shows."""
    row = studies.row(study)
    state, design = study_state(studies, study, row), studies.design(study)
    history = studies.history(design.number)
    noise = reading.noise_on_parameters(design, history)
    pictures = []
    for place, parameter in enumerate(design.spec.parameters):
        values = [parameter.begins, *(each["parameters"][parameter.name] for each in history)]
        spread = [float(each) for each in noise[:, place]] if history else []
        pictures.append(
            {
                "name": parameter.name,
                "now": values[-1],
                "noise": spread[-1] if spread else 0.0,
                **charts.path(parameter.low, parameter.high, values, spread, state["steps"]),
            }
        )
    ends = state["window_ends"]
    return {
        "study": state,
        "pictures": pictures,
        "signal": charts.signal(reading.heard(design, history), state["steps"])
        if history
        else None,
        "content": charts.content(state["content"], state["steps"]),
        "left": None if ends is None else max(0, int(ends - time.time())),
        "history": history,
        "plan": design.plan,
    }


def _spec(fields: dict[str, str]) -> StudySpec:
    """The study that a form describes; parameters are lines of a name, low, high and maybe a start."""
    parameters = []
    for line in fields.get("parameters", "").splitlines():
        words = line.replace(",", " ").split()
        if not words:
            continue
        if len(words) not in (3, 4):
            raise ValueError("A parameter is a line: name low high, and maybe a start.")
        parameters.append(dict(zip(("name", "low", "high", "start"), words, strict=False)))
    answer: dict[str, Any] = {"kind": fields.get("kind", "vote")}
    if answer["kind"] != "vote":
        given = {name: fields[name] for name in ("low", "high", "better") if fields.get(name)}
        answer |= given
    asked: dict[str, Any] = {
        "name": fields.get("name", ""),
        "parameters": parameters,
        "epsilon": fields.get("epsilon", ""),
        "people_per_step": fields.get("people_per_step") or None,
        "answer": answer,
        "control": float(fields.get("control") or 5) / 100.0,
        "most_change": float(fields.get("most_change") or 100) / 100.0,
        "despite_noise": "despite_noise" in fields,
    }
    if fields.get("hours"):
        asked["window_seconds"] = 3600.0 * float(fields["hours"])
    if fields.get("visitors_per_day"):
        names = ("visitors_per_day", "days")
        traffic = {name: fields.get(name, "") for name in names}
        rate = float(fields.get("response_rate") or 100) / 100.0
        asked["traffic"] = traffic | {"response_rate": rate}
    if fields.get("people") or "traffic" not in asked:
        asked["people"] = fields.get("people", "")
    return StudySpec.model_validate(asked)


def _said(error: ValidationError) -> str:
    """What is wrong with a form, field by field."""
    first = error.errors()[0]
    return f"{' '.join(str(part) for part in first['loc'])}: {first['msg']}."
