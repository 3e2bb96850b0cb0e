"""The tables of README.md and docs/, from `results/`: `python -m benchmarks.summary` writes them.

A table stands between two comments, `<!-- name -->` and `<!-- /name -->`; what is between them is made
anew. A table whose results are not there yet is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import blindstep as bs
from benchmarks import summary_speed, utility
from benchmarks.summary_tables import markdown
from benchmarks.utility_methods import (
    AGGREGATED,
    BLINDSTEP,
    DIFFPRIVLIB,
    FIRST_ORDER,
    FREE,
    GRADIENTS,
    INDEPENDENT,
    METHODS,
    ONE_DIRECTION,
    OPACUS,
    SETTINGS,
    ZEROTH_ORDER,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
COMPACT = (BLINDSTEP, GRADIENTS, OPACUS, DIFFPRIVLIB, FIRST_ORDER, FREE)
RIVALS = (OPACUS, DIFFPRIVLIB, AGGREGATED, ONE_DIRECTION, FIRST_ORDER)
HEADINGS = {
    BLINDSTEP: "blindstep",
    GRADIENTS: "blindstep on gradients",
    OPACUS: "Opacus",
    DIFFPRIVLIB: "diffprivlib",
    AGGREGATED: "DP-AggZO, tuned",
    ONE_DIRECTION: "DPZero, tuned",
    FIRST_ORDER: "first order, tuned",
    FREE: "no privacy, tuned",
}
POINTS = f"Points on test records, mean of {utility.SEEDS} seeds"
CAVEAT = (
    "Every epsilon is for a record that is replaced by any other. A tuned method took the best of "
    f"{SETTINGS} settings by validation. **The privacy of that choice is not accounted for**: on "
    "private records it would get less. Nothing was tuned in the other columns. "
    f"blindstep's defaults were set without {', '.join(utility.UNTOUCHED[:-1])} and "
    f"{utility.UNTOUCHED[-1]}, but for two of the comparison with the start, which their first scores "
    "led to."
)

Row = dict[str, Any]


# Utility.


def utility_rows() -> list[Row]:
    """The rows in the original units, in the order of the file."""
    rows = json.loads((RESULTS / utility.FILE).read_text())["rows"]
    return [row for row in rows if row["units"] == utility.ORIGINAL and row["method"] in METHODS]


def is_of_this_version(row: Row) -> bool:
    """Whether the code that made a row is what ships; others' code does not change with it."""
    return row["method"] in INDEPENDENT or row.get("version", bs.__version__) == bs.__version__


def _caption(rows: list[Row]) -> str:
    """What a table must say of its rows."""
    old = sorted({row["version"] for row in rows if not is_of_this_version(row)})
    return CAVEAT + (f" †: made with version {', '.join(old)}, not this one." if old else "")


def _cells(rows: list[Row], spread: bool) -> Callable[[str, float, str], str]:
    """Points of a problem at an epsilon by a method."""
    found = {(r["problem"], r["epsilon"], r["method"]): r for r in rows}

    def cell(problem: str, epsilon: float, method: str) -> str:
        row = found.get((problem, None if method == FREE else epsilon, method))
        if row is None:
            return "-"
        # With spaces that do not break.
        told = f"{row['mean']:.1f}" + (f"\u00a0±\u00a0{row['spread']:.1f}" if spread else "")
        return told if is_of_this_version(row) else f"{told}†"

    return cell


def _problems(rows: list[Row]) -> dict[str, str]:
    """The problems that there are rows of, each with its number of records and of parameters."""
    sizes = {row["problem"]: f"{row['records']:,} × {row['dim']}" for row in rows}
    return {name: f"{name}, {sizes[name]}" for name in utility.PROBLEMS if name in sizes}


def utility_in_short() -> str:
    """For the README: all epsilons in one cell."""
    rows = utility_rows()
    cell, epsilons = _cells(rows, spread=False), utility.EPSILONS

    def both(problem: str, method: str) -> str:
        cells = [cell(problem, epsilon, method) for epsilon in epsilons]
        return " / ".join(cells) if len(set(cells)) > 1 else cells[0]

    lines = [[title, *(both(name, m) for m in COMPACT)] for name, title in _problems(rows).items()]
    header = ["problem, records × d", *(HEADINGS[method] for method in COMPACT)]
    budgets = " / ".join(f"{epsilon:g}" for epsilon in epsilons)
    return f"{POINTS}, at epsilon {budgets}. {_caption(rows)}\n\n{markdown(header, lines)}"


def utility_in_full() -> str:
    """For the page about benchmarks."""
    rows = utility_rows()
    cell = _cells(rows, spread=True)
    lines = [
        [title, f"{epsilon:g}", *(cell(name, epsilon, method) for method in METHODS)]
        for epsilon in utility.EPSILONS
        for name, title in _problems(rows).items()
    ]
    header = ["problem, records × d", "epsilon", *(HEADINGS[method] for method in METHODS)]
    return f"{POINTS} (± standard deviation). {_caption(rows)}\n\n{markdown(header, lines)}"


def margins() -> str:
    """Points of blindstep less those of another, over the problems that both have rows of."""
    rows = filter(is_of_this_version, utility_rows())
    means = {(r["problem"], r["epsilon"], r["method"]): r["mean"] for r in rows}

    def cells(rival: str, epsilon: float) -> list[str]:
        gaps = {
            name: means[name, epsilon, BLINDSTEP] - means[name, epsilon, rival]
            for name in utility.PROBLEMS
            if {(name, epsilon, BLINDSTEP), (name, epsilon, rival)} <= means.keys()
        }
        if not gaps:
            return ["-"] * 4
        new = [gaps[name] for name in utility.UNTOUCHED if name in gaps]
        worst = min(gaps, key=lambda name: gaps[name])
        mean = f"{np.mean(list(gaps.values())):+.1f}"
        least = f"{min(new):+.1f}" if new else "-"
        return [str(len(gaps)), mean, f"{gaps[worst]:+.1f} ({worst})", least]

    lines = [
        [HEADINGS[rival], f"{epsilon:g}", *cells(rival, epsilon)]
        for epsilon in utility.EPSILONS
        for rival in RIVALS
    ]
    header = ["blindstep less", "epsilon", "problems", "mean", "least", "least of the four"]
    return markdown(header, lines)


def costs() -> str:
    """Evaluations of a record by a run at epsilon 1, and behind the stroke its seconds."""
    found = {(r["problem"], r["method"]): r for r in utility_rows() if r["epsilon"] in (1.0, None)}

    def cell(problem: str, method: str) -> str:
        row = found.get((problem, method), {})
        if "seconds_a_run" not in row:
            return "-"
        made = row["evaluations"]
        return f"{'?' if made is None else f'{made:,.0f}'} / {row['seconds_a_run']:.1f}"

    lines = [[name, *(cell(name, m) for m in METHODS)] for name in _problems(utility_rows())]
    return markdown(["problem", *(HEADINGS[m] for m in METHODS)], lines)


def evaluations() -> str:
    """Evaluations of a record until a run is near "no privacy"; how near it came where it never was."""
    rows = utility_rows()
    found = {(r["problem"], r["method"]): r for r in rows if r["path"]}
    free = {r["problem"]: r["validation"] for r in rows if r["method"] == FREE}

    def cell(problem: str, method: str) -> str:
        row = found.get((problem, method))
        if row is None:
            return "-"
        old = "" if is_of_this_version(row) else "†"
        if row["reached"] is None:
            return f"not reached ({utility.closest(row, rows):.1f} short){old}"
        return (f"{row['reached']:,.2g}" if row["reached"] < 10 else f"{row['reached']:,.0f}") + old

    lines = [
        [
            problem,
            f"{free[problem] - utility.WITHIN:.1f}",
            *(cell(problem, m) for m in ZEROTH_ORDER),
        ]
        for problem in utility.PROBLEMS
        if problem in free
    ]
    return markdown(["problem", "points to reach", *(HEADINGS[m] for m in ZEROTH_ORDER)], lines)


def printed(rows: list[Row]) -> str:
    """What `python -m benchmarks.utility` prints."""
    if not rows:
        return "no rows yet"
    lines = [utility_in_full(), margins(), f"At epsilon {utility.PATH_EPSILON:g}:\n{evaluations()}"]
    for epsilon in utility.EPSILONS:
        moved = list(utility.unit_gaps(rows, epsilon).values())
        if moved:
            lines.append(
                f"epsilon {epsilon:g}: lost in other units, mean {np.mean(moved):+.2f}, mean size "
                f"{np.mean(np.abs(moved)):.2f}, most {max(moved):+.2f} points"
            )
    return "\n\n".join(lines)


# Others.


def finetune() -> str:
    """Accuracy of the tuned language model, mean over seeds; of a tuned peer its best setting."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for row in _finetune_rows():
        if "test" in row:
            # A run at another epsilon in the same steps has a line of its own.
            name = row.get("method") or row["part"].replace("-", " ")
            if "clip_share" in row:
                name += f", clip {row['clip_share']:g}"
            key = (row["problem"], name, row.get("epsilon"), row.get("evaluations", 0), row["part"])
            setting = tuple(row.get(each) for each in ("clip", "rate"))
            groups.setdefault(key, {}).setdefault(setting, []).append(row)
    lines = []
    for (problem, name, epsilon, passes, _), settings in groups.items():
        best = max(settings.values(), key=lambda runs: runs[0]["validation"])
        tests = [100 * run["test"] for run in best]
        spread = f" ± {np.std(tests, ddof=1):.1f}" if len(tests) > 1 else ""
        budget = "-" if epsilon is None else f"{epsilon:g}"
        counts = (f"{passes:,}" if passes else "-", str(len(settings)), str(len(tests)))
        lines.append([problem, name, budget, *counts, f"{np.mean(tests):.1f}{spread}"])
    header = ["problem", "method", "epsilon", "forward passes", "settings tried", "seeds"]
    return markdown([*header, "test accuracy, %"], lines)


def throughput() -> str:
    """Forward passes a second and peak memory, beside bare inference."""
    lines = []
    for row in (each for each in _finetune_rows() if each["part"] == "throughput"):
        speeds = [row[who]["a_second"] for who in ("bare", "blindstep")]
        peaks = [f"{row[who]['peak'] / 2**20:.0f}" for who in ("bare", "blindstep")]
        ratios = [f"{row['speed_ratio']:.2f}", f"{row['memory_ratio']:.2f}"]
        numbers = [str(row["batch"]), *(f"{each:,.0f}" for each in speeds), ratios[0], *peaks]
        lines.append([*numbers, ratios[1]])
    header = [
        "batch",
        "bare, a second",
        "blindstep, a second",
        "ratio",
        "bare, MiB",
        "blindstep, MiB",
    ]
    return markdown([*header, "ratio less the largest layer"], lines)


def networks() -> str:
    """Networks trained from scratch: points, and behind the stroke seconds; means over seeds."""
    found: dict[tuple[str, str, float], list[Row]] = {}
    for line in (RESULTS / "networks.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault((row["model"], row["method"], row["epsilon"]), []).append(row)

    def cell(model: str, method: str, epsilon: float) -> str:
        rows = found.get((model, method, epsilon), [])
        if not rows:
            return "-"
        each = [row["points"] for row in rows]
        spread = f"\u00a0±\u00a0{np.std(each, ddof=1):.1f}" if len(each) > 1 else ""
        seconds = np.mean([row["seconds"] for row in rows])
        return f"{np.mean(each):.1f}{spread} / {seconds:.0f}"

    private = ("gradients", "Opacus", "values", "0.2")
    keys = dict.fromkeys((m, e) for m, _, e in sorted(found, key=lambda key: key[2]) if e)
    lines = [
        [model, f"{epsilon:g}", *(cell(model, each, epsilon) for each in private)]
        + [cell(model, "Adam", 0.0)]
        for model, epsilon in sorted(keys)
    ]
    header = ["model", "epsilon", "gradients", "Opacus, untuned", "values", "values, 0.2"]
    return markdown([*header, "Adam, no privacy"], lines)


def _finetune_rows() -> list[Row]:
    return json.loads((RESULTS / "finetune.json").read_text())["rows"]


def text_of(name: str) -> Callable[[], str]:
    """What a benchmark printed."""
    return lambda: f"```text\n{json.loads((RESULTS / f'{name}.json').read_text())['text']}\n```"


# The documents.

TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"utility": utility_in_short},
    "docs/benchmarks.md": {
        "utility": utility_in_full,
        "margins": margins,
        "costs": costs,
        "evaluations": evaluations,
        "finetune": finetune,
        "throughput": throughput,
        "networks": networks,
    },
    "docs/performance.md": summary_speed.TABLES,
    "docs/frames.md": {name: text_of(name) for name in ("frame_bias", "frames_speed")},
}


def rewritten(document: str, text: str) -> str:
    """The text of a document with its tables made anew."""
    for name, make in TABLES[document].items():
        block = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        if len(block.findall(text)) != 1:
            raise ValueError(f"{document} needs one pair of <!-- {name} --> and <!-- /{name} -->")
        try:
            made = make()
        except FileNotFoundError:
            continue
        text = block.sub(lambda _, made=made: f"\n{made}\n\n", text)
    return text


def main() -> None:
    """Write all tables."""
    for document in TABLES:
        path = ROOT / document
        path.write_text(rewritten(document, path.read_text()))
        print(f"written: {document}")


if __name__ == "__main__":
    main()
