"""Plots of the benchmark results: made from the JSON files alone, so they can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def utility(report: dict[str, Any], target: Path) -> None:
    """Scores of all methods: against records if there are several sizes, one line each otherwise."""
    sizes = {row["records"] for row in report["rows"]}
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    if len(sizes) > 1:
        _against_records(axes, report)
    else:
        _side_by_side(axes, report)
    axes.set_title(
        f"{report['problem']}, epsilon {report['epsilon']:g}, delta {report['delta']:g}, "
        f"{report['seeds']} seeds",
        fontsize=10,
    )
    axes.grid(alpha=0.3)
    # Neither date nor random identifiers: the same results give the same file.
    with plt.rc_context({"svg.hashsalt": "blindstep"}):
        figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _style(relation: str) -> dict[str, Any]:
    """Filled for blindstep's own relation; hollow where the promise differs or there is none."""
    return {"markerfacecolor": None if relation == "replace one" else "white"}


def _side_by_side(axes: Any, report: dict[str, Any]) -> None:
    rows = sorted(report["rows"], key=lambda row: row["mean"], reverse=report["higher_is_better"])
    for place, row in enumerate(rows):
        axes.errorbar(
            row["mean"], -place, xerr=row["spread"] or 0.0, fmt="o", capsize=3, color="C0",
            **_style(row["relation"]),
        )  # fmt: skip
        axes.plot(row["scores"], [-place] * len(row["scores"]), "|", color="C0", alpha=0.6)
    labels = [
        row["method"] + ("" if row["relation"] != "none" else " (no privacy)") for row in rows
    ]
    axes.set_yticks([-place for place in range(len(rows))], labels)
    axes.set_xlabel(f"{report['metric']} (hollow: another promise, or none)")


def _against_records(axes: Any, report: dict[str, Any]) -> None:
    names = list(dict.fromkeys(row["method"] for row in report["rows"]))
    for index, name in enumerate(names):
        rows = [row for row in report["rows"] if row["method"] == name]
        axes.errorbar(
            [row["records"] for row in rows],
            [row["mean"] for row in rows],
            yerr=[row["spread"] or 0.0 for row in rows],
            fmt="o-", capsize=3, color=f"C{index}", label=name, **_style(rows[0]["relation"]),
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("records")
    axes.set_ylabel(report["metric"])
    axes.legend(fontsize=8)
