"""What `python -m benchmarks.serve --more` measures besides: a million people in a window, and Optuna.

Optuna's ask and tell (a random sampler, in two processes, without HTTP in between) is on the same kind
of PostgreSQL as the service.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from typing import Any

import sqlalchemy as sa

from benchmarks import serve_load
from benchmarks.serve import WEIGHTS, Served, _served, database, postgres, study
from blindstep.serve import schema
from blindstep.serve.database import Database


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
            where = ("127.0.0.1", served.port, token, name)
            measured = asyncio.run(serve_load.run(*where, **how))
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


def measure(seconds: float) -> dict[str, Any]:
    """Both."""
    found: dict[str, Any] = {"a million people": {}}
    for kind in ("sqlite", "postgresql"):
        with database(kind) as (folder, url), _served(folder, url, 1) as served:
            found["a million people"][kind] = sizes(served, url, pace=150.0)
        print(f"{kind}, a million people: {found['a million people'][kind]}", flush=True)
    with postgres() as other:
        found["optuna on postgresql"] = optuna_rate(other.url, seconds)
    return found
