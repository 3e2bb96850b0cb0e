"""The application: API, dashboard, health and metrics in one ASGI app. `build` is for uvicorn."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from importlib.resources import files

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindstep.serve import api, dashboard, refusals, traces
from blindstep.serve.api import Worker
from blindstep.serve.hot import Hot
from blindstep.serve.observe import metrics, note, of_request
from blindstep.serve.service import Service, Settings


def create_app(settings: Settings) -> FastAPI:
    """The app of one worker. Its threads run while the app does."""

    @contextlib.asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings)
        service.start()
        app.state.service = service
        try:
            yield
        finally:
            service.stop()

    app = FastAPI(
        title="blindstep",
        version=version("blindstep"),
        description="Better from votes, privately.",
        lifespan=running,
        # The pages that FastAPI makes for its API load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
    )
    refusals.install(app)
    app.include_router(api.router)
    app.include_router(dashboard.router)
    app.mount("/static", StaticFiles(directory=str(files("blindstep.serve") / "static")))

    @app.get("/metrics", include_in_schema=False, dependencies=[api.only("admin", "metrics")])
    def prometheus(service: Worker) -> Response:
        """The metrics of all workers on this host."""
        return Response(metrics(service.studies), media_type="text/plain; version=0.0.4")

    app.add_middleware(Hot)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["POST"],
            allow_headers=["Content-Type"],
        )
    app.add_middleware(Boundary, usual=settings.body_bytes, bulk=settings.bulk_bytes)
    return app


class Boundary:
    """Around every request: limits its body, times it, and answers an error that nobody expected.

    (The server around it would print such an error with all that was sent.) A body that is longer
    than allowed is refused before it is read to its end.
    """

    def __init__(self, app: ASGIApp, usual: int, bulk: int) -> None:
        self._app, self._usual, self._bulk = app, usual, bulk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and watch what is read of it and what is sent back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._bulk if scope["path"] == "/v1/answers/bulk" else self._usual
        claimed = dict(scope["headers"]).get(b"content-length", b"0")
        began, seen = time.perf_counter(), 0
        status = None  # of the response, once it has begun
        name = os.urandom(8).hex()
        of_request.set(name)

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            return message if seen <= most else {"type": "http.disconnect"}

        async def noted(message: Message) -> None:
            nonlocal status
            if seen <= most or status:  # what the app says of a body that was cut off is not sent
                if "status" in message:
                    status = message["status"]
                    message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
                await send(message)

        try:
            if claimed.isdigit() and int(claimed) <= most:
                await self._app(scope, counted, noted)
            else:
                seen = most + 1
        except Exception as error:
            response = refusals.refuse(error)
            if not status:
                await response(scope, receive, noted)
        finally:
            if seen > most and not status:
                status = 413
                await refusals.too_large()(scope, receive, send)
            note(scope, status or 500, time.perf_counter() - began)


def build() -> FastAPI:
    """The app with the settings of the environment: what each uvicorn worker calls."""
    traces.begin()
    return create_app(Settings.from_environment())
