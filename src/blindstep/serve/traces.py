"""Traces by OpenTelemetry: of what operators do, where its usual environment variables say.

`pip install '.[otel]'` in a copy of the repository, and `OTEL_EXPORTER_OTLP_ENDPOINT`. Requests of
people leave no trace: a span for each would count them, and say when each came. A span is named by the
template of its route.
"""

from __future__ import annotations

import os
import time
from typing import Any

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_provider: Any = None


def tracer() -> Any:
    """A tracer, if the environment asks for one, which also chooses sampler, resource and so on."""
    global _provider
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _provider = TracerProvider()
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _provider.get_tracer("blindstep.serve")


_tracer: Any = None


def begin() -> None:
    """Begin, in a worker: a missing extra is an error there."""
    global _tracer
    _tracer = tracer()


def trace(route: str, status: int, took: float) -> None:
    """A request of an operator that has taken so many seconds."""
    if _tracer is None:
        return
    now = time.time_ns()
    attributes = {"http.route": route, "http.response.status_code": status}
    span = _tracer.start_span(route, start_time=now - int(1e9 * took), attributes=attributes)
    span.end(now)


def flush() -> None:
    """Send what has not been sent."""
    if _provider is not None:
        _provider.force_flush()
