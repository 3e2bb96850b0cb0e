"""The application: API, dashboard, health and metrics in one ASGI app. `build` is for uvicorn."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from importlib.resources import files

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles

from blindstep.serve import api, dashboard, refusals
from blindstep.serve.access import BodyLimit, Forbidden
from blindstep.serve.api import Anyone, Worker
from blindstep.serve.observe import Observer, metrics, set_up_logs
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

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> PlainTextResponse:
        """The process answers."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    def readyz(service: Worker) -> PlainTextResponse:
        """The database answers, and steps are being closed."""
        ready = service.ready()
        return PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)

    @app.get("/metrics", include_in_schema=False, dependencies=[Depends(_may_see_metrics)])
    def prometheus(service: Worker) -> Response:
        """The metrics of all workers on this host."""
        return Response(metrics(service.studies), media_type="text/plain; version=0.0.4")

    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["POST"],
            allow_headers=["Content-Type"],
        )
    app.add_middleware(refusals.CatchAll)
    app.add_middleware(BodyLimit, usual=settings.body_bytes, bulk=settings.bulk_bytes)
    app.add_middleware(Observer)
    return app


async def _may_see_metrics(principal: Anyone) -> None:
    if principal is None:
        raise Forbidden(401)
    if principal.scope not in ("admin", "metrics"):
        raise Forbidden(403)


def build() -> FastAPI:
    """The app with the settings of the environment: what each uvicorn worker calls."""
    set_up_logs()
    return create_app(Settings.from_environment())
