"""Calibrations: what a run asks its records for first, to find the scales of the problem.

A record evaluates the loss f at the start and at pairs of points around it, along directions u_j at
distance h, each within one leaf of the parameters, and hands these things to the gate:

- for each leaf a 1, around the place of log2 of the length of its slopes in it,
  c_j = (f(+ h u_j) - f(- h u_j)) / 2h;
- a 1, around the place of log2 |f| at the start;
- where the directions are the axes: the shares c_j^2 / |c|^2 of its slopes, which add up to 1, and
  of few axes all products c_j c_k / |c|^2: a matrix of Frobenius norm 1, and c / |c| itself.

So its vector is at most sqrt(leaves + 3) long, whatever the loss does. Of very few axes the first
calibration shows, in place of shares and products, a 1 around the place of log2 |c_j| for each axis,
all times a factor that leaves the vector no longer than that. The mean over the records is histograms,
the mean shares or products, and the mean direction of the slopes. `scales` reads the noisy mean.
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
# Of more axes than this the products would be too many to hold, and mostly noise.
MOST_PRODUCTS = 128
# Of so many a first calibration shows the size of the slopes along each.
MOST_COLUMNS = 24


class Parts(NamedTuple):
    """What a release of a calibration is made of."""

    slopes: Float[np.ndarray, "leaves places"]  # histograms of log2 |c|, one for each leaf
    values: Float[np.ndarray, " places"]  # histogram of log2 |f|
    # Mean shares of the axes, and mean c c' / |c|^2; None along other directions, or of too many.
    shares: Float[np.ndarray, " dim"] | None
    products: Float[np.ndarray, "dim dim"] | None
    mean: Float[np.ndarray, " dim"] | None  # mean c / |c|; None without products
    # Histograms of log2 |c_j|, one for each axis; all 0 where products are shown instead.
    columns: Float[np.ndarray, "dim places"] | None


class CalibrationQuery(eqx.Module):
    """How a record's values become its vector.

    Attributes:
        leaves: how many parameters each leaf has.
        each: along how many directions pairs of points lie in a leaf; its axes, if it has no more.
        signs: whether the directions are always random signs (`estimate.signs`), never the axes.
    """

    leaves: tuple[int, ...] = eqx.field(static=True)
    each: int = eqx.field(static=True)
    signs: bool = eqx.field(static=True, default=False)

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return sum(self.leaves)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many directions each leaf has."""
        return tuple(min(self.each, size) for size in self.leaves)

    @property
    def axes(self) -> bool:
        """Whether the directions are the axes."""
        return self.counts == self.leaves and not self.signs

    @property
    def uses_products(self) -> bool:
        """Whether the slopes along different axes are multiplied."""
        return self.axes and self.dim <= MOST_PRODUCTS

    @property
    def uses_columns(self) -> bool:
        """Whether a first calibration shows the size of the slopes along each axis."""
        return self.axes and self.dim <= MOST_COLUMNS and len(self.leaves) == 1

    @property
    def size(self) -> int:
        """Length of a record's vector."""
        columns = self.dim * PLACES if self.uses_columns else 0
        products = self.dim * (self.dim + 1) // 2 if self.uses_products else 0
        return (len(self.leaves) + 1) * PLACES + (self.dim if self.axes else 0) + products + columns

    @property
    def shrink(self) -> float:
        """The factor of a first calibration that shows columns: its noise is longer by its inverse."""
        return self.clip / math.sqrt(self.dim + 2.0)

    @property
    def clip(self) -> float:
        """The longest that a record's vector can be."""
        return math.sqrt(len(self.leaves) + 1.0 + self.axes + self.uses_products)

    @property
    def evaluations(self) -> int:
        """Evaluations of the loss that a calibration asks of a record."""
        return 1 + 2 * sum(self.counts)

    def offsets(self, distance: float, seed: int) -> Float[np.ndarray, "evaluations dim"]:
        """Where to evaluate, from the start on: 0, then + h u_j, then - h u_j.

        Other directions than the axes are orthonormal and random: public, from a public seed.
        """
        chance, directions, first = np.random.default_rng(seed), [], 0
        for size, number in zip(self.leaves, self.counts, strict=True):
            block = np.zeros((number, self.dim))
            within = np.eye(size)
            if number < size:
                within = np.linalg.qr(chance.standard_normal((size, number)))[0].T
            block[:, first : first + size] = within
            directions.append(block)
            first += size
        every = np.concatenate(directions)
        return distance * np.concatenate([np.zeros((1, self.dim)), every, -every])

    def vector(
        self, values: Float[Array, "*records evaluations"], distance: Float[Array, ""] | float
    ) -> Float[Array, "*records size"]:
        """A record's vector from its values at `offsets`; NaN, which counts 0, if one is not finite.

        A distance below 0 asks for columns, at as much above 0.

        Guarantee: it depends on that record's values and on public numbers alone, and it is at most
        `clip` long.
        """
        values = values.astype(jnp.float64)
        apart, distance = jnp.asarray(distance) < 0, jnp.abs(jnp.asarray(distance))
        start, pairs = values[..., 0], values[..., 1:]
        number = sum(self.counts)
        slopes = (pairs[..., :number] - pairs[..., number:]) / (2.0 * distance)
        largest = jnp.max(jnp.abs(slopes), axis=-1, keepdims=True)
        relative = slopes / jnp.where(largest > 0, largest, 1.0)  # squares that do not overflow
        square = jnp.sum(relative**2, axis=-1, keepdims=True)
        cuts = np.cumsum(self.counts)[:-1]
        parts = [
            # Of n directions in the leaf these are m: the whole slope is longer by sqrt(n / m).
            place(largest[..., 0] * jnp.sqrt(jnp.sum(leaf**2, axis=-1) * (size / leaf.shape[-1])))
            for size, leaf in zip(self.leaves, jnp.split(relative, cuts, axis=-1), strict=True)
        ]
        parts.append(place(jnp.abs(start)))
        unit = relative * jax.lax.rsqrt(jnp.where(square > 0, square, 1.0))
        if self.axes:
            parts.append(unit**2)
        if self.uses_products:
            # A product stands in the matrix twice, and here once, times sqrt(2): the same norm.
            row, column = np.triu_indices(self.dim, 1)
            parts.append(math.sqrt(2.0) * unit[..., row] * unit[..., column])
            parts.append(unit)
        if self.uses_columns:
            own = place(jnp.abs(slopes)).reshape(*slopes.shape[:-1], -1)
            sizes = [self.shrink * jnp.concatenate(parts[:2], axis=-1)]
            sizes += [jnp.zeros_like(part) for part in parts[2:]]
            first = jnp.concatenate([*sizes, self.shrink * own], axis=-1)
            usual = jnp.concatenate([*parts, jnp.zeros_like(own)], axis=-1)
            parts = [jnp.where(apart, first, usual)]
        finite = jnp.all(jnp.isfinite(values), axis=-1, keepdims=True) & jnp.isfinite(largest)
        return jnp.where(finite, jnp.concatenate(parts, axis=-1), jnp.nan)

    def parts(self, release: Float[np.ndarray, " size"]) -> Parts:
        """A release cut into its parts."""
        release, leaves = np.asarray(release), len(self.leaves)
        histograms = release[: (leaves + 1) * PLACES].reshape(leaves + 1, PLACES)
        rest = release[(leaves + 1) * PLACES :]
        columns = None
        if self.uses_columns:
            rest, columns = np.split(rest, [rest.size - self.dim * PLACES])
            columns = columns.reshape(self.dim, PLACES)
        shares, products, mean = (rest[: self.dim] if self.axes else None), None, None
        if self.uses_products:
            products = np.diag(rest[: self.dim]).copy()
            row, column = np.triu_indices(self.dim, 1)
            off, mean = rest[self.dim : -self.dim], rest[-self.dim :]
            products[row, column] = products[column, row] = off / math.sqrt(2.0)
        return Parts(histograms[:-1], histograms[-1], shares, products, mean, columns)


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
