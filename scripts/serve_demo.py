"""The whole of it in about a minute: service, 10,000 simulated people over HTTP, dashboard, pictures.

    make serve-demo                 # or: python scripts/serve_demo.py --pictures docs/images

Starts `blindstep serve` in a temporary folder, makes a study of six weights at epsilon 1, sends the
people of examples/vote_page through HTTP and says how satisfied they are after each step. With Chromium
it makes pictures of the dashboard: light and dark, on a desk and on a phone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples" / "vote_page"), str(ROOT / "tests" / "support")]

import people as visitors  # noqa: E402
from taste import WEIGHTS  # noqa: E402

from browser import browser, sign_in  # noqa: E402
from service_process import Served, serving  # noqa: E402

LOOKS = {"desktop": (1280, 1000), "phone": (390, 844)}
GOAL = 0.05  # satisfaction that may be missing to the best possible


def pictures(served: Served, study: str, folder: Path, name: str) -> list[Path]:
    """Pictures of a study's page: light and dark, desktop and phone."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with browser() as chromium:
        for look, (width, height) in LOOKS.items():
            for scheme in ("light", "dark"):
                page = chromium.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,
                    device_scale_factor=2 if look == "phone" else 1,
                )
                sign_in(page, served)
                page.goto(f"{served.address}/studies/{study}")
                made.append(folder / f"{name}-{look}-{scheme}.png")
                page.screenshot(path=made[-1], full_page=look == "desktop")
                page.close()
    return made


def main() -> None:
    """Run it; the exit code says whether satisfaction came near enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=10_000)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the dashboard")
    parser.add_argument("--stay", action="store_true", help="leave the service running at the end")
    given = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="blindstep-demo-") as folder,
        serving(Path(folder)) as served,
        served.client() as admin,
    ):
        print(f"Dashboard    {served.address}/\nAdmin token  {served.token}", flush=True)
        study = admin.create("Films", WEIGHTS, people=given.people, epsilon=1)["id"]
        token = admin.new_token("site", study)["token"]

        def told(step: int, satisfaction: float) -> None:
            bar = "#" * round(40 * satisfaction)
            took = time.monotonic() - began
            print(f"step {step:>2} of 16  {satisfaction:.3f} {bar:<40} {took:5.1f} s", flush=True)

        found = visitors.run(served.address, token, admin, study, given.people, told)
        took, spent = time.monotonic() - began, admin.study(study)["privacy"]["spent"]
        print(
            f"satisfaction {found['before']:.3f} -> {found['after']:.3f}, best possible "
            f"{found['best']:.3f}; epsilon {spent['epsilon']:.3g}; {given.people:,} people in "
            f"{took:.0f} s"
        )
        if given.pictures is not None:
            for path in pictures(served, study, given.pictures, "serve-study"):
                print(path)
        if given.stay:
            input("The service runs until you press return. ")
    if found["after"] < found["best"] - GOAL:
        sys.exit(f"satisfaction is more than {GOAL} below the best possible")


if __name__ == "__main__":
    main()
