"""What a run returns: parameters, the privacy they cost, and the public history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.drivers import outcome
from blindstep.drivers.history import History
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.drivers.statements import of_plan
from blindstep.estimate.scales import Scales
from blindstep.estimate.vectors import LARGEST
from blindstep.optimize.plan import Plan
from blindstep.private.gate import Gate
from blindstep.private.noise import public_stream
from blindstep.private.statement import RECORD, Statement


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


@dataclass(frozen=True)
class Result:
    """The answer of a run. All means of rounds are released: reading all of them costs nothing more.

    Attributes:
        params: the answer to use: the mean of the last round's points; where the run measured its
            loss, of the last round that no earlier one beats beyond doubt (`best_round`).
        random_round: which round `random_round_mean` is the mean of, chosen uniformly at random.
        means: the means of all rounds as flat vectors, rounds x dim.
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        space: how flat vectors map to parameters.
        best_round: which round `params` is the mean of.
        scales: the natural units that the run has found; None where it used the user's.
    """

    params: PyTree
    random_round: int
    means: Float[np.ndarray, "rounds dim"]
    privacy: Statement
    plan: Plan
    history: History
    space: ParameterSpace
    best_round: int = -1
    scales: Scales | None = None

    @property
    def outcome(self) -> str:
        """How the run went and what would help, in a sentence or two, from releases alone."""
        points = self.means
        if self.scales is not None:
            points = self.scales.natural(points)
        return outcome.sentence(self.plan, self.history, points)

    @property
    def round_means(self) -> list[PyTree]:
        """The mean of every round, as parameters."""
        return [self.space.unflatten(mean) for mean in self.means]

    @property
    def random_round_mean(self) -> PyTree:
        """One round's mean, chosen uniformly at random: the point that the theorem speaks of."""
        return self.space.unflatten(self.means[self.random_round])

    def __str__(self) -> str:
        return (
            f"{self.plan.rounds} rounds of {self.plan.horizon} steps, preset {self.plan.preset}; "
            f"params: mean of round {self.best_round % self.plan.rounds + 1}.\n{self.outcome}\n"
            f"{self.privacy}"
        )


def finished(
    plan: Plan,
    space: ParameterSpace,
    gate: Gate,
    means: Sequence[Float[np.ndarray, " dim"]],
    told: Float[np.ndarray, "rounds horizon 3"],
    scales: Scales | None = None,
    protected: str = RECORD,
) -> Result:
    """The result of a finished run, whichever driver made it.

    `told` holds, for each step, the norms of the noisy gradient and of the move, and the noisy loss.
    With `scales` all of it is in natural units, and the result in the user's. `protected` is
    the unit that the privacy statement is about.
    """
    with jax.enable_x64(True):
        stream = public_stream(gate.public, "chosen round")
        chosen = int(jax.random.randint(stream, (), 0, len(means)))
    points, unit = np.stack(means), 1.0 if scales is None else float(scales.unit)
    history = history_of(plan, told, unit)
    if scales is not None:
        points = np.asarray(scales.place(points))
    best = outcome.best_round(history)
    return Result(
        params=space.unflatten(points[best]),
        random_round=chosen,
        means=points,
        privacy=of_plan(plan, seeded=gate.seeded, unit=protected),
        plan=plan,
        history=history,
        space=space,
        best_round=best,
        scales=scales,
    )


def history_of(plan: Plan, told: Float[np.ndarray, "rounds horizon 3"], unit: float) -> History:
    """The history of a finished run; `unit` is that of its loss."""
    history = History(told[..., 0], told[..., 1])
    if not plan.curve:
        return history
    std = LARGEST * plan.noise_std / (plan.curve * plan.bounds.first_clip)
    return replace(history, loss=unit * told[..., 2], loss_std=unit * std)
