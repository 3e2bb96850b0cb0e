"""A real Chromium: the one that is installed, driven by Playwright's Python package."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    """The path of a Chromium: of CHROMIUM, or of the first name that is found."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium without a window, closed at the end of the block."""
    path = find_chromium()
    assert path is not None, "no Chromium: make test-browser installs one, or set CHROMIUM=/path"
    with sync_playwright() as driver:
        # Its sandbox needs rights that a container may not have; only our own pages are opened.
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


def sign_in(page: Page, served) -> None:
    """Sign in to the dashboard, by label and keyboard."""
    page.goto(f"{served.address}/login")
    page.get_by_label("Admin token").fill(served.token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{served.address}/")
