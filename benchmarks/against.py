"""Speed of this checkout against another one, run in turn in one process.

    git worktree add /tmp/other COMMIT
    python -m benchmarks.against /tmp/other [--repetitions 15]

One round of each problem of `benchmarks.speed`, compiled by both versions of the package. The versions
take turns, so that whatever else the machine does hits both alike; the figure is the median of the
ratios of neighbours, other / this: above 1 this checkout is faster.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

NAMES = ("svm", "small_network", "large_network")


def load(root: Path) -> dict[str, ModuleType]:
    """The modules of the checkout at `root`, apart from those of any other checkout."""
    ours = ("blindstep", "benchmarks")
    hidden = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ours
    }
    sys.path[:0] = [str(root), str(root / "src")]
    try:
        import blindstep
        from benchmarks import speed_problems, speed_programs

        for name in blindstep.__all__:  # each is imported when it is first asked for: now, from here
            getattr(blindstep, name)
        return {"problems": speed_problems, "programs": speed_programs}
    finally:
        del sys.path[:2]
        for name in [name for name in sys.modules if name.split(".")[0] in ours]:
            del sys.modules[name]
        sys.modules.update(hidden)


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
    this, that = load(Path(__file__).resolve().parent.parent), load(chosen.other.resolve())
    with jax.enable_x64(True):
        for name in NAMES:
            mine, other = (
                version["programs"].full(getattr(version["problems"], name)())
                for version in (this, that)
            )
            ratio, here, there = compare(mine, other, chosen.repetitions)
            print(
                f"{name:14} {ratio:.3f} times as fast; best {here:.4f} s against {there:.4f} s; "
                f"compiled in {mine.compile_seconds:.1f} s against {other.compile_seconds:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
