"""How refusals look: a code for programs, a sentence for people, and nothing of what was sent."""

from __future__ import annotations

import difflib
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from blindstep.errors import (
    BlindstepError,
    BudgetExceeded,
    InvalidArgument,
    LedgerError,
    VacuousPlan,
)
from blindstep.serve.access import Forbidden, LastAdmin, TooMany
from blindstep.serve.database import is_passing
from blindstep.serve.observe import log, where
from blindstep.serve.service import UnknownQuestion
from blindstep.serve.spec import NAMES
from blindstep.serve.studies import NoSuchStudy, WrongState
from blindstep.serve.voting import Status, Unavailable

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
        (LastAdmin, 409, "last_admin"),
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
        # The field itself may be anything, so what is said is a name of ours.
        near = difflib.get_close_matches(str(error["loc"][-1]), NAMES, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else " /docs has the names."
        return f"the body has a field that is not known here.{meant}"
    named = [str(part) for part in error["loc"] if isinstance(part, int) or part in NAMES]
    return f"{'.'.join(named)}: {error['msg']}."
