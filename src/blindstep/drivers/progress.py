"""A progress bar of public quantities: epoch, privacy spent, time. Never a loss."""

from __future__ import annotations

import math
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blindstep.trusted import accounting
from blindstep.trusted.oracle import Oracle


class RunProgress:
    """Shows how far a run is. Quiet unless asked for, and where there is no terminal."""

    def __init__(self, oracle: Oracle, epochs: int, delta: float, *, show: bool) -> None:
        self._per_pass = oracle.mu_per_pass()
        self._blocks_per_epoch = oracle.schedule.blocks // epochs
        self._blocks_per_pass = oracle.schedule.blocks_per_pass
        self._delta = delta
        self._bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("privacy spent: {task.fields[spent]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not show,
        )
        self._task = self._bar.add_task("run", total=epochs, spent="nothing yet")

    def advance(self, epochs_begun: int) -> None:
        """Say that another epoch is done; what was spent follows from the count alone."""
        passes = -(-epochs_begun * self._blocks_per_epoch // self._blocks_per_pass)
        mu = self._per_pass * math.sqrt(passes)
        spent = f"epsilon {accounting.epsilon(mu, self._delta):.3f} at delta {self._delta:g}"
        self._bar.update(self._task, advance=1, spent=spent)

    def __enter__(self) -> RunProgress:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, value, trace)
