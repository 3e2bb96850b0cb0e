"""How far the planner's search is from the best of a grid of fixed choices, on 100 random problems.

    python -m benchmarks.auto_grid

Writes `results/auto_grid.json`: for each problem the bound found, the best bound on the grid, and
their ratio. The target is a ratio of at most 1.05 on every problem.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import blindstep as bs
from blindstep.planning import search
from blindstep.planning.method import Problem

RESULTS = Path(__file__).parent / "results" / "auto_grid.json"


@dataclass(frozen=True)
class Grid:
    """Fixed choices to compare with, as logarithms to base 2 (see `search.Point`)."""

    periods: tuple[float, ...] = (0, 1, 2, 4, 6, 8, 10)
    blocks: tuple[float, ...] = (0, 2, 4, 6, 8, 10, 12, 14)
    batches: tuple[float, ...] = (0, 2, 4, 6, 8, 10, 12)
    ratios: tuple[float, ...] = (-3, -1, 0, 1, 3)
    smoothings: tuple[float, ...] = (-1, -0.2, -10)
    clips: tuple[int, ...] = (0, 3, 5, 7)


def random_problem(rng: np.random.Generator) -> dict[str, Any]:
    """A problem drawn over the sizes that people have."""
    return {
        "dim": int(2 ** rng.uniform(0, 9)),
        "records": int(10 ** rng.uniform(3, 8)),
        "privacy": bs.Privacy(mu=float(10 ** rng.uniform(-1.5, 1))),
        "radius": float(10 ** rng.uniform(-2, 1)),
        "lipschitz": float(10 ** rng.uniform(-1, 1)),
        "gap": float(10 ** rng.uniform(-1, 1)),
    }


def asked_by(problem: dict[str, Any]) -> tuple[bs.Tight, Problem]:
    """The planner's view of a problem, with nothing fixed."""
    method = bs.Tight(problem["radius"], lipschitz=problem["lipschitz"], gap=problem["gap"])
    return method, Problem(problem["dim"], problem["records"], problem["privacy"])


def best_fixed(problem: dict[str, Any], grid: Grid) -> float:
    """The lowest bound of any point of the grid."""
    found, best = search.Search(*asked_by(problem)), math.inf
    for period, blocks, batch, ratio, smoothing, clip in itertools.product(
        grid.periods, grid.blocks, grid.batches, grid.ratios, grid.smoothings, grid.clips
    ):
        if period == 0 and ratio != grid.ratios[0]:
            continue  # without DIFFs the ratio only renames the batch
        point = search.Point(period, blocks, batch, ratio, 0, smoothing, "record", clip)
        best = min(best, found.bound(point, best))
    return best


def main() -> None:
    """Compare on 100 problems, print the worst ratio, write the results."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(100):
        problem = random_problem(rng)
        method, sizes = asked_by(problem)
        made, best = method.plan(sizes), best_fixed(problem, Grid())
        assert made.tolerance is not None
        rows.append(
            {
                **{k: v for k, v in problem.items() if k != "privacy"},
                "mu": problem["privacy"].mu,
                "oracle": made.oracle,
                "period": made.period,
                "bound": made.tolerance,
                "best_fixed": best,
                "ratio": made.tolerance / best,
            }
        )
    worst = max(row["ratio"] for row in rows)
    wins = sum(row["oracle"] == "variance-reduced" for row in rows)
    found = {"version": bs.__version__, "worst_ratio": worst, "variance_reduced": wins}
    RESULTS.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")
    print(
        f"worst ratio to the best fixed choice: {worst:.4f}; variance-reduced chosen {wins} times"
    )


if __name__ == "__main__":
    main()
