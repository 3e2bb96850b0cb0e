"""What a run tells while it runs, and ready listeners: loggers, and reasons to stop.

    from blindstep import callbacks

    bs.minimize(loss, params, data, privacy, callbacks=[callbacks.StopWhenSettled()])

A callback is any function of a `Released`. It gets what was released and nothing else, so whatever it
does costs no privacy: it may log, draw, send, or return True, and then the run ends with its round. A
run that goes on after a crash tells its callbacks every step from the first one on, so that those which
remember something remember the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from jaxtyping import PyTree

from blindstep.errors import InvalidArgument, count
from blindstep.ledger.budget import Privacy


@dataclass(frozen=True)
class Released:
    """Where a run stands after one of its steps, from releases alone.

    Attributes:
        step: steps released so far, from 1 on.
        steps: steps of the plan.
        round: the round of this step, from 1 on.
        rounds: rounds of the plan.
        gradient_norm: norm of the noisy gradient of this step.
        move_norm: norm of the move that it made.
        loss: the noisy mean loss around this step's point; None where the plan has no share for it.
        loss_std: the standard deviation of the noise on it.
        mu: what the run had been charged when this was told.
        epsilon: of it, at the delta of the plan.
        params: the mean of the last finished round; None before there is one, and of a network.
    """

    step: int
    steps: int
    round: int
    rounds: int
    gradient_norm: float
    move_norm: float
    loss: float | None
    loss_std: float | None
    mu: float
    epsilon: float
    params: PyTree = None

    @property
    def ends_round(self) -> bool:
        """Whether this is the last step of its round."""
        return self.step % (self.steps // self.rounds) == 0

    def numbers(self) -> dict[str, float]:
        """What a logger draws, by name."""
        names = ("gradient_norm", "move_norm", "loss", "mu", "epsilon")
        found = {name: getattr(self, name) for name in names}
        return {name: float(value) for name, value in found.items() if value is not None}


Callback = Callable[[Released], Any]


class Log:
    """Sends each step's numbers to `sink(numbers, step=)`, as MLflow and Weights & Biases take them.

    with mlflow.start_run():
        bs.minimize(loss, params, data, privacy, callbacks=[callbacks.Log(mlflow.log_metrics)])
    """

    def __init__(self, sink: Callable[..., Any]) -> None:
        self._sink = sink

    def __call__(self, released: Released) -> None:
        """Send what a step released."""
        self._sink(released.numbers(), step=released.step)


def wandb_files(directory: str | os.PathLike[str], project: str = "blindstep") -> Log:
    """A log for Weights & Biases in files below `directory`, which nothing sends but `wandb sync`."""
    os.makedirs(directory, exist_ok=True)
    run = import_module("wandb").init(mode="offline", dir=os.fspath(directory), project=project)
    return Log(run.log)


def tensorboard(writer: Any) -> Log:
    """A log for TensorBoard; `writer` is a SummaryWriter of torch.utils.tensorboard or tensorboardX."""

    def write(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Log(write)


class StopWhenSettled:
    """Ends a run whose loss has not gone down for some rounds, beyond the noise on it.

    It needs the loss of each step, which runs without knobs release; of other plans it ends none.
    """

    def __init__(self, patience: int = 3, sure: float = 2.0) -> None:
        """`patience` rounds without a loss lower by `sure` standard deviations of the difference."""
        self._patience, self._sure = count("patience", patience), sure
        self._round: list[float] = []
        self._best, self._since = math.inf, 0

    def __call__(self, released: Released) -> bool:
        """Whether to stop."""
        if released.loss is None or released.loss_std is None:
            return False
        if released.step == 1:
            self._round, self._best, self._since = [], math.inf, 0
        self._round.append(released.loss)
        if not released.ends_round:
            return False
        mean, doubt = sum(self._round) / len(self._round), math.sqrt(2 / len(self._round))
        lower = mean < self._best - self._sure * doubt * released.loss_std
        self._round, self._since = [], 0 if lower else self._since + 1
        self._best = min(self._best, mean)
        return self._since >= self._patience


class StopWhenSpent:
    """Ends a run before the round that would take it beyond a part of its budget.

    The ledger is charged for what was released alone, and what is left of its budget is there for the
    next run. The statement of the result stays that of the whole plan.
    """

    def __init__(self, part: Privacy) -> None:
        """`part` is what the run may spend."""
        if not isinstance(part, Privacy):
            raise InvalidArgument(f"give a Privacy, such as Privacy(epsilon=1), got {part!r}.")
        self._most, self._before = part.mu, 0.0

    def __call__(self, released: Released) -> bool:
        """Whether to stop."""
        if released.step == 1:
            self._before = 0.0
        if not released.ends_round:
            return False
        last = released.mu**2 - self._before**2
        self._before = released.mu
        return released.mu**2 + last > self._most**2
