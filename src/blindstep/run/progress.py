"""Progress in public quantities: steps, privacy spent, time; the loss only if it was released.

It moves with every release. The privacy spent is what the session was charged, read after each charge:
the figure that the ledger has for this run, and never another one.

Ctrl-C: a run that the user stops ends in one line that says how to go on.

What is raised is still a KeyboardInterrupt, so that notebooks, frameworks and shells see what they
expect. It comes without the frames it was pressed in, which belong to compilers and engines, and with a
sentence. Where nobody catches it, Python prints that sentence alone.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.planning.plan import ADVICE, Plan
from blindstep.private import accounting
from blindstep.private.statement import round_up

Values = Callable[[], Float[np.ndarray, " steps"]]
# Where there is no terminal: so many lines for a whole run.
_LINES = 20


class RunProgress:
    """Shows how far a run is, if asked: a bar on a terminal, elsewhere a line now and then."""

    def __init__(self, plan: Plan, *, show: bool | None) -> None:
        self._plan = plan
        if show is None:
            show = plan.natural_units and sys.stderr.isatty()
        self._show = show
        console = Console(file=sys.stderr)  # held: losses are evaluated in silence
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
            disable=not show or not (console.is_terminal or console.is_jupyter),
        )
        self._total = plan.calibrations + plan.schedule.releases + plan.comparisons
        self._task = self._bar.add_task("", total=self._total, said="")
        self._sessions: list[Session] = []
        self._lines, self._values = 0, None

    def follow(self, session: Session, values: Values | None = None) -> None:
        """From now on, show how far this session is: that of the calibrations, or that of the steps.

        `values` gives the noisy mean loss of each step so far, which is shown against that of the first
        round.
        """
        if self._show:
            if not self._sessions:
                self._introduce()
            self._sessions, self._values = [*self._sessions, session], values
            session.watch = self._moved
            self._moved()

    def _moved(self) -> None:
        """Something was charged or released."""
        session, plan = self._sessions[-1], self._plan
        # Calibrations, steps, comparisons: as far as the plan has them, one session after the other.
        stages = [
            (name, size)
            for name, size in (
                ("calibration", plan.calibrations),
                ("step", plan.schedule.releases),
                ("comparison", plan.comparisons),
            )
            if size
        ]
        which = min(len(self._sessions), len(stages)) - 1
        done = session.position + sum(size for _, size in stages[:which])
        number = f"{stages[which][0]} {session.position}/{stages[which][1]}"
        if not self._bar.disable:
            self._bar.update(self._task, completed=done, description=number, said=self._said())
        elif done * _LINES // self._total > self._lines:
            self._lines = done * _LINES // self._total
            self._print(f"{number}: {self._said()}")

    def _said(self) -> str:
        """What was spent, by the ledger, and the loss as a share of the first round's."""
        plan, loss = self._plan, ""
        mu = accounting.compose(session.spent for session in self._sessions)
        if not mu:
            return "nothing spent yet"
        secrecy = sum(session.secrecy for session in self._sessions)
        epsilon = accounting.epsilon(mu, plan.delta, plan.terms.slack(), secrecy)
        if self._values is not None and plan.curve:
            values = self._values()
            first = float(np.mean(values[: plan.horizon])) if len(values) >= plan.horizon else 0.0
            if first > 0:
                share = float(np.mean(values[-plan.horizon :])) / first
                loss = f", loss {share:.0%} of the first"
        return f"epsilon {round_up(epsilon, 4)} of {round_up(plan.epsilon, 4)} spent{loss}"

    def _introduce(self) -> None:
        plan = self._plan
        about = "about " if plan.schedule.secret else ""
        self._print(
            f"{plan.schedule.releases:,} steps of {about}{plan.first_batch:,} records, "
            f"{about or 'at most '}{plan.evaluations:,} evaluations of the loss; epsilon "
            f"{plan.epsilon:.4g} at delta {plan.delta:g} in all."
        )
        for note in plan.notes:
            if note.startswith(ADVICE):
                self._print(note)
        self._bar.start()

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            session.watch = None
        self._bar.stop()

    def _print(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_Path = str | os.PathLike[str]


def how_to_go_on(checkpoint: _Path | None, ledger: _Path | None = None, call: str = "call") -> str:
    """What a stopped run has spent, and how it goes on; `call` is what the user would repeat."""
    if checkpoint is None:
        kept = "" if ledger is None else f" ({os.fspath(ledger)} has it)"
        return (
            f"Stopped. What was released is spent{kept}, and this run cannot go on: it has no "
            "checkpoint. With checkpoint='run' the next one can."
        )
    if not Storage(checkpoint).begun:
        return f"Stopped before anything was released or spent; the same {call} starts the run."
    return f"Stopped; the same {call} goes on where it was, from {os.fspath(checkpoint)}."


def stopped(words: str) -> KeyboardInterrupt:
    """The interrupt to raise in place of the user's: in these words, printed as one line."""
    stop = KeyboardInterrupt(words)
    sys.excepthook = functools.partial(_print_one_line, stop, sys.excepthook)
    return stop


def _print_one_line(
    stop: KeyboardInterrupt,
    before: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if error is stop:
        print(f"blindstep: {stop}", file=sys.stderr)
    else:
        before(kind, error, trace)


def ends_in_one_line(function: Callable[_Arguments, _Answer]) -> Callable[_Arguments, _Answer]:
    """The same driver; Ctrl-C in it ends in one line. Its `checkpoint` and `ledger` are keywords."""

    @functools.wraps(function)
    def driver(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            given = cast("dict[str, Any]", kwargs)
        # Raised out here, so that it does not carry the first one and its frames along.
        raise stopped(how_to_go_on(given.get("checkpoint"), given.get("ledger")))

    return driver
