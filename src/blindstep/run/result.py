"""What a run returns: parameters, the privacy they cost, and the public history.

How a run went, from releases alone: it costs nothing to say.

What a run keeps of its steps: public quantities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.display import Displayed
from blindstep.estimate.comparison import Comparison
from blindstep.estimate.scales import Scales
from blindstep.estimate.vectors import LARGEST
from blindstep.losses.pytrees import ParameterSpace
from blindstep.optimize.machine import StepInfo
from blindstep.planning.plan import Plan
from blindstep.planning.statement import Statement
from blindstep.private.accounting import RECORD
from blindstep.private.gate import Gate
from blindstep.private.noise import public_stream
from blindstep.run.outcome import Outcome, outcome_of


@runtime_checkable
class Reportable(Protocol):
    """What a report tells of, whichever driver made it."""

    @property
    def privacy(self) -> Statement:
        """The privacy statement."""
        ...

    @property
    def plan(self) -> Plan:
        """The plan that was run."""
        ...

    @property
    def history(self) -> History:
        """Public quantities over the run."""
        ...

    @property
    def outcome(self) -> Outcome:
        """How the run went."""
        ...


@dataclass(frozen=True)
class Result(Displayed):
    """The answer of a run. All means of rounds are released: reading all of them costs nothing more.

        result = bs.minimize(loss, params, data, privacy)
        print(result.params, result.outcome, result.privacy.epsilon)

    Attributes:
        params: the answer to use: the mean of the last round's points; where the run measured its
            loss, of the last round that no earlier one beats beyond doubt (`best_round`). Where noise
            was nearly all that a run heard, a part of the way to it (`comparison.share`).
        random_round: which round `random_round_mean` is the mean of, chosen uniformly at random.
        means: the means of all rounds as flat vectors, rounds x dim.
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        space: how flat vectors map to parameters.
        best_round: which round `params` is the mean of; None where it is the start.
        scales: the natural units that the run has found; None where it used the user's.
        comparison: by how much rounds were better than the start; None where that was not asked.
    """

    params: PyTree
    random_round: int
    means: Float[np.ndarray, "rounds dim"]
    privacy: Statement
    plan: Plan
    history: History
    space: ParameterSpace
    best_round: int | None = -1
    scales: Scales | None = None
    comparison: Comparison | None = None

    @property
    def outcome(self) -> Outcome:
        """How the run went and what would help, in a sentence or two, from releases alone."""
        points = self.means
        if self.scales is not None:
            points = self.scales.natural(points)
        return outcome_of(self.plan, self.history, points, self.comparison)

    @property
    def round_means(self) -> list[PyTree]:
        """The mean of every round, as parameters."""
        return [self.space.unflatten(mean) for mean in self.means]

    @property
    def random_round_mean(self) -> PyTree:
        """One round's mean, chosen uniformly at random: the point that the theorem speaks of."""
        return self.space.unflatten(self.means[self.random_round])

    def __str__(self) -> str:
        which = "the start"
        if self.best_round is not None:
            which = f"mean of round {self.best_round % len(self.means) + 1}"
            if self.comparison is not None and self.comparison.share < 1.0:
                which = f"{self.comparison.share:.0%} of the way to the {which}"
        rounds = f"{self.plan.rounds} rounds"
        if len(self.means) < self.plan.rounds:
            rounds = f"{len(self.means)} of {rounds} (ended early)"
        return (
            f"{rounds} of {self.plan.horizon} steps, method {self.plan.method}; "
            f"params: {which}.\n{self.outcome}\n"
            f"{self.privacy}"
        )


def result_of(
    plan: Plan,
    space: ParameterSpace,
    gate: Gate,
    means: Sequence[Float[np.ndarray, " dim"]],
    info: StepInfo,
    scales: Scales | None = None,
    protected: str = RECORD,
) -> Result:
    """The result of a finished run, whichever driver made it.

    `info` is what the steps told, one number for each in the order of the run. With `scales` all of it
    is in natural units, and the result in the user's. `protected` is the unit that the privacy
    statement is about.
    """
    with jax.enable_x64(True):
        stream = public_stream(gate.public, "chosen round")
        chosen = int(jax.random.randint(stream, (), 0, len(means)))
    points, unit = np.stack(means), 1.0 if scales is None else float(scales.unit)
    history = history_of(plan, info, unit)
    if scales is not None:
        points = np.asarray(scales.place(points))
    best = best_round(history)
    return Result(
        params=space.unflatten(points[best]),
        random_round=chosen,
        means=points,
        privacy=plan.statement(seeded=gate.seeded, unit=protected),
        plan=plan,
        history=history,
        space=space,
        best_round=best,
        scales=scales,
    )


def compared_with(result: Result, start: PyTree, comparison: Comparison) -> Result:
    """The result once it was compared with the start: the start, unless a round is better than it."""
    best = comparison.best
    if best is None:
        return replace(result, params=start, best_round=None, comparison=comparison)
    begun = np.asarray(result.space.flatten(start))
    point = part_of_the_way(begun, result.means[best], comparison.share)
    params = result.space.unflatten(point)
    return replace(result, params=params, best_round=best, comparison=comparison)


def part_of_the_way(
    start: Float[np.ndarray, " dim"], mean: Float[np.ndarray, " dim"], share: float
) -> Float[np.ndarray, " dim"]:
    """The point at this share of the way from the start to the mean of a round."""
    return mean if share == 1.0 else start + share * (mean - start)


def released_std(plan: Plan) -> float | None:
    """The standard deviation of the noise on each step's mean loss, in the unit of the loss.

    None where the plan has no share for the loss.
    """
    if not plan.curve:
        return None
    return float(LARGEST * plan.noise_std / (plan.curve * plan.bounds.clip))


def history_of(plan: Plan, info: StepInfo, unit: float) -> History:
    """The history of a finished run; `unit` is that of its loss."""
    shape = -1, plan.horizon  # fewer rounds than planned, if a run was ended early
    gradient, move = (
        np.asarray(each).reshape(shape) for each in (info.gradient_norm, info.move_norm)
    )
    history, std = History(gradient, move), released_std(plan)
    if std is None:
        return history
    return replace(history, loss=unit * np.asarray(info.value).reshape(shape), loss_std=unit * std)


# Standard deviations of the noise beyond which a difference is no chance.
_SURE = 3.0


def best_round(history: History) -> int:
    """The round to take: the last, unless an earlier one has a lower loss beyond doubt.

    Steps get shorter, so later rounds are better but for chance. An earlier round wins only by more
    than three standard deviations of the difference of the two means.
    """
    rounds, horizon = history.gradient_norm.shape
    if history.loss is None or history.loss_std is None:
        return rounds - 1
    means = np.mean(history.loss, axis=1)
    lowest = int(np.argmin(means))
    doubt = _SURE * math.sqrt(2.0 / horizon) * history.loss_std
    return lowest if means[lowest] < means[-1] - doubt else rounds - 1


@dataclass(frozen=True)
class History:
    """Public quantities of every step: functions of releases alone, so they cost nothing.

    Attributes:
        gradient_norm: norm of each noisy gradient, rounds x horizon.
        move_norm: norm of each step taken, rounds x horizon.
        loss: the noisy mean loss around each point, rounds x horizon, where the plan has a share for
            it (`Plan.curve`); None elsewhere. Each record counts with at most twice its usual loss.
        loss_std: the standard deviation of the noise on each of these; None without them.
    """

    gradient_norm: Float[np.ndarray, "rounds horizon"]
    move_norm: Float[np.ndarray, "rounds horizon"]
    loss: Float[np.ndarray, "rounds horizon"] | None = None
    loss_std: float | None = None
