"""Descent along a running mean of gradients, for networks whose gradients are released."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from blindstep.optimize.learners import Choice, Learner, Pace, Seen


class Momentum(Learner):
    """Steps along a running mean of gradients, whose length falls linearly from `reach` to 0.

        m_t = rest m_{t-1} + (1 - rest) g_t,     Delta_{t+1} = -reach s_t (1 - t / steps) m_t / |m_t|

    However long gradients are, and however noisy: noise is another one in each of them, and what they
    agree on adds up. m is never kept: it points along the last move, and the state has its length.

    The factor s begins at 1. It becomes `brake` times what it was whenever a running mean of the loss
    is higher than it has been, by more than noise: then steps are so long that noise in them makes the
    weights grow. That is looked at again once the mean has forgotten what was before.

    Attributes:
        rest: how much of the means stays.
        rise: standard deviations of the noise above which a rise of the loss counts.
        brake: what a step becomes after one.
    """

    name: ClassVar[str] = "momentum"
    persists_across_rounds: ClassVar[bool] = True
    rest: float | Float[Array, ""] = 0.9
    rise: float | Float[Array, ""] = 5.5
    brake: float | Float[Array, ""] = 0.5

    def init(self) -> Float[Array, "6"]:
        """Steps done, |m|, the running sum of losses, the lowest mean, s, steps since s changed."""
        return jnp.zeros(6).at[3].set(jnp.inf).at[4].set(1.0)

    def update(self, state: Float[Array, "6"], seen: Seen, pace: Pace) -> Choice:
        """A step of the length whose turn it is, along the mean."""
        done, norm, total, low, share, since = state
        new = 1.0 - self.rest
        total = self.rest * total + new * seen.value
        # What of the mean is of values at all, and how much less than one of them it varies.
        left = self.rest ** (done + 1.0)
        mean, spread = total / (1.0 - left), new / (1.0 + self.rest) * (1.0 + left) / (1.0 - left)
        doubt = pace.value_noise * jnp.sqrt(spread)
        # The lowest of many means is low by chance, too: hence a large `rise`.
        low = jnp.fmin(low, mean + doubt)
        rose = (mean > low + self.rise * doubt) & (since >= 1.0 / new)
        share = jnp.where(rose, self.brake * share, share)
        since = jnp.where(rose, 0.0, since + 1.0)

        moved = jnp.sqrt(seen.move_square)
        # m = -old Delta + new g
        old = self.rest * jnp.where(moved > 0, norm / jnp.where(moved > 0, moved, 1.0), 0.0)
        square = old**2 * seen.move_square + new**2 * seen.gradient_square
        norm = jnp.sqrt(jnp.maximum(square - 2.0 * old * new * seen.product, 0.0))
        length = share * pace.reach * jnp.maximum(1.0 - done / pace.steps, 0.0)
        along = jnp.where(norm > 0, length / jnp.where(norm > 0, norm, 1.0), 0.0)
        state = jnp.stack([done + 1.0, norm, total, low, share, since])
        return Choice(state, along * old, -along * new)

    def place(self, uniform: Float[Array, ""]) -> float:
        """At the end of the move."""
        return 1.0
