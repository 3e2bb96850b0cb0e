"""What a run returns: parameters, the privacy they cost, and the public history."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from blindstep.drivers.pytrees import ParameterSpace
from blindstep.optimize.plan import Plan
from blindstep.trusted.privacy import Statement

# Imports point downwards, so what looks at results (package insight) makes itself known here.
_INSIGHT: dict[str, Callable[..., Any]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Make `function` what the method `name` of every `Result` calls."""
    _INSIGHT[name] = function


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
        certificate: what `certify` measured; None before.
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
    certificate: Any = None

    @property
    def epoch_means(self) -> list[PyTree]:
        """The mean of every epoch, as parameters."""
        return [self.space.unflatten(mean) for mean in self.means]

    def certify(
        self, loss: Callable[..., Any], data: PyTree, *, radius: float | None = None, **options: Any
    ) -> Result:
        """This result with a `certificate`: how stationary `params` is, measured on these records.

        Takes what `blindstep.certificate` takes: `public=True`, or `privacy` and `ledger`. `radius`
        is the plan's, unless given. The report shows it beside what the theorem promises.
        """
        radius = self.plan.radius if radius is None else radius
        found = _INSIGHT["certificate"](loss, self.params, data, radius, **options)
        return replace(self, certificate=found)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "A private run",
        public_utility: Mapping[str, float | str] | None = None,
        ledger: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Write a report for people: one HTML file that needs nothing else.

        It holds public quantities only: the privacy statement, noise against signal, the plan, the
        certificate if there is one. It never evaluates the loss.

        Args:
            path: the file to write.
            title: its heading.
            public_utility: names and values that you computed on *data that are public*, such as
                {"accuracy on the published test set": 0.87}. They are shown as they are.
            ledger: a ledger, or a run directory, whose spending is shown too.
        """
        return _INSIGHT["report"](
            self, path, title=title, public_utility=public_utility, ledger=ledger
        )

    def __str__(self) -> str:
        return (
            f"{self.plan.epochs} epochs of {self.plan.horizon} steps, preset {self.plan.preset}; "
            f"parameters: mean of epoch {self.chosen_epoch + 1}, chosen at random.\n{self.privacy}"
        )
