"""Several processes on one run: a process group, of JAX's or of PyTorch's.

Process 0 leads: it alone opens ledger and checkpoint, charges and saves. The others evaluate.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


class ProcessGroup(abc.ABC):
    """All processes of a run, seen from one of them. A single process waits for nobody.

    Attributes:
        number: the number of processes.
        rank: the number of this one.
    """

    def __init__(self, number: int, rank: int) -> None:
        self.number, self.rank = number, rank

    @property
    def leads(self) -> bool:
        """Whether this is process 0, which owns the gate and keeps the run's files."""
        return self.rank == 0

    @abc.abstractmethod
    def led(self, what: str, make: Callable[[], Made]) -> Made:
        """Return in every process what `make` returns in process 0. If it raises, all processes do."""

    @abc.abstractmethod
    def gather(self, what: str, content: Any) -> Any:
        """Bring together what each process has; `what` names it in errors. The content is secret."""
