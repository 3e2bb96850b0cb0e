"""Pictures of the dashboard: SVG inside the page, coloured by its style sheet, without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 24


def _number(value: float) -> str:
    return f"{value:.3g}"


def _frame(title: str, inside: list[str], height: int = _HEIGHT) -> Markup:
    """An SVG with a title that a screen reader says."""
    body = "".join(inside)
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
    )


def _text(x: float, y: float, said: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(
    name: str, low: float, high: float, values: Sequence[float], noise: Sequence[float], steps: int
) -> Markup:
    """A parameter over the steps: a line, and a band of one standard deviation of the noise.

    `values` begins with the start; `noise` has one entry less.
    """
    inner, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(step: float) -> float:
        return _LEFT + inner * step / max(steps, 1)

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return _TOP + height * (1.0 - share)

    parts = [_line(_LEFT, y(v), _WIDTH - _RIGHT, y(v), "grid") for v in (low, high)]
    parts += [_text(_LEFT - 6, y(v) + 4, _number(v), "end") for v in (low, high)]
    parts += [_text(x(step), _HEIGHT - 6, str(step)) for step in (0, steps // 2, steps)]
    band = [0.0, *noise]
    above = [
        f"{x(i):.1f},{y(v + s):.1f}" for i, (v, s) in enumerate(zip(values, band, strict=True))
    ]
    below = [
        f"{x(i):.1f},{y(v - s):.1f}" for i, (v, s) in enumerate(zip(values, band, strict=True))
    ]
    parts.append(f'<polygon class="band" points="{" ".join(above + below[::-1])}"/>')
    line = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
    parts.append(f'<polyline class="line" points="{line}"/>')
    parts.append(
        f'<circle class="dot" cx="{x(len(values) - 1):.1f}" cy="{y(values[-1]):.1f}" r="3.5"/>'
    )
    spread = f", give or take {_number(band[-1])}" if noise else ""
    said = f"{name} over {len(values) - 1} of {steps} steps: now {_number(values[-1])}{spread}"
    return _frame(said, parts)


def hours(counts: Sequence[tuple[int, int, int]]) -> Markup:
    """Answers in each of the last hours, as bars; hours without any are gaps."""
    last = counts[-1][0]
    first = max(counts[0][0], last - 47)
    shown = [(hour, answers) for hour, _, answers in counts if hour >= first]
    most = max(1, *(answers for _, answers in shown))
    top = _round_up(most)
    inner, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    number = max(last - first + 1, 12)
    width = inner / number
    parts = [_line(_LEFT, _TOP + height, _WIDTH - _RIGHT, _TOP + height)]
    parts += [_line(_LEFT, _TOP, _WIDTH - _RIGHT, _TOP, "grid")]
    parts += [_text(_LEFT - 6, _TOP + 4, f"{top:,}", "end"), _text(_LEFT - 6, _TOP + height + 4, "0", "end")]  # noqa: E501  # fmt: skip
    for hour, answers in shown:
        tall = height * answers / top
        left = _LEFT + width * (hour - last + number - 1)
        parts.append(
            f'<rect class="bar" x="{left + 1:.1f}" y="{_TOP + height - tall:.1f}" '
            f'width="{max(width - 2, 1):.1f}" height="{tall:.1f}"/>'
        )
    for hour in (last - number + 1, last):
        anchor = "end" if hour == last else "start"
        where = _WIDTH - _RIGHT if hour == last else _LEFT
        parts.append(_text(where, _HEIGHT - 6, _clock(hour), anchor))
    return _frame(f"Answers per hour; {shown[-1][1]:,} in the hour of {_clock(last)}", parts)


def _clock(hour: int) -> str:
    return datetime.fromtimestamp(3600 * hour, UTC).strftime("%d %b %H:00")


def _round_up(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ..."""
    size = 10 ** int(math.log10(max(value, 1)))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value)
