"""Strangers at the door, on real sockets: half headers, endless ones, silence, false addresses."""

import asyncio
import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from uvicorn.supervisors import multiprocess

import blindstep.serve
from blindstep.serve import door, workers
from service_process import free_port

ROOT = Path(__file__).parents[2]


async def app(scope, receive, send):
    """Says where a request came from, after so many seconds of its query; reads its body.

    After "stop" and seconds, in which it stops everybody.
    """
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    query = scope["query_string"]
    if query.startswith(b"stop"):
        time.sleep(float(query[4:]))
    else:
        await asyncio.sleep(float(query or 0))
    body = json.dumps(scope["client"][0]).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def behind_the_door(**more):
    """A server with the door; gives its port and the server."""
    port = free_port()
    config = uvicorn.Config(
        app, port=port, http=door.Door, ws="none", lifespan="off", log_config=None, **more
    )
    server = workers.Server(config)
    door._connections = None
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield port, server
    finally:
        server.should_exit = True
        thread.join(30)
        door._connections = None


_opened = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while _opened:
        _opened.pop().close()


def knock(port, said=b""):
    """A connection that has said so much."""
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    _opened.append(made)
    made.sendall(said)
    return made


def all_of(connection):
    """All that is sent until the other side closes, gently or not."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def served(port, more=b""):
    """The response to a request of its own connection."""
    return all_of(
        knock(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + more + b"\r\n")
    )


def wait_until_served(port):
    """Until a process that is starting answers."""
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            assert served(port).startswith(b"HTTP/1.1 200")
            return
        assert time.monotonic() < until
        time.sleep(0.1)


def test_half_headers_bodies_and_silence_end_and_a_slow_answer_does_not(monkeypatch):
    monkeypatch.setattr(door, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(door, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(door, "_EVERY", 0.1)
    with behind_the_door() as (port, _):
        half = [knock(port, b"GET / HTTP/1.1\r\nHost: ") for _ in range(100)]
        silent, slow = knock(port), knock(port, b"GET /?2 HTTP/1.1\r\nHost: x\r\n")
        slow.sendall(b"Connection: close\r\n\r\n")
        body = knock(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1234")
        trickle = knock(port, b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(OSError):  # a byte now and then does not buy more time
            for _ in range(50):
                trickle.sendall(b"a")
                time.sleep(0.05)
        assert {all_of(each)[:12] for each in half} == {b"HTTP/1.1 408"}
        assert all_of(body).startswith(b"HTTP/1.1 408")
        assert all_of(trickle)[:12] in (b"HTTP/1.1 408", b"")
        assert all_of(silent) == b""
        assert all_of(slow).startswith(b"HTTP/1.1 200")


def test_an_endless_header_is_refused_and_a_long_body_is_not():
    with behind_the_door() as (port, _):
        endless = knock(port, b"GET / HTTP/1.1\r\nX: ")
        with contextlib.suppress(OSError):
            for _ in range(64):
                endless.sendall(b"a" * 16_384)
        assert all_of(endless)[:12] in (b"HTTP/1.1 431", b"")
        for many in (b"X: a\r\n" * 4_000, b"X: " + b"a" * 20_000 + b"\r\n"):
            assert served(port, many)[:12] in (b"HTTP/1.1 431", b"")
        assert served(port, b"X: " + b"a" * 12_000 + b"\r\n").startswith(b"HTTP/1.1 200")
        long = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"a" * 300_000
        one = knock(port, long + long + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert all_of(one).count(b"HTTP/1.1 200") == 3
        flood = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000
        piped = knock(port)
        with contextlib.suppress(OSError):
            piped.sendall(flood)
        assert all_of(piped).count(b"HTTP/1.1 200") <= 2 * door.WAITING


def test_silent_connections_make_room_for_new_ones(monkeypatch):
    """Those that never asked anything go first, then those between two requests."""
    monkeypatch.setattr(door, "room_for_connections", lambda: 20)
    with behind_the_door() as (port, _):
        kept = knock(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        busy = knock(port, b"GET /?1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for _ in range(60):
            knock(port)
        for _ in range(30):
            assert served(port).startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert all_of(kept).startswith(b"HTTP/1.1 200")
        assert all_of(busy).startswith(b"HTTP/1.1 200")


_AT_1024 = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import asyncio, uvicorn
sys.path[:0] = ["tests/serve", "tests/support"]
from test_door import app
from blindstep.serve.door import Door
uvicorn.run(app, port=int(sys.argv[1]), http=Door, ws="none", lifespan="off", log_config=None)
"""


def test_eleven_hundred_silent_connections_at_1024_files_reset_nobody():
    """(In 0.2 every further request was reset.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 4096)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", _AT_1024, str(port)], cwd=ROOT) as process:
        try:
            wait_until_served(port)
            for _ in range(1_100):
                knock(port)
            for _ in range(50):
                assert served(port).startswith(b"HTTP/1.1 200")
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("trusted", "sent", "found"),
    [
        (None, "9.9.9.9", "127.0.0.1"),
        ("10.0.0.0/8", "9.9.9.9", "127.0.0.1"),
        ("127.0.0.0/8", "9.9.9.9", "9.9.9.9"),
        # Only the nearest address that is no proxy's was written by somebody who is believed.
        ("127.0.0.0/8,10.0.0.0/8", "8.8.8.8, 9.9.9.9, 10.1.2.3", "9.9.9.9"),
    ],
)
def test_forwarded_addresses_are_believed_from_configured_networks_only(trusted, sent, found):
    given = {"proxy_headers": trusted is not None, "forwarded_allow_ips": trusted}
    with behind_the_door(**given) as (port, _):
        said = served(port, f"X-Forwarded-For: {sent}\r\n".encode())
    assert said.endswith(json.dumps(found).encode())


def test_a_worker_that_ends_answers_what_is_under_way_and_on_its_way():
    """(uvicorn closes a connection between two requests at once: a request on its way is reset.)"""
    with behind_the_door() as (port, server):
        under_way = knock(port, b"GET /?0.5 HTTP/1.1\r\nHost: x\r\n\r\n")
        between = knock(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert between.recv(1000).startswith(b"HTTP/1.1 200")
        idle = knock(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        server.should_exit = True
        time.sleep(0.5)  # it has been told
        between.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"connection: close" in all_of(between)
        assert all_of(under_way).startswith(b"HTTP/1.1 200")
        assert all_of(idle) == b""


def test_who_has_connected_when_a_worker_ends_is_answered():
    """(uvicorn closes the socket over those whom it has not taken in yet, which resets them.)"""
    with behind_the_door() as (port, server):
        busy = knock(port, b"GET /?stop1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.3)
        waiting = [knock(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(8)]
        server.should_exit = True
        for each in (busy, *waiting):
            assert all_of(each).startswith(b"HTTP/1.1 200")


def test_a_supervisor_stops_listening_before_its_workers_do():
    """(One that listens on takes connections that nobody answers: each was reset at the end.)"""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ended = []

        class Process:
            child_conn = contextlib.closing(listening)  # has no `close`: as if uvicorn had changed

            def is_alive(self, timeout):
                return True

            def terminate(self):
                ended.append(listening.fileno())

        before = {number: signal.getsignal(number) for number in multiprocess.SIGNALS}
        try:
            supervisor = workers.Supervisor(uvicorn.Config(app, workers=2), [listening])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        supervisor.processes = [Process(), Process()]
        supervisor.keep_subprocess_alive()
        supervisor.terminate_all()
        assert ended == [-1, -1]


def test_a_uvicorn_that_is_not_known_serves_without_the_door_and_says_so(monkeypatch, caplog):
    assert door.missing() == []
    assert workers.at_the_door() == {"http": door.Door}
    flow = next(kind for kind in door._USED if kind.__name__ == "FlowControl")
    monkeypatch.setitem(door._USED, flow, {"write_paused", "something_else"})
    assert door.missing() == ["FlowControl.something_else"]
    chosen = workers.at_the_door()
    assert "not known" in caplog.text
    assert chosen["http"] == "httptools"
    assert chosen["limit_concurrency"] > 0
    monkeypatch.setitem(sys.modules, "blindstep.serve.door", None)
    monkeypatch.delattr(blindstep.serve, "door")
    assert workers.at_the_door() == {"http": "httptools", "limit_concurrency": None}


_FALLBACK = """
import sys, uvicorn
sys.path[:0] = ["tests/serve", "tests/support"]
from test_door import app
from blindstep.serve import door, workers
door._USED[door.HttpToolsProtocol].add("gone")
config = uvicorn.Config(app, port=int(sys.argv[1]), lifespan="off", **workers.at_the_door())
workers.Server(config).run()
"""


def test_the_fallback_serves():
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", _FALLBACK, str(port)], cwd=ROOT) as process:
        try:
            wait_until_served(port)
        finally:
            process.terminate()
