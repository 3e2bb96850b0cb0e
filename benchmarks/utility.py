"""Utility at equal exact privacy: blindstep with nothing tuned, beside methods that were.

    python -m benchmarks.utility
    python -m benchmarks.utility --only spam digits --epsilon 1 --method blindstep DPZero
    python -m benchmarks.utility --units
    python -m benchmarks.utility --merge rows.json   # rows that were made elsewhere, with --results
    python -m benchmarks.utility --show

Eight problems (`utility_problems`, `utility_votes`) and four that were chosen before any score was
seen (`untouched`), epsilon 1 and 0.1 for a record that is replaced, five seeds. "blindstep" is
`minimize` with a budget and nothing else, "blindstep, gradients" the same on gradients; Opacus and
diffprivlib are what people would pick instead (`untuned`). Each other method (`utility_methods`)
has the same number of settings: every one is tried once on the validation split, the best three
twice more, and the best mean is taken. *The privacy of that choice is not accounted for*: the
epsilon is that of one run, and on private records each setting tried would spend its own. The
chosen setting is then trained on the whole training part and scored on the test part, once.

At epsilon 1 a row of a method that sees values alone also has its path: five runs on the fit part, each
looked at in at most 16 equally spaced places, scored on validation records. From these follows how many
evaluations of a record it took to come within two points of "no privacy" (`reached`).

A row is one method on one problem at one epsilon. Two processes, one core each, make what is missing,
what takes longest first; each row is written to `benchmarks/results/utility.json` as soon as it is
there, and a later run goes on from that file. A row of another version, or one that was chosen from
other settings, is made again. `--units` makes the rows of blindstep in other units instead.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import blindstep as bs
from benchmarks import untouched, untuned, utility_methods, utility_votes
from benchmarks import utility_problems as problems
from benchmarks.utility_methods import (
    BLINDSTEP,
    DIFFPRIVLIB,
    FREE,
    INDEPENDENT,
    METHODS,
    ZEROTH_ORDER,
    Contest,
    Entrant,
)
from benchmarks.utility_problems import UNITS

RESULTS = Path(__file__).resolve().parent / "results"
FILE = "utility.json"
UNTOUCHED = tuple(untouched.MAKERS)
PROBLEMS = (*problems.NAMES, utility_votes.NAME, *UNTOUCHED)
EPSILONS = (1.0, 0.1)
SEEDS, TUNING_SEED = 5, 1000
FINALISTS, MORE_TRIALS = 3, 2
# Where evaluations to within so many points are counted.
PATH_EPSILON, WITHIN = 1.0, 2.0
ORIGINAL = next(iter(UNITS))
WORKERS = 2
# Before a worker starts JAX: one core for each.
ONE_CORE = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}
# Seconds of one run on one core, about, with what it compiles: for the order of the work alone.
_SECONDS = {"bank network": 20.0, "digits": 6.0, "spam": 2.0, "cars": 3.0, "survival": 2.0}

Row = dict[str, Any]
Identity = tuple[str, str, float | None, str]


@functools.lru_cache(maxsize=8)  # the same loss is compiled once
def contest_of(name: str, units: str) -> Contest | None:
    """A problem in some units with all who compete; None where those units do not apply."""
    chosen = UNITS[units]
    if name == utility_votes.NAME:
        applies = chosen.features == chosen.loss == 1.0
        return utility_votes.contest(units=chosen) if applies else None
    problem = untouched.made(name) if name in UNTOUCHED else problems.made(name)
    return utility_methods.contest(
        problem if units == ORIGINAL else problems.in_units(problem, chosen)
    )


# One row.


def choose(entrant: Entrant, privacy: bs.Privacy | None) -> tuple[Any, float | None]:
    """The setting with the best validation score, and that score.

    One trial of each; the best three get two more, so that luck with one draw of noise does not decide.
    """
    if len(entrant.settings) == 1:
        return entrant.settings[0], None

    def trial(setting: Any, seed: int) -> float:
        return entrant.points(setting, privacy, TUNING_SEED + seed, True).points

    first = [(trial(setting, 0), setting) for setting in entrant.settings]
    first.sort(key=lambda tried: -tried[0])
    final = [
        (float(np.mean([found, *(trial(s, 1 + k) for k in range(MORE_TRIALS))])), s)
        for found, s in first[:FINALISTS]
    ]
    validation, setting = max(final, key=lambda tried: tried[0])
    return setting, validation


def made_row(wanted: Identity) -> Row:
    """One row: choose, train, score. Epsilon None: without privacy."""
    name, units, epsilon, method = wanted
    given = contest_of(name, units)
    assert given is not None
    entrant, began = given.entrants[method], time.perf_counter()
    privacy = None if epsilon is None else bs.Privacy(epsilon=epsilon, delta=given.delta)
    setting, validation = choose(entrant, privacy)
    chosen_after = time.perf_counter() - began
    made = [entrant.points(setting, privacy, seed, False) for seed in range(SEEDS)]
    trained_after = time.perf_counter() - began
    scores, counted = ([run[k] for run in made] for k in (0, 1))
    return {
        "problem": name,
        "units": units,
        "epsilon": epsilon,
        "method": method,
        "fingerprint": fingerprint(given, entrant),
        "version": bs.__version__,
        "delta": None if epsilon is None else given.delta,
        "records": given.records,
        "dim": given.dim,
        "most_evaluations": given.evaluations,
        "settings": len(entrant.settings),
        "setting": _plain(setting),
        "validation": validation,
        "scores": scores,
        "mean": float(np.mean(scores)),
        "spread": float(np.std(scores, ddof=1)),
        "path": path_of(entrant, setting, privacy) if has_path(wanted) else None,
        "evaluations": None if math.isnan(counted[0]) else float(np.mean(counted)),
        "seconds_choosing": chosen_after,
        "seconds_a_run": (trained_after - chosen_after) / SEEDS,
        "seconds": time.perf_counter() - began,
        "device": f"jax {jax.__version__}, {jax.devices()[0].platform}, {platform.machine()}",
    }


def has_path(wanted: Identity) -> bool:
    """Whether a row tells how many evaluations it took."""
    _, units, epsilon, method = wanted
    return units == ORIGINAL and epsilon == PATH_EPSILON and method in ZEROTH_ORDER


def path_of(entrant: Entrant, setting: Any, privacy: bs.Privacy | None) -> Row:
    """Evaluations of a record at each place, and points there for each seed; the start is the first."""
    paths = [entrant.path(setting, privacy, seed) for seed in range(SEEDS)]
    return {"evaluations": paths[0][0], "points": [points for _, points in paths]}


def _plain(setting: Any) -> Row | None:
    if setting is None:
        return None
    values = dataclasses.asdict(setting)
    return {name: "inf" if value == math.inf else value for name, value in values.items()}


def fingerprint(given: Contest, entrant: Entrant) -> str:
    """What a row was chosen from, and how: one that has another is made again."""
    settings = [_plain(setting) for setting in entrant.settings]
    how = [SEEDS, FINALISTS, MORE_TRIALS, given.delta, given.records, given.evaluations]
    return hashlib.sha256(json.dumps([settings, how]).encode()).hexdigest()[:16]


# The file.


def read_rows(target: Path) -> list[Row]:
    """The rows that were made so far."""
    return json.loads(target.read_text())["rows"] if target.is_file() else []


def identity(row: Row) -> Identity:
    """What there is one row of."""
    return row["problem"], row["units"], row["epsilon"], row["method"]


def kept(target: Path) -> set[Identity]:
    """Rows that need not be made again: chosen from what is chosen from today, with this version.

    Rows of methods that run nothing of blindstep stay whatever the version.
    """
    found = set()
    for row in read_rows(target):
        given = contest_of(row["problem"], row["units"])
        entrant = given and given.entrants.get(row["method"])
        if given is None or entrant is None:
            continue
        if row["version"] != bs.__version__ and row["method"] not in INDEPENDENT:
            continue
        if row["fingerprint"] == fingerprint(given, entrant):
            found.add(identity(row))
    return found


def write_rows(target: Path, rows: list[Row]) -> None:
    """Write all rows in their order; whoever reads sees a whole file."""
    order = (PROBLEMS, tuple(UNITS), (*EPSILONS, None), METHODS)
    rows = sorted(
        rows,
        key=lambda row: tuple(
            known.index(part) if part in known else len(known)
            for known, part in zip(order, identity(row), strict=True)
        ),
    )
    for row in rows:
        row["reached"] = reached(row, rows)
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(".part")
    lines = ",\n".join(json.dumps(row) for row in rows)  # a line for each row
    head = json.dumps({"version": bs.__version__, "seeds": SEEDS})
    fresh.write_text(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')
    fresh.replace(target)


def add_row(target: Path, row: Row) -> None:
    """Put a row into the file, in place of an older one."""
    others = [r for r in read_rows(target) if identity(r) != identity(row)]
    write_rows(target, [*others, row])


# What rows say together.


def reached(row: Row, rows: list[Row]) -> float | None:
    """Evaluations of a record until a run was within two points of "no privacy", on validation.

    The first place of the path that is, and of the seeds the median; None where most never are, or
    where it is not known yet.
    """
    free = [r for r in rows if (r["problem"], r["method"]) == (row["problem"], FREE)]
    if not row["path"] or not free:
        return None
    enough = free[0]["validation"] - WITHIN
    made = row["path"]["evaluations"]
    first = [
        next((at for at, found in zip(made, points, strict=True) if found >= enough), math.inf)
        for points in row["path"]["points"]
    ]
    median = float(np.median(first))
    return median if median < math.inf else None


def closest(row: Row, rows: list[Row]) -> float:
    """How many points a path stayed away from "no privacy" on validation, the median of the seeds."""
    free = next(r for r in rows if (r["problem"], r["method"]) == (row["problem"], FREE))
    best = [max(points) for points in row["path"]["points"]]
    return free["validation"] - float(np.median(best))


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


# The command.


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=PROBLEMS, metavar="PROBLEM")
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--units", action="store_true", help="blindstep in other units instead")
    parser.add_argument("--redo", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes; 0: this one")
    parser.add_argument("--results", type=Path, help="the file of rows, if another")
    parser.add_argument(
        "--merge", nargs="+", type=Path, help="put these files' rows in, run nothing"
    )
    return parser.parse_args(arguments)


def wanted(options: argparse.Namespace) -> list[Identity]:
    """Identities of the rows that a command line asks for, what takes longest first."""
    asked: list[Identity] = []
    systems = [name for name in UNITS if (name != ORIGINAL) == options.units]
    for name, units, method in itertools.product(options.only, systems, options.method):
        given = contest_of(name, units)
        if given is None or method not in given.entrants or (options.units and method != BLINDSTEP):
            continue
        if method == DIFFPRIVLIB and not untuned.finds_diffprivlib():
            continue
        budgets = options.epsilon if given.entrants[method].private else (None,)
        asked += [(name, units, epsilon, method) for epsilon in budgets]
    return sorted(asked, key=estimate, reverse=True)


def estimate(row: Identity) -> float:
    """About how many seconds a row takes on one core."""
    name, units, _, method = row
    given = contest_of(name, units)
    assert given is not None
    settings = len(given.entrants[method].settings)
    trials = settings + FINALISTS * MORE_TRIALS if settings > 1 else 0
    runs = trials + SEEDS + (SEEDS if has_path(row) else 0)
    return runs * _SECONDS.get(name, 5.0)


def in_processes(call: Callable[[Any], Any], given: Iterable[Any], workers: int) -> Iterator[Any]:
    """The answers of a call as they come, from processes of one core each; 0: from this one."""
    if not workers:
        yield from map(call, given)
        return
    os.environ.update(ONE_CORE)
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    for core in itertools.islice(itertools.cycle(sorted(os.sched_getaffinity(0))), workers):
        cores.put(core)
    with concurrent.futures.ProcessPoolExecutor(workers, context, _take_a_core, (cores,)) as pool:
        try:
            for done in concurrent.futures.as_completed(
                [pool.submit(call, each) for each in given]
            ):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _take_a_core(cores: Any) -> None:
    os.sched_setaffinity(0, {cores.get()})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print all that is there."""
    options = parse(arguments)
    target = options.results or RESULTS / FILE
    for file in options.merge or ():
        for row in read_rows(file):
            add_row(target, row)
    if not options.show and not options.merge:
        there = set() if options.redo else kept(target)
        asked = [row for row in wanted(options) if row not in there]
        seconds = sum(map(estimate, asked)) / max(1, options.workers)
        print(f"{len(asked)} rows to make, about {seconds / 60:.0f} minutes", flush=True)
        for row in in_processes(made_row, asked, options.workers):
            add_row(target, row)
            budget = "" if row["epsilon"] is None else f"epsilon {row['epsilon']:g}, "
            print(
                f"{row['problem']}, {row['units']}, {budget}{row['method']}: {row['mean']:.2f} ± "
                f"{row['spread']:.2f} ({row['seconds']:.0f} s)",
                flush=True,
            )
    from benchmarks import summary  # which reads what this module writes

    print(summary.printed(read_rows(target)))


if __name__ == "__main__":
    main()
