"""What the documents say of PyTorch runs as it is printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPETS = [
    (path.name, number, code)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    if "import torch" in code
]


# PEFT asks transformers 5 for a property by its old name; and what runs as in evaluation is said.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("page", "number", "code"), SNIPPETS, ids=[f"{page}-{number}" for page, number, _ in SNIPPETS]
)
def test_snippets_run(page, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{page}-{number}", "exec"), {})
