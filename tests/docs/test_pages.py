"""The documentation in a real Chromium, from the disk. `make test-browser` runs these."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from browser import browser

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def phone(chromium):
    return chromium.new_page(viewport={"width": 390, "height": 844})


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_a_phone_and_no_formula_is_raw(name, site, phone):
    phone.goto((site / f"{name}.html").as_uri())
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    raw = """[...document.querySelectorAll('.md-content p, .md-content li, .md-content td')].map(
        e => { const c = e.cloneNode(true); c.querySelectorAll('code').forEach(x => x.remove());
               return c.textContent }).filter(text => /[$\\\\]|arithmatex/.test(text))"""
    assert phone.evaluate(raw) == []


def test_search_works_from_the_disk_and_asks_nobody(site, chromium):
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.get_by_role("textbox", name="Search").press_sequentially("lattice")
    page.locator(".md-search-result__link", has_text="Floating point").first.wait_for()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
