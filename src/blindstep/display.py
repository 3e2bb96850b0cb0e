"""How results and progress look in a notebook.

What is shown of a result is made by `insight.display`, when it is asked for.
"""

from __future__ import annotations

import html
import time
from importlib import import_module
from typing import Any


class Displayed:
    """Something that Jupyter shows as a table and pictures, and not as a wall of text."""

    def _repr_html_(self) -> str:
        """What IPython shows."""
        return str(import_module("blindstep.insight.display").shown(self))


class NotebookBar:
    """Lines and a bar below a cell, by IPython alone: no widgets are needed."""

    # Seconds between two pictures: a notebook keeps up with that.
    _PAUSE = 0.1

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._bar, self._shown_at = "", 0.0
        self._handle: Any = None

    def line(self, text: str) -> None:
        """One more line above the bar."""
        self._lines.append(text)
        self._show()

    def update(self, done: int, total: int, description: str, said: str) -> None:
        """Move the bar."""
        words = html.escape(f"{description}: {said}")
        self._bar = f'<progress value="{done}" max="{total}"></progress> {words}'
        if done == total or time.monotonic() - self._shown_at > self._PAUSE:
            self._show()

    def _show(self) -> None:
        display = import_module("IPython.display")
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in self._lines)
        page = display.HTML(f"<div>{lines}<div>{self._bar}</div></div>")
        if self._handle is None:
            self._handle = display.display(page, display_id=True)
        else:
            self._handle.update(page)
        self._shown_at = time.monotonic()

    def close(self) -> None:
        """Show how far it came."""
        if self._handle is not None:
            self._show()
