"""Nothing to tune: blindstep with a budget and nothing else, on values and on gradients.

    python -m benchmarks.no_knobs
    python -m benchmarks.no_knobs --only spam digits --epsilon 1 --method blindstep first-order
    python -m benchmarks.no_knobs --units
    python -m benchmarks.no_knobs --quick

Eight problems (`no_knobs_problems`, `no_knobs_votes`), epsilon 1 and 0.1, five seeds, and twenty for a
row whose first five spread by more than 1.5 points. First order is the same call with
`estimate="gradient"` (for the votes, which nobody can differentiate, a tuned policy gradient). The
other references are tuned: they try every setting once on the validation split, the best ten of them
twice more, and the best mean is taken. *No epsilon counts that choice*: they are unfair references.
Everybody is then trained on the whole training part and scored on the test part.

A row is one method on one problem at one epsilon. It is written to `benchmarks/results/no-knobs.json`
as soon as it is there, and a later run goes on from that file: rows that are in it are not made again,
unless they were chosen in another way (`made_alike`), or `--redo` says so. `--units` adds the rows of
blindstep in other units. `--quick` takes the first setting of each method and one seed, into a file of
its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import blindstep as bs
from benchmarks import no_knobs_problems as problems
from benchmarks import no_knobs_votes
from benchmarks.no_knobs_methods import BLINDSTEP, FIRST_ORDER, METHODS, Contest, Entrant, contest
from benchmarks.no_knobs_problems import UNITS
from benchmarks.utility import TUNING_SEED

RESULTS = Path(__file__).resolve().parent / "results"
PROBLEMS = (*problems.NAMES, no_knobs_votes.NAME)
EPSILONS = (1.0, 0.1)
SEEDS = 5
# Where five runs differ by so much that their mean says little, there are more.
SPREAD, MORE_SEEDS = 1.5, 20
ORIGINAL = next(iter(UNITS))
# Targets in points: for the mean gap to first order and for the largest, and between units.
GAPS = {1.0: (0.5, 1.5), 0.1: (2.0, 4.0)}
UNITS_GAP = 0.3
_FINALISTS, _MORE_TRIALS = 10, 2

Row = dict[str, Any]


@functools.lru_cache(maxsize=8)  # the same loss is compiled once
def contest_of(name: str, units: str) -> Contest | None:
    """A problem in some units with all who compete; None where those units do not apply."""
    chosen = UNITS[units]
    if name == no_knobs_votes.NAME:
        applies = chosen.features == chosen.loss == 1.0
        return no_knobs_votes.contest(units=chosen) if applies else None
    problem = problems.made(name)
    return contest(problem if units == ORIGINAL else problems.in_units(problem, chosen))


def finalists(entrant: Entrant) -> int:
    """How many settings are tried more than once; 0 where there is nothing to choose."""
    return min(_FINALISTS, len(entrant.settings)) if len(entrant.settings) > 1 else 0


def made_alike(row: Row, entrant: Entrant) -> bool:
    """Whether a row was chosen in today's way, from as many settings."""
    return (row["settings"], row.get("finalists", 0)) == (len(entrant.settings), finalists(entrant))


def choose(entrant: Entrant, privacy: bs.Privacy | None) -> tuple[Any, float | None]:
    """The setting with the best validation score, and that score.

    One trial of each; the best ten get two more, so that luck with one draw of noise does not decide.
    With four, the winner among 56 settings was worse on validation than that among 48 of them.
    """
    if len(entrant.settings) == 1:
        return entrant.settings[0], None

    def trial(setting: Any, seed: int) -> float:
        return entrant.points(setting, privacy, TUNING_SEED + seed, True)

    first = [(trial(setting, 0), setting) for setting in entrant.settings]
    first.sort(key=lambda tried: -tried[0])
    final = [
        (float(np.mean([found, *(trial(s, 1 + k) for k in range(_MORE_TRIALS))])), s)
        for found, s in first[: finalists(entrant)]
    ]
    validation, setting = max(final, key=lambda tried: tried[0])
    return setting, validation


def made_row(given: Contest, units: str, epsilon: float | None, method: str, quick: bool) -> Row:
    """One row: choose, train, score. Epsilon None: without privacy."""
    entrant, began = given.entrants[method], time.perf_counter()
    privacy = None if epsilon is None else bs.Privacy(epsilon=epsilon, delta=given.delta)
    setting, validation = (entrant.settings[0], None) if quick else choose(entrant, privacy)
    chosen_after = time.perf_counter() - began
    seeds = range(1 if quick else SEEDS)
    scores = [entrant.points(setting, privacy, seed, False) for seed in seeds]
    if len(scores) > 1 and np.std(scores, ddof=1) > SPREAD:
        more = range(SEEDS, MORE_SEEDS)
        scores += [entrant.points(setting, privacy, seed, False) for seed in more]
    return {
        "problem": given.name,
        "units": units,
        "epsilon": epsilon,
        "method": method,
        "delta": None if epsilon is None else given.delta,
        "records": given.records,
        "dim": given.dim,
        "settings": len(entrant.settings),
        "finalists": finalists(entrant),
        "setting": _plain(setting),
        "validation": validation,
        "scores": scores,
        "mean": float(np.mean(scores)),
        "spread": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        "seconds_choosing": chosen_after,
        "seconds": time.perf_counter() - began,
        "version": bs.__version__,
        "device": f"jax {jax.__version__}, {jax.devices()[0].platform}, {platform.machine()}",
    }


def _plain(setting: Any) -> dict[str, Any] | None:
    if setting is None:
        return None
    values = dataclasses.asdict(setting)
    return {name: "inf" if value == math.inf else value for name, value in values.items()}


# The file.


def read_rows(target: Path) -> list[Row]:
    """The rows that were made so far."""
    return json.loads(target.read_text())["rows"] if target.is_file() else []


def identity(row: Row) -> tuple[Any, ...]:
    """What there is one row of."""
    return row["problem"], row["units"], row["epsilon"], row["method"]


def add_row(target: Path, row: Row) -> None:
    """Put a row into the file, in place of an older one; whoever reads sees a whole file.

    The file is read again first, because another process may have added rows of its own.
    """
    rows = [kept for kept in read_rows(target) if identity(kept) != identity(row)]
    rows.append(row)
    order = (PROBLEMS, tuple(UNITS), (*EPSILONS, None), METHODS)
    rows.sort(
        key=lambda r: tuple(
            known.index(part) if part in known else len(known)
            for known, part in zip(order, identity(r), strict=True)
        )
    )
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(".part")
    fresh.write_text(json.dumps({"seeds": SEEDS, "rows": rows}, indent=1) + "\n")
    fresh.replace(target)


# What the rows say.


def gaps(rows: list[Row], epsilon: float) -> dict[str, float]:
    """First order minus blindstep in points, for each problem where both are there."""
    means = {
        (r["problem"], r["method"]): r["mean"]
        for r in rows
        if r["units"] == ORIGINAL and r["epsilon"] == epsilon
    }
    return {
        name: means[name, FIRST_ORDER] - means[name, BLINDSTEP]
        for name in PROBLEMS
        if (name, FIRST_ORDER) in means and (name, BLINDSTEP) in means
    }


def unit_gaps(rows: list[Row], epsilon: float) -> dict[tuple[str, str], float]:
    """blindstep in the original units minus in others, for each problem and system of units."""
    means = {
        (r["problem"], r["units"]): r["mean"]
        for r in rows
        if r["method"] == BLINDSTEP and r["epsilon"] == epsilon
    }
    return {
        (name, units): means[name, ORIGINAL] - mean
        for (name, units), mean in means.items()
        if units != ORIGINAL and (name, ORIGINAL) in means
    }


def table(rows: list[Row]) -> Table:
    """Points of each method; without privacy there is one number for all epsilons."""
    shown = Table(title="points on test records: mean ± standard deviation over seeds")
    for header in ("problem", "records", "dim", "epsilon", *METHODS):
        shown.add_column(header)
    cells = {identity(row): row for row in rows if row["units"] == ORIGINAL}
    known = sorted({r["epsilon"] for r in rows if r["epsilon"] is not None}, reverse=True)
    for name in PROBLEMS:
        here = [row for row in cells.values() if row["problem"] == name]
        for epsilon in known if here else ():
            found = [
                cells.get((name, ORIGINAL, epsilon, m)) or cells.get((name, ORIGINAL, None, m))
                for m in METHODS
            ]
            numbers = [f"{here[0]['records']:,}", str(here[0]["dim"]), f"{epsilon:g}"]
            shown.add_row(name, *numbers, *map(_cell, found))
    return shown


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{row['mean']:.2f}" + ("" if row["spread"] is None else f" ± {row['spread']:.2f}")


def verdicts(rows: list[Row]) -> list[str]:
    """The gaps, each beside its target."""
    lines = []
    for epsilon in sorted({row["epsilon"] for row in rows if row["epsilon"]}, reverse=True):
        found = gaps(rows, epsilon)
        if found:
            mean_target, most_target = GAPS.get(epsilon, (math.nan, math.nan))
            worst = max(found, key=lambda name: found[name])
            each = ", ".join(f"{name} {gap:+.2f}" for name, gap in found.items())
            lines.append(
                f"epsilon {epsilon:g}: gap to first order on {len(found)} of {len(PROBLEMS)} problems: "
                f"mean {np.mean(list(found.values())):+.2f} (at most {mean_target:g}), largest "
                f"{found[worst]:+.2f} on {worst} (at most {most_target:g}). {each}."
            )
        moved = unit_gaps(rows, epsilon)
        if moved:
            systems = {units for _, units in moved}
            each = ", ".join(
                f"{units} {np.mean([g for (_, u), g in moved.items() if u == units]):+.2f}"
                for units in UNITS
                if units in systems
            )
            worst_pair = max(moved, key=lambda pair: moved[pair])
            lines.append(
                f"epsilon {epsilon:g}: lost in other units, mean "
                f"{np.mean(list(moved.values())):+.2f} (at most {UNITS_GAP:g}), mean size "
                f"{np.mean(np.abs(list(moved.values()))):.2f}; {each}; most "
                f"{moved[worst_pair]:+.2f} on {worst_pair[0]} with {worst_pair[1]}."
            )
    return lines


# The command.


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.no_knobs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=PROBLEMS, metavar="PROBLEM")
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--units", action="store_true", help="blindstep in other units as well")
    parser.add_argument("--quick", action="store_true", help="first settings, one seed")
    parser.add_argument("--redo", action="store_true", help="make rows again that are in the file")
    parser.add_argument(
        "--show", action="store_true", help="print what is in the file, run nothing"
    )
    return parser.parse_args(arguments)


def wanted(options: argparse.Namespace) -> list[tuple[str, str, float | None, str]]:
    """Identities of the rows that a command line asks for, in the order of the work."""
    asked: list[tuple[str, str, float | None, str]] = []
    for name in options.only:
        for units in UNITS if options.units else (ORIGINAL,):
            given = contest_of(name, units)
            if given is None:
                continue
            for method in options.method:
                if method not in given.entrants or (units != ORIGINAL and method != BLINDSTEP):
                    continue
                budgets = options.epsilon if given.entrants[method].private else (None,)
                asked += [(name, units, epsilon, method) for epsilon in budgets]
    return asked


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print all that is there."""
    console = Console(width=180)
    options = parse(arguments)
    target = RESULTS / ("no-knobs-quick.json" if options.quick else "no-knobs.json")
    for name, units, epsilon, method in () if options.show else wanted(options):
        given = contest_of(name, units)
        assert given is not None
        alike = [row for row in read_rows(target) if made_alike(row, given.entrants[method])]
        there = {identity(row) for row in alike}
        if (name, units, epsilon, method) in there and not options.redo:
            continue
        row = made_row(given, units, epsilon, method, options.quick)
        add_row(target, row)
        budget = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
        console.print(f"{name}, {units}, {budget}, {method}: {_cell(row)} ({row['seconds']:.0f} s)")
    rows = read_rows(target)
    console.print(table(rows))
    for line in verdicts(rows):
        console.print(line)
    if options.quick:
        console.print("quick: nothing was tuned, one seed: these gaps are no result.")
    console.print(f"results: {target}")


if __name__ == "__main__":
    main()
