"""The steps of a run on gradients: points are flat vectors, and the weights are moved to each.

What a run directory holds of it is its points and its keys. A step that was cut short is computed
again: the loss is a function, and what it gives for made-up records is compared before a run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from blindstep.estimate.gradients import GradientEstimator
from blindstep.estimate.vectors import Query, Vectors, worth_a_call
from blindstep.optimize.machine import Machine, State, StepInfo
from blindstep.private.gate import Contributions, Memory, Permit
from blindstep.private.schedule import Kind
from blindstep.run.loop import Run, traced
from blindstep.torch.group import ModelGroup


@dataclass(frozen=True)
class ModelGradients(Vectors):
    """The vectors of a batch's records, in natural units.

    Attributes:
        estimator: how they are made.
        group: the processes that differentiate.
        length: the natural unit of the parameters.
        slope: the length of a record's gradient at the start.
        unit: the size of a record's loss there.
        records: how many there are.
    """

    estimator: GradientEstimator
    group: ModelGroup
    length: float
    slope: float
    unit: float
    records: int

    def contributions(self, query: Query, batch: int) -> Contributions:
        """Each record's gradient at the query's point, to which the weights are moved first."""
        self.group.place(self.length * np.asarray(query.point))

        def of(rows: Int[Array, " some"], _: Int[Array, " some"]) -> Float[Array, "some size"]:
            found = self.group.gradients(np.asarray(rows))
            value = found[:, :1] / self.unit
            slopes = np.where(np.isfinite(value), found[:, 1:] / self.slope, np.nan)
            with jax.disable_jit(False):
                return _joined(self.estimator, jnp.asarray(slopes), jnp.asarray(value[:, 0]))

        return Contributions(self.group.at_a_time, of, rows=self.records)


@dataclass(frozen=True, eq=False)
class Points:
    """The road of a run on gradients: the means of its rounds, in natural units."""

    group: ModelGroup
    means: Float[np.ndarray, "rounds dim"]
    length: float

    def to(self, number: int | None) -> None:
        """Move the weights to the mean of a round's points; None: to the start."""
        if number is None:
            self.group.put_back()
        else:
            self.group.place(self.length * self.means[number])


def stepping(run: Run, vectors: ModelGradients) -> Callable[[], None]:
    """What makes the next step."""
    machine, public = traced(run.machine), run.session.gate.public

    def program(permit: Permit, memory: Memory) -> tuple[Memory, tuple[State, StepInfo]]:
        permit, query = _ready(permit, memory, machine, run.state, public)
        batch = worth_a_call(permit.terms.schedule, Kind.GRAD)
        # PyTorch is no part of a compiled program: the gate asks for some records after the other.
        with jax.disable_jit():
            contributions = vectors.contributions(query, batch)
            memory, release = permit.release(memory, Kind.GRAD, contributions)
        return memory, _told(machine, run.state, release, public)

    return lambda: run.advance(program)


@eqx.filter_jit
def _ready(
    permit: Permit, memory: Memory, machine: Machine, state: State, public: Key[Array, ""]
) -> tuple[Permit, Query]:
    """The permit with the noise of the next release, and what that asks."""
    return permit.drawn(memory, 1), machine.ask(state, Kind.GRAD, public)


@eqx.filter_jit
def _told(
    machine: Machine, state: State, release: Float[Array, " size"], public: Key[Array, ""]
) -> tuple[State, StepInfo]:
    return machine.tell(state, release, public)


@eqx.filter_jit
def _joined(
    estimator: GradientEstimator, slopes: Float[Array, "some dim"], value: Float[Array, " some"]
) -> Float[Array, "some size"]:
    return estimator.joined(slopes, value)
