"""Formulas of the documentation as MathML, made when the site is built: no script shows them.

A hook of MkDocs (`hooks:` in `mkdocs.yml`). Pages hold formulas in the notation that GitHub shows too,
`$...$` in a line and a fence named `math` for one of its own.
"""

from __future__ import annotations

import html
import itertools
import re
import xml.etree.ElementTree as ET

from latex2mathml.converter import convert

RELATIONS, OPEN, CLOSE = set("=<>≤≥≠≈∼←"), set("([⟨"), set(")]⟩")
SHORT = 32  # characters of a formula that fits on one line of a phone


def mathml(source: str, display: bool = False) -> str:
    """A formula in LaTeX as MathML.

    A long one in a line of text is made of several elements, one from each relation to the next: a
    browser breaks lines between elements, and not inside of them.
    """
    formula = ET.fromstring(convert(source, display="block" if display else "inline"))
    for part in formula.iter():
        part.tag = part.tag.rpartition("}")[2]
        if part.tag == "mo" and part.text == "|":  # a bar is next to what it encloses
            part.attrib |= {"lspace": "0", "rspace": "0"}
        for before, sign in itertools.pairwise(part):
            if sign.text == "−" and before.text in {*RELATIONS, *OPEN, ","}:
                sign.set("form", "prefix")  # a minus of one number, not of two
    pieces: list[list[ET.Element]] = [[]]
    depth = 0
    for part in formula[0]:
        text = "".join(part.itertext())
        if text in RELATIONS and depth == 0 and len(source) > SHORT and not display:
            pieces.append([])
        depth += sum((sign in OPEN) - (sign in CLOSE) for sign in text)
        pieces[-1].append(part)
    kind = ' display="block"' if display else ""
    made = ("".join(ET.tostring(part, encoding="unicode") for part in own) for own in pieces)
    found = "<wbr>".join(f"<math{kind}><mrow>{each}</mrow></math>" for each in made)
    return re.sub(r"<mn>(\d+)</mn><mo>,</mo><mn>(\d{3})</mn>", r"<mn>\1,\2</mn>", found)


def on_page_content(content: str, **_: object) -> str:
    """MkDocs calls this with the HTML of each page."""

    def line(found: re.Match[str]) -> str:
        # Never apart from the bracket before or the comma behind.
        before, source, behind = found.groups()
        pieces = f"{before}{mathml(html.unescape(source))}{behind}".split("<wbr>")
        return "<wbr>".join(f'<span class="whole">{piece}</span>' for piece in pieces)

    def block(found: re.Match[str]) -> str:
        return f'<div class="formula" tabindex="0">{mathml(html.unescape(found[1]), True)}</div>'

    inside = r'([^\s<>]*)<span class="arithmatex">\\\((.*?)\\\)</span>([^\s<]*)'
    content = re.sub(inside, line, content, flags=re.S)
    return re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', block, content, flags=re.S)
