"""Hyper-parameters that each method may choose from, on the validation split.

The first of each list is a sensible default: `--quick` takes it and does not choose. Ranges were
set by looking at validation scores only.

Steps in units that do not depend on the clip: a rate is divided by C for DP-SGD, whose gradients are
mostly longer than C. The joint clip of K differences grows as sqrt(K), as their norm
does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from benchmarks.baselines import Setting
from benchmarks.problems import Problem


def poisson(
    passes: list[int], clips: list[float], steps: list[float], batches: int
) -> list[Setting]:
    """DP-SGD, every combination; `steps` are rate x clip."""
    return [Setting(p, batches, c, s / c) for p, c, s in itertools.product(passes, clips, steps)]


def dpzero(
    layouts: list[tuple[int, int]], clips: list[float], rates: list[float], smoothing: float
) -> list[Setting]:
    """Every combination; `layouts` are (passes, batches)."""
    return [
        Setting(p, b, c, r, 1, smoothing)
        for (p, b), c, r in itertools.product(layouts, clips, rates)
    ]


def aggzo(
    layouts: list[tuple[int, int]],
    clips: list[float],
    rates: list[float],
    smoothing: float,
    batches: int = 1,
) -> list[Setting]:
    """Every combination; `layouts` are (directions K, passes), `clips` are C / sqrt(K)."""
    return [
        Setting(p, batches, c * math.sqrt(k), r, k, smoothing)
        for (k, p), c, r in itertools.product(layouts, clips, rates)
    ]


def adam(layouts: list[tuple[int, int]], rates: list[float]) -> list[Setting]:
    """No privacy: no clip, Adam's steps."""
    return [
        Setting(p, b, math.inf, r, adam=True) for (p, b), r in itertools.product(layouts, rates)
    ]


def free_zeroth(layouts: list[tuple[int, int]], rates: list[float], h: float) -> list[Setting]:
    """No privacy: the differences of DP-AggZO without clip and noise; layouts as for `aggzo`."""
    return [Setting(p, 1, math.inf, r, k, h) for (k, p), r in itertools.product(layouts, rates)]


GRIDS: dict[str, dict[str, list[Setting]]] = {
    "digits": {
        "first-order, Poisson": [
            *poisson([40, 20], [1.0], [2.0, 1.0, 4.0], batches=10),
            *poisson([40, 80], [1.0], [4.0, 2.0, 8.0], batches=4),
        ],
        "DPZero": dpzero([(4000, 1), (1000, 4), (8000, 1)], [1.0, 3.0], [0.06, 0.12], 1e-3),
        "DPZero, 20 passes": dpzero(
            [(20, 40), (20, 20), (20, 100)], [1.0, 3.0], [0.06, 0.02, 0.2], 1e-3
        ),
        "DP-AggZO": aggzo([(64, 160), (16, 640)], [0.3, 1.0], [8.0, 4.0], 1e-3),
        "DP-AggZO, 20 passes": [
            *aggzo([(64, 20)], [1.0, 0.3], [4.0, 8.0, 16.0, 24.0], 1e-3, batches=4),
            *aggzo([(256, 20)], [1.0], [16.0, 24.0], 1e-3),
        ],
        "Adam": adam([(60, 40)], [3e-3, 1e-3, 1e-2]),
        "zeroth-order": free_zeroth([(64, 160)], [1.0, 0.5, 2.0], 1e-3),
    },
    "a9a": {
        "first-order, Poisson": poisson([20, 5], [2.0], [3.0, 0.3, 1.0], batches=20),
        "DPZero": [
            *dpzero([(1000, 1), (300, 1)], [3.0, 1.0], [0.3, 0.1], 1e-3),
            *dpzero([(2000, 1)], [3.0], [0.3], 1e-3),
        ],
        "DP-AggZO": aggzo([(16, 160), (64, 40)], [1.0, 0.3], [3.0, 1.0, 10.0], 1e-3),
        "Adam": adam([(20, 100)], [1e-2, 3e-3, 3e-2, 1e-1]),
        "zeroth-order": free_zeroth([(16, 160), (64, 80)], [1.0, 0.3, 3.0], 1e-3),
    },
    # The 0/1 loss does not change when parameters are scaled, so smoothing 1 is no restriction; a
    # difference is -1/2, 0 or 1/2.
    "zero-one": {
        "DPZero": dpzero([(1000, 1)], [0.5], [3.0, 1.0, 10.0, 30.0], 1.0),
        "DP-AggZO": aggzo([(32, 60), (32, 120)], [0.3, 0.1], [100.0, 30.0, 300.0], 1.0),
        "Adam": adam([(20, 100)], [1e-2, 3e-3, 3e-2]),
        "zeroth-order": free_zeroth([(32, 120), (64, 120)], [100.0, 30.0, 300.0], 1.0),
    },
}


def synthetic(dim: int) -> dict[str, list[Setting]]:
    """For `Valleys`: L = 1, and rates must add up to 3 to reach the valleys (slopes 1 and 0.4).

    A rate falls linearly, so rates of r / passes add up to r / 2.
    """
    root = math.sqrt(dim)
    return {
        "DPZero": [
            s
            for p in (400, 100, 1600)
            for s in dpzero([(p, 1)], [1.0, min(3.0, root)], [12.0 / p, 6.0 / p, 24.0 / p], 1e-3)
        ],
        "DP-AggZO": [
            s
            for p in (40, 10, 160)
            for s in aggzo([(dim, p)], [1.0], [12.0 / p, 6.0 / p, 24.0 / p], 1e-3)
        ],
        "Adam": adam([(10, 20)], [0.1 / root, 0.03 / root]),
    }


def tight(problem: Problem) -> list[dict[str, Any]]:
    """Preset tight: planned from L and the gap where they are known, else by clip norm.

    Full batches, one frame for each step, horizon 10: what is left to choose is how far a step may
    go (reach), how many directions it looks along, and the clip norm.
    """
    if problem.name == "synthetic":
        return [{"preset": "tight", "radius": 0.1}]
    common = {"preset": "tight", "horizon": 10, "batches": 1}
    if problem.name == "digits":
        return [
            {**common, "passes": 160, "directions": q, "reach": r, "clip": c, "smoothing": 0.01}
            for q, r, c in [
                *((64, 0.4, 0.5), (64, 0.3, 0.5), (64, 0.4, 0.25), (64, 0.3, 1.0)),
                *((128, 0.3, 0.5), (128, 0.4, 0.5)),
            ]
        ]
    smoothing = 0.3 if problem.name == "zero-one" else 0.01
    return [
        {**common, "passes": p, "directions": q, "reach": r, "clip": c, "smoothing": smoothing}
        for p, q, r, c in [
            *((160, 32, 0.1, 1.0), (160, 64, 0.1, 1.0), (160, 123, 0.1, 1.0), (80, 64, 0.1, 1.0)),
            *((160, 64, 0.2, 1.0), (160, 64, 0.05, 1.0), (160, 64, 0.1, 3.0), (320, 64, 0.1, 1.0)),
            *((40, 64, 0.1, 1.0), (80, 64, 0.2, 1.0), (40, 123, 0.2, 1.0)),
        ]
    ]


def tight_20_passes(problem: Problem) -> list[dict[str, Any]]:
    """The same with 20 passes in four batches each, on the digits."""
    if problem.name != "digits":
        return []
    common = {"preset": "tight", "horizon": 10, "batches": 4, "passes": 20, "smoothing": 0.01}
    return [
        {**common, "directions": q, "reach": r, "clip": c}
        for q, r, c in [(128, 0.4, 0.5), (128, 0.6, 0.5), (256, 0.4, 0.5), (256, 0.6, 0.5)]
    ]


def gradients(problem: Problem, of_values: Callable[[Problem], list[Any]] = tight) -> list[Any]:
    """First order: the settings of `of_values`, with the gradient in the place of directions.

    On the synthetic problem, where those are planned from L and the gap: a few lengths of steps that
    add up to what reaches the valleys. Nothing where the loss has no gradient.
    """
    given = {"preset": "tight", "estimate": "gradient"}
    if problem.name == "zero-one":
        return []
    if problem.name == "synthetic":
        common = {**given, "horizon": 10, "batches": 1, "clip": 1.0}
        return [
            {**common, "passes": p, "reach": far / p}
            for p in (40, 10, 160)
            for far in (6.0, 3.0, 12.0)
        ]
    exact = [
        given | {name: at for name, at in each.items() if name not in ("directions", "smoothing")}
        for each in of_values(problem)
    ]
    return [each for place, each in enumerate(exact) if each not in exact[:place]]
