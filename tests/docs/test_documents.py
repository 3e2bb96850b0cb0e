"""What the documents say is true: snippets run, named tests and labels exist, figures are right."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindstep import Result
from blindstep.cli import app
from blindstep.run import planned
from blindstep.run.callbacks import Released
from blindstep.run.result import History

ROOT = Path(__file__).parents[2]
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SNIPPETS = [
    (path, number, code)
    for path in DOCS
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    if "import torch" not in code  # needs PyTorch: tests/networks/test_recipes.py
]
COMMANDS = [
    line.strip().removeprefix("blindstep ")
    for path in DOCS
    for line in path.read_text().splitlines()
    if line.startswith("    blindstep ") and "demo" not in line
]


@pytest.mark.parametrize(
    ("path", "number", "code"), SNIPPETS, ids=[f"{p.name}-{n}" for p, n, _ in SNIPPETS]
)
def test_snippets_run(path, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What nobody limits is as long as on a slow machine: that the code runs is tested, not its answers.
    monkeypatch.setattr(planned, "_MOST", 2**15)
    exec(compile(code, f"{path.name}-{number}", "exec"), {})


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.slow] if command.startswith("audit") else [])
        for command in COMMANDS
    ],
)
def test_commands_run(command):
    assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0


def test_every_test_named_in_the_documents_exists():
    written = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("*.py"))
    for path in DOCS:
        for name in set(re.findall(r"`(test_\w+)`", path.read_text())):
            assert f"def {name}(" in written, f"{path.name} names {name}"


# Pages that are read before anybody audits: how to use it, not why to believe it.
USERS = (
    *("README", "index", "quickstart", "questions", "train", "serve", "hand-over", "public-scales"),
    *("self-scaling", "choosing-parameters", "recipes-sklearn", "recipes-torch", "recipes-people"),
)


def test_pages_for_users_name_no_tests():
    for path in DOCS:
        assert path.stem not in USERS or "`test_" not in path.read_text(), path.name


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_file_named_in_the_documents_exists(path):
    named = re.findall(
        r"`((?:src|tests|scripts|benchmarks|examples|docs)/[\w./-]*)`", path.read_text()
    )
    rooms = (
        "private|ledger|estimate|optimize|planning|losses|processes|run|insight|sklearn|torch|cli"
    )
    named += [
        f"src/blindstep/{name}"
        for name in re.findall(rf"`((?:{rooms})/[\w./-]*)`", path.read_text())
    ]
    for name in set(named):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_formulas_that_markdown_would_spoil_are_marked(path):
    """A browser takes <a, b> for a tag and shows nothing of it; (a)_t begins italics."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "", text)
    assert not re.findall(r"<(?!img\b)[A-Za-z_|][^>]*>|\)_\S", text)


def test_what_the_documents_install_is_there():
    """The package is in no registry: what is installed is a copy of the repository, with its extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for path in DOCS:
        for what in re.findall(r"pip install ([^\s`]+)", path.read_text()):
            name, _, asked = what.strip("'").removesuffix("]").partition("[")
            assert name in (".", "--no-deps", "-c"), f"{path.name}: pip install {what}"
            assert set(asked.split(",")) <= {"", *extras}, f"{path.name}: {what}"
        assert "git clone <" not in path.read_text()


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_no_recipe_scores_the_rows_that_it_trained_on():
    """A score on private rows is a release of its own."""
    code = (ROOT / "docs" / "recipes-sklearn.md").read_text()
    trained = set(re.findall(r"\.fit\((\w+), (\w+)\)", code))
    scored = set(re.findall(r"\.score\((\w+), (\w+)\)", code))
    assert trained
    assert scored
    assert not trained & scored


def test_no_public_quantity_is_a_time():
    """How long a loss took is its records' affair."""
    for public in (History, Result, Released):
        assert not [name for name in public.__annotations__ if re.search("second|time|clock", name)]
