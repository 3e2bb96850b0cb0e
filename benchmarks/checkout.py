"""Another checkout of this package, imported beside this one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_OURS = ("blindstep", "benchmarks")


class Checkout:
    """The packages `blindstep` and `benchmarks` of another checkout.

    Attributes:
        root: where it is.
    """

    def __init__(self, root: Path) -> None:
        self.root, self._modules = root.resolve(), dict[str, ModuleType]()

    @contextlib.contextmanager
    def imported(self) -> Iterator[None]:
        """Inside, imports are those of the other checkout, also the ones that its functions make."""
        before = _taken()
        sys.modules.update(self._modules)
        sys.path[:0] = [str(self.root), str(self.root / "src")]
        try:
            yield
        finally:
            del sys.path[:2]
            self._modules = _taken()
            sys.modules.update(before)


def _taken() -> dict[str, ModuleType]:
    """Our packages, taken out of what is imported."""
    return {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in _OURS
    }
