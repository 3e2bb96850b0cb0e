"""Utility at equal exact privacy: every method of the registry on one problem.

    python -m benchmarks.utility digits --epsilon 4.38 --seeds 3
    python -m benchmarks.utility a9a --epsilon 1 --a9a ../shared/data
    python -m benchmarks.utility zero-one --epsilon 1
    python -m benchmarks.utility synthetic --dim 10 --records 1000 10000 100000

Each method chooses its setting on the validation split, then trains on the whole training part with
`--seeds` seeds and is scored on the test part, once. *The privacy of that choice is not accounted for*:
the epsilon is that of one run, and on private records each setting tried would spend its own. Writes a
JSON file and a plot into `benchmarks/results/` and prints a table. With `--methods`, rows of other
methods are kept from that file if they were made at the same privacy with as many seeds. `--quick`
takes each method's default setting and chooses nothing; its files say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import blindstep as bs
from benchmarks import plots, problems
from benchmarks.baselines import Outcome
from benchmarks.methods import METHODS, Method
from benchmarks.problems import Problem
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.errors import InvalidArgument

RESULTS = Path(__file__).resolve().parent / "results"
TUNING_SEED = 1000
_EPSILON = {"digits": 4.38, "a9a": 1.0, "zero-one": 1.0, "synthetic": 4.3772}
_CURVE_POINTS = 20


def score(problem: Problem, params: Any, records: Any) -> float:
    """The problem's score; parameters that are not finite score as those of the start."""
    finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))
    return problem.score(params if finite else problem.start(0), records)


def choose(
    problem: Problem, method: Method, privacy: bs.Privacy, quick: bool
) -> tuple[Any, float | None, int]:
    """The setting with the best validation score (one run each), that score, and how many tried.

    A setting that no plan can be made for (a horizon longer than the records) does not count.
    """
    settings = method.settings(problem)
    if quick or len(settings) == 1:
        return settings[0], None, 0
    best, best_score, tried = None, math.nan, 0
    for setting in settings:
        try:
            outcome = method.run(problem, problem.split.fit, privacy, setting, TUNING_SEED)
        except InvalidArgument:
            continue
        tried += 1
        found = score(problem, outcome.params, problem.split.validation)
        if best is None or problem.better(found, best_score):
            best, best_score = setting, found
    if best is None:
        raise InvalidArgument(
            f"none of the {len(settings)} settings can be run on {problem.name}: widen its grid."
        )
    return best, best_score, tried


def curve(problem: Problem, outcome: Outcome) -> dict[str, list[float]]:
    """Test score along the run, at up to 20 points: share of the run, score."""
    space = ParameterSpace.of(problem.start(0))
    number = len(outcome.path)
    points = np.unique(np.linspace(0, number - 1, min(number, _CURVE_POINTS)).astype(int))
    found = [score(problem, space.unflatten(outcome.path[i]), problem.split.test) for i in points]
    return {"progress": [float(i + 1) / number for i in points], "score": found}


def compare(
    problem: Problem, name: str, privacy: bs.Privacy, seeds: int, quick: bool
) -> dict[str, Any]:
    """One row: choose, train, score."""
    method = METHODS[name]
    began = time.perf_counter()
    setting, validation, tried = choose(problem, method, privacy, quick)
    chosen_after = time.perf_counter() - began
    runs = [
        method.run(problem, problem.split.train, privacy, setting, seed) for seed in range(seeds)
    ]
    scores = [score(problem, run.params, problem.split.test) for run in runs]
    as_dict = setting if isinstance(setting, dict) else dataclasses.asdict(setting)
    return {
        "method": name,
        "description": method.description,
        "relation": method.relation,
        "records": len(jax.tree.leaves(problem.split.train)[0]),
        "setting": {k: "inf" if v == math.inf else v for k, v in as_dict.items()},
        "settings_tried": tried,
        "validation": validation,
        "scores": scores,
        "mean": float(np.mean(scores)),
        "spread": float(np.std(scores, ddof=1)) if seeds > 1 else None,
        "noise_std": runs[0].noise_std,
        "evaluations": runs[0].evaluations,
        "seconds_choosing": chosen_after,
        "seconds_per_run": float(np.median([run.seconds for run in runs])),
        "curve": curve(problem, runs[0]),
        "jax": jax.__version__,
        "device": f"{jax.devices()[0].platform}, {platform.machine()}",
    }


def table(report: dict[str, Any]) -> Table:
    """The report as a table."""
    title = (
        f"{report['problem']}: {report['metric']} at epsilon {report['epsilon']:g}, "
        f"delta {report['delta']:g}, {report['seeds']} seeds"
        + (" (quick: nothing was chosen)" if report["quick"] else "")
    )
    shown = Table(title=title)
    for header in (
        "method",
        "relation",
        "records",
        report["metric"],
        "setting",
        "evaluations",
        "s",
    ):
        shown.add_column(header)
    for row in report["rows"]:
        spread = "" if row["spread"] is None else f" ± {row['spread']:.4f}"
        setting = ", ".join(f"{k} {v:.4g}" for k, v in _numbers(row["setting"]))
        shown.add_row(
            row["method"],
            row["relation"],
            f"{row['records']:,}",
            f"{row['mean']:.4f}{spread}",
            setting,
            f"{row['evaluations']:.2g}",
            f"{row['seconds_per_run']:.1f}",
        )
    return shown


def _numbers(setting: dict[str, Any]) -> list[tuple[str, float]]:
    kept = [(k, v) for k, v in setting.items() if isinstance(v, int | float)]
    return [(k, v) for k, v in kept if not isinstance(v, bool) and v != 0]


def problems_for(options: argparse.Namespace) -> list[Problem]:
    """The problems of a command line: one, or one for each number of synthetic records."""
    if options.problem == "synthetic":
        return [problems.synthetic(options.dim, number) for number in options.records]
    made: dict[str, Callable[[], Problem]] = {
        "digits": problems.digits,
        "a9a": lambda: problems.a9a(options.a9a),
        "zero-one": lambda: problems.zero_one(options.a9a),
    }
    return [made[options.problem]()]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("problem", choices=list(_EPSILON))
    parser.add_argument("--epsilon", type=float, help="privacy budget; a default for each problem")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="only these rows")
    parser.add_argument("--quick", action="store_true", help="choose nothing: default settings")
    parser.add_argument("--a9a", type=Path, help="folder with a9a and a9a.t in LIBSVM form")
    parser.add_argument("--dim", type=int, default=10, help="of the synthetic problem")
    parser.add_argument("--records", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args(arguments)
    options.epsilon = options.epsilon or _EPSILON[options.problem]
    return options


def file_stem(options: argparse.Namespace) -> str:
    """Name of the result files, without ending."""
    dim = f"-d{options.dim}" if options.problem == "synthetic" else ""
    quick = "-quick" if options.quick else ""
    return f"{options.problem}{dim}-epsilon-{options.epsilon:g}{quick}"


def kept_rows(target: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the file that this run did not make, if they are comparable with those it made."""
    if not target.is_file():
        return []
    before = json.loads(target.read_text())
    same = ("problem", "metric", "dim", "epsilon", "delta", "seeds", "quick")
    if any(before[name] != report[name] for name in same):
        return []
    made = {(row["method"], row["records"]) for row in report["rows"]}
    return [
        row
        for row in before["rows"]
        if (row["method"], row["records"]) not in made and row["method"] in METHODS
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    console = Console(width=180)
    options = parse(arguments)
    # Methods are compared at one rho, on public data; delta is where its epsilon is quoted.
    asked = bs.Privacy(epsilon=options.epsilon, delta=options.delta)
    privacy = bs.Privacy(rho=asked.rho, delta=options.delta)
    given = problems_for(options)
    rows = []
    for problem in given:
        for name in options.methods or list(METHODS):
            if not METHODS[name].settings(problem):
                continue
            row = compare(problem, name, privacy, options.seeds, options.quick)
            console.print(f"{name}: {row['mean']:.4f} ({row['records']:,} records)")
            rows.append(row)
    target = RESULTS / (file_stem(options) + ".json")
    report = {
        "problem": given[0].name,
        "metric": given[0].metric,
        "higher_is_better": given[0].higher_is_better,
        "dim": given[0].dim,
        "epsilon": asked.epsilon,
        "delta": privacy.delta,
        "mu": privacy.rho,
        "seeds": options.seeds,
        "quick": options.quick,
        "rows": rows,
    }
    report["rows"] += kept_rows(target, report)
    report["rows"].sort(key=lambda row: (row["records"], list(METHODS).index(row["method"])))
    console.print(table(report))
    RESULTS.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    plots.utility(report, target.with_suffix(".svg"))
    console.print(f"written: {target} and {target.with_suffix('.svg').name}")


if __name__ == "__main__":
    main()
