"""A simulator of a millisecond a call: minutes with secret batches, hours with all records in a step.

    python -m benchmarks.simulator

20,000 records, 5 parameters, epsilon 1 at delta 1e-6, two worker processes of the host driver. The
loss is the distance of a point from a record's, and waits a millisecond, as if it were
computed elsewhere: so the figure is about the number of calls. Measured: the time, and how far the mean
loss is above that of the median, which needs no privacy. What public batches would take is
extrapolated: their plan's evaluations, at the time of a call that was measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import blindstep as bs

RECORDS, DIM, WORKERS, MILLISECONDS = 20_000, 5, 2, 1.0
PRIVACY = bs.Privacy(epsilon=1, delta=1e-6)


def make_loss(milliseconds: float) -> Callable[..., float]:
    """Made inside a function, so that it travels to the workers by value."""

    def loss(x: np.ndarray, z: np.ndarray) -> float:
        time.sleep(milliseconds / 1000)
        return float(np.abs(x - z).sum())

    return loss


def records(number: int, dim: int) -> np.ndarray:
    """Points around one."""
    rng = np.random.default_rng(0)
    centre = np.linspace(-0.6, 0.6, dim)
    return centre + 0.2 * rng.standard_normal((number, dim))


def mean_loss(point: np.ndarray, data: np.ndarray) -> float:
    """Of all records, without the wait."""
    return float(np.abs(point - data).sum(axis=1).mean())


def planned(number: int, dim: int, *, secret: bool) -> bs.Plan:
    """The plan: of public batches that of version 0.2, all records in every step."""
    evaluations = None if secret else 2**40
    method = bs.Auto(evaluations=evaluations, secret=secret)
    return bs.plan(method, dim=dim, records=number, privacy=PRIVACY)


def measure(number: int, dim: int, milliseconds: float) -> dict[str, Any]:
    """One run, and what the other plan would take."""
    from loky import get_reusable_executor

    data, plan = records(number, dim), planned(number, dim, secret=True)
    host = bs.Host(executor=lambda: get_reusable_executor(max_workers=WORKERS))
    began = time.perf_counter()
    result = bs.minimize(make_loss(milliseconds), np.zeros(dim), data, method=plan, evaluate=host)
    seconds = time.perf_counter() - began
    best = mean_loss(np.median(data, axis=0), data)
    shown = planned(number, dim, secret=False)
    return {
        "evaluations": plan.evaluations,
        "seconds": seconds,
        "above": mean_loss(np.asarray(result.params), data) / best - 1.0,
        "start": mean_loss(np.zeros(dim), data) / best - 1.0,
        "public evaluations": shown.evaluations,
        "public seconds": shown.evaluations * seconds / plan.evaluations,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--milliseconds", type=float, default=MILLISECONDS)
    options = parser.parse_args(arguments)
    found = measure(options.records, DIM, options.milliseconds)
    table = Table(title=f"{options.records:,} records, {DIM} parameters, {WORKERS} workers")
    for heading in ("", "evaluations", "minutes", "above the optimum"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row(
        "secret batches",
        f"{found['evaluations']:,}",
        f"{found['seconds'] / 60:.1f}",
        f"{found['above']:.1%} (the start: {found['start']:.0%})",
    )
    table.add_row(
        "public batches, all records",
        f"{found['public evaluations']:,}",
        f"{found['public seconds'] / 60:.0f} (extrapolated)",
        "not run",
    )
    Console().print(table)


if __name__ == "__main__":
    main()
