"""The dashboard: pages made here, with forms that work without a script, and nothing from elsewhere.

It is for admins. What it shows of a running step (how many were asked and have answered) is for the
operator, not for publication; parameters, noise and spending are public.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from pydantic import ValidationError

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.serve import charts
from blindstep.serve.access import Forbidden
from blindstep.serve.api import StudyId, Worker, address_of, report_of, study_state
from blindstep.serve.service import Service
from blindstep.serve.spec import StudySpec
from blindstep.serve.studies import Studies

router = APIRouter(include_in_schema=False)
COOKIE = "blindstep_session"
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
_pages.filters["thousands"] = lambda value: f"{value:,}"


def signed_in(request: Request, service: Worker) -> str | None:
    """The admin of the request's cookie; others are sent to the sign-in page."""
    cookie = request.cookies.get(COOKIE, "")
    try:
        principal = service.access.of_session(cookie)
    except ValueError:
        principal = None
    return None if principal is None else principal.id


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


Admin = Annotated[str | None, Depends(signed_in)]
Fields = Annotated[dict[str, str], Depends(form)]


def _page(name: str, status: int = 200, **content: Any) -> HTMLResponse:
    return HTMLResponse(_pages.get_template(name).render(**content), status, headers=_HEADERS)


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, headers={"Cache-Control": "no-store"})


@router.get("/login")
def login_page() -> HTMLResponse:
    """The form for the admin token."""
    return _page("login.html")


@router.post("/login")
def login(fields: Fields, request: Request, service: Worker) -> Response:
    """Sign in with an admin token."""
    service.anonymous.take(address_of(request))
    cookie = service.access.session(fields.get("token", "").strip())
    if cookie is None:
        return _page("login.html", 401, error="This is not an admin token.")
    response = _to("/")
    secure = service.settings.secure_cookies
    response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=secure)
    return response


@router.post("/logout")
def logout(_: Fields) -> Response:
    """Sign out."""
    response = _to("/login")
    response.delete_cookie(COOKIE)
    return response


@router.get("/")
def home(admin: Admin, service: Worker) -> Response:
    """All studies."""
    if admin is None:
        return _to("/login")
    states = [study_state(service.studies, row) for row in service.studies.all()]
    return _page("home.html", studies=states)


@router.get("/new")
def new_page(admin: Admin) -> Response:
    """The form for a new study."""
    return _to("/login") if admin is None else _page("new.html", fields={})


@router.post("/new")
def new(admin: Admin, fields: Fields, service: Worker) -> Response:
    """Make a study; what cannot be read is said beside the form."""
    if admin is None:
        return _to("/login")
    try:
        study = service.studies.create(_spec(fields))
    except ValidationError as error:
        return _page("new.html", 422, fields=fields, error=_said(error))
    except (BlindstepError, ValueError) as error:
        return _page("new.html", 422, fields=fields, error=str(error))
    return _to(f"/studies/{study}")


@router.get("/studies/{study}")
def study_page(study: StudyId, admin: Admin, service: Worker) -> Response:
    """One study."""
    if admin is None:
        return _to("/login")
    return _page("study.html", **_content(service.studies, study))


@router.get("/studies/{study}/report")
def report_page(study: StudyId, admin: Admin, service: Worker) -> Response:
    """The report of a finished study, which carries its own style."""
    if admin is None:
        return _to("/login")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
    headers = _HEADERS | {"Content-Security-Policy": policy}
    return HTMLResponse(report_of(service.studies, study), headers=headers)


@router.post("/studies/{study}/token")
def token(study: StudyId, admin: Admin, _: Fields, service: Worker) -> Response:
    """A new site token, shown this once."""
    if admin is None:
        return _to("/login")
    service.studies.number(study)
    made = service.access.create("site", study, "made on the dashboard")[1]
    return _page("study.html", **_content(service.studies, study), token=made)


@router.post("/studies/{study}/{action}")
def act(study: StudyId, action: str, admin: Admin, _: Fields, service: Worker) -> Response:
    """Pause, resume or close."""
    if admin is None:
        return _to("/login")
    done = _ACTIONS.get(action)
    if done is None:
        return _to(f"/studies/{study}")
    try:
        done(service)(study)
    except BlindstepError as error:
        return _page("study.html", 409, **_content(service.studies, study), error=str(error))
    return _to(f"/studies/{study}")


_ACTIONS: dict[str, Callable[[Service], Callable[[str], None]]] = {
    "pause": lambda service: service.studies.pause,
    "resume": lambda service: service.studies.resume,
    "close": lambda service: service.studies.close,
}


def _content(studies: Studies, study: str) -> dict[str, Any]:
    """Everything that the page of a study shows."""
    row = studies.row(study)
    state, design = study_state(studies, row), studies.design(row["number"])
    history, traffic = studies.history(row["number"]), studies.traffic(row["number"])
    noise = design.noise_on_parameters(history)
    pictures = []
    for place, parameter in enumerate(design.spec.parameters):
        values = [parameter.begins, *(each["parameters"][parameter.name] for each in history)]
        spread = [float(each) for each in noise[:, place]] if history else []
        pictures.append(
            {
                "name": parameter.name,
                "now": values[-1],
                "noise": spread[-1] if spread else 0.0,
                "picture": charts.path(
                    parameter.name, parameter.low, parameter.high, values, spread, state["steps"]
                ),
            }
        )
    shown = sum(each["shown"] for each in history) + row["taken"]
    answered = sum(each["answered"] for each in history) + row["answered"]
    left = None if state["deadline"] is None else max(0, int(state["deadline"] - time.time()))
    return {
        "study": state,
        "pictures": pictures,
        "traffic": charts.hours(traffic) if traffic else None,
        "rate": answered / (2 * shown) if shown else None,
        "left": left,
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
    return StudySpec.model_validate(
        {
            "name": fields.get("name", ""),
            "parameters": parameters,
            "people": fields.get("people", ""),
            "epsilon": fields.get("epsilon", ""),
            "slots": fields.get("slots") or None,
            "deadline_seconds": 3600.0 * float(fields.get("hours") or 24),
            "close": fields.get("close", "full"),
            "answer": answer,
        }
    )


def _said(error: ValidationError) -> str:
    """What is wrong with a form, field by field."""
    first = error.errors()[0]
    return f"{' '.join(str(part) for part in first['loc'])}: {first['msg']}."
