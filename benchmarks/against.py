"""Speed of this checkout against another one, run in turn in one process.

    git worktree add /tmp/other COMMIT
    python -m benchmarks.against /tmp/other [--repetitions 15]

One round of each problem of `benchmarks.speed`, compiled by both versions of the package. The versions
take turns, so that whatever else the machine does hits both alike; the figure is the median of the
ratios of neighbours, other / this: above 1 this checkout is faster.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.checkout import Checkout

NAMES = ("svm", "small_network", "large_network")


def programs_of(root: Path) -> dict[str, Any]:
    """The compiled programs of the checkout at `root`, made while no other checkout can be imported."""
    with Checkout(root).imported():
        from benchmarks import speed_problems, speed_programs

        return {name: speed_programs.full(getattr(speed_problems, name)()) for name in NAMES}


def compare(mine: Any, other: Any, repetitions: int) -> tuple[float, float, float]:
    """Median ratio other / mine of neighbouring runs, and the fastest run of each, in seconds."""
    seconds: list[list[float]] = [[], []]
    for _ in range(repetitions + 1):
        for program, own in zip((mine, other), seconds, strict=True):
            began = time.perf_counter()
            program.run()
            own.append(time.perf_counter() - began)
    this, that = (np.asarray(own[1:]) for own in seconds)
    return float(np.median(that / this)), float(this.min()), float(that.min())


def main() -> None:
    """Print one line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--repetitions", type=int, default=15)
    chosen = parser.parse_args()
    with jax.enable_x64(True):
        here, there = Path(__file__).resolve().parent.parent, chosen.other.resolve()
        this, that = programs_of(here), programs_of(there)
        for name in NAMES:
            mine, other = this[name], that[name]
            ratio, fastest, theirs = compare(mine, other, chosen.repetitions)
            print(
                f"{name:14} {ratio:.3f} times as fast; best {fastest:.4f} s against {theirs:.4f} s; "
                f"compiled in {mine.compile_seconds:.1f} s against {other.compile_seconds:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
