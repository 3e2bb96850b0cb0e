"""The dashboard: pages, forms and SVG charts, without a script and with nothing from elsewhere.

It is for admins. All that it shows is public or follows from what is: parameters, noise, spending, and
how far what was heard stands out of the noise. How many people came is counted nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from pydantic import ValidationError

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.serve.access import Forbidden
from blindstep.serve.api import StudyId, Worker, address_of, list_studies, report_of, study_state
from blindstep.serve.spec import StudySpec
from blindstep.serve.studies import Studies

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


def signed_in(request: Request, service: Worker) -> None:
    """Let an admin with a cookie pass; send anyone else to the sign-in page."""
    if service.access.of_session(request.cookies.get(COOKIE, "")) is None:
        raise HTTPException(303, headers={"Location": "/login", "Cache-Control": "no-store"})


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


@pages.get("/")
def home(service: Worker) -> Response:
    """All studies."""
    return _page("home.html", **list_studies(service))


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
                **path(parameter.low, parameter.high, values, spread, state["steps"]),
            }
        )
    ends = state["window_ends"]
    return {
        "study": state,
        "pictures": pictures,
        "signal": signal(design.heard(history), state["steps"]) if history else None,
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
    return StudySpec.model_validate(
        {
            "name": fields.get("name", ""),
            "parameters": parameters,
            "people": fields.get("people", ""),
            "epsilon": fields.get("epsilon", ""),
            "people_per_step": fields.get("people_per_step") or None,
            "window_seconds": 3600.0 * float(fields.get("hours") or 24),
            "answer": answer,
        }
    )


def _said(error: ValidationError) -> str:
    """What is wrong with a form, field by field."""
    first = error.errors()[0]
    return f"{' '.join(str(part) for part in first['loc'])}: {first['msg']}."


# Where charts.html draws inside a picture: from the left and from the top, and how wide and tall.
_LEFT, _TOP, _WIDE, _TALL = 46, 10, 304, 116


def path(
    low: float, high: float, values: Sequence[float], noise: Sequence[float], steps: int
) -> dict[str, Any]:
    """The points of a line over the steps, and of a band of one standard deviation of the noise.

    `values` begins with the start; `noise` has one entry less.
    """

    def point(step: int, value: float) -> tuple[float, float]:
        share = (min(max(value, low), high) - low) / (high - low)
        return _LEFT + _WIDE * step / max(steps, 1), _TOP + _TALL * (1.0 - share)

    spread = list(zip(values, [0.0, *noise], strict=True))
    above = [point(i, value + s) for i, (value, s) in enumerate(spread)]
    below = [point(i, value - s) for i, (value, s) in enumerate(spread)]
    return {
        "low": low,
        "high": high,
        "marks": [(point(step, low)[0], step) for step in (0, steps // 2, steps)],
        "band": above + below[::-1],
        "line": [point(i, value) for i, value in enumerate(values)],
    }


def signal(heard: Sequence[float], steps: int) -> dict[str, Any]:
    """The bars of what each step heard, in lengths of the noise; a line shows where noise alone is."""
    top = max(2.0, *heard)
    width = _WIDE / max(steps, 12)
    return {
        "top": top,
        "noise": _TOP + _TALL * (1.0 - 1.0 / top),
        "bars": [(_LEFT + width * i + 1, _TALL * each / top) for i, each in enumerate(heard)],
        "width": max(width - 2, 1),
        "latest": heard[-1],
        "steps": steps,
    }
