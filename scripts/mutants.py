"""Put each privacy bug of `mutants_list.py` into a copy of the source, and see that it is caught.

    python scripts/mutants.py [words of a name ...]
    python scripts/mutants.py --shard 3/12  # of twelve parts the third

First everything that is to catch a mutant must pass on the source as it is. Then a mutant counts as
caught when each of its catchers fails: tests by failing (not by an error on importing), an audit by
saying BROKEN. A mutant that survives, or that no longer fits the source, fails the run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutant_kinds import Mutant
from mutants_list import MUTANTS
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
_AT_ONCE = 2
_TESTS_FAILED = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    caught_by: list[str]
    problem: str
    seconds: float


def mutated(mutant: Mutant, source: Path) -> str:
    """Edit the copy of the source; the reason why that is impossible, or nothing."""
    for file, old, new in mutant.edits:
        path = source / "blindstep" / file
        text = path.read_text()
        if (times := text.count(old)) != 1:
            return f"does not fit: {file} has {times} times {old.strip()!r}"
        path.write_text(text.replace(old, new))
    return ""


def _run(arguments: list[str], source: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def fails(catcher: str, source: Path) -> tuple[bool, str]:
    """Whether a test fails or an audit says BROKEN; and the last words if it did neither."""
    if catcher.startswith("audit"):
        done = _run(["blindstep", *catcher.split(), "--seed", "0", "--json"], source)
        try:
            verdict = json.loads(done.stdout)["verdict"]
        except (ValueError, KeyError):
            return False, f"no verdict: {(done.stderr or done.stdout)[-400:]}"
        return verdict == "BROKEN" and done.returncode == 1, f"the audit says {verdict}"
    done = _run(["pytest", "-x", "-q", catcher], source)
    if done.returncode not in (0, _TESTS_FAILED):
        return False, f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}"
    return done.returncode == _TESTS_FAILED, "the test passes"


def attempt(mutant: Mutant) -> Outcome:
    """Try one mutant."""
    began = time.perf_counter()
    caught, problem = [], ""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        problem = mutated(mutant, source)
        for catcher in () if problem else mutant.caught_by:
            found, words = fails(catcher, source)
            if found:
                caught.append(catcher)
            else:
                problem = f"SURVIVES {catcher}: {words}"
                break
    return Outcome(mutant, caught, problem, time.perf_counter() - began)


def check_catchers(catchers: Iterable[str]) -> list[str]:
    """What must be true before: every catcher passes on the source as it is."""
    every = sorted(set(catchers))
    tests = [catcher for catcher in every if not catcher.startswith("audit")]
    problems = []
    if tests:
        done = _run(["pytest", "-q", *tests], SOURCE)
        if done.returncode:
            problems.append(f"tests fail without a mutant:\n{done.stdout[-2000:]}{done.stderr}")
    audits = [catcher for catcher in every if catcher.startswith("audit")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        verdicts = list(pool.map(lambda audit: fails(audit, SOURCE)[1], audits))
    for audit, words in zip(audits, verdicts, strict=True):
        if words != "the audit says holds":
            problems.append(f"{audit} without a mutant: {words}")
    return problems


def main(words: list[str]) -> int:
    """Try all mutants, or those whose names contain one of the words, or every n-th of them."""
    part, parts = 1, 1
    if words[:1] == ["--shard"]:
        part, parts = map(int, words[1].split("/"))
        words = words[2:]
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    chosen = chosen[part - 1 :: parts]
    console = Console(width=140)
    console.print(f"{len(chosen)} mutants; first everything without them ...")
    if problems := check_catchers(c for m in chosen for c in m.caught_by):
        console.print("\n".join(problems), markup=False)
        return 1
    table = Table(title="Mutants", title_justify="left")
    for heading in ("name", "caught by", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    with ThreadPoolExecutor(_AT_ONCE if parts == 1 else 1) as pool:
        outcomes = []
        for outcome in pool.map(attempt, chosen):
            outcomes.append(outcome)
            said = outcome.problem or "caught"
            console.print(f"{outcome.mutant.name}: {said}", markup=False, highlight=False)
    for outcome in outcomes:
        names = "\n".join(c.split("::")[-1] for c in outcome.caught_by)
        table.add_row(outcome.mutant.name, outcome.problem or names, f"{outcome.seconds:.0f}")
    console.print(table)
    survivors = [o for o in outcomes if o.problem]
    console.print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} caught.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
