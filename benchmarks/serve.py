"""The service under load: processor time a request, requests a second, latency, beside a bare FastAPI.

    python -m benchmarks.serve          # about ten minutes on two cores; writes results/serve.json
    python -m benchmarks.serve --more   # also a million people in one window, and Optuna

All on this machine, over 127.0.0.1, in one run. For SQLite and a real PostgreSQL, with 1, 2 and 4
workers: the service, and two bare FastAPIs that store the same rows (`serve_bare`: a commit for each
request; commits that gather). Processor time is that of the server's processes, user and system,
without the database's and the load's. Then latency with 1, 100 and 1,000 studies, and what the workers'
memory is. The load comes from the same cores (`serve_load`), so rates are lower bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import psutil  # noqa: E402

from benchmarks import serve_load  # noqa: E402
from postgres import postgres  # noqa: E402
from service_process import Served, free_port, serving, wait_until_ready  # noqa: E402

WEIGHTS = {f"weight_{number}": (0.0, 1.0) for number in range(6)}
CONNECTIONS = 64
STUDIES = (1, 100, 1_000)
PACE = 150.0  # requests a second while the number of studies grows
RESULTS = ROOT / "benchmarks" / "results" / "serve.json"
Row = dict[str, float]


def study(served: Served, people: int) -> tuple[str, str]:
    """A study that no load fills, and its token."""
    with served.client() as admin:
        made = admin.create("load", WEIGHTS, people=people, epsilon=1, window_seconds=86_400)
        return made["id"], admin.new_token("site", made["id"])["token"]


def processes(parent: int) -> list[psutil.Process]:
    """A server's processes."""
    top = psutil.Process(parent)
    return [top, *top.children(recursive=True)]


def spent(parent: int) -> float:
    """Seconds of processor time, user and system, of a server's processes."""
    times = [each.cpu_times() for each in processes(parent)]
    return sum(each.user + each.system for each in times)


def under_load(parent: int, port: int, token: str, name: str, seconds: float) -> Row:
    """As many questions and answers as it takes: rate, and milliseconds of processor for each."""
    where = ("127.0.0.1", port, token, name)
    how: dict[str, Any] = {"connections": CONNECTIONS}
    asyncio.run(serve_load.run(*where, seconds=2, prefix="warm", **how))
    before = spent(parent)
    full = asyncio.run(serve_load.run(*where, seconds=seconds, prefix="full", **how))
    used = spent(parent) - before
    assert set(full.statuses) <= {"asked", "accepted"}, full.statuses
    number = len(full.questions) + len(full.answers)
    return {"requests_per_second": full.rate, "processor_ms": 1000 * used / number}


def service(served: Served, seconds: float) -> Row:
    """The service: at full load, at half of it, and `GET /parameters`."""
    name, token = study(served, 16_000_000)
    where = ("127.0.0.1", served.port, token, name)
    parent = served.process.pid
    row = under_load(parent, served.port, token, name, seconds)
    half = {"connections": CONNECTIONS, "pace": row["requests_per_second"] / 2}
    calm = asyncio.run(serve_load.run(*where, seconds=seconds, prefix="half", **half))
    row["p50_ms_half_load"] = 1000 * calm.percentile(0.5)
    row["p99_ms_half_load"] = 1000 * calm.percentile(0.99)
    before = spent(parent)
    looked = asyncio.run(serve_load.look(*where, seconds=seconds / 2, connections=CONNECTIONS))
    assert set(looked.statuses) == {"200"}, looked.statuses
    row["parameters_ms"] = 1000 * (spent(parent) - before) / len(looked.questions)
    return row


@contextlib.contextmanager
def bare(url: str, commit: str, workers: int) -> Iterator[tuple[int, int]]:
    """A bare FastAPI: its process and its port."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "benchmarks.serve_bare:build", "--factory"]
    command += ["--port", str(port), "--workers", str(workers), "--no-access-log"]
    environment = os.environ | {"BARE_DATABASE": url, "BARE_COMMIT": commit}
    process = subprocess.Popen(
        [*command, "--log-level", "error"], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}")
        yield process.pid, port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def several(served: Served, seconds: float) -> dict[str, Row]:
    """Latency and memory while there are more and more studies, all of which are asked."""
    found, names = {}, []
    with served.client() as admin:
        for number in STUDIES:
            while len(names) < number:
                how = {"people": 160_000, "epsilon": 1, "window_seconds": 86_400}
                names.append(admin.create(f"study {len(names)}", WEIGHTS, **how)["id"])
            where = ("127.0.0.1", served.port, served.token, names)
            how = {"connections": 32, "pace": PACE}
            # Each worker makes the questions of a study once: a second or two for a thousand.
            asyncio.run(serve_load.run(*where, seconds=5, prefix=f"warm {number}", **how))
            calm = asyncio.run(serve_load.run(*where, seconds=seconds, prefix=f"{number}", **how))
            assert set(calm.statuses) <= {"asked", "accepted"}, calm.statuses
            memory = max(psutil.Process(each).memory_info().rss for each in served.workers())
            found[str(number)] = {
                "p50_ms": 1000 * calm.percentile(0.5),
                "p99_ms": 1000 * calm.percentile(0.99),
                "worker_mib": memory / 2**20,
            }
            print(f"  {number} studies: {_said(found[str(number)])}", flush=True)
    return found


def measure(seconds: float, workers: list[int], kinds: list[str], more: bool) -> dict[str, Any]:
    """Everything, side by side."""
    found: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "service": {},
        "bare, a commit for each": {},
        "bare, commits that gather": {},
        "studies": {},
    }
    for kind in kinds:
        for number in workers:
            name = f"{kind}, {number} workers"
            with database(kind) as (folder, url), _served(folder, url, number) as served:
                found["service"][name] = service(served, seconds)
            print(f"{name}: {_said(found['service'][name])}", flush=True)
            for what, commit in (("a commit for each", "row"), ("commits that gather", "group")):
                with database(kind) as (_, url), bare(url, commit, number) as (process, port):
                    row = under_load(process, port, "none", "0", seconds)
                found[f"bare, {what}"][name] = row
                print(f"  bare, {what}: {_said(row)}", flush=True)
        with database(kind) as (folder, url), _served(folder, url, 2) as served:
            found["studies"][kind] = several(served, seconds)
    found["ratios"] = ratios(found)
    if more:
        from benchmarks import serve_more

        found |= serve_more.measure(seconds)
    return found


@contextlib.contextmanager
def database(kind: str) -> Iterator[tuple[Path, str]]:
    """An empty folder and the address of an empty database."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{folder}/blindstep.db"
        if kind == "postgresql":
            url = held.enter_context(postgres()).url
        yield Path(folder), url


def _served(folder: Path, url: str, workers: int) -> contextlib.AbstractContextManager[Served]:
    return serving(folder, database=url, workers=workers, as_tests=False)


def ratios(found: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, for each database and number of workers."""
    told: dict[str, Any] = {}
    for name, row in found["service"].items():
        kind = name.partition(",")[0]
        one = found["service"].get(f"{kind}, 1 workers", row)
        each = found["bare, a commit for each"][name]["processor_ms"]
        told[name] = {
            "processor, of a bare commit for each": row["processor_ms"] / each,
            "processor, of that with 1 worker": row["processor_ms"] / one["processor_ms"],
            "parameters, of a vote": row["parameters_ms"] / row["processor_ms"],
        }
    return told


def table(found: dict[str, Any]) -> str:
    """The results as docs/serve.md shows them."""
    lines = [
        "| database, workers | requests a second | processor ms | bare, a commit for each "
        "| bare, commits that gather | `GET /parameters` | median at half load | 99th percentile |",
        "|" + "---|" * 8,
    ]
    for name, row in found["service"].items():
        each, group = (
            found[f"bare, {what}"][name]["processor_ms"]
            for what in ("a commit for each", "commits that gather")
        )
        lines.append(
            f"| {name.removesuffix(' workers')} | {row['requests_per_second']:,.0f} "
            f"| {row['processor_ms']:.3f} | {each:.3f} | {group:.3f} | {row['parameters_ms']:.3f} "
            f"| {row['p50_ms_half_load']:.0f} ms | {row['p99_ms_half_load']:.0f} ms |"
        )
    lines += [
        "",
        "| studies | median | 99th percentile | memory of a worker |",
        "|---|---|---|---|",
    ]
    for kind, rows in found["studies"].items():
        lines += [
            f"| {kind}, {int(number):,} | {row['p50_ms']:.1f} ms | {row['p99_ms']:.1f} ms "
            f"| {row['worker_mib']:.0f} MiB |"
            for number, row in rows.items()
        ]
    return "\n".join(lines)


def _said(row: Row) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in row.items())


def main() -> None:
    """Run it and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--more", action="store_true", help="a million people, and Optuna")
    parser.add_argument("--to", default=str(RESULTS), help="where the results go")
    given = parser.parse_args()
    began = time.monotonic()
    found = measure(given.seconds, given.workers, given.databases, given.more)
    found["seconds"] = time.monotonic() - began
    Path(given.to).write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found["ratios"], indent=2))
    print(table(found))
    print(f"in {found['seconds']:.0f} s")


if __name__ == "__main__":
    main()
