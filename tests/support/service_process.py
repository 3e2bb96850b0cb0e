"""`blindstep serve` as a process of its own, as an operator starts it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from blindstep.serve import Client


@dataclass
class Served:
    """A service that is running."""

    address: str
    token: str
    process: subprocess.Popen
    folder: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, token: str | None = None, **more) -> Client:
        return Client(self.address, token or self.token, **more)

    def workers(self) -> list[int]:
        """The worker processes: children that were spawned, without the resource tracker."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if any("spawn_main" in part for part in child.cmdline()):
                    found.append(child.pid)
        return found

    def log(self) -> str:
        return (self.folder / "log").read_text()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def serving(
    folder: Path,
    *,
    database: str | None = None,
    workers: int = 1,
    options: tuple[str, ...] = (),
    port: int | None = None,
    as_tests: bool = True,
) -> Iterator[Served]:
    """A service in `folder`, ready for requests; ended with the block.

    With `as_tests` it is compiled like the tests (conftest.py), so that last bits can be compared.
    """
    port = port or free_port()
    chosen = ["--port", str(port), "--workers", str(workers), *options]
    chosen += [] if database is None else ["--database", database]
    command = [sys.executable, "-m", "blindstep", "serve", *chosen]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": "cpu"}
    if as_tests:
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    address, token = f"http://127.0.0.1:{port}", ""
    try:
        for line in process.stdout:
            if line.startswith("Admin token"):
                token = line.split()[-1]
                break
        if not token.startswith("bs_admin_"):
            made = subprocess.run(
                [sys.executable, "-m", "blindstep", "serve", "token", *_only(chosen)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            token = made.stdout.strip()
        wait_until_ready(address)
        yield Served(address, token, process, folder)
    finally:
        # The whole group: a supervisor that was killed leaves workers behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


def _only(chosen: list[str]) -> list[str]:
    """Of the options of a service, those that its `token` command takes as well."""
    pairs = itertools.pairwise(chosen)
    shared = ("--database", "--key-file")
    return [part for name, value in pairs if name in shared for part in (name, value)]


def wait_until_ready(address: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{address}/readyz", timeout=5) as response,
        ):
            if response.status == 200:
                return
        assert time.monotonic() < until, "the service does not get ready"
        time.sleep(0.1)
