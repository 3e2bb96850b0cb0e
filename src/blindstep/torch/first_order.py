"""The steps of a run on gradients: points are flat vectors, and the weights are moved to each.

What a run directory holds of it is its points and its keys. A step that was cut short is computed
again: the loss is a function, and what it gives for made-up records is compared before a run goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.estimate.gradients import GradientEstimator
from blindstep.estimate.vectors import Query, Vectors
from blindstep.optimize.machine import State, StepInfo
from blindstep.private.gate import Contributions, Memory, Permit
from blindstep.run.loop import Run, take_step
from blindstep.torch.group import ModelGroup


@dataclass(frozen=True)
class ModelGradients(Vectors):
    """The vectors of a batch's records, in natural units.

    Attributes:
        estimator: how they are made.
        group: the processes that differentiate.
        lengths: the natural unit of each parameter.
        unit: that of the loss.
        records: how many there are.
    """

    estimator: GradientEstimator
    group: ModelGroup
    lengths: Float[np.ndarray, " dim"]
    unit: float
    records: int

    def contributions(self, query: Query, batch: int) -> Contributions:
        """Each record's gradient at the query's point, to which the weights are moved first."""
        self.group.place(self.lengths * np.asarray(query.point))

        def of(rows: Int[Array, " some"], _: Int[Array, " some"]) -> Float[Array, "some size"]:
            found = self.group.gradients(np.asarray(rows)) / self.unit
            value = found[:, :1]
            slopes = np.where(np.isfinite(value), found[:, 1:] * self.lengths, np.nan)
            return self.estimator.joined(jnp.asarray(slopes), jnp.asarray(value[:, 0]))

        return Contributions(self.group.at_a_time, of, rows=self.records)


@dataclass(frozen=True, eq=False)
class Points:
    """The road of a run on gradients: the means of its rounds, in natural units."""

    group: ModelGroup
    means: Float[np.ndarray, "rounds dim"]
    lengths: Float[np.ndarray, " dim"]

    def to(self, number: int | None) -> None:
        """Move the weights to the mean of a round's points; None: to the start."""
        if number is None:
            self.group.put_back()
        else:
            self.group.place(self.lengths * self.means[number])


def descend(run: Run, vectors: ModelGradients) -> None:
    """Make the steps that are still to come."""
    session, machine = run.session, run.machine

    def program(permit: Permit, memory: Memory) -> tuple[Memory, tuple[State, StepInfo]]:
        permit = _drawn(permit, memory)
        # PyTorch is no part of a compiled program: the gate asks for some records after the other.
        with jax.disable_jit():
            given = (permit, memory, run.state, run.kind, session.gate.public)
            memory, state, info = take_step(machine, vectors, *given)
        return memory, (state, info)

    while not session.finished:
        run.advance(program)


@eqx.filter_jit
def _drawn(permit: Permit, memory: Memory) -> Permit:
    """The same permit with the noise of the next release: a program is compiled for it once."""
    return permit.drawn(memory, 1)
