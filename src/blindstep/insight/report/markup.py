"""Small pieces of HTML. Whatever goes in as text comes out escaped; `Html` goes in as it is."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from blindstep.private.statement import round_up

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


def section(heading: str, *parts: object) -> Html:
    """A section of the page."""
    return tag("section", tag("h2", heading), *parts)


def listed(items: Iterable[object]) -> Html:
    """A bullet list."""
    return tag("ul", *(tag("li", item) for item in items))


def tiles(pairs: Iterable[tuple[str, str]]) -> Html:
    """Large numbers with what they are."""
    return tag(
        "div",
        *(tag("div", tag("b", big), tag("span", said), css="tile") for big, said in pairs),
        css="tiles",
    )


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
