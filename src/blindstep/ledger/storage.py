"""Where a run is kept, and how often it is saved."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blindstep.errors import InvalidArgument
from blindstep.ledger.checkpoint import CURRENT
from blindstep.private.statement import Privacy

LEDGER = "ledger.jsonl"
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Storage:
    """Where a run is kept. With nothing given the run is kept nowhere, and the storage is false."""

    directory: PathLike | None = None  # the run directory; made if it does not exist
    ledger: PathLike | None = None  # one that runs on the same people share; None: in `directory`
    budget: Privacy | None = None  # of all runs in the ledger together; None: what the ledger says
    cohort: str | None = None  # what a ledger begun here calls its people; None: as the directory

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Privacy | None):
            raise InvalidArgument(
                f"budget must be a Privacy, such as Privacy(epsilon=4), got {self.budget!r}."
            )
        if self.budget is not None and not self:
            raise InvalidArgument("a budget is kept in a ledger: give checkpoint or ledger too.")

    def __bool__(self) -> bool:
        return self.directory is not None or self.ledger is not None

    @property
    def ledger_path(self) -> str:
        """The ledger's path."""
        return os.path.abspath(self.ledger_as_given)

    @property
    def ledger_as_given(self) -> str:
        """The ledger's path, relative if it was given so: the same in processes that work elsewhere."""
        return os.fspath(self.ledger or os.path.join(self.directory or "", LEDGER))

    @property
    def begun(self) -> bool:
        """Whether the run directory holds a run, or a part of one (`part`), or of several."""
        if self.directory is None:
            return False
        patterns = (CURRENT, f"*/{CURRENT}", f"*/*/{CURRENT}")
        return any(True for pattern in patterns for _ in Path(self.directory).glob(pattern))

    def part(self, folder: str) -> Storage:
        """Where a part of the run is kept: in a folder of its directory, and in the same ledger."""
        if not self:
            return self
        inside = None if self.directory is None else os.path.join(self.directory, folder)
        return Storage(inside, self.ledger_as_given, self.budget, self.cohort or self.word)

    @property
    def word(self) -> str:
        """What people will recognise the run by: its directory's name. It tells nothing of the data."""
        return os.path.basename(os.path.abspath(self.directory or "run")) or "run"


class SavingInterval:
    """Says when the next save is due: all saves together take a twentieth of the time at most.

    Work that was not saved is done again after a crash: the interval costs time, never privacy.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began = clock, clock()
        self._spent, self._last = 0.0, 0.0

    def due(self) -> bool:
        """Whether another save, as long as the last one, stays within the share."""
        return self._spent + self._last <= 0.05 * (self._clock() - self._began)

    def measure(self, save: Callable[[], None]) -> None:
        """Save, and remember how long it took."""
        began = self._clock()
        save()
        self._last = self._clock() - began
        self._spent += self._last
