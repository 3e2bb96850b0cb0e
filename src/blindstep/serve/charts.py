"""Where charts.html draws: points of lines and bands, bars. Pictures are SVG, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Where charts.html draws inside a picture: from the left and from the top, and how wide and tall.
_LEFT, _TOP, _WIDE, _TALL = 46, 10, 304, 116


def path(
    low: float, high: float, values: Sequence[float], noise: Sequence[float], steps: int
) -> dict[str, Any]:
    """The points of a line over the steps, and of a band of one standard deviation of the noise.

    `values` begins with the start; `noise` has one entry less.
    """

    def point(step: int, value: float) -> tuple[float, float]:
        return _step(step, steps), _height((value - low) / (high - low))

    spread = list(zip(values, [0.0, *noise], strict=True))
    above = [point(i, value + s) for i, (value, s) in enumerate(spread)]
    below = [point(i, value - s) for i, (value, s) in enumerate(spread)]
    return {
        "low": low,
        "high": high,
        "marks": [(point(step, low)[0], step) for step in (0, steps // 2, steps)],
        "band": above + below[::-1],
        "line": [point(i, value) for i, value in enumerate(values)],
    }


def content(curve: Sequence[dict[str, Any]], steps: int) -> dict[str, Any] | None:
    """The lines of how content people were, with a band of one standard deviation of the noise.

    None where nothing can be told yet.
    """
    lines: dict[str, Any] = {}
    for name in ("shown", "now", "start"):
        known = [(at + 1, each[name]) for at, each in enumerate(curve) if each[name] is not None]
        if not known:
            continue
        values = [(_step(at, steps), _height(mean["value"])) for at, mean in known]
        above = [(_step(at, steps), _height(mean["value"] + mean["std"])) for at, mean in known]
        below = [(_step(at, steps), _height(mean["value"] - mean["std"])) for at, mean in known]
        lines[name] = {"line": values, "band": above + below[::-1], "latest": known[-1][1]}
    return lines or None


def _step(step: int, steps: int) -> float:
    return _LEFT + _WIDE * step / max(steps, 1)


def _height(share: float) -> float:
    return _TOP + _TALL * (1.0 - min(max(share, 0.0), 1.0))


def signal(heard: Sequence[float], steps: int) -> dict[str, Any]:
    """The bars of what each step heard, in lengths of the noise; a line shows where noise alone is."""
    top = max(2.0, *heard)
    width = _WIDE / max(steps, 12)
    return {
        "top": top,
        "noise": _TOP + _TALL * (1.0 - 1.0 / top),
        "bars": [(_LEFT + width * i + 1, _TALL * each / top) for i, each in enumerate(heard)],
        "width": max(width - 2, 1),
        "latest": heard[-1],
        "steps": steps,
    }
