"""What a run returns: parameters, the privacy they cost, and the public history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, PyTree

from blindstep.drivers.pytrees import ParameterSpace
from blindstep.optimize.plan import Plan
from blindstep.trusted.privacy import Statement


@dataclass(frozen=True)
class History:
    """Public quantities of every step: functions of released gradients, so they cost nothing.

    Attributes:
        gradient_norm: norm of each released gradient, epochs x horizon.
        move_norm: norm of each step taken, epochs x horizon.
        seconds: wall-clock time at the end of each epoch.
    """

    gradient_norm: Float[np.ndarray, "epochs horizon"]
    move_norm: Float[np.ndarray, "epochs horizon"]
    seconds: Float[np.ndarray, " epochs"]


@dataclass(frozen=True)
class Result:
    """The answer of a run. All epoch means are released, so reading all of them costs nothing more.

    Attributes:
        params: one epoch's mean, chosen uniformly at random: what the theorem speaks of.
        last: the last epoch's mean.
        final: where the path ended (x after the last step).
        chosen_epoch: which epoch `params` is the mean of.
        means: all epoch means as flat vectors, epochs x dim.
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        space: how flat vectors map to parameters.
    """

    params: PyTree
    last: PyTree
    final: PyTree
    chosen_epoch: int
    means: Float[np.ndarray, "epochs dim"]
    privacy: Statement
    plan: Plan
    history: History
    space: ParameterSpace

    @property
    def epoch_means(self) -> list[PyTree]:
        """The mean of every epoch, as parameters."""
        return [self.space.unflatten(mean) for mean in self.means]

    def __str__(self) -> str:
        return (
            f"{self.plan.epochs} epochs of {self.plan.horizon} steps, preset {self.plan.preset}; "
            f"parameters: mean of epoch {self.chosen_epoch + 1}, chosen at random.\n{self.privacy}"
        )
