"""How results look in a notebook. What is shown is made by `insight.display`, when it is asked for."""

from __future__ import annotations

from importlib import import_module


class Displayed:
    """Something that Jupyter shows as a table and pictures, and not as a wall of text."""

    def _repr_html_(self) -> str:
        """What IPython shows."""
        return str(import_module("blindstep.insight.display").shown(self))
