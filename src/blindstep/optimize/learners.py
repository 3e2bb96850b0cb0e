"""Online learners in the ball of radius `reach`: they choose the next step from released gradients.

The first two are projected online subgradient descent, Delta_{t+1} = Pi(Delta_t - eta_t g~_t) with
Delta_1 = 0; the third is descent in steps of a length that falls to 0. They see released gradients
only, so any step size costs no privacy (erratum 6).
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from blindstep.private.clip import Scalar


class Step(NamedTuple):
    """What a learner does after a released gradient."""

    state: PyTree  # its state from now on
    move: Float[Array, " dim"]  # Delta_{t+1}, its next move
    move_norm: Float[Array, ""]  # |Delta_{t+1}|
    gradient_norm: Float[Array, ""]  # |g~_t|


class Learner(eqx.Module):
    """An online learner whose moves have norm at most `reach`."""

    reach: eqx.AbstractVar[float | Float[Array, ""]]
    # Whether a round goes on where the one before it stopped; the theorem's learners start afresh.
    persists_across_rounds: ClassVar[bool] = False

    @abc.abstractmethod
    def init(self) -> PyTree:
        """The state at the start of a round."""

    @abc.abstractmethod
    def update(
        self, state: PyTree, move: Float[Array, " dim"], gradient: Float[Array, " dim"]
    ) -> Step:
        """The next move, after a released gradient."""

    def probing(self, state: PyTree) -> Float[Array, ""] | None:
        """The share of the plan's smoothing at which to probe next; None: all of it."""
        return None

    def place(self, uniform: Float[Array, ""]) -> Scalar:
        """Where on its move the next gradient is wanted: anywhere, as the theorem has it."""
        return uniform


class ConstantStep(Learner):
    """Constant step eta. With eta = D / sqrt(sum_t E|g~_t|^2) the regret is at most D sqrt(sum)."""

    reach: float | Float[Array, ""]
    step: float | Float[Array, ""]

    def init(self) -> Float[Array, ""]:
        """Nothing to remember."""
        return jnp.zeros(())

    def update(
        self, state: Float[Array, ""], move: Float[Array, " dim"], gradient: Float[Array, " dim"]
    ) -> Step:
        """Delta <- Pi(Delta - eta g)."""
        square = jnp.vdot(gradient, gradient)
        return _descend(state, move, gradient, square, self.step, self.reach)


class AdaptiveStep(Learner):
    """Norm-AdaGrad: eta_t = sqrt(2) D / sqrt(sum_{s<=t} |g~_s|^2). Needs no bound on the gradients.

    Regret at most 2 sqrt(2) D sqrt(sum_t |g~_t|^2): the diameter 2D in the standard bound.
    """

    reach: float | Float[Array, ""]

    def init(self) -> Float[Array, ""]:
        """The sum of squared norms so far."""
        return jnp.zeros(())

    def update(
        self, state: Float[Array, ""], move: Float[Array, " dim"], gradient: Float[Array, " dim"]
    ) -> Step:
        """Delta <- Pi(Delta - eta_t g)."""
        square = jnp.vdot(gradient, gradient)
        state = state + square
        step = jnp.where(state > 0, jnp.sqrt(2.0) * self.reach / jnp.sqrt(state), 0.0)
        return _descend(state, move, gradient, square, step, self.reach)


class Falling(Learner):
    """Descent by steps whose length falls linearly from `reach` to 0, however long the gradient is.

        Delta_{t+1} = -reach (1 - t / steps) g~_t / |g~_t|,      t = 0 .. steps - 1

    Probes come closer with the steps, down to the share `nearest` of where they began. `widening` says
    how much farther than the plan's smoothing they begin: more where the loss is a staircase.
    """

    persists_across_rounds: ClassVar[bool] = True
    reach: float | Float[Array, ""]
    steps: int = eqx.field(static=True)
    widening: float | Float[Array, ""] = 1.0
    nearest: float | Float[Array, ""] = 0.1

    def init(self) -> Float[Array, ""]:
        """Steps made, over all rounds."""
        return jnp.zeros(())

    def update(
        self, state: Float[Array, ""], move: Float[Array, " dim"], gradient: Float[Array, " dim"]
    ) -> Step:
        """A step of the length whose turn it is, against the gradient."""
        norm = jnp.sqrt(jnp.vdot(gradient, gradient))
        length = self.length(state)
        move = -jnp.where(norm > 0, length / norm, 0.0) * gradient
        return Step(state + 1.0, move, jnp.where(norm > 0, length, 0.0), norm)

    def length(self, state: Float[Array, ""]) -> Float[Array, ""]:
        """How long the next move is."""
        return self.reach * jnp.maximum(1.0 - state / self.steps, 0.0)

    def probing(self, state: Float[Array, ""]) -> Float[Array, ""]:
        """As the steps fall, and never below `nearest`."""
        return self.widening * jnp.maximum(1.0 - state / self.steps, self.nearest)

    def place(self, uniform: Float[Array, ""]) -> float:
        """At the end of the move."""
        return 1.0


def _descend(
    state: PyTree,
    move: Float[Array, " dim"],
    gradient: Float[Array, " dim"],
    square: Float[Array, ""],
    step: float | Float[Array, ""],
    reach: float | Float[Array, ""],
) -> Step:
    """Pi(move - step gradient), the nearest point of the ball; `square` is |gradient|^2."""
    moved = move - step * gradient
    norm = jnp.sqrt(jnp.vdot(moved, moved))
    scale = jnp.where(norm > reach, reach / norm, 1.0)
    return Step(state, scale * moved, jnp.minimum(norm, reach), jnp.sqrt(square))
