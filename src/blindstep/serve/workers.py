"""Starting and ending the worker processes: uvicorn's supervisor, with what a service needs beside.

Of uvicorn this uses what it documents (`Config`, `Server`, the supervisor's class), and two things that
it does not: the door (`door`), and the end of a pipe. Each is looked for first. In a version that has
changed it, the service runs without, and says so: a proxy in front then has to do what the door does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from blindstep.serve.observe import log_config

if TYPE_CHECKING:
    from blindstep.serve.service import Settings

_log = logging.getLogger("blindstep.serve")
# Turns of the event loop in which whoever has connected is taken in: some loops take one in a turn.
_TURNS = 100


class Server(uvicorn.Server):
    """A process that serves by itself, without a supervisor."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, after taking in whoever has connected already: a socket that is closed resets them."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)


class Supervisor(Multiprocess):
    """The process that starts workers, replaces those that die, and ends them."""

    def keep_subprocess_alive(self) -> None:
        """Look whether the workers are well.

        It asks each one and waits for the answer, through a pipe. As long as it holds the worker's end
        as well, a worker that is killed meanwhile looks like a slow one, and nobody takes its place
        before the time limit.
        """
        for process in self.processes:
            with contextlib.suppress(AttributeError, OSError):
                process.child_conn.close()
        super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        """End the workers, and listen no more.

        A socket that is open here goes on taking connections, which no worker answers any more: each of
        them would be reset when this process ends.
        """
        for each in self.sockets:
            each.close()
        super().terminate_all()


def at_the_door() -> dict[str, Any]:
    """Options for uvicorn: the door, or its own protocol where this uvicorn is not known."""
    try:
        from blindstep.serve import door

        if not (missing := door.missing()):
            return {"http": door.Door}
        number = door.room_for_connections()
    except ImportError as error:
        missing, number = [str(error.name)], None
    _log.warning(
        "this version of uvicorn is not known here: put a proxy in front that limits connections",
        extra={"error": ", ".join(missing)},
    )
    return {"http": "httptools", "limit_concurrency": number}


def run(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until a signal ends it."""
    os.environ.update(settings.environment())
    # uvicorn raises the signal that ended it once more: as an exception it lets the folder be removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="blindstep-metrics-") as shared:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", shared)
        config = uvicorn.Config(
            "blindstep.serve.app:build",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            ws="none",
            access_log=False,
            log_config=log_config(settings.log_level),
            timeout_graceful_shutdown=10,
            timeout_worker_healthcheck=60,  # a busy host needs that long to bring up a new worker
            server_header=False,
            # From anybody else they would be no more than what somebody wrote.
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=list(settings.proxies),
            **at_the_door(),
        )
        if workers == 1:
            server = Server(config)
            with contextlib.suppress(KeyboardInterrupt):
                server.run()
            if not server.started:
                sys.exit(3)
            return
        Supervisor(config, [config.bind_socket()]).run()
