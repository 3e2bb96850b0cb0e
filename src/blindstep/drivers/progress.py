"""A progress bar of public quantities: round, privacy spent, time; the loss only if it was released."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blindstep.optimize.plan import Plan
from blindstep.private import accounting


class RunProgress:
    """Shows how far a run is. Quiet unless asked for, and where there is no terminal."""

    def __init__(self, plan: Plan, *, show: bool | None) -> None:
        self._plan = plan
        if show is None:
            show = plan.preset == "scaled" and sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("privacy spent: {task.fields[spent]}{task.fields[loss]}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),  # held: losses are evaluated in silence
            disable=not show,
        )
        self._task = self._bar.add_task("run", total=plan.rounds, spent="nothing yet", loss="")

    def show(self, rounds: int, releases: int, told: Sequence[Any] = ()) -> None:
        """Say how many rounds are done, and how many releases of the run have been charged.

        `told` holds what is public of each step, by round: its last number is the noisy mean loss,
        which is shown against that of the first round.
        """
        plan, passes = self._plan, -(-releases // self._plan.schedule.releases_per_pass)
        if passes and not self._bar.disable:
            looks = () if plan.look_terms is None else (plan.look_terms.mu(),)
            mu = accounting.compose([plan.terms.mu_per_pass() * math.sqrt(passes), *looks])
            epsilon = accounting.epsilon(mu, plan.delta, plan.terms.slack())
            spent = f"epsilon {epsilon:.3f} at delta {plan.delta:g}"
            self._bar.update(self._task, completed=rounds, spent=spent, loss=self._loss(told))

    def _loss(self, told: Sequence[Any]) -> str:
        """The mean loss of the last round as a share of the first one's."""
        if not self._plan.curve or not len(told):
            return ""
        first, last = (float(np.mean(np.asarray(told[at])[..., 2])) for at in (0, -1))
        return f"  loss {last / first:.0%} of the first" if first > 0 else ""

    def __enter__(self) -> RunProgress:
        if not self._bar.disable:
            plan = self._plan
            self._bar.console.print(
                f"{plan.schedule.releases:,} steps of {plan.first_batch:,} records, at most "
                f"{plan.evaluations:,} evaluations of the loss; epsilon {plan.epsilon:.4g} at delta "
                f"{plan.delta:g} in all.",
                highlight=False,
            )
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._bar.__exit__(kind, *rest)
