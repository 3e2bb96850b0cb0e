"""Formulas of the documentation: LaTeX in, MathML out, which breaks where lines may."""

import xml.etree.ElementTree as ET

import pytest
from scripts.formulas import mathml, on_page_content


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("c_j^2", "<msubsup><mi>c</mi><mi>j</mi><mn>2</mn></msubsup>"),
        ("1,200", "<mn>1,200</mn>"),
        ("i < t", "<mi>i</mi><mo>&lt;</mo><mi>t</mi>"),
        ("x=-1", '<mi>x</mi><mo>=</mo><mo form="prefix">−</mo><mn>1</mn>'),
        ("|", '<mo stretchy="false" lspace="0" rspace="0">|</mo>'),
    ],
)
def test_a_formula_in_a_line(source, wanted):
    assert mathml(source) == f"<math><mrow>{wanted}</mrow></math>"


def test_a_long_formula_in_a_line_may_break_before_each_relation_outside_of_brackets():
    pieces = mathml(r"E(|e| - C | a = b)_+ \le (a^2 - C^2)_+ / 2C = 1").split("<wbr>")
    assert len(pieces) == 3
    assert all(piece.startswith("<math>") and piece.endswith("</math>") for piece in pieces)


def test_lines_that_are_aligned():
    table = ET.fromstring(mathml(r"\begin{align*} a &= b \\ &+ c \end{align*}", display=True))
    assert [len(row) for row in table.iter("mtr")] == [2, 2]


def test_formulas_of_a_page_are_replaced_and_nothing_else():
    page = r'<p>if <span class="arithmatex">\(i &lt; t\)</span>, \(this\) stays</p>'
    shown = on_page_content(page)
    assert "&lt;</mo>" in shown
    assert shown.startswith('<p>if <span class="whole"><math>')
    assert shown.endswith(r"</math>,</span> \(this\) stays</p>")
