"""A client of the service that needs nothing but Python.

    client = Client("http://127.0.0.1:8000", token)
    question = client.ask(study, "alice@example.org")     # with the token of the site
    show(question["parameters"])                          # whatever the status: these are to be shown
    if question["status"] == "asked":
        client.answer(question["token"], 1)               # a vote up; gives the second question

Calls may be repeated: asking again gives the same question, and of two answers the first is kept. So a
call that found nobody, or a service that was busy, is tried again, for a few seconds.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from blindstep.errors import BlindstepError, InvalidArgument, answers_typos

_BUSY = (429, 502, 503, 504)


class Refused(BlindstepError):
    """The service refused a request.

    Attributes:
        status: the HTTP status, or 0 if nobody answered.
        code: the reason in one word, such as "late".
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Client:
    """A connection to a service. Threads may share it: each has a connection of its own."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        patience: float = 10.0,
        timeout: float = 30.0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            address: where the service is, such as "https://votes.example.org".
            token: an admin or site token; answers need none but the question's.
            patience: for how many seconds a call is tried again while the service is away or busy.
            timeout: for how many seconds one try may last.
        """
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(f"the address {address!r} must begin with http:// or https://.")
        self._parts, self._prefix = parts, parts.path.rstrip("/")
        self._token, self._patience, self._timeout = token, patience, timeout
        self._own = threading.local()

    # -- what a site does -----------------------------------------------------------------------

    def ask(self, study: str, person: str) -> dict[str, Any]:
        """A person's question, or why there is none; in any case the parameters to show."""
        return self.call("POST", f"/v1/studies/{quote(study)}/questions", {"person": person})

    def answer(self, token: str, value: float) -> dict[str, Any]:
        """Answer a question; gives the person's second question after the first."""
        return self.call("POST", "/v1/answers", {"token": token, "value": value})

    def answer_many(self, answers: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
        """Answer many questions in one request; gives what became of each."""
        listed = [{"token": token, "value": value} for token, value in answers]
        return self.call("POST", "/v1/answers/bulk", {"answers": listed})["results"]

    def parameters(self, study: str) -> dict[str, float]:
        """The released parameters, for everybody who is not asked."""
        return self.call("GET", f"/v1/studies/{quote(study)}/parameters")["parameters"]

    # -- what an operator does ------------------------------------------------------------------

    @answers_typos
    def create(
        self,
        name: str,
        parameters: Mapping[str, tuple[float, float]] | list[dict[str, Any]],
        *,
        epsilon: float,
        people: int | None = None,
        traffic: Mapping[str, float] | None = None,
        answer: Mapping[str, Any] | None = None,
        window_seconds: float | None = None,
        people_per_step: int | None = None,
        control: float | None = None,
        most_change: float | None = None,
        neighbours: str | None = None,
        delta: float | None = None,
        cohort: str | None = None,
        budget_epsilon: float | None = None,
        despite_noise: bool | None = None,
    ) -> dict[str, Any]:
        """Make a study; what is left out is as the service has it.

            study = admin.create("Films", {"comedy": (-1, 1)}, people=10_000, epsilon=1)

        Args:
            name: what people call it.
            parameters: {name: (low, high)}, or the full form of the API, with starts.
            epsilon: the budget of a person.
            people: how many are expected.
            traffic: instead, {"visitors_per_day": ..., "response_rate": ..., "days": ...}.
            answer: {"kind": "vote"}, "rating", "number" or "comparison", with its range.
            window_seconds: how long a step asks people; a day.
            people_per_step: how many are expected in one; a sixteenth of all.
            control: share of the people who see the start and where the study stands.
            most_change: how far a shown parameter may be from there, as a share of its range.
            neighbours: what epsilon is about: a person "replace"d, or one who stays away ("zero-out").
            delta: left out, at most a hundredth of 1 / people.
            cohort: whose ledger: studies on the same people share one.
            budget_epsilon: what all studies of the cohort may spend.
            despite_noise: make it although its forecast says that noise would win.
        """
        said = {each: given for each, given in locals().items() if given is not None}
        if isinstance(parameters, Mapping):
            for each, ends in parameters.items():
                if len(ends) != 2:
                    raise ValueError(f"the range of {each!r} must be (low, high), got {ends!r}.")
            pairs = parameters.items()
            parameters = [{"name": each, "low": low, "high": high} for each, (low, high) in pairs]
        del said["self"]
        asked = said | {"parameters": parameters}
        return self.call("POST", "/v1/studies", asked, again=False)

    def study(self, study: str) -> dict[str, Any]:
        """The state of a study."""
        return self.call("GET", f"/v1/studies/{quote(study)}")

    def studies(self) -> list[dict[str, Any]]:
        """All studies, the newest first."""
        found, part = [], self.call("GET", "/v1/studies")
        while part["next"] is not None:
            found += part["studies"]
            part = self.call("GET", f"/v1/studies?before={part['next']}")
        return found + part["studies"]

    def pause(self, study: str) -> dict[str, Any]:
        """Ask nobody new, and hold the end of the window."""
        return self._act(study, "pause")

    def resume(self, study: str) -> dict[str, Any]:
        """Go on after a pause."""
        return self._act(study, "resume")

    def end_window(self, study: str, step: int | None = None) -> dict[str, Any]:
        """End the open window now, of this step (from 1) if one is named; a release follows."""
        path = f"/v1/studies/{quote(study)}/end-window"
        return self.call("POST", path, {"step": step}, again=step is not None)

    def close_study(self, study: str) -> dict[str, Any]:
        """End a study for good."""
        return self._act(study, "close")

    def _act(self, study: str, action: str) -> dict[str, Any]:
        return self.call("POST", f"/v1/studies/{quote(study)}/{action}", {}, again=False)

    def new_token(self, scope: str, study: str | None = None, label: str = "") -> dict[str, Any]:
        """A new token, shown this once."""
        body = {"scope": scope, "study": study, "label": label}
        return self.call("POST", "/v1/tokens", body, again=False)

    def revoke(self, token_id: str) -> None:
        """Make a token useless from now on."""
        self.call("DELETE", f"/v1/tokens/{quote(token_id)}", again=False)

    # -- how --------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, *, again: bool = True) -> Any:
        """One request and its JSON; a refusal is raised. With `again` it is tried for a while."""
        until, pause = time.monotonic() + self._patience, 0.05
        if not again:
            self.close()  # the other side may have closed an idle connection
        while True:
            try:
                status, content = self._send(method, path, body)
                if status not in _BUSY or not again or time.monotonic() > until:
                    return _read(status, content)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not again or time.monotonic() > until:
                    raise Refused(
                        0, "unreachable", f"the service does not answer ({type(error).__name__})."
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _send(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            https = self._parts.scheme == "https"
            kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
            host, port = str(self._parts.hostname), self._parts.port
            connection = self._own.connection = kind(host, port, timeout=self._timeout)
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body), "application/json"
        connection.request(method, self._prefix + path, content, headers)
        response = connection.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        """Close this thread's connection; the next call opens another."""
        connection = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            self._own.connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(status: int, content: bytes) -> Any:
    try:
        said = json.loads(content) if content else {}
    except ValueError:
        said = {}
    if status < 400:
        return said
    error = said.get("error", {}) if isinstance(said, dict) else {}
    message = error.get("message", f"the service answered {status}.")
    raise Refused(status, error.get("code", "refused"), message)
