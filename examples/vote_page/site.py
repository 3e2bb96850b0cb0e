"""A website with two buttons, in one file: its server asks, its visitors' browsers answer.

    blindstep serve --origin http://127.0.0.1:8080
    BLINDSTEP_TOKEN=... python examples/vote_page/site.py

It makes a study if none is named. A visitor is known by a random cookie. What the page shows depends on
the parameters that the service gave; the buttons come from the service's `blindstep.js`.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import secrets
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from taste import WEIGHTS

from blindstep.serve import Client

PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def handler(service: str, client: Client, study: str) -> type[BaseHTTPRequestHandler]:
    """The site's only page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in ("/", "/page.js"):
                self.send_error(404)
                return
            if self.path == "/page.js":
                self._send(_script(), "text/javascript")
                return
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get("visitor")
            visitor = secrets.token_hex(16) if cookie is None else cookie.value
            question = html.escape(json.dumps(client.ask(study, visitor)), quote=True)
            page = PAGE.replace("QUESTION", question).replace("SERVICE", html.escape(service))
            self._send(page, "text/html; charset=utf-8", visitor)

        def _send(self, content: str, kind: str, visitor: str | None = None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            if visitor is not None:
                flags = "HttpOnly; SameSite=Lax; Max-Age=31536000"
                self.send_header("Set-Cookie", f"visitor={visitor}; {flags}")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing: a log of visitors is what the service is there to avoid."""

    return Page


def _script() -> str:
    return (Path(__file__).parent / "page.js").read_text(encoding="utf-8")


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", default="http://127.0.0.1:8000")
    parser.add_argument("--study", help="an id; without it a study is made")
    parser.add_argument("--people", type=int, default=10_000)
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    client = Client(given.service, os.environ["BLINDSTEP_TOKEN"])
    study = given.study
    if study is None:
        study = client.create("Films", WEIGHTS, people=given.people, epsilon=1)["id"]
    print(f"study {study}; the page is http://127.0.0.1:{given.port}/", flush=True)
    pages = handler(given.service, client, study)
    ThreadingHTTPServer(("127.0.0.1", given.port), pages).serve_forever()


if __name__ == "__main__":
    main()
