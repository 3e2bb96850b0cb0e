"""Looks: what a run asks its records for first, to find the scales of the problem.

A record evaluates the loss f at the start and at pairs of points around it, along directions u_j at
distance h, and hands three things to the gate:

- a 1, around the place of log2 of the length of its slopes c_j = (f(+ h u_j) - f(- h u_j)) / 2h;
- a 1, around the place of log2 |f| at the start;
- where the directions are the axes: the shares c_j^2 / |c|^2 of its slopes, which add up to 1.

So its vector is at most sqrt(3) long, whatever the loss does. The mean over the records is two
histograms and the mean shares. `scales` reads the noisy mean.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Places of the histograms: powers of two from 2^-40 on.
PLACES, FIRST = 80, -40


class Parts(NamedTuple):
    """What a release of a look is made of."""

    slopes: Float[np.ndarray, " places"]  # histogram of log2 |c|
    values: Float[np.ndarray, " places"]  # histogram of log2 |f|
    shares: Float[np.ndarray, " dim"] | None  # mean shares of the axes; None along other directions


class Look(eqx.Module):
    """How a record's values become its vector.

    Attributes:
        dim: d, the number of parameters.
        directions: m, along which pairs of points lie; d means the axes.
    """

    dim: int = eqx.field(static=True)
    directions: int = eqx.field(static=True)

    @property
    def axes(self) -> bool:
        """Whether the directions are the axes."""
        return self.directions == self.dim

    @property
    def size(self) -> int:
        """Length of a record's vector."""
        return 2 * PLACES + (self.dim if self.axes else 0)

    @property
    def clip(self) -> float:
        """The longest that a record's vector can be."""
        return math.sqrt(3.0 if self.axes else 2.0)

    @property
    def evaluations(self) -> int:
        """Evaluations of the loss that a look asks of a record."""
        return 1 + 2 * self.directions

    def offsets(self, distance: float, seed: int) -> Float[np.ndarray, "evaluations dim"]:
        """Where to evaluate, from the start on: 0, then + h u_j, then - h u_j.

        Other directions than the axes are orthonormal and random: public, from a public seed.
        """
        if self.axes:
            directions = np.eye(self.dim)
        else:
            random = np.random.default_rng(seed).standard_normal((self.dim, self.directions))
            directions = np.linalg.qr(random)[0].T
        return distance * np.concatenate([np.zeros((1, self.dim)), directions, -directions])

    def vector(
        self, values: Float[Array, "*records evaluations"], distance: Float[Array, ""] | float
    ) -> Float[Array, "*records size"]:
        """A record's vector from its values at `offsets`; NaN, which counts 0, if one is not finite.

        Guarantee: it depends on that record's values and on public numbers alone, and it is at most
        `clip` long.
        """
        values = values.astype(jnp.float64)
        start, pairs = values[..., 0], values[..., 1:]
        slopes = (pairs[..., : self.directions] - pairs[..., self.directions :]) / (2.0 * distance)
        largest = jnp.max(jnp.abs(slopes), axis=-1, keepdims=True)
        relative = slopes / jnp.where(largest > 0, largest, 1.0)  # squares that do not overflow
        square = jnp.sum(relative**2, axis=-1, keepdims=True)
        # Of d directions these are m: the whole slope is longer by sqrt(d / m).
        length = largest * jnp.sqrt(square * (self.dim / self.directions))
        parts = [place(length[..., 0]), place(jnp.abs(start))]
        if self.axes:
            parts.append(relative**2 / jnp.where(square > 0, square, 1.0))
        finite = jnp.all(jnp.isfinite(values), axis=-1, keepdims=True) & jnp.isfinite(length)
        return jnp.where(finite, jnp.concatenate(parts, axis=-1), jnp.nan)

    def parts(self, release: Float[np.ndarray, " size"]) -> Parts:
        """A release cut into its parts."""
        release = np.asarray(release)
        shares = release[2 * PLACES :] if self.axes else None
        return Parts(release[:PLACES], release[PLACES : 2 * PLACES], shares)


def place(size: Float[Array, "*records"]) -> Float[Array, "*records places"]:
    """A 1, shared by the two places next to log2 of a size; at an end for sizes beyond; nothing for 0.

    The nearer place gets more, so that the mean of the places is log2 of the size. A vector of w and
    1 - w is at most 1 long.
    """
    number = jnp.log2(jnp.where(size > 0, size, 1.0)) - FIRST
    number = jnp.clip(number, 0.0, PLACES - 1.0)
    lower = jnp.minimum(jnp.floor(number), PLACES - 2.0)
    hot = jax.nn.one_hot(lower.astype(jnp.int32), PLACES, dtype=jnp.float64)
    upper = (number - lower)[..., None]
    shared = (1.0 - upper) * hot + upper * jnp.roll(hot, 1, axis=-1)
    return jnp.where(size[..., None] > 0, shared, 0.0)
