"""Formulas of the documentation: LaTeX in, MathML out; what is not known fails the build."""

import xml.etree.ElementTree as ET

import pytest
from scripts.formulas import Unknown, mathml, on_page_content


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x_{t+1}", "<msub><mi>x</mi><mrow><mi>t</mi><mo>+</mo><mn>1</mn></mrow></msub>"),
        ("c_j^2", "<msubsup><mi>c</mi><mi>j</mi><mn>2</mn></msubsup>"),
        (r"\sqrt{d}", "<msqrt><mrow><mi>d</mi></mrow></msqrt>"),
        (r"\frac 1 n", "<mfrac><mn>1</mn><mi>n</mi></mfrac>"),
        ("1,200", "<mn>1,200</mn>"),
        (
            "c_1, c_2",
            "<msub><mi>c</mi><mn>1</mn></msub><mo>,</mo><msub><mi>c</mi><mn>2</mn></msub>",
        ),
        (r"\text{a & b}", "<mtext>a\N{NO-BREAK SPACE}&amp;\N{NO-BREAK SPACE}b</mtext>"),
        ("-x", '<mo form="prefix">−</mo><mi>x</mi>'),
        ("s'", "<msup><mi>s</mi><mo>′</mo></msup>"),
    ],
)
def test_a_formula_in_a_line(source, wanted):
    assert mathml(source) == f"<math><mrow>{wanted}</mrow></math>"


def test_limits_stand_below_a_sum_in_a_formula_of_its_own_only():
    assert "<munderover>" in mathml(r"\sum_{i=1}^n e_i", display=True)
    assert "<msubsup>" in mathml(r"\sum_{i=1}^n e_i")


def test_a_long_formula_in_a_line_may_break_before_each_relation_outside_of_brackets():
    pieces = mathml(r"E(|e| - C | a = b)_+ \le (a^2 - C^2)_+ / 2C = 1").split("<wbr>")
    assert len(pieces) == 3
    assert all(piece.startswith("<math>") and piece.endswith("</math>") for piece in pieces)


def test_lines_that_are_aligned():
    table = ET.fromstring(mathml(r"\begin{aligned} a &= b \\ &+ c \end{aligned}", display=True))
    assert [len(row) for row in table.iter("mtr")] == [2, 2]


@pytest.mark.parametrize("source", [r"\mathbb R", "{x", "x}", r"\frac 1", "a # b", "x_"])
def test_what_it_does_not_know_is_an_error(source):
    with pytest.raises(Unknown):
        mathml(source)


def test_formulas_of_a_page_are_replaced_and_nothing_else():
    page = r'<p>if <span class="arithmatex">\(i &lt; t\)</span>, \(this\) stays</p>'
    shown = on_page_content(page)
    assert "&lt;</mo>" in shown
    assert shown.startswith('<p>if <span class="whole"><math>')
    assert shown.endswith(r"</math>,</span> \(this\) stays</p>")
