"""Where a run is kept, and how often it is saved."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from blindstep.errors import InvalidArgument
from blindstep.trusted.privacy import Privacy

LEDGER = "ledger.jsonl"
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Storage:
    """Where a run is kept; with nothing given, nowhere.

    Attributes:
        directory: the run directory; made if it is not there.
        ledger: a ledger that several runs on the same people share; None: one in `directory`.
        budget: what all runs in the ledger together may spend; None: what the ledger says.
        records: what a ledger that is begun here calls these people; None: as the directory is
            called.
    """

    directory: PathLike | None = None
    ledger: PathLike | None = None
    budget: Privacy | None = None
    records: str | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not self:
            raise InvalidArgument("a budget is kept in a ledger: give checkpoint or ledger too.")

    def __bool__(self) -> bool:
        return self.directory is not None or self.ledger is not None

    @property
    def ledger_path(self) -> str:
        """The ledger's path."""
        return os.path.abspath(self.ledger or os.path.join(self.directory or "", LEDGER))


class SavingInterval:
    """When the next save is due, so that all saves together take at most `share` of the time.

    What was not saved is computed again after a crash: the interval costs time, never privacy.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, share: float = 0.05) -> None:
        self._clock, self._share = clock, share
        self._began, self._spent, self._last = clock(), 0.0, 0.0

    def due(self) -> bool:
        """Whether another save, as long as the last one, stays within the share."""
        return self._spent + self._last <= self._share * (self._clock() - self._began)

    def measure(self, save: Callable[[], None]) -> None:
        """Save, and remember how long it took."""
        began = self._clock()
        save()
        self._last = self._clock() - began
        self._spent += self._last
