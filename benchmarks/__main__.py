"""All benchmarks that need no accelerator: `python -m benchmarks [--redo]`.

Utility at equal exact privacy first (it goes on where it was stopped, row by row), then the planner
against a grid of fixed choices, the bias and the cost of frames, and the speed of a run against bare
evaluations. A result file of this version is kept; `--redo` makes all of them again. At the end the
tables of README.md and docs/ are written anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import blindstep as bs

RESULTS = Path(__file__).resolve().parent / "results"
# About how many minutes they take on two cores: for the estimate alone.
JOBS = {"auto_grid": 4, "frame_bias": 3, "frames_speed": 1, "speed": 10}
# Of the others it is what they print that is kept.
WRITE_THEMSELVES = ("auto_grid", "speed")


def is_kept(target: Path) -> bool:
    """Whether a result file is of this version, and whole."""
    found = json.loads(target.read_text()) if target.is_file() else {}
    return found.get("version") == bs.__version__ and found.get("whole", True)


def printed_by(module: str) -> str:
    """What a module of the benchmarks prints, in a process of its own, shown as it comes."""
    print(f"python -m benchmarks.{module}", flush=True)
    command, lines = [sys.executable, "-u", "-m", f"benchmarks.{module}"], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(f"benchmarks.{module} ended with {process.returncode}")
    return "".join(lines).rstrip()


def main() -> None:
    """Run every benchmark in a process of its own, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--redo", action="store_true", help="make all results again")
    redo = parser.parse_args().redo
    jobs = [name for name in JOBS if redo or not is_kept(RESULTS / f"{name}.json")]
    print(
        f"after utility: {', '.join(jobs)}, about {sum(JOBS[j] for j in jobs)} minutes", flush=True
    )
    again = ["--redo"] if redo else []
    subprocess.run([sys.executable, "-m", "benchmarks.utility", *again], check=True)
    for name in jobs:
        text = printed_by(name)
        target = RESULTS / f"{name}.json"
        if name not in WRITE_THEMSELVES:
            target.write_text(
                json.dumps({"version": bs.__version__, "text": text}, indent=1) + "\n"
            )
    printed_by("speed_model")
    printed_by("summary")


if __name__ == "__main__":
    main()
