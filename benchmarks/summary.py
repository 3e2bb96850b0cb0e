"""The table of the README, from `results/`: `python -m benchmarks.summary`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_ROWS = [
    ("digits, accuracy, epsilon 4.38", "digits-epsilon-4.38", ""),
    ("the same, 20 passes", "digits-epsilon-4.38", ", 20 passes"),
    ("a9a, test error, epsilon 1", "a9a-epsilon-1", ""),
    ("a9a, test error, epsilon 0.1", "a9a-epsilon-0.1", ""),
    ("0/1 loss on a9a, test error, epsilon 1", "zero-one-epsilon-1", ""),
]
_COLUMNS = ["tight", "DP-AggZO", "DPZero", "first-order", "Adam"]
_HEADINGS = ["blindstep, `tight`", "DP-AggZO", "DPZero", "first-order DP", "no privacy (Adam)"]


def _cell(rows: dict[str, dict[str, Any]], method: str) -> str:
    if method not in rows:
        return "-"
    row = rows[method]
    return f"{row['mean']:.4f} ± {row['spread']:.4f}"


def table() -> str:
    """Mean and standard deviation over seeds of each method on each problem, as Markdown."""
    lines = [
        "| test score | " + " | ".join(_HEADINGS) + " |",
        "|---|" + "---|" * len(_COLUMNS),
    ]
    for label, stem, suffix in _ROWS:
        rows = {r["method"]: r for r in json.loads((RESULTS / f"{stem}.json").read_text())["rows"]}
        cells = [
            _cell(rows, column if column == "Adam" else column + suffix) for column in _COLUMNS
        ]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
