"""All benchmarks: `python -m benchmarks [--quick] [--a9a DIR]`. Results go to `benchmarks/results/`.

Utility at equal exact privacy on four problems, the planner against a grid of fixed choices, the cost
and bias of frames, and the speed of a run against bare evaluations. Without the a9a files their two
problems are left out, and said so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run every benchmark in a process of its own, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="default settings, choose nothing")
    parser.add_argument("--a9a", default="../shared/data", help="folder of the files a9a and a9a.t")
    options = parser.parse_args()
    quick = ["--quick"] if options.quick else []
    a9a = ["--a9a", options.a9a]
    jobs = [
        ["benchmarks.auto_grid"],
        ["benchmarks.utility", "digits", "--epsilon", "4.38", *quick],
        ["benchmarks.utility", "synthetic", "--dim", "10", *quick],
        ["benchmarks.frame_bias"],
        ["benchmarks.frames_speed"],
        ["benchmarks.speed"],
        ["benchmarks.speed_model"],
    ]
    if (Path(options.a9a) / "a9a").exists():
        jobs += [
            ["benchmarks.utility", "a9a", "--epsilon", "1", *a9a, *quick],
            ["benchmarks.utility", "a9a", "--epsilon", "0.1", *a9a, *quick],
            ["benchmarks.utility", "zero-one", "--epsilon", "1", *a9a, *quick],
        ]
    else:
        print(f"no file {options.a9a}/a9a: the a9a and 0/1 problems are left out (--a9a DIR)")
    for job in jobs:
        print("python -m", *job, flush=True)
        subprocess.run([sys.executable, "-m", *job], check=True)


if __name__ == "__main__":
    main()
