"""How many evaluations of a record it takes to come within a point of the run that asks all of them.

    git worktree add ../before 8c90c48                   # version 0.2.0
    python -m benchmarks.evaluations --before ../before
    python -m benchmarks.evaluations --only spam digits --epsilon 0.1 --methods secret
    python -m benchmarks.evaluations --show
    python -m benchmarks.evaluations --before ../before --clock a9a

The *reference* is blindstep with public batches and all evaluations of `benchmarks.utility`: 8,192 of
a record, or 16,384 where there are at most 10,000 records. Each method then gets 8 evaluations of a
record, 16, 32, and so on, until its mean score on test records is within one point of the reference's:

- "secret": `minimize` with `Auto(evaluations=)`, as it is;
- "0.2": `minimize` of the checkout that `--before` names. Its budgets are about replacing a record, so
  it gets twice the mu, which takes the same noise as leaving one out;
- "DP-AggZO" and "DPZero" in Poisson batches (`poisson`), with the clip, the length and the directions
  that `benchmarks.utility` chose for them by validation, in 64, 256 or 1,024 steps, whichever does best
  in one run on validation records.

Neighbours are zero-out for all, because that is what Poisson batches are accounted for: one record is
there or not. Votes are left out: a person has two in all, so there is nothing to save.

Each line of `benchmarks/results/evaluations.jsonl` is one method at one number of evaluations; a later
run goes on from that file. `--aim` is the score to reach for methods that run before their reference.
`--clock` compares the time of default runs of this version and of 0.2, in turns in one process, after
one of each that compiles.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import blindstep as bs
from benchmarks import poisson
from benchmarks import utility_problems as problems
from benchmarks.checkout import Checkout
from benchmarks.poisson import PoissonSetting
from benchmarks.problems import Problem
from benchmarks.utility import RESULTS, read_rows
from benchmarks.utility_methods import AGGREGATED, ONE_DIRECTION, most_evaluations, points_of
from blindstep.losses.pytrees import count_records
from blindstep.private.terms import ZERO_OUT

FILE = "evaluations.jsonl"
EPSILONS = (1.0, 0.1)
REFERENCE, SECRET, BEFORE = "reference", "secret", "0.2"
METHODS = (SECRET, BEFORE, AGGREGATED, ONE_DIRECTION)
WITHIN, FEWEST, SEEDS = 1.0, 8, 5
_STEPS = (64, 256, 1024)
# Fewer records than this in a step, on the mean, are no step.
_FEWEST_RECORDS = 4
Row = dict[str, Any]
Scored = Callable[[int, bool], float]


def own(problem: Problem, epsilon: float, each: int | None, *, secret: bool) -> tuple[Scored, Row]:
    """blindstep with so many evaluations of a record, or as many as it takes by itself."""
    records = count_records(problem.split.train)
    method = bs.Auto(evaluations=None if each is None else each * records, secret=secret)
    privacy = bs.Privacy(epsilon, problems.delta_for(records), neighbours=ZERO_OUT)
    given: Row = {}

    def score(seed: int, trial: bool) -> float:
        del trial
        found = bs.minimize(
            problem.loss, problem.start(seed), problem.split.train, privacy, method=method
        )
        given["asked"] = found.plan.evaluations / records
        given["batch"], given["directions"] = found.plan.first_batch, found.plan.directions
        return points_of(problem, found.params, problem.split.test)

    return score, given


def in_version(before: Checkout, name: str, epsilon: float, each: int | None) -> tuple[Scored, Row]:
    """Version 0.2 with so many evaluations of a record, or as many as it takes by itself."""
    records = count_records(problems.made(name).split.train)
    delta = problems.delta_for(records)
    mu, given = 2 * bs.Privacy(epsilon, delta).mu, dict[str, Any]()
    with before.imported():
        import blindstep as bs_before
        from benchmarks import utility_problems as problems_before

        problem = problems_before.made(name)
        budget = bs_before.Privacy(rho=mu, delta=delta)
    most = {} if each is None else {"evaluations": each * records}

    def score(seed: int, trial: bool) -> float:
        del trial
        with before.imported():
            about = problem.loss, problem.start(seed), problem.split.train
            found = bs_before.minimize(*about, privacy=budget, **most)
        given["asked"] = found.plan.evaluations / records
        given["batch"], given["directions"] = found.plan.first_batch, found.plan.directions
        return points_of(problem, found.params, problem.split.test)

    return score, given


def tuned(method: str, problem: str, epsilon: float) -> Row | None:
    """The setting that `benchmarks.utility` chose for a method; None where it was not tuned."""
    rows = read_rows(RESULTS / "utility.json")
    found = [
        r for r in rows if (r["problem"], r["epsilon"], r["method"]) == (problem, epsilon, method)
    ]
    return found[0]["setting"] if found else None


def in_poisson_batches(
    method: str, problem: Problem, epsilon: float, each: int
) -> tuple[Scored, Row] | None:
    """A baseline with so many evaluations of a record; None where it cannot be run."""
    chosen, records = tuned(method, problem.name, epsilon), count_records(problem.split.train)
    if chosen is None:
        return None
    delta, k = problems.delta_for(records), chosen["directions"]
    tried: list[tuple[float, PoissonSetting]] = []

    def run(setting: PoissonSetting, seed: int, trial: bool) -> float:
        split = problem.split
        data, judges = (split.fit, split.validation) if trial else (split.train, split.test)
        params = poisson.run(problem, data, epsilon, delta, setting, seed)
        return points_of(problem, params, judges)

    for steps in _STEPS:
        rate = each / (2 * k * steps)
        if rate <= 1.0 and rate * records >= _FEWEST_RECORDS:
            length = chosen["rate"] * chosen["passes"] * chosen["batches"]
            setting = PoissonSetting(steps, rate, k, chosen["clip"], length, chosen["smoothing"])
            tried.append((run(setting, 1000, True), setting))
    if not tried:
        return None
    best = max(tried, key=lambda one: one[0])[1]
    given = {"asked": best.evaluations, "batch": best.rate_of_records * records}
    given |= {"directions": k, "steps": best.steps}
    return functools.partial(run, best), given


def made(
    name: str, epsilon: float, method: str, each: int, seeds: int, before: Checkout | None
) -> Row:
    """One row: a method with so many evaluations of a record."""
    began, problem = time.perf_counter(), problems.made(name)
    if method in (REFERENCE, SECRET):
        found = own(problem, epsilon, each, secret=method == SECRET)
    elif method == BEFORE:
        assert before is not None, "say where version 0.2 is: --before"
        found = in_version(before, name, epsilon, each)
    else:
        found = in_poisson_batches(method, problem, epsilon, each)
    row: Row = {"problem": name, "epsilon": epsilon, "method": method, "evaluations": each}
    if found is None:
        return {**row, "seeds": seeds, "mean": None}
    score, given = found
    scores = [score(seed, False) for seed in range(seeds)]
    mean = float(np.mean(scores))
    spent = {"seconds": round(time.perf_counter() - began, 1), "version": bs.__version__}
    return {**row, "seeds": seeds, "mean": mean, "scores": scores, **given, **spent}


class File:
    """Rows, one on each line, appended as they are made."""

    def __init__(self, path: Path, seeds: int, before: Checkout | None) -> None:
        self.path, self.seeds, self.before = path, seeds, before
        lines = path.read_text().splitlines() if path.is_file() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    def find(self, *wanted: Any) -> Row | None:
        """The row of a problem, an epsilon, a method and a number of evaluations."""
        names = ("problem", "epsilon", "method", "evaluations")
        return next((r for r in self.rows if tuple(r[name] for name in names) == wanted), None)

    def get(self, problem: str, epsilon: float, method: str, each: int) -> Row:
        """That row, made if it is not there."""
        row = self.find(problem, epsilon, method, each)
        if row is None:
            row = made(problem, epsilon, method, each, self.seeds, self.before)
            self.rows.append(row)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({k: v for k, v in row.items() if k != "scores"}), flush=True)
        return row


def most_of(problem: str) -> int:
    """The most evaluations of a record, for everybody."""
    return most_evaluations(count_records(problems.made(problem).split.train))


def climb(
    file: File,
    problem: str,
    epsilon: float,
    methods: Sequence[str],
    aim: float | None = None,
    begin: int = FEWEST,
) -> None:
    """The reference, if no aim is given; then each method up until it is there, and down until not."""
    most = most_of(problem)
    if aim is None:
        aim = file.get(problem, epsilon, REFERENCE, most)["mean"] - WITHIN
    for method in methods:

        def there(each: int, method: str = method) -> bool:
            mean = file.get(problem, epsilon, method, each)["mean"]
            return mean is not None and mean >= aim

        first = each = begin
        while not there(each) and 2 * each <= most:
            each *= 2
        while each == first and there(each) and each > FEWEST:
            first = each = each // 2


def reached(file: File, problem: str, epsilon: float, method: str) -> str:
    """What a table says of a method: the fewest evaluations, or the best score below the aim."""
    rows = [
        r
        for r in file.rows
        if (r["problem"], r["epsilon"], r["method"]) == (problem, epsilon, method)
        and r["mean"] is not None
    ]
    if not rows:
        return "-"
    reference = next(
        r
        for r in file.rows
        if (r["problem"], r["epsilon"], r["method"]) == (problem, epsilon, REFERENCE)
    )
    enough = [r["asked"] for r in rows if r["mean"] >= reference["mean"] - WITHIN]
    best = max(r["mean"] for r in rows)
    return f"{min(enough):,.0f}" if enough else f"not ({best:.1f})"


def table(file: File) -> str:
    """The table of the documents."""
    heads = ("problem", "epsilon", "reference", *METHODS, "0.2 / secret")
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for row in (r for r in file.rows if r["method"] == REFERENCE):
        about = row["problem"], row["epsilon"]
        found = [reached(file, *about, method) for method in METHODS]
        numbers = [float(each.replace(",", "")) for each in found[:2] if each[0].isdigit()]
        ratio = f"{numbers[1] / numbers[0]:.1f}" if len(numbers) == 2 else "-"
        cells = (about[0], f"{about[1]:g}", f"{row['mean']:.1f}", *found, ratio)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_ratio(file: File, epsilon: float) -> float:
    """The geometric mean of 0.2 / secret over the problems where both arrive."""
    logs = []
    for row in (r for r in file.rows if r["method"] == REFERENCE and r["epsilon"] == epsilon):
        found = [reached(file, row["problem"], epsilon, method) for method in (SECRET, BEFORE)]
        if all(each[0].isdigit() for each in found):
            one, two = (float(each.replace(",", "")) for each in found)
            logs.append(math.log(two / one))
    return math.exp(float(np.mean(logs))) if logs else math.nan


def clock(name: str, turns: int, before: Checkout) -> None:
    """The time and the score of default runs of this version and of 0.2, in turns."""
    epsilon, seconds = 1.0, dict[str, list[float]]()
    records = count_records(problems.made(name).split.train)
    runs = {
        "this": own(problems.made(name), epsilon, None, secret=True),
        BEFORE: in_version(before, name, epsilon, None),
    }
    for turn in range(turns + 1):
        for version, (score, given) in runs.items():
            began = time.perf_counter()
            points = score(turn, False)
            took = time.perf_counter() - began
            if turn:
                seconds.setdefault(version, []).append(took)
            print(
                f"{version}: {took:.1f} s, {points:.1f} points, {given['asked']:,.0f} evaluations "
                f"of each of {records:,} records",
                flush=True,
            )
    ratios = [one / two for one, two in zip(*seconds.values(), strict=True)]
    print(f"this / 0.2: {np.median(ratios):.2f} of the time, the median of {turns}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore
    parser.add_argument("--only", nargs="+", choices=problems.NAMES, default=list(problems.NAMES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), help=", ".join(METHODS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--results", type=Path, default=RESULTS / FILE)
    parser.add_argument("--before", type=Path, help="a checkout of version 0.2")
    parser.add_argument("--aim", type=float)
    parser.add_argument("--begin", type=int, default=FEWEST, help="where to look first")
    parser.add_argument("--clock", choices=problems.NAMES)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(arguments)
    before = None if options.before is None else Checkout(options.before)
    if options.clock:
        if before is None:
            parser.error("--clock needs --before")
        clock(options.clock, options.seeds, before)
        return
    file = File(options.results, options.seeds, before)
    if not options.show:
        for problem in options.only:
            for epsilon in options.epsilon:
                climb(file, problem, epsilon, options.methods, options.aim, options.begin)
    print(table(file))
    for epsilon in options.epsilon:
        print(f"epsilon {epsilon:g}: 0.2 / secret {mean_ratio(file, epsilon):.1f} on the mean")


if __name__ == "__main__":
    main()
