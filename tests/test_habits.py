"""What contributors are asked for: templates that ask about privacy, hooks that call what is there."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEMPLATES = sorted((ROOT / ".github").rglob("*.md"))


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_asks_for_a_privacy_statement(path):
    assert "**Privacy" in path.read_text()


def test_there_are_templates_for_issues_and_requests():
    assert {path.stem for path in TEMPLATES} == {"bug", "idea", "PULL_REQUEST_TEMPLATE"}


def test_the_hooks_are_the_linters_of_make_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    called = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert set(re.findall(r"\$\(BIN\)/([\w-]+)", lint)) <= called
