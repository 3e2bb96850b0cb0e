"""The documentation as a site: it builds without a warning, and no public name is missing."""

import inspect
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import norm

import blindstep
from blindstep.private import accounting

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text()
PUBLIC = [getattr(blindstep, name) for name in blindstep.__all__]


def public_parts():
    """Every public object with its public methods and properties, by full name."""
    for thing in PUBLIC:
        yield f"{thing.__name__}", thing
        if inspect.isclass(thing):
            for name, part in vars(thing).items():
                if not name.startswith("_") and (
                    inspect.isfunction(part) or isinstance(part, property | classmethod)
                ):
                    yield f"{thing.__name__}.{name}", part


def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pages = [page.read_text() for page in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > 8
    for page in pages:  # what a page loads by itself comes from the site
        for address in re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="([^"]+)"', page):
            assert not address.startswith(("http", "//")), address


@pytest.mark.parametrize("name", blindstep.__all__)
def test_every_public_name_is_in_the_reference(name):
    thing = getattr(blindstep, name)
    if inspect.ismodule(thing):  # what it shares with the package is listed once
        parts = [part for part in vars(thing).values() if inspect.isclass(part)]
        kinds = [part for part in parts if part.__module__ == thing.__name__]
        inside = [part.__name__ for part in kinds if issubclass(part, Exception)]
        assert all(f"::: {thing.__name__}.{part}\n" in API for part in inside), inside
    else:
        assert f"::: blindstep.{name}\n" in API


def test_every_public_name_has_a_docstring():
    for name, part in public_parts():
        assert (inspect.getdoc(part) or "").strip(), name


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    for page in (ROOT / "docs").glob("*.md"):
        assert f" {page.name}\n" in navigation, page.name


def test_the_table_of_epsilons():
    page = (ROOT / "docs" / "choosing-parameters.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| .*?most ([\d.]+)%", page, re.MULTILINE)
    assert len(rows) == 4
    for epsilon, mu, percent in rows:
        exact = accounting.mu_for_epsilon(float(epsilon), 1e-5)
        assert mu == f"{exact:.4f}"
        assert float(percent) == math.ceil(1000 * norm.cdf(exact / 2)) / 10


def test_how_many_records_a_run_wants():
    """Figures of docs/questions.md: 64 steps from 26 sqrt(d) / mu on, 20 at 13 sqrt(d) / mu."""
    budget = blindstep.Privacy(epsilon=1, delta=1e-5)

    def steps(factor, dim):
        plan = blindstep.plan(
            blindstep.Auto(),
            dim=dim,
            records=math.ceil(factor * math.sqrt(dim) / budget.mu),
            privacy=budget,
        )
        return plan.rounds * plan.horizon

    assert math.ceil(26 * math.sqrt(20) / budget.mu) == pytest.approx(430, abs=5)
    for dim in (10, 20, 100, 144):
        assert steps(26, dim) == 64
        assert 20 < steps(18, dim) < 64
        assert steps(13, dim) == 20
