"""The picture of the README: the top of the report that its first example writes, in Chromium.

python scripts/report_picture.py        # writes docs/images/report-desktop-light.png
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import browser  # noqa: E402


def main() -> None:
    """Run the example in a folder of its own and take the picture."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        os.chdir(folder)
        exec(compile(example, "README.md", "exec"), {})
        page = chromium.new_page(viewport={"width": 1000, "height": 960}, color_scheme="light")
        page.goto(Path("run.html").resolve().as_uri())
        page.screenshot(path=ROOT / "docs" / "images" / "report-desktop-light.png")
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
