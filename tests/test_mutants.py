"""The mutants fit the source as it is; `make mutants` puts them in and sees that they are caught."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from mutants_list import MUTANTS  # noqa: E402

sys.path.remove(str(ROOT / "scripts"))
by_name = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)


@by_name
def test_an_edit_finds_its_line_exactly_once_and_is_python(mutant):
    for file, old, new in mutant.edits:
        text = (ROOT / "src" / "blindstep" / file).read_text()
        assert text.count(old) == 1, (file, old)
        assert old != new
        compile(text.replace(old, new), file, "exec")


@by_name
def test_what_is_to_catch_a_mutant_is_there(mutant):
    assert mutant.caught_by
    for catcher in mutant.caught_by:
        if not catcher.startswith("audit "):
            file, _, name = catcher.partition("::")
            text = (ROOT / file).read_text()
            assert f"def {name.partition('[')[0]}(" in text, catcher


def test_no_two_mutants_have_one_name():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
