"""What a run returns: parameters, the privacy they cost, and the public history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.drivers.pytrees import ParameterSpace
from blindstep.optimize.plan import Plan
from blindstep.private.gate import Gate
from blindstep.private.noise import public_stream
from blindstep.private.statement import Statement, statement


@dataclass(frozen=True)
class History:
    """Public quantities of every step: functions of releases alone, so they cost nothing.

    Attributes:
        gradient_norm: norm of each noisy gradient, rounds x horizon.
        move_norm: norm of each step taken, rounds x horizon.
    """

    gradient_norm: Float[np.ndarray, "rounds horizon"]
    move_norm: Float[np.ndarray, "rounds horizon"]


@dataclass(frozen=True)
class Result:
    """The answer of a run. All means of rounds are released: reading all of them costs nothing more.

    Attributes:
        params: the answer to use: the mean of the last round's points.
        random_round: which round `random_round_mean` is the mean of, chosen uniformly at random.
        means: the means of all rounds as flat vectors, rounds x dim.
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        space: how flat vectors map to parameters.
    """

    params: PyTree
    random_round: int
    means: Float[np.ndarray, "rounds dim"]
    privacy: Statement
    plan: Plan
    history: History
    space: ParameterSpace

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
            f"params: mean of the last round.\n{self.privacy}"
        )


def finished(
    plan: Plan,
    space: ParameterSpace,
    gate: Gate,
    means: Sequence[Float[np.ndarray, " dim"]],
    norms: Float[np.ndarray, "rounds horizon 2"],
) -> Result:
    """The result of a finished run, whichever driver made it.

    `norms` holds, for each step, the norms of the noisy gradient and of the move.
    """
    with jax.enable_x64(True):
        stream = public_stream(gate.public, "chosen round")
        chosen = int(jax.random.randint(stream, (), 0, len(means)))
    return Result(
        params=space.unflatten(np.asarray(means[-1])),
        random_round=chosen,
        means=np.stack(means),
        privacy=statement(gate.terms, plan.delta, seeded=gate.seeded),
        plan=plan,
        history=History(norms[..., 0], norms[..., 1]),
        space=space,
    )
