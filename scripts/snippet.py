"""The snippet of docs/serve.md, followed word by word in a page that a server renders.

    python scripts/snippet.py --people 480 --epsilon 8

It starts the service, makes a study of two parameters as the documentation does, serves a page made of
the documented template alone (whose text depends on the parameters, rendered on the server), and sends
visitors with a common taste through Chromium: each loads the page, reads what it shows, and presses a
button; then again, for whatever the page shows by then. It prints how content people are before and
after, and what the best is. `--kind comparison` does the same with two options beside each other.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "src")]

from blindstep.serve import Client  # noqa: E402
from browser import browser  # noqa: E402
from service_process import free_port, serving  # noqa: E402

IDEAL = {"size": 0.6, "contrast": -0.4}


def snippet(service: str) -> str:
    """The HTML of docs/serve.md, with the address of this service in it."""
    text = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```html\n(.*?)```", text, re.DOTALL)
    return found.replace("https://votes.example.org", service)


def liked(shown: dict[str, float]) -> float:
    """The probability that somebody likes this."""
    far = sum((shown[name] - at) ** 2 for name, at in IDEAL.items())
    return float(1.0 / (1.0 + np.exp(3.0 * far - 2.0)))


def site(service: str, client: Client, study: str) -> type[BaseHTTPRequestHandler]:
    """A page that is rendered on the server: /PERSON shows what this person's question is about."""
    template = snippet(service)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/visitor"):
                self.send_error(404)
                return
            question = client.ask(study, self.path[1:])
            client.close()
            options = question["options"] or [question["parameters"]]
            shown = "".join(f"<pre>{json.dumps(each)}</pre>" for each in options)
            quoted = html.escape(json.dumps(question), quote=True)
            page = f"<!doctype html><title>page</title>{shown}" + template.replace(
                "{{ question | tojson }}", quoted
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


def visit(page: Page, address: str, chance: np.random.Generator) -> int:
    """One visitor, who judges what the page shows, for as long as it asks; says how often."""
    page.goto(address)
    for often in range(2):
        shown = [json.loads(each) for each in page.locator("pre").all_inner_texts()]
        if len(shown) == 2:
            better = chance.random(2) < [liked(each) for each in shown]
            first = better[0] > better[1] or (better[0] == better[1] and chance.random() < 0.5)
            name = "The first is better" if first else "The second is better"
        else:
            name = "Good" if chance.random() < liked(shown[0]) else "Not good"
        before = page.locator("[data-blindstep]").get_attribute("data-blindstep")
        page.get_by_role("button", name=name, exact=True).click()
        page.wait_for_function(
            "before => document.querySelector('[data-blindstep]').dataset.blindstep !== before || "
            "document.querySelector('[role=status]').innerText === 'Thank you.'",
            arg=before,
        )
        if page.get_by_role("button", name=name, exact=True).count() == 0:
            return often + 1
    return 2


def run(chromium: Browser, people: int, epsilon: float, kind: str, **more: Any) -> dict[str, Any]:
    """A whole study; gives how content people are at its start, at its end and at best.

    And how often each visitor answered.
    """
    chance, port, often = np.random.default_rng(0), free_port(), list[int]()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), options=("--origin", f"http://127.0.0.1:{port}")) as served,
        served.client() as admin,
    ):
        parameters = dict.fromkeys(IDEAL, (-1.0, 1.0))
        asked = {"people": people, "epsilon": epsilon, "answer": {"kind": kind}}
        study = admin.create("page", parameters, **asked, **more)
        name, begins = study["id"], dict(study["parameters"])
        client = Client(served.address, admin.new_token("site", name)["token"])
        server = ThreadingHTTPServer(("127.0.0.1", port), site(served.address, client, name))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_page()
        for step in range(study["steps"]):
            for person in range(people // study["steps"]):
                address = f"http://127.0.0.1:{port}/visitor-{step}-{person}"
                often.append(visit(page, address, chance))
            admin.end_window(name, step + 1)
            while admin.study(name)["steps_released"] <= step:
                page.wait_for_timeout(50)
        found = admin.study(name)
        page.close()
        server.shutdown()
        server.server_close()
    return {
        "before": liked(begins),
        "after": liked(found["parameters"]),
        "best": liked(IDEAL),
        "parameters": found["parameters"],
        "often": often,
    }


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="The documented snippet, driven by Chromium.")
    parser.add_argument("--people", type=int, default=480)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--kind", choices=("vote", "comparison"), default="vote")
    given = parser.parse_args()
    with browser() as chromium:
        each = given.people // given.steps
        found = run(chromium, given.people, given.epsilon, given.kind, people_per_step=each)
    print({name: value for name, value in found.items() if name != "often"})


if __name__ == "__main__":
    main()
