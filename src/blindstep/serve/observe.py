"""What is seen of a service from outside: logs without identifiers or values, metrics without votes.

A log line is JSON: time, event, route (its template, never the path), status and milliseconds. Metrics
count requests by group, but not those of people: one request more or less would tell, without
noise, whether somebody answered. Of questions and answers there are latencies and failures. What was
released, and what it cost, is public and is read from the database.
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)
from prometheus_client.core import GaugeMetricFamily
from starlette.types import Scope

from blindstep.serve import traces
from blindstep.serve.studies import Studies

log = logging.getLogger("blindstep.serve")
_FIELDS = ("route", "status", "ms", "study", "step", "number", "error", "where")

# The name of the request that is being answered, which the response carries too.
of_request: ContextVar[str | None] = ContextVar("request", default=None)

_STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

# Several workers write to the files of this folder, and any of them can add them up.
_SHARED = "PROMETHEUS_MULTIPROC_DIR"
_registry = CollectorRegistry()
_requests = Counter(
    "blindstep_requests", "Requests by group and status.", ["group", "status"], registry=_registry
)
damaged = Counter(
    "blindstep_damaged_votes",
    "Stored votes that were changed from outside: each counted 0.",
    registry=_registry,
)
_seconds = Histogram(
    "blindstep_request_seconds",
    "Seconds from a request to its response.",
    ["group"],
    buckets=_STEPS,
    registry=_registry,
)
_of_people = Gauge(
    "blindstep_people_seconds",
    "Seconds from a question or answer to its response: of the last 1,000, in the slowest worker.",
    ["quantile"],
    registry=_registry,
    multiprocess_mode="livemax",
)
ready = Gauge(
    "blindstep_ready",
    "1 if /readyz says so: of the worker that is worst off.",
    registry=_registry,
    multiprocess_mode="livemin",
)
_recent: deque[float] = deque(maxlen=1_000)
_told = 0.0  # when the quantiles were last computed


class JsonLines(logging.Formatter):
    """A log record as one line of JSON, with the fields that are allowed and no others."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"at": when, "level": record.levelname.lower(), "event": record.msg}
        if (request := of_request.get()) is not None:
            line["request"] = request
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": type(record.exc_info[1]).__name__, "where": where(record.exc_info[1])}
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        return json.dumps(line, default=str)


def log_config(level: str) -> dict[str, Any]:
    """A line of JSON on stderr for each event of this package and of the server that it runs in.

    Of the server's own lines only errors: strangers can make it warn as often as they like.
    """
    server = {"handlers": ["lines"], "level": "DEBUG" if level == "debug" else "ERROR"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": "blindstep.serve.observe.JsonLines"}},
        "handlers": {"lines": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "loggers": {
            "blindstep.serve": {
                "handlers": ["lines"],
                "level": level.upper(),
                "propagate": False,
            },
            "uvicorn": server | {"propagate": False},
        },
    }


def where(error: BaseException) -> list[str]:
    """The places of an error's traceback. Its text is left out: it may hold what somebody sent."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames[-6:]]


_OF_PEOPLE = ("/v1/answers", "/v1/studies/{study}/questions", "/v1/studies/{study}/parameters")
_OF_OPERATORS = ("/v1/", "/studies/", "/new", "/login", "/logout")


def group_of(route: str) -> str:
    """What a route is counted as. What is not known to be an operator's may be made by people."""
    if route in ("/healthz", "/readyz", "/metrics"):
        return "health"
    operators = route == "/" or route.startswith(_OF_OPERATORS)
    return "operators" if operators and not route.startswith(_OF_PEOPLE) else "people"


def _count(group: str, status: int, took: float) -> None:
    """Count a request. One of people leaves its latency, and is counted only if it failed here."""
    global _told
    if group != "people" or status >= 500:
        _requests.labels(group, f"{status // 100}xx").inc()
    if group != "people":
        _seconds.labels(group).observe(took)
        return
    _recent.append(took)
    if time.monotonic() - _told >= 1.0:
        _told, ordered = time.monotonic(), sorted(_recent)
        for quantile in (0.5, 0.99):
            place = min(int(quantile * len(ordered)), len(ordered) - 1)
            # In coarse steps: the exact time would show each single request.
            coarse = next((step for step in _STEPS if ordered[place] <= step), _STEPS[-1])
            _of_people.labels(quantile).set(coarse)


def note(scope: Scope, status: int, took: float) -> None:
    """Count a request that took `took` seconds, and log it by the template of its route."""
    route = getattr(scope.get("route"), "path", "unmatched")
    group = group_of(route)
    _count(group, status, took)
    if group == "operators":
        traces.trace(route, status, took)
    said = {"route": route, "status": status, "ms": round(1000 * took, 1)}
    log.log(logging.ERROR if status >= 500 else logging.DEBUG, "request", extra=said)


class _Released:
    """What the database says of releases, read when it is scraped."""

    def __init__(self, studies: Studies) -> None:
        self._studies = studies

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Steps released, mu spent and how many came, by study: all of it public."""
        steps = GaugeMetricFamily("blindstep_steps_released", "Steps released.", labels=["study"])
        spent = GaugeMetricFamily("blindstep_mu_spent", "Gaussian-DP spent.", labels=["study"])
        late = GaugeMetricFamily(
            "blindstep_overdue_seconds",
            "Seconds since a window ended that is not released: a minute or more is trouble.",
            labels=["study"],
        )
        came = GaugeMetricFamily(
            "blindstep_came",
            "Who answered in the last window, as a share of those planned, with the release's noise.",
            labels=["study"],
        )
        with self._studies.database.read() as connection:
            now = self._studies.database.now(connection)
        for row in self._studies.all():
            released = self._studies.released(row)
            if row["status"] == "running":
                late.add_metric([row["id"]], max(0.0, now - row["deadline"]))
                if released.came is not None:
                    came.add_metric([row["id"]], released.came)
            steps.add_metric([row["id"]], row["release"])
            spent.add_metric([row["id"]], released.mu)
        yield from (steps, spent, late, came)


def metrics(studies: Studies) -> bytes:
    """The metrics of all workers, in Prometheus' text format."""
    released = CollectorRegistry()
    released.register(_Released(studies))  # type: ignore[arg-type]
    counted = _registry
    if folder := os.environ.get(_SHARED):
        for process in _dead(folder):
            multiprocess.mark_process_dead(process, folder)
        counted = CollectorRegistry()
        multiprocess.MultiProcessCollector(counted)
    return generate_latest(counted) + generate_latest(released)


def _dead(folder: str) -> list[int]:
    """Workers that left gauges behind: nobody else says that they are gone."""
    found = []
    for file in Path(folder).glob("gauge_livem*_*.db"):
        process = int(file.stem.rpartition("_")[2])
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            found.append(process)
    return found
