"""Overhead of the host driver: a loss of 10 ms on 2 local workers, against the ideal time.

    python -m benchmarks.host_overhead

The loss sleeps, so that the figure is the driver's own (handing out, waiting for the last task,
releasing). Ideal: the same evaluations in two plain loops, one on each worker of the same engine, with
nothing to hand out or wait for; by the clock that is a little over evaluations x 10 ms / 2, since no
sleep is exact. Ideal and run are measured in turns. A first run starts the workers and compiles; it is
not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

import blindstep as bs

WORKERS, MILLISECONDS, DIM = 2, 10.0, 20


def make_loss(milliseconds: float) -> Callable[..., float]:
    # Made inside a function, so that it travels to the workers by value.
    def loss(x: np.ndarray, z: np.ndarray) -> float:
        time.sleep(milliseconds / 1000)
        return float(np.abs(x - z).sum())

    return loss


def make_plan(batch: int, sharing: Literal["record", "block"]) -> bs.Plan:
    return bs.plan(
        bs.Tight(
            radius=1.0,
            bounds=bs.Bounds(clip=1.0),
            horizon=2,
            first_batch=batch,
            directions=4,
            sharing=sharing,
            rounds=1,
        ),
        records=10_000,
        dim=DIM,
        privacy=bs.Privacy(epsilon=1.0),
    )


def measure(
    batch: int, sharing: Literal["record", "block"], engine: bs.Host
) -> tuple[float, float]:
    """Measured and ideal seconds of a run whose steps have 8 x batch evaluations each."""
    data = np.random.default_rng(0).normal(size=(10_000, DIM))
    loss, start = make_loss(MILLISECONDS), np.zeros(DIM)
    plan = make_plan(batch, sharing)
    bs.minimize(make_loss(0.0), start, data, method=plan, evaluate=engine)
    evaluations = plan.rounds * plan.horizon * 8 * batch

    def plain_loop(times: int) -> int:
        for _ in range(times):
            loss(start, start)
        return times

    executor: Any = engine.executor
    through = engine.map or executor.map
    began = time.perf_counter()
    assert sum(through(plain_loop, [evaluations // WORKERS] * WORKERS)) == evaluations
    ideal = time.perf_counter() - began
    began = time.perf_counter()
    bs.minimize(loss, start, data, method=plan, evaluate=engine)
    return time.perf_counter() - began, ideal


def engines(names: list[str]) -> dict[str, bs.Host]:
    """Engines with two workers each; only those asked for are started."""
    made: dict[str, bs.Host] = {}
    if "loky" in names:
        from loky import get_reusable_executor

        made["loky"] = bs.Host(get_reusable_executor(max_workers=WORKERS))
    if "dask" in names:
        from distributed import Client

        client = Client(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
        made["dask"] = bs.Host(client.get_executor())
    if "ray" in names:
        import ray

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        made["ray"] = bs.Host(map=bs.Host.ray)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["loky", "dask", "ray"])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    columns = ("evaluations a step", "ideal s", "took s", "overhead", "median")
    console, table = Console(), Table("engine", "directions of", *columns)
    for name, engine in engines(given.engines).items():
        for sharing in ("record", "block"):
            for batch in given.batches:
                pairs = [measure(batch, sharing, engine) for _ in range(given.repeats)]
                overheads = [100 * (took / ideal - 1) for took, ideal in pairs]
                console.print(f"{name}, each {sharing}, {8 * batch:,}: {overheads}")
                table.add_row(
                    name,
                    f"each {sharing}",
                    f"{8 * batch:,}",
                    " ".join(f"{ideal:.2f}" for _, ideal in pairs),
                    " ".join(f"{took:.2f}" for took, _ in pairs),
                    " ".join(f"{overhead:.1f}%" for overhead in overheads),
                    f"{np.median(overheads):.1f}%",
                )
    console.print(table)


if __name__ == "__main__":
    main()
