"""The tables of docs/performance.md, from `results/speed.json`; `benchmarks.summary` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import speed_model
from benchmarks.summary_tables import markdown

RESULTS = Path(__file__).resolve().parent / "results"
NAMES = {
    "svm-tight": "capped-l1 SVM, own full frames, variance reduction",
    "network-826": "ReLU network, one frame in a step",
    "network-100180": "ReLU network, one frame in a step",
}
Result = dict[str, Any]


def _with(key: str) -> list[Result]:
    """The results that have this key."""
    found = json.loads((RESULTS / "speed.json").read_text())["results"]
    return [result for result in found if key in result]


def _rate(number: float) -> str:
    return f"{number / 1e6:.3g} million"


def efficiency() -> str:
    """A round of `minimize` against the bare limit."""
    header = ["problem", "d", "q", "batch", "efficiency", "evaluations / s", "compile"]
    lines = [
        [
            NAMES[row["problem"]],
            f"{row['dim']:,}",
            f"{row['directions']:,}",
            f"{row['first_batch']:,}",
            f"{row['efficiency']:.3f}",
            _rate(row["evaluations_per_second"]),
            f"{row['compile_seconds']:.1f} s",
            f"{row['full_bytes'] / 1e6:.1f} : {row['bare_bytes'] / 1e6:.1f} MB",
        ]
        for row in _with("problem")
    ]
    return markdown([*header, "memory, full : bare"], lines)


def presets() -> str:
    """The SVM with the directions of two methods, in turn in one process."""
    (row,) = _with("presets")
    columns = (row["presets"], row["microseconds_per_record"], row["times_as_long_as_tight"])
    lines = [
        [name, f"{each:.0f}", f"{times:.1f}"] for name, each, times in zip(*columns, strict=True)
    ]
    return markdown(["method and directions", "microseconds for a record", "times as long"], lines)


def peers() -> str:
    """What people have today."""
    names = [name.removesuffix("-tight") for name in NAMES]
    ours = {row["problem"].removesuffix("-tight"): row for row in _with("problem")}
    lines = []
    for row in sorted(_with("peers"), key=lambda each: names.index(each["peers"])):
        here, twin = ours[row["peers"]], row["numpy_twin_microseconds_per_record"]
        own = here["microseconds_per_record"]
        rates = (here["evaluations_per_second"], row["torch_evaluations_per_second"])
        numbers = [f"{own:,.0f}", f"{twin:,.0f}", f"{twin / own:,.0f}", *map(_rate, rates)]
        lines.append([row["peers"], *numbers])
    header = ["problem", "microseconds for a record", "NumPy twin", "times as long"]
    return markdown([*header, "evaluations / s", "DPZero's step, eager PyTorch"], lines)


def growth() -> str:
    """How time grows with sizes."""
    lines = []
    for row in _with("growth"):
        sizes = row["sizes"]
        if row["growth"].startswith("records"):  # there they are steps
            sizes = [shape["records"] for shape in row["shapes"]]
        lines.append([row["growth"], f"{sizes[0]:,} .. {sizes[-1]:,}", f"{row['exponent']:.3f}"])
    return markdown(["what grows", "sizes", "exponent"], lines)


def stream() -> str:
    """Memory of runs over records on disk."""
    lines = [
        [
            f"{row['stream']:,}",
            f"{row['file_bytes'] / 1e6:.0f} MB",
            f"{row['peak_bytes'] / 1e6:.0f} MB",
        ]
        for row in _with("stream")
    ]
    return markdown(["records", "mapped file", "memory beside it"], lines)


def model() -> str:
    """The cost model."""
    return f"```text\n{speed_model.told(_with('model'))}\n```"


TABLES: dict[str, Callable[[], str]] = {
    "efficiency": efficiency,
    "presets": presets,
    "peers": peers,
    "growth": growth,
    "stream": stream,
    "model": model,
}
