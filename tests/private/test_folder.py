"""The folder that is audited: what it says about itself is true."""

import re
from pathlib import Path

import blindstep.private

FOLDER = Path(blindstep.private.__file__).parent
TEXTS = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
ABOUT = " ".join(blindstep.private.__doc__.split())


def test_it_is_read_in_one_sitting():
    """At 200 words a minute, code too."""
    lines = sum(text.count("\n") for text in TEXTS.values())
    words = sum(len(text.split()) for text in TEXTS.values())
    said = re.search(r"\(([\d,]+) lines, ([\d,]+) words\)", ABOUT)
    assert lines <= 2000
    assert abs(lines - int(said[1].replace(",", ""))) < 100
    assert abs(words - int(said[2].replace(",", ""))) < 600
    assert 65 <= words / 200 <= 80
    assert "It takes an hour and a quarter to read" in ABOUT
    assert max(text.count("\n") for text in TEXTS.values()) <= 400


def test_every_module_is_named_in_the_order_of_reading():
    named = set(re.findall(r"`(\w+)`", ABOUT))
    assert TEXTS.keys() - {"__init__"} <= named


def test_it_imports_nothing_of_the_package_but_errors_and_itself():
    for text in TEXTS.values():
        found = set(re.findall(r"^\s*(?:from|import) (blindstep\S*)", text, re.MULTILINE))
        assert all(re.match(r"blindstep\.(errors|private)\b", name) for name in found)
