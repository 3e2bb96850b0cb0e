"""A battery of small problems: is an answer ever worse than the start, and is `outcome` true?

    python -m benchmarks.battery                         # epsilon 0.3, 1, 8 and 80, five runs each
    python -m benchmarks.battery --epsilon 1 --seeds 1 --only "k-means, 5 centres"
    python -m benchmarks.battery --show --version 0.2    # the tables of another version's rows
    python -m benchmarks.battery --optima                # the optima alone

`minimize` gets a loss, a start, the data and a budget (delta 1e-6), and nothing else: not even a number
of evaluations, since a run takes a second or two as it is. Each problem (`battery_problems`) has an
optimum that was found without privacy by SciPy and formulas, from `results/battery_optima.json` or
anew where a problem has changed. An answer is judged by its *gain*,

    (mean loss at the start - mean loss at the answer) / (mean loss at the start - best mean loss):

1 is as good as without privacy, 0 is the start, below 0 is worse than it was. Means are over the very
records of the run; over a large fresh sample for losses that draw noise of their own. A problem that
*starts* at its optimum has no way to go: there the loss is counted in units of what a usual start
would have lost (`Case.usual`), so its gain is 0 at best. A refusal leaves the start as it is: gain 0.

A row is one run; it is written to `results/battery.json` as soon as it is there, and a later call goes
on from that file. The data of a problem are fixed, the noise is not: it is the operating system's.
`--reproduce` seeds it, which is for chasing one run and for nothing else.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree
from scipy import optimize, stats

import blindstep as bs
from benchmarks.battery_problems import (
    KINDS,
    NAMES,
    PROBLEMS,
    RECORDS,
    Case,
    Problem,
    case_of,
)

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, OPTIMA = "battery.json", "battery_optima.json"
EPSILONS, SEEDS, DELTA = (0.3, 1.0, 8.0, 80.0), 5, 1e-6
# What issue 29 asks for: of the mean of a problem, of a single run, of a fall as epsilon grows, and of
# the means at the largest epsilon with a gradient and without.
MEAN_GAIN, RUN_GAIN, FALL = -0.02, -0.1, 0.03
AT_MOST_EPSILON, WITH_GRADIENT, WITHOUT = 80.0, 0.95, 0.85
# Within this share of the way to the optimum an answer is there.
THERE = 0.1
# Optimizers: those that compare points are too slow for more parameters.
_FEW, _FEW_FOR_SEARCH = 25, 6

Row = dict[str, Any]
Identity = tuple[str, float, int, str, int]
IDENTITY = ("problem", "epsilon", "seed", "version", "records")
Vector = Float[np.ndarray, " dim"]


# The one place that knows how the library is called.


def answer(case: Case, epsilon: float, seed: int | None = None) -> tuple[PyTree, str, int]:
    """Parameters, `outcome` and the number of steps of one private run."""
    privacy = bs.Privacy(epsilon=epsilon, delta=DELTA)
    result = bs.minimize(
        case.loss, case.start, case.data, privacy=privacy, seed=seed, progress=False
    )
    return result.params, result.outcome, int(result.history.gradient_norm.size)


# Judging, in float64 and without privacy.


class Judge:
    """The mean loss of a case that answers are judged by."""

    def __init__(self, case: Case) -> None:
        self._loss, data = case.judged or (case.loss, case.data)
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: np.asarray(leaf, float), case.start)
            start, self._tree = ravel_pytree(wide)
            self._data = jax.tree.map(_wide, data)
        self.start: Vector = np.asarray(start)
        self._mean = jax.jit(self._mean_of)
        self._slope = jax.jit(jax.value_and_grad(self._mean_of))
        self._each = jax.jit(jax.vmap(jax.grad(self._of_vector), (None, 0)))

    def _of_vector(self, vector: Any, record: PyTree) -> Any:
        return self._loss(self._tree(vector), record)

    def _mean_of(self, vector: Any, data: PyTree) -> Any:
        return jnp.mean(jax.vmap(self._of_vector, (None, 0))(vector, data))

    def vector(self, params: PyTree) -> Vector:
        """Parameters as one vector."""
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
            return np.asarray(ravel_pytree(wide)[0])

    def mean(self, vector: Vector) -> float:
        """The mean loss; infinity where there is none."""
        with jax.enable_x64(True):
            found = float(self._mean(jnp.asarray(vector), self._data))
        return found if math.isfinite(found) else math.inf

    def slope(self, vector: Vector) -> tuple[float, Vector]:
        """The mean loss and its gradient."""
        with jax.enable_x64(True):
            found, gradient = self._slope(jnp.asarray(vector), self._data)
        usable = math.isfinite(float(found)) and bool(np.all(np.isfinite(gradient)))
        return (float(found), np.asarray(gradient)) if usable else (1e300, np.zeros(len(vector)))

    def gradient_and_noise(
        self, params: PyTree, epsilon: float, steps: int, records: int
    ) -> tuple[float, float]:
        """The length of the true gradient, and that of the noise that hides it.

        Both are in units in which the slopes of the records have size 1 along each parameter, so that a
        record's gradient is about sqrt(d) long. With as many steps on all records, clipped there, the
        noise in one of them is about 2 d sqrt(steps) / (records mu) long.
        """
        with jax.enable_x64(True):
            each = np.asarray(self._each(jnp.asarray(self.vector(params)), self._data))
        size = np.sqrt(np.mean(each**2, axis=0))
        mean = np.mean(each, axis=0) / np.where(size > 0, size, 1.0)
        noise = 2.0 * each.shape[1] * math.sqrt(steps) / (records * gaussian(epsilon, DELTA))
        return float(np.linalg.norm(mean)), noise


def _wide(leaf: Any) -> Any:
    leaf = np.asarray(leaf)
    return jnp.asarray(leaf, jnp.float64 if leaf.dtype.kind == "f" else leaf.dtype)


def gaussian(epsilon: float, delta: float) -> float:
    """The mu at which Gaussian differential privacy is (epsilon, delta)-privacy."""

    def excess(mu: float) -> float:
        first, second = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return stats.norm.cdf(first) - np.exp(epsilon + stats.norm.logcdf(second)) - delta

    return float(optimize.brentq(excess, 1e-3, 100.0))


# The optimum, by what has nothing to do with blindstep.


def optimum(case: Case, judge: Judge) -> Row:
    """The best mean loss that formulas and SciPy's optimizers find, and who found it.

    Quasi-Newton from the start, from the hints and from random points; then, of few parameters, Powell
    and Nelder-Mead in turns from the best so far; and differential evolution where a case has a box.
    """
    found = {"start": judge.start}
    found |= {} if case.known is None else {"formula": judge.vector(case.known)}
    found |= {f"hint {k}": judge.vector(hint) for k, hint in enumerate(case.hints)}
    found |= {f"random {k}": point for k, point in enumerate(_random_points(case, judge))}
    for name, point in list(found.items()):
        for method in ("L-BFGS-B", "BFGS"):
            if method == "L-BFGS-B" or len(point) <= _FEW:
                found[f"{method} from {name}"] = _descended(judge, point, method)
    if case.box is not None and len(judge.start) <= _FEW_FOR_SEARCH:
        found["differential evolution"] = _searched(judge, case.box)
    best, value = _lowest(judge, found)
    point, polished = found[best], ""
    for method in ("Nelder-Mead", "Powell") * 2 if len(point) <= _FEW else ():
        trial = _polished(judge, point, method)
        if judge.mean(trial) < value:
            point, value, polished = trial, judge.mean(trial), f", then {method}"
    return {"best": value, "start": judge.mean(judge.start), "by": best + polished, "at": [*point]}


def _lowest(judge: Judge, found: dict[str, Vector]) -> tuple[str, float]:
    values = {name: judge.mean(point) for name, point in found.items()}
    best = min(values, key=lambda name: values[name])
    return best, values[best]


def _random_points(case: Case, judge: Judge) -> list[Vector]:
    chance = np.random.default_rng(0)
    return [
        judge.start + chance.standard_normal(len(judge.start)) * scale
        for scale in np.geomspace(0.5, 2.0, max(case.restarts, 1))[: case.restarts]
    ]


def _descended(judge: Judge, point: Vector, method: str) -> Vector:
    most = {"L-BFGS-B": {"maxfun": 20_000, "maxiter": 5_000, "ftol": 0.0, "gtol": 0.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = most.get(method, {"maxiter": 2_000, "gtol": 0.0})
        return optimize.minimize(judge.slope, point, jac=True, method=method, options=options).x


def _polished(judge: Judge, point: Vector, method: str) -> Vector:
    most = {"maxfev": 1_000 * min(len(point), 8), "xatol": 1e-9, "fatol": 1e-13}
    if method == "Powell":
        most = {"maxfev": most["maxfev"], "xtol": 1e-9, "ftol": 1e-13}
    else:  # a simplex of the size of the point: the default is too small for an optimum at 0
        size = 0.05 * np.maximum(np.abs(point), 0.05 * max(1.0, float(np.max(np.abs(point)))))
        most["initial_simplex"] = point + np.concatenate([np.zeros((1, len(point))), np.diag(size)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.atleast_1d(optimize.minimize(judge.mean, point, method=method, options=most).x)


def _searched(judge: Judge, box: tuple[float, float]) -> Vector:
    limits = [box] * len(judge.start)
    options = {"maxiter": 60, "popsize": 12, "tol": 1e-8, "polish": False, "rng": 0}
    return optimize.differential_evolution(judge.mean, limits, **options).x


def optimum_of(problem: Problem, wanted: int, folder: Path) -> Row:
    """The optimum of a problem, from the file or anew."""
    target = folder / OPTIMA
    known = json.loads(target.read_text()) if target.is_file() else {}
    key, definition = f"{problem.name}, n = {problem.records(wanted)}", problem.definition(wanted)
    if known.get(key, {}).get("definition") == definition:
        return known[key]
    case, began = case_of(problem.name, wanted), time.perf_counter()
    judge = Judge(case)
    made = {"definition": definition, **optimum(case, judge)}
    if case.usual is not None:
        made["usual"] = judge.mean(judge.vector(case.usual))
    made["seconds"] = round(time.perf_counter() - began, 1)
    known = json.loads(target.read_text()) if target.is_file() else {}
    _write(target, {**known, key: made})
    return made


def way(found: Row) -> float:
    """What there is to gain: from the start, or from a usual one where the start is the optimum."""
    return found.get("usual", found["start"]) - found["best"]


# Rows.


def made_row(wanted: Identity, *, reproduce: bool = False, folder: Path | None = None) -> Row:
    """One run of one problem."""
    name, epsilon, seed, _, records = wanted
    problem, found = PROBLEMS[name], optimum_of(PROBLEMS[name], records, folder or RESULTS)
    case, began = case_of(name, records), time.perf_counter()
    row: Row = dict(zip(IDENTITY, wanted, strict=True)) | {"definition": found["definition"]}
    judge = _judge_of(name, records)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            params, outcome, steps = answer(case, epsilon, 1 + seed if reproduce else None)
    except Exception as error:  # a run that breaks is a result, and no reason to stop
        kind = "Refused" if isinstance(error, bs.errors.BlindstepError) else "Failed"
        words = f"{kind}: {type(error).__name__}. {error}"
        params, outcome, steps = case.start, words, 0
    row["seconds"] = round(time.perf_counter() - began, 2)
    vector = judge.vector(params)
    row["loss"] = judge.mean(vector)
    row["gain"] = (found["start"] - row["loss"]) / way(found)
    row["missed"] = (row["loss"] - found["best"]) / way(found)
    row["returned"] = bool(np.array_equal(vector, judge.start))
    if steps and "staircase" not in problem.kinds and math.isfinite(row["loss"]):
        seen = judge.gradient_and_noise(params, epsilon, steps, records)
        row["gradient"], row["noise"] = seen
    row["outcome"] = outcome
    return row


_judges: dict[tuple[str, int], Judge] = {}


def _judge_of(name: str, records: int) -> Judge:
    """The judge of a problem; of the one before nothing is kept, nor of its compiled programs."""
    if (name, records) not in _judges:
        _judges.clear()
        jax.clear_caches()
        _judges[name, records] = Judge(case_of(name, records))
    return _judges[name, records]


def identity(row: Row) -> Identity:
    """What there is one row of."""
    problem, epsilon, seed, version, records = (row[name] for name in IDENTITY)
    return problem, epsilon, seed, version, records


def is_kept(row: Row, asked: set[Identity]) -> bool:
    """Whether a row is among those that are asked for, and its problem is as it was then."""
    if identity(row) not in asked:
        return False
    return row["definition"] == PROBLEMS[row["problem"]].definition(row["records"])


def read_rows(target: Path) -> list[Row]:
    """The rows that were made so far."""
    return json.loads(target.read_text())["rows"] if target.is_file() else []


def add_row(target: Path, row: Row) -> None:
    """Put a row into the file, in place of an older one."""
    others = [each for each in read_rows(target) if identity(each) != identity(row)]
    rows = sorted([*others, row], key=_order)
    lines = ",\n".join(json.dumps(each) for each in rows)  # a line for each row
    _write(target, f'{{"delta": {DELTA}, "rows": [\n{lines}\n]}}\n')


def _order(row: Row) -> tuple[Any, ...]:
    name = row["problem"]
    return row["version"], NAMES.index(name) if name in NAMES else -1, *identity(row)[1:]


def _write(target: Path, what: Any) -> None:
    """Whoever reads sees a whole file."""
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(".part")
    fresh.write_text(what if isinstance(what, str) else json.dumps(what, indent=1) + "\n")
    fresh.replace(target)


# What rows say.


def said(row: Row) -> str:
    """The first words of an outcome."""
    return row["outcome"].split(":")[0].split(".")[0].strip().lower()


PLACES = ("start returned", "worse", "no better", "part of the way", "there")


def place(row: Row) -> str:
    """Where an answer is, in truth: one of `PLACES`."""
    start, worse, level, part, there = PLACES
    if row["returned"]:
        return start
    if row["gain"] < MEAN_GAIN:
        return worse
    if row["missed"] < THERE:
        return there
    return level if row["gain"] <= -MEAN_GAIN else part


def is_true(row: Row) -> bool:
    """Whether an outcome says what is the case.

    "Settled" is true of an answer that is there, or where the gradient is below its noise, and of none
    that is worse than the start; "nothing better than the start" of the start, of which nothing else is
    true but a refusal; "lost in noise" and "still travelling" (or falling) of an answer that is not
    there, the latter of one that gained.
    """
    words, there = said(row), row["missed"] < THERE
    if row["returned"] or words.startswith(("nothing better", "refused")):
        return row["returned"] and words.startswith(("nothing better", "refused"))
    if words.startswith("settled"):
        hidden = row.get("gradient", math.inf) < row.get("noise", 0.0)
        return there or (hidden and row["gain"] >= MEAN_GAIN)
    if words.startswith("lost"):
        return not there
    return not there and row["gain"] > 0


def grouped(rows: Iterable[Row]) -> dict[str, dict[float, list[Row]]]:
    """Rows by problem, in the battery's order, and by epsilon."""
    found: dict[str, dict[float, list[Row]]] = {name: {} for name in NAMES}
    for row in sorted(rows, key=lambda row: row["epsilon"]):
        if row["problem"] in found:
            found[row["problem"]].setdefault(row["epsilon"], []).append(row)
    return {name: by for name, by in found.items() if by}


def mean_gain(rows: Iterable[Row]) -> float:
    """The mean gain of some runs."""
    return float(np.mean([row["gain"] for row in rows]))


def _number(value: float) -> str:
    """A gain: two digits behind the point, or its size where it is far off."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1g}"


def _in_columns(lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Lines of words in columns, those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(wide) if place_ in left else word.rjust(wide)
            for place_, (word, wide) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def table(rows: list[Row], optima: dict[str, Row]) -> str:
    """A line for each problem: its size, best, start, gains, and what was said."""
    groups = grouped(rows)
    epsilons = sorted({epsilon for by in groups.values() for epsilon in by})
    header = ["problem", "records", "start", "best", *(f"epsilon {e:g}" for e in epsilons), "said"]
    lines = [header]
    for name, by in groups.items():
        runs = [row for each in by.values() for row in each]
        cells = []
        for epsilon in epsilons:
            gains = [row["gain"] for row in by.get(epsilon, ())]
            one = _number(float(np.mean(gains))) if gains else "-"
            cells.append(f"{one} / {_number(min(gains))}" if len(gains) > 1 else one)
        said_ = ", ".join(f"{w} {k}" for w, k in collections.Counter(map(said, runs)).items())
        known = optima[name]
        size = f"{runs[0]['records']:,}"
        lines.append([name, size, f"{known['start']:.5g}", f"{known['best']:.5g}", *cells, said_])
    return _in_columns(lines, (0, len(header) - 1))


def confusion(rows: list[Row]) -> str:
    """How often each outcome was said of each truth, and how often it was true."""
    counts: dict[str, collections.Counter[str]] = {}
    for row in rows:
        counts.setdefault(said(row), collections.Counter()).update([place(row)])
    lines = [["said", *PLACES, "true"]]
    for words, by in sorted(counts.items()):
        right = sum(is_true(row) for row in rows if said(row) == words)
        share = f"{right} of {sum(by.values())}"
        lines.append([words, *(str(by[each]) for each in PLACES), share])
    return _in_columns(lines)


def by_kind(rows: list[Row]) -> str:
    """Mean gain of the problems of each kind."""
    epsilons = sorted({row["epsilon"] for row in rows})
    kinds: dict[str, Callable[[Problem], bool]] = {
        "all that have a way to go": lambda problem: "already-there" not in problem.kinds,
        "with a gradient": lambda problem: (
            problem.has_gradient and "already-there" not in problem.kinds
        ),
    }
    kinds |= {kind: lambda problem, kind=kind: kind in problem.kinds for kind in KINDS}
    lines = [["kind", "problems", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]]
    for kind, is_of in kinds.items():
        own = [row for row in rows if is_of(PROBLEMS[row["problem"]])]
        if own:
            cells = []
            for epsilon in epsilons:
                # A run that went a million times the way back would hide all others.
                gains = [max(row["gain"], -1.0) for row in own if row["epsilon"] == epsilon]
                cells.append(f"{np.mean(gains):.2f}" if gains else "-")
            lines.append([kind, str(len({row["problem"] for row in own})), *cells])
    return _in_columns(lines)


def failures(rows: list[Row]) -> dict[str, list[str]]:
    """What issue 29 asks for and does not get: by what it asks for, in words."""
    worse, low, falls, short = [], [], [], []
    for name, by in grouped(rows).items():
        means = {epsilon: mean_gain(own) for epsilon, own in by.items()}
        lowest = {epsilon: min(row["gain"] for row in own) for epsilon, own in by.items()}
        for epsilon, mean in means.items():
            if mean < MEAN_GAIN:
                worse.append(f"{name}, epsilon {epsilon:g}: {_number(mean)}")
            if lowest[epsilon] < RUN_GAIN:
                low.append(f"{name}, epsilon {epsilon:g}: {_number(lowest[epsilon])}")
        for less, more in itertools.pairwise(means):
            if means[more] < means[less] - FALL:
                fall = f"{_number(means[less])} at {less:g}, {_number(means[more])} at {more:g}"
                falls.append(f"{name}: {fall}")
        least = WITH_GRADIENT if PROBLEMS[name].has_gradient else WITHOUT
        at = means.get(AT_MOST_EPSILON, math.inf)
        if at < least and "already-there" not in PROBLEMS[name].kinds:
            short.append(f"{name}: {_number(at)}, not {least}")
    return {
        f"mean gain below {MEAN_GAIN}": worse,
        f"a run below {RUN_GAIN}": low,
        f"gain falls by more than {FALL} as epsilon grows": falls,
        f"not there at epsilon {AT_MOST_EPSILON:g}": short,
    }


def printed(rows: list[Row], optima: dict[str, Row]) -> str:
    """All that is printed of some rows of one version."""
    if not rows:
        return "no rows yet"
    worst = min(rows, key=lambda row: row["gain"])
    untrue = [row for row in rows if not is_true(row)]
    failed = [
        f"{what}: {len(found)}\n" + "\n".join(f"  {line}" for line in found)
        for what, found in failures(rows).items()
    ]
    seconds = [row["seconds"] for row in rows]
    return "\n\n".join(
        [
            "Gain, mean / worst run:\n" + table(rows, optima),
            "Mean gain by kind, a run counting with at least -1:\n" + by_kind(rows),
            f"Worst run: {_number(worst['gain'])}, {worst['problem']}, epsilon "
            f"{worst['epsilon']:g}. Seconds for a run: median {np.median(seconds):.1f}, most "
            f"{max(seconds):.1f}.",
            *failed,
            f"What was said, and where the answer was; untrue: {len(untrue)} of {len(rows)}\n"
            + confusion(rows),
        ]
    )


# The command.


def wanted(options: argparse.Namespace) -> list[Identity]:
    """All rows that are asked for: problem by problem, so that a loss is compiled once."""
    return [
        (name, epsilon, seed, options.version, PROBLEMS[name].records(options.records))
        for name in options.only
        for epsilon in options.epsilon
        for seed in range(options.seeds)
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.battery", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PROBLEM")
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each")
    parser.add_argument(
        "--records", type=int, default=RECORDS, help="where a problem leaves it open"
    )
    parser.add_argument("--version", default=bs.__version__, help="the label of the rows")
    parser.add_argument(
        "--reproduce", action="store_true", help="seed the noise by the run's number"
    )
    parser.add_argument("--redo", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    parser.add_argument(
        "--optima", action="store_true", help="find the optima, run nothing private"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes, of one core each")
    return parser.parse_args(arguments)


def _rows_of_problem(asked: list[Identity], reproduce: bool) -> list[Row]:
    return [made_row(each, reproduce=reproduce) for each in asked]


def _made(asked: list[Identity], options: argparse.Namespace) -> Iterator[Row]:
    """Rows as they come; with several processes, those of one problem together."""
    if options.workers < 2:
        for each in asked:
            yield made_row(each, reproduce=options.reproduce)
        return
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    groups: dict[str, list[Identity]] = {}
    for each in asked:
        groups.setdefault(each[0], []).append(each)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
        jobs = [pool.submit(_rows_of_problem, own, options.reproduce) for own in groups.values()]
        for done in concurrent.futures.as_completed(jobs):
            yield from done.result()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print what there is of this version."""
    options = parse(arguments)
    target = RESULTS / ROWS
    optima = {name: optimum_of(PROBLEMS[name], options.records, RESULTS) for name in options.only}
    if options.optima:
        lines = [["problem", "start", "best", "by"]]
        lines += [[n, f"{o['start']:.5g}", f"{o['best']:.5g}", o["by"]] for n, o in optima.items()]
        print(_in_columns(lines, (0, 3)))
        return
    chosen = wanted(options)

    def kept() -> list[Row]:
        return [row for row in read_rows(target) if is_kept(row, set(chosen))]

    if not options.show:
        there = set() if options.redo else {identity(row) for row in kept()}
        asked = [each for each in chosen if each not in there]
        print(f"{len(asked)} runs to make", flush=True)
        for row in _made(asked, options):
            add_row(target, row)
            print(
                f"{row['problem']}, epsilon {row['epsilon']:g}: gain {_number(row['gain'])}, "
                f"{said(row)} ({row['seconds']:.1f} s)",
                flush=True,
            )
    print(printed(kept(), optima))


if __name__ == "__main__":
    main()
