"""Descent along a running mean of gradients, for networks whose gradients are released."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from blindstep.optimize.learners import Choice, Learner, Pace, Seen


class Momentum(Learner):
    """Steps along a running mean of gradients, whose length falls linearly from `reach` to 0.

        m_t = rest m_{t-1} + (1 - rest) g_t,     Delta_{t+1} = -reach (1 - t / steps) m_t / |m_t|

    However long gradients are, and however noisy: noise is another one in each of them, and what they
    agree on adds up. m is never kept: it points along the last move, and the state has its length.

    Attributes:
        rest: how much of the mean stays.
    """

    name: ClassVar[str] = "momentum"
    persists_across_rounds: ClassVar[bool] = True
    rest: float | Float[Array, ""] = 0.9

    def init(self) -> Float[Array, "2"]:
        """Steps done, and |m|."""
        return jnp.zeros(2)

    def update(self, state: Float[Array, "2"], seen: Seen, pace: Pace) -> Choice:
        """A step of the length whose turn it is, along the mean."""
        done, norm = state
        moved = jnp.sqrt(seen.move_square)
        # m = -old Delta + new g
        old = self.rest * jnp.where(moved > 0, norm / jnp.where(moved > 0, moved, 1.0), 0.0)
        new = 1.0 - self.rest
        square = old**2 * seen.move_square + new**2 * seen.gradient_square
        norm = jnp.sqrt(jnp.maximum(square - 2.0 * old * new * seen.product, 0.0))
        length = pace.reach * jnp.maximum(1.0 - done / pace.steps, 0.0)
        share = jnp.where(norm > 0, length / jnp.where(norm > 0, norm, 1.0), 0.0)
        return Choice(jnp.stack([done + 1.0, norm]), share * old, -share * new)

    def place(self, uniform: Float[Array, ""]) -> float:
        """At the end of the move."""
        return 1.0
