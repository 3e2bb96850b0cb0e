"""A progress bar of public quantities: round, privacy spent, time. Never a loss."""

from __future__ import annotations

import math
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blindstep.optimize.plan import Plan
from blindstep.private import accounting


class RunProgress:
    """Shows how far a run is. Quiet unless asked for, and where there is no terminal."""

    def __init__(self, plan: Plan, *, show: bool) -> None:
        self._plan = plan
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("privacy spent: {task.fields[spent]}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),  # held: losses are evaluated in silence
            disable=not show,
        )
        self._task = self._bar.add_task("run", total=plan.rounds, spent="nothing yet")

    def show(self, rounds: int, releases: int) -> None:
        """Say how many rounds are done, and how many releases of the run have been charged."""
        plan, passes = self._plan, -(-releases // self._plan.schedule.releases_per_pass)
        if passes and not self._bar.disable:
            mu = plan.terms.mu_per_pass() * math.sqrt(passes)
            epsilon = accounting.epsilon(mu, plan.delta, plan.terms.slack())
            spent = f"epsilon {epsilon:.3f} at delta {plan.delta:g}"
            self._bar.update(self._task, completed=rounds, spent=spent)

    def __enter__(self) -> RunProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._bar.__exit__(kind, *rest)
