"""The recipes for PyTorch run as they are printed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recipes-torch.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"{PAGE.name}-{number}", "exec"), {})
