r"""Formulas of the documentation as MathML, made when the site is built: no script shows them.

A hook of MkDocs (`hooks:` in `mkdocs.yml`). Pages hold formulas in the notation that GitHub shows too,
`$...$` in a line and a fence named `math` for one of its own. Of LaTeX it knows what our pages use
(see the tables below); anything else is an error that fails the build, with the formula.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

GREEK = {
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "eta": "η",
    "theta": "θ",
    "mu": "μ",
    "xi": "ξ",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "omega": "ω",
    "Delta": "Δ",
    "Phi": "Φ",
}
OPERATORS = {
    "in": "∈",
    "cdot": "·",
    "times": "×",
    "pm": "±",
    "infty": "∞",
    "nabla": "∇",
    "dots": "…",
    "top": "⊤",
}
SIGNS = {"+": "+", "-": "−", "*": "∗", ",": ",", ".": ".", ":": ":", "!": "!"}
RELATIONS = {"le": "≤", "ge": "≥", "ne": "≠", "gets": "←", "approx": "≈", "sim": "∼"}
FENCES = {
    "langle": "⟨",
    "rangle": "⟩",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "lbrace": "{",
    "rbrace": "}",
}
BAR = '<mo stretchy="false" lspace="0" rspace="0">|</mo>'
PREFIXES = {"-": "−", r"\pm": "±"}
NAMES = {
    "min",
    "max",
    "inf",
    "exp",
    "ln",
    "log",
    "cos",
    "Pr",
}  # upright, with a little space around
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em"}
LIMITS = {"∑", "min", "max"}  # what is below and above them in a formula of its own
SHORT = 32  # characters of a formula that fits on one line of a phone
LINE, END = r"\\", r"\end{aligned}"
TOKEN = re.compile(
    r"\\text\{[^}]*\}|\\(?:begin|end)\{aligned\}|\\[A-Za-z]+|\\.|[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\S"
)


class Unknown(ValueError):
    """A formula with something in it that is not in the tables above."""


class _Reader:
    """Turns the tokens of one formula into MathML, from left to right."""

    def __init__(self, source: str, display: bool) -> None:
        self.source, self.display = source, display
        self.tokens = TOKEN.findall(source)
        self.last = ""  # the token that was taken last

    def peek(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def take(self, wanted: str = "") -> str:
        if not self.tokens or (wanted and self.tokens[0] != wanted):
            raise Unknown(f"{wanted or 'something'} is missing in the formula: {self.source}")
        self.last = self.tokens.pop(0)
        return self.last

    def until(self, *ends: str) -> Iterator[str]:
        """Symbol by symbol up to one of `ends`, which is left where it is."""
        while self.tokens and self.peek() not in ends:
            yield self.scripted()

    def group(self) -> str:
        """One argument: a group in braces, or one symbol."""
        if self.peek() != "{":
            return self.symbol()[0]
        self.take("{")
        inside = _row(self.until("}"))
        self.take("}")
        return inside

    def scripted(self) -> str:
        """One symbol with what is below and above it."""
        base, text = self.symbol()
        scripts = {}
        while self.peek() in ("_", "^", "'"):
            sign = self.take()
            scripts[sign.replace("'", "^")] = "<mo>′</mo>" if sign == "'" else self.group()
        if not scripts:
            return base
        below, above = ("under", "over") if self.display and text in LIMITS else ("sub", "sup")
        tag = "m" + below * ("_" in scripts) + above * ("^" in scripts)
        return f"<{tag}>{base}{scripts.get('_', '')}{scripts.get('^', '')}</{tag}>"

    def symbol(self) -> tuple[str, str]:
        """One symbol as MathML, and as text."""
        if self.peek() == "{":
            return self.group(), ""
        first = self.last in ("", *"([{,:=<>&^") or self.last[1:] in RELATIONS
        if first and self.peek() in PREFIXES:
            return f'<mo form="prefix">{PREFIXES[self.take()]}</mo>', ""
        token = self.take()
        if not token.startswith("\\"):
            return _plain(token), token
        name = token[1:]
        if name in GREEK:
            upright = ' mathvariant="normal"' if name[0].isupper() else ""
            return f"<mi{upright}>{GREEK[name]}</mi>", ""
        if name in RELATIONS:
            return _relation(RELATIONS[name]), ""
        if name in OPERATORS:
            return f"<mo>{OPERATORS[name]}</mo>", ""
        if name in ("lvert", "rvert"):  # in tables, where | ends a cell
            return BAR, ""
        if name in FENCES:
            return f'<mo stretchy="false">{FENCES[name]}</mo>', ""
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"></mspace>', ""
        if name in NAMES:
            space = "0" if self.peek() in ("(", "_", "^") else "0.17em"
            return f'<mo lspace="0.17em" rspace="{space}">{name}</mo>', name
        if name.startswith("text{"):
            text = html.escape(name[5:-1]).replace(" ", "\N{NO-BREAK SPACE}")
            return f"<mtext>{text}</mtext>", ""
        match name:
            case "sum":
                return "<mo>∑</mo>", "∑"
            case "frac":
                return f"<mfrac>{self.group()}{self.group()}</mfrac>", ""
            case "sqrt":
                return f"<msqrt>{self.group()}</msqrt>", ""
            case "tilde":
                return f'<mover accent="true">{self.group()}<mo>~</mo></mover>', ""
            case "begin{aligned}":
                return self.table(), ""
        raise Unknown(f"{token} is not in scripts/formulas.py; the formula: {self.source}")

    def table(self) -> str:
        r"""Lines that end in \\; right of `&` they begin at one place."""
        rows: list[list[str]] = [[]]
        while True:
            rows[-1].append(f"<mtd>{_row(self.until('&', LINE, END))}</mtd>")
            end = self.take()
            if end == LINE:
                rows.append([])
            elif end == END:
                lines = "".join(f"<mtr>{''.join(cells)}</mtr>" for cells in rows)
                return f'<mtable displaystyle="true">{lines}</mtable>'


def _row(parts: Iterator[str]) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"


def _relation(sign: str) -> str:
    return f'<mo lspace="0.28em" rspace="0.28em">{html.escape(sign)}</mo>'


def _plain(token: str) -> str:
    """A letter, a number or a sign."""
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token.isalpha():
        return f"<mi>{token}</mi>"
    if token in "()[]":
        return f'<mo stretchy="false">{token}</mo>'
    if token == "|":
        return BAR
    if token == "/":
        return '<mo lspace="0.1em" rspace="0.1em">/</mo>'
    if token in "=<>":
        return _relation(token)
    if token in SIGNS:
        return f"<mo>{SIGNS[token]}</mo>"
    raise Unknown(f"{token} is not a sign that scripts/formulas.py knows")


def mathml(source: str, display: bool = False) -> str:
    """A formula in LaTeX as MathML; raises `Unknown` where it is beyond this converter.

    A long one in a line of text is made of several elements, one from each relation to the next: a
    browser breaks lines between elements, and not inside of them.
    """
    reader = _Reader(source, display)
    if display:
        return f'<math display="block">{_row(reader.until())}</math>'
    pieces, depth = [""], 0
    while token := reader.peek():
        relation = token in "=<>" or token[1:] in RELATIONS
        if relation and depth == 0 and len(source) > SHORT:
            pieces.append("")
        depth += token in ("(", "[", r"\langle")
        depth -= token in (")", "]", r"\rangle")
        pieces[-1] += reader.scripted()
    return "<wbr>".join(f"<math><mrow>{piece}</mrow></math>" for piece in pieces)


def on_page_content(content: str, **_: object) -> str:
    """MkDocs calls this with the HTML of each page."""

    def line(
        found: re.Match[str],
    ) -> str:  # never apart from the bracket before or the comma behind
        before, source, behind = found.groups()
        pieces = f"{before}{mathml(html.unescape(source))}{behind}".split("<wbr>")
        return "<wbr>".join(f'<span class="whole">{piece}</span>' for piece in pieces)

    def block(found: re.Match[str]) -> str:
        return f'<div class="formula" tabindex="0">{mathml(html.unescape(found[1]), True)}</div>'

    inside = r'([^\s<>]*)<span class="arithmatex">\\\((.*?)\\\)</span>([^\s<]*)'
    content = re.sub(inside, line, content, flags=re.S)
    return re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', block, content, flags=re.S)
