"""The dashboard: pages, forms and SVG charts, without a script and with nothing from elsewhere.

It is for admins. What it shows of a running step (how many people were asked and have answered) is for
the operator, not for publication; parameters, noise and spending are public.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape
from pydantic import ValidationError

from blindstep.errors import BlindstepError, InvalidArgument
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
                "picture": path(
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
        "traffic": hours(traffic) if traffic else None,
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


_WIDTH, _HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 24


def _number(value: float) -> str:
    return f"{value:.3g}"


def _frame(title: str, inside: list[str], height: int = _HEIGHT) -> Markup:
    """An SVG with a title that a screen reader says."""
    body = "".join(inside)
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
    )


def _text(x: float, y: float, said: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(
    name: str, low: float, high: float, values: Sequence[float], noise: Sequence[float], steps: int
) -> Markup:
    """A parameter over the steps: a line, and a band of one standard deviation of the noise.

    `values` begins with the start; `noise` has one entry less.
    """
    inner, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(step: float) -> float:
        return _LEFT + inner * step / max(steps, 1)

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return _TOP + height * (1.0 - share)

    parts = [_line(_LEFT, y(v), _WIDTH - _RIGHT, y(v), "grid") for v in (low, high)]
    parts += [_text(_LEFT - 6, y(v) + 4, _number(v), "end") for v in (low, high)]
    parts += [_text(x(step), _HEIGHT - 6, str(step)) for step in (0, steps // 2, steps)]
    band = [0.0, *noise]
    above = [
        f"{x(i):.1f},{y(v + s):.1f}" for i, (v, s) in enumerate(zip(values, band, strict=True))
    ]
    below = [
        f"{x(i):.1f},{y(v - s):.1f}" for i, (v, s) in enumerate(zip(values, band, strict=True))
    ]
    parts.append(f'<polygon class="band" points="{" ".join(above + below[::-1])}"/>')
    line = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
    parts.append(f'<polyline class="line" points="{line}"/>')
    parts.append(
        f'<circle class="dot" cx="{x(len(values) - 1):.1f}" cy="{y(values[-1]):.1f}" r="3.5"/>'
    )
    spread = f", give or take {_number(band[-1])}" if noise else ""
    said = f"{name} over {len(values) - 1} of {steps} steps: now {_number(values[-1])}{spread}"
    return _frame(said, parts)


def hours(counts: Sequence[tuple[int, int, int]]) -> Markup:
    """Answers in each of the last hours, as bars; hours without any are gaps."""
    last = counts[-1][0]
    first = max(counts[0][0], last - 47)
    shown = [(hour, answers) for hour, _, answers in counts if hour >= first]
    most = max(1, *(answers for _, answers in shown))
    top = _round_up(most)
    inner, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    number = max(last - first + 1, 12)
    width = inner / number
    parts = [_line(_LEFT, _TOP + height, _WIDTH - _RIGHT, _TOP + height)]
    parts += [_line(_LEFT, _TOP, _WIDTH - _RIGHT, _TOP, "grid")]
    parts.append(_text(_LEFT - 6, _TOP + 4, f"{top:,}", "end"))
    parts.append(_text(_LEFT - 6, _TOP + height + 4, "0", "end"))
    for hour, answers in shown:
        tall = height * answers / top
        left = _LEFT + width * (hour - last + number - 1)
        parts.append(
            f'<rect class="bar" x="{left + 1:.1f}" y="{_TOP + height - tall:.1f}" '
            f'width="{max(width - 2, 1):.1f}" height="{tall:.1f}"/>'
        )
    for hour in (last - number + 1, last):
        anchor = "end" if hour == last else "start"
        where = _WIDTH - _RIGHT if hour == last else _LEFT
        parts.append(_text(where, _HEIGHT - 6, _clock(hour), anchor))
    return _frame(f"Answers per hour; {shown[-1][1]:,} in the hour of {_clock(last)}", parts)


def _clock(hour: int) -> str:
    return datetime.fromtimestamp(3600 * hour, UTC).strftime("%d %b %H:00")


def _round_up(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ..."""
    size = 10 ** int(math.log10(max(value, 1)))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value)
