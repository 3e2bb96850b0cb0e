"""Progress in public quantities: steps, privacy spent, time; the loss only if it was released.

It moves with every release, and tells the user's callbacks what each step released. The privacy spent
is what the session was charged, read after each charge: the figure that the ledger has for this run,
and never another one.

Ctrl-C: a run that the user stops ends in one line that says how to go on.

What is raised is still a KeyboardInterrupt, so that notebooks, frameworks and shells see what they
expect. It comes without the frames it was pressed in, which belong to compilers and engines, and with a
sentence. Where nobody catches it, Python prints that sentence alone.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from jaxtyping import Float, PyTree
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from blindstep.display import NotebookBar
from blindstep.estimate.scales import Scales
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses.pytrees import ParameterSpace
from blindstep.optimize.machine import StepInfo
from blindstep.planning.plan import ADVICE, Plan
from blindstep.planning.statement import round_up
from blindstep.private import accounting
from blindstep.run.callbacks import Callback, Released
from blindstep.run.loop import Run
from blindstep.run.result import released_std

# A first round whose loss stands out by so many standard deviations of its noise is compared with.
_HEARD = 3.0
# Where there is no terminal: so many lines for a whole run.
_LINES = 20


Values = Callable[[], Float[np.ndarray, " steps"]]


@dataclass(frozen=True)
class Placed:
    """How what a run keeps becomes what its user gave: the unit of the loss, and parameters."""

    unit: float = 1.0
    params: Callable[[Any], PyTree] = lambda _: None


def placed_by(space: ParameterSpace, scales: Scales | None) -> Placed:
    """That of a run on parameters, in natural units if it found any."""
    if scales is None:
        return Placed(1.0, space.unflatten)
    return Placed(float(scales.unit), lambda mean: space.unflatten(np.asarray(scales.place(mean))))


class RunProgress:
    """Shows how far a run is, if asked: a bar on a terminal, elsewhere a line now and then.

    Whether it is shown or not, `callbacks` are told each step, and one that gives True ends the run.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        show: bool | None,
        callbacks: Sequence[Callback] = (),
        seconds: float | None = None,
    ) -> None:
        """`seconds` is about how long the evaluations take, if anybody has measured that."""
        self._plan, self._callbacks, self._told = plan, tuple(callbacks), 0
        self._seconds = seconds
        console = Console(file=sys.stderr)  # held: losses are evaluated in silence
        if show is None:
            show = plan.natural_units and (sys.stderr.isatty() or console.is_jupyter)
        self._show = show
        self._notebook = NotebookBar() if show and console.is_jupyter else None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
            disable=not show or console.is_jupyter or not console.is_terminal,
        )
        self._total = plan.calibrations + plan.schedule.releases + plan.comparisons
        self._task = self._bar.add_task("", total=self._total, said="")
        self._sessions: list[Session] = []
        self._lines = 0
        self._values: Values | None = None
        self._run, self._placed = None, Placed()

    def follow(
        self,
        session: Session,
        values: Values | None = None,
        run: Run | None = None,
        placed: Placed | None = None,
    ) -> None:
        """From now on, show how far this session is: that of the calibrations, or that of the steps.

        `values` gives the noisy mean loss of each step so far, which is shown against that of the first
        round. Callbacks are told what is in `run`, its loss and its points as they are `placed`.
        """
        if not self._sessions and self._show:
            self._introduce()
        self._sessions, self._values = [*self._sessions, session], values
        self._run, self._placed = run, placed or Placed()
        if self._show or self._callbacks:
            session.watch = self._moved
            self._moved()

    def _moved(self) -> None:
        """Something was charged or released."""
        if self._callbacks and self._run is not None:
            self._tell(self._sessions[-1], self._run)
        if self._show:
            self._draw()

    def _tell(self, session: Session, run: Run) -> None:
        """Tell the callbacks each step that they have not been told: the first process does."""
        info, told = run.info(), self._told
        self._told = len(info.value)
        for step in range(told, self._told):
            released = self._released(run, info, step + 1)
            if session.led("callbacks", lambda now=released: self._stopped_by(now)):
                run.stop()

    def _stopped_by(self, released: Released) -> bool:
        """Whether one of them gave True. All are told."""
        answers = [callback(released) for callback in self._callbacks]
        return any(answer is True for answer in answers)

    def _released(self, run: Run, info: StepInfo, step: int) -> Released:
        """What the run had released after so many steps, and what it had been charged for them."""
        plan, placed, loss = self._plan, self._placed, None
        charges = -(-step // plan.schedule.releases_per_pass)
        before = self._sessions[:-1]
        mu = plan.terms.mu_per_pass() * math.sqrt(charges)
        mu = accounting.compose([*(each.spent for each in before), mu])
        secrecy = sum(each.secrecy for each in before) + plan.terms.secrecy_per_pass() * charges
        std = released_std(plan)
        if std is not None:
            loss, std = placed.unit * float(info.value[step - 1]), placed.unit * std
        finished = step // plan.horizon
        return Released(
            step=step,
            steps=plan.schedule.releases,
            round=(step - 1) // plan.horizon + 1,
            rounds=plan.rounds,
            gradient_norm=float(info.gradient_norm[step - 1]),
            move_norm=float(info.move_norm[step - 1]),
            loss=loss,
            loss_std=std,
            mu=mu,
            epsilon=accounting.epsilon(mu, plan.delta, plan.terms.slack(), secrecy),
            params=placed.params(run.means[finished - 1]) if finished and run.means else None,
        )

    def _draw(self) -> None:
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
        if self._notebook is not None:
            self._notebook.update(done, self._total, number, self._said())
        elif not self._bar.disable:
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
            noise = (released_std(plan) or 0.0) / math.sqrt(plan.horizon)
            if first > _HEARD * noise:  # else the noise would be all that is shown
                share = max(0.0, float(np.mean(values[-plan.horizon :])) / first)
                loss = f", loss {share:.0%} of the first (± {noise / first:.0%})"
        return f"epsilon {round_up(epsilon, 4)} of {round_up(plan.epsilon, 4)} spent{loss}"

    def _introduce(self) -> None:
        plan = self._plan
        about = "about " if plan.schedule.secret else ""
        self._print(
            f"{plan.schedule.releases:,} steps of {about}{plan.first_batch:,} records, "
            f"{about or 'at most '}{plan.evaluations:,} evaluations of the loss; epsilon "
            f"{plan.epsilon:.4g} at delta {plan.delta:g} in all."
        )
        if self._seconds is not None:
            self._print(f"The evaluations take about {_spoken(self._seconds)} here.")
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
        if self._notebook is not None:
            self._notebook.close()

    def _print(self, line: str) -> None:
        if self._notebook is not None:
            self._notebook.line(line)
        else:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


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
