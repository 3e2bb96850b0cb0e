"""HTML and pictures of a report. Text is escaped; `Html` is inserted as it is.

Pictures are SVG by matplotlib, which is imported only when one is drawn. Their stand-in colours become
CSS variables of the page, so that they follow its light and dark colours. Names that could clash,
namespaces and metadata are removed, so that a picture refers to nothing outside.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from blindstep.errors import InvalidArgument
from blindstep.planning.statement import round_up
from blindstep.private import accounting

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Html(str):
    """Text that is HTML already."""


def text(value: object) -> Html:
    """Any value as HTML."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def tag(name: str, *inside: object, css: str | None = None) -> Html:
    """An element around its parts."""
    start = name if css is None else f'{name} class="{css}"'
    return Html(f"<{start}>{''.join(map(text, inside))}</{name}>")


def paragraph(*parts: object) -> Html:
    """A paragraph."""
    return tag("p", *parts)


def note(*parts: object) -> Html:
    """A paragraph in small print."""
    return tag("p", *parts, css="note")


def section(heading: str, *parts: str) -> Html:
    """A section of the page; a part that is not HTML is a paragraph of text."""
    whole = (part if isinstance(part, Html) else tag("p", part) for part in parts if part)
    return tag("section", tag("h2", heading), *whole)


def listed(items: Iterable[object]) -> Html:
    """A bullet list."""
    return tag("ul", *(tag("li", item) for item in items))


def tiles(pairs: Iterable[tuple[str, str]]) -> Html:
    """Large numbers with what they are."""
    each = (tag("div", tag("b", big), tag("span", said), css="tile") for big, said in pairs)
    return tag("div", *each, css="tiles")


def facts(rows: Iterable[Sequence[object]]) -> Html:
    """A table of name, value and meaning; on a phone each row becomes a small block."""
    body = [
        tag("tr", tag("th", name), tag("td", value, css="number"), tag("td", said, css="meaning"))
        for name, value, said in rows
    ]
    return tag("div", tag("table", tag("tbody", *body), css="stack"), css="scroll")


def table(
    headings: Sequence[str], rows: Iterable[tuple[str | None, Sequence[object]]], words: int = 1
) -> Html:
    """A table whose first `words` columns are words and the others numbers; rows may have a class."""

    def cells(kind: str, row: Sequence[object]) -> list[Html]:
        return [
            tag("th" if index == 0 else kind, cell, css=None if index < words else "number")
            for index, cell in enumerate(row)
        ]

    body = [tag("tr", *cells("td", row), css=css) for css, row in rows]
    head = tag("thead", tag("tr", *cells("th", headings)))
    return tag("div", tag("table", head, tag("tbody", *body)), css="scroll")


def figure(svg: str, *caption: object, css: str | None = None) -> Html:
    """A picture with its caption."""
    return tag("figure", Html(svg), tag("figcaption", *caption), css=css)


def rounded(value: float, digits: int = 3) -> str:
    """A number for people: a few digits, thousands with commas, never a long row of zeros."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    if size >= digits:
        return f"{value:,.0f}"
    if size < -3:
        return scientific(value, digits - 2)
    said = f"{value:.{digits - 1 - size}f}"
    return said.rstrip("0").rstrip(".") if "." in said else said


def rounded_up(value: float, digits: int = 3) -> str:
    """The same for what is promised: never below `value`."""
    return rounded(float(round_up(value, digits)), digits)


def scientific(value: float, decimals: int = 1) -> str:
    """A number as 2.5 × 10⁻⁶, and 10⁻⁵ where the first factor is 1; never below `value`."""
    above = float(round_up(value, decimals + 1))
    factor, _, exponent = f"{above:.{decimals}e}".partition("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    factor = factor.rstrip("0").rstrip(".") if "." in factor else factor
    return power if factor == "1" else f"{factor} × {power}"


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _FAINT, _ACCENT, _SECOND, _SURFACE = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {
    _INK: "var(--ink-soft)",
    _FAINT: "var(--rule)",
    _ACCENT: "var(--accent)",
    _SECOND: "var(--second)",
    _SURFACE: "var(--surface)",
}
_MOST_POINTS = 160


def epsilon_curve(mu: float, delta: float, slack: float, secrecy: float) -> str:
    """Epsilon against delta, exactly, with the quoted point."""
    logs, epsilons = np.linspace(-12, -2, 60), []
    for log in logs[::-1]:
        try:
            epsilons.insert(0, accounting.epsilon(mu, 10.0**log, slack, secrecy))
        except InvalidArgument:  # below this delta, noise whose tails end promises nothing
            break
    logs = logs[logs.size - len(epsilons) :]
    quoted = accounting.epsilon(mu, delta, slack, secrecy)
    figure, axes = _blank("delta", "epsilon")
    axes.plot(logs, epsilons, color=_ACCENT, linewidth=2)
    axes.plot([math.log10(delta)], [quoted], "o", color=_ACCENT, markersize=6)
    label = f"ε = {rounded_up(quoted)} at δ = {scientific(delta)}"
    # The curve falls, so this corner is always free.
    axes.text(0.99, 0.97, label, color=_INK, ha="right", va="top", transform=axes.transAxes)
    ticks = range(-12, 0, 2)
    axes.set_xticks(ticks, [scientific(10.0**log) for log in ticks])
    axes.set_xlim(-12.5, -1.5)
    axes.set_ylim(0, 1.12 * max([quoted, *epsilons]))
    return _svg(figure, "epsilon-delta", "Epsilon falls as delta grows")


def trade_off_curve(mu: float) -> str:
    """The best that anyone can do to tell two records apart: type II error against type I error."""
    false_alarms = np.linspace(0, 1, 101)
    missed = norm.cdf(norm.ppf(1 - false_alarms) - mu)
    figure, axes = _blank("type I error", "type II error")
    axes.plot([0, 1], [1, 0], color=_INK, linewidth=1, linestyle=(0, (2, 3)))
    axes.fill_between(
        false_alarms, missed, 1 - false_alarms, color=_ACCENT, alpha=0.13, linewidth=0
    )
    axes.plot(false_alarms, missed, color=_ACCENT, linewidth=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0, 0.5, 1], ["0", "50%", "100%"])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    said = "Type II error against type I error of the best attack, just below guessing"
    return _svg(figure, "trade-off", said)


def noise_against_signal(
    released: Float[np.ndarray, " steps"], noise: Float[np.ndarray, " steps"]
) -> str:
    """Norms of released gradients, and of the noise in them, over the steps (root mean squares)."""
    steps, both = _binned(released, noise)
    figure, axes = _blank("step", "norm", wide=True)
    axes.plot(steps, both[1], color=_SECOND, linewidth=2, linestyle=(0, (5, 2)))
    axes.plot(steps, both[0], color=_ACCENT, linewidth=1.6)
    axes.set_ylim(0, 1.15 * float(both.max()))
    axes.set_xlim(0, max(1.0, float(released.size)))
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.locator_params(axis="y", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    said = "Norm of released gradients and of the noise in them over the steps"
    return _svg(figure, "noise", said)


def loss_by_round(loss: Float[np.ndarray, " rounds"]) -> str:
    """The released mean loss of each round, as a share of the first one's."""
    figure, axes = _blank("round", "of the first", wide=True)
    shares = loss / loss[0]
    axes.plot(
        np.arange(1, loss.size + 1), shares, color=_ACCENT, linewidth=1.6, marker="o", markersize=3
    )
    axes.set_ylim(min(0.0, 1.1 * float(shares.min())), 1.1 * float(shares.max()))
    axes.locator_params(axis="x", nbins=8, integer=True)
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    return _svg(figure, "loss", "Released mean loss of each round, as a share of the first one's")


def _binned(
    released: Float[np.ndarray, " steps"], noise: Float[np.ndarray, " steps"]
) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, "2 bins"]]:
    """Root mean squares over at most 160 stretches of steps, and the middle of each."""
    edges = np.linspace(0, released.size, min(released.size, _MOST_POINTS) + 1).round().astype(int)
    counts = np.diff(edges)
    squares = np.add.reduceat(np.stack([released, noise]) ** 2, edges[:-1], axis=1)
    return (edges[:-1] + edges[1:]) / 2.0, np.sqrt(squares / counts)


def _blank(x: str, y: str, *, wide: bool = False) -> tuple[Figure, Axes]:
    """Axes without a frame, with faint horizontal lines."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(5.3, 2.5) if wide else (3.9, 2.7), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x, color=_INK)
        axes.set_ylabel(y, color=_INK)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_FAINT, linewidth=0.8)
    axes.tick_params(length=0, labelcolor=_INK)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(_FAINT)
    return figure, axes


def _svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an SVG element for an HTML page: nothing in it needs another file."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    view = re.search(r'viewBox="([^"]+)"', drawn)
    assert view is not None
    body = drawn[drawn.index(">") + 1 :]
    removed = (
        (r"<metadata>.*?</metadata>", ""),
        (r'<style type="text/css">.*?</style>', ""),
        (r' clip-path="[^"]*"', ""),
        (r"<clipPath.*?</clipPath>", ""),
        (r"<defs>\s*</defs>", ""),
        (r"font-family: [^;\"]*;?", ""),
        (r"<!--.*?-->", ""),
        (r'\bxlink:href="#', f'href="#{name}-'),
        (r'\bid="', f'id="{name}-'),
        (r"\s*\n\s*", " "),
    )
    for pattern, by in removed:
        body = re.sub(pattern, by, body, flags=re.DOTALL)
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, variable)
    return f'<svg viewBox="{view[1]}" role="img" aria-label="{text(description)}">{body}'
