"""The service under load: questions and answers a second, latency, and Optuna on the same database.

    python -m benchmarks.serve              # about five minutes on two cores; writes results/serve.json

All on this machine, over 127.0.0.1, in one run: the service on SQLite and on a real PostgreSQL with 1,
2 and 4 workers; Optuna's ask and tell (a random sampler, in two processes, without HTTP in between) on
the same kind of PostgreSQL; and a study with a million people in its window beside one with a thousand.
The load
comes from the same cores (`serve_load`), so these are lower bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import sqlalchemy as sa  # noqa: E402

from benchmarks import serve_load  # noqa: E402
from blindstep.serve import schema  # noqa: E402
from blindstep.serve.database import Database  # noqa: E402
from postgres import postgres  # noqa: E402
from service_process import Served, serving  # noqa: E402

WEIGHTS = {f"weight_{number}": (0.0, 1.0) for number in range(6)}
CONNECTIONS = 64
RESULTS = ROOT / "benchmarks" / "results" / "serve.json"


def study(served: Served, people: int) -> tuple[str, str]:
    """A study that no load fills, and its token."""
    with served.client() as admin:
        made = admin.create("load", WEIGHTS, people=people, epsilon=1, window_seconds=86_400)
        return made["id"], admin.new_token("site", made["id"])["token"]


def load(served: Served, token: str, name: str, **how: Any) -> serve_load.Load:
    """Simulated people on one study."""
    where = ("127.0.0.1", served.port, token, name)
    return asyncio.run(serve_load.run(*where, **how))


def throughput(served: Served, seconds: float) -> dict[str, float]:
    """The most that the service does, and its latency at half of that."""
    name, token = study(served, 16_000_000)
    load(served, token, name, seconds=3, connections=CONNECTIONS, prefix="warm")
    full = load(served, token, name, seconds=seconds, connections=CONNECTIONS, prefix="full")
    half = {"seconds": seconds, "connections": CONNECTIONS, "pace": full.rate / 2}
    calm = load(served, token, name, prefix="half", **half)
    assert set(full.statuses) <= {"asked", "accepted"}, full.statuses
    return {
        "requests_per_second": full.rate,
        "p50_ms_half_load": 1000 * calm.percentile(0.5),
        "p99_ms_half_load": 1000 * calm.percentile(0.99),
    }


def fill(url: str, name: str, people: int) -> None:
    """Ask so many people and store both votes of each, past the API: only their number matters."""
    database = Database(url)
    with database.begin() as connection:
        chosen = sa.select(schema.studies.c.number).where(schema.studies.c.id == name)
        study = connection.execute(chosen).scalar_one()
        for start in range(0, people, 10_000):
            some = [os.urandom(16) for _ in range(min(10_000, people - start))]
            rows = [{"study": study, "person": person, "release": 0} for person in some]
            connection.execute(sa.insert(schema.asked), rows)
            for part in (0, 1):
                votes = [row | {"part": part, "sealed": bytes(28)} for row in rows]
                connection.execute(sa.insert(schema.votes), votes)
    database.close()


def sizes(served: Served, url: str, pace: float) -> dict[str, Any]:
    """Latency with a thousand people in the window and with a million, in turns, at the same pace."""
    small, large = 1_000, 1_000_000
    times: dict[int, list[float]] = {small: [], large: []}
    wide, wide_token = study(served, 16 * large)
    fill(url, wide, large - 2_000)
    for turn in range(4):
        narrow, narrow_token = study(served, 16 * small)
        for people, name, token in ((small, narrow, narrow_token), (large, wide, wide_token)):
            how = {"seconds": 3, "connections": 8, "pace": pace, "prefix": f"size {turn}"}
            measured = load(served, token, name, **how)
            assert set(measured.statuses) <= {"asked", "accepted"}, measured.statuses
            if turn:  # the first one compiles
                times[people].append(1000 * measured.percentile(0.5))
    medians = {str(slots): statistics.median(each) for slots, each in times.items()}
    return {"p50_ms": medians, "ratio": medians[str(large)] / medians[str(small)]}


def _optuna(url: str, name: str, seconds: float) -> int:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = optuna.load_study(study_name=name, storage=url, sampler=optuna.samplers.RandomSampler())
    done, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        trial = found.ask()
        for weight, (low, high) in WEIGHTS.items():
            trial.suggest_float(weight, low, high)
        found.tell(trial, 1.0)
        done += 2
    return done


def optuna_rate(url: str, seconds: float) -> float:
    """Optuna's asks and tells a second on this PostgreSQL, by two processes at once."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = url.replace("postgresql:", "postgresql+psycopg:")
    optuna.create_study(study_name="load", storage=url)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        counts = pool.starmap(_optuna, [(url, "load", seconds)] * 2)
    return sum(counts) / seconds


def measure(seconds: float, workers: list[int]) -> dict[str, Any]:
    """Everything, side by side."""
    found: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "service": {},
    }
    with postgres() as server:
        for kind in ("sqlite", "postgresql"):
            for number in workers:
                with tempfile.TemporaryDirectory() as folder:
                    url = f"sqlite:///{folder}/blindstep.db" if kind == "sqlite" else server.url
                    with serving(
                        Path(folder), database=url, workers=number, options=_key(server)
                    ) as served:
                        row = throughput(served, seconds)
                        found["service"][f"{kind}, {number} workers"] = row
                        print(f"{kind}, {number} workers: {_said(row)}", flush=True)
                        if number == 1:
                            row = sizes(served, url, pace=150.0)
                            found.setdefault("a million people", {})[kind] = row
                            print(f"{kind}: a million people: {row}", flush=True)
        with postgres() as other:
            found["optuna on postgresql"] = optuna_rate(other.url, seconds)
    best = max(
        row["requests_per_second"]
        for name, row in found["service"].items()
        if name.startswith("postgresql")
    )
    found["times optuna"] = best / found["optuna on postgresql"]
    return found


def _key(server: Any) -> tuple[str, str]:
    """One key file for all services on one PostgreSQL: a database belongs to one key."""
    return ("--key-file", str(Path(tempfile.gettempdir()) / f"bench-{id(server)}.key"))


def _said(row: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in row.items())


def main() -> None:
    """Run it and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    found = measure(given.seconds, given.workers)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
