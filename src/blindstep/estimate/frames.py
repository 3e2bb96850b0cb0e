"""Orthonormal frames: q <= d directions at right angles, each uniform on the sphere.

The gain is d / sqrt(q), where that of independent directions is d. Estimates are unbiased for the
gradient of the uniform smoothing, whatever the loss, and all such frames have the same mean squared
error (docs/frames.md). `Haar` is uniform as a whole and costs a QR factorisation. `Structured` costs
less than drawing independent directions.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from blindstep.errors import InvalidArgument, count
from blindstep.estimate import draws
from blindstep.estimate.directions import Directions, Moments, Parts, Which, first_of
from blindstep.estimate.frame_building import (
    LastLevel,
    build,
    finish_rows,
    squared_lengths,
    take_rows,
)
from blindstep.estimate.frame_levels import Level, blocks


class Frame(Directions):
    """A sampler of orthonormal directions."""

    def gain(self, directions: int, dim: int) -> float:
        """d / sqrt(q): |(d/q) sum_j c_j u_j| = (d/q) |(c_1, .., c_q)| <= (d/q) sqrt(q)."""
        _require_fit(directions, dim)
        return dim / math.sqrt(directions)

    def moments(self, directions: int, dim: int) -> Moments:
        """Those of orthonormal directions, each of which is uniform on the sphere.

        |e|^2 = (d/q)^2 sum c_j^2, so E|e|^2 <= (d^2 / q) L^2 / (d-1) for GRAD (d L^2/(d-1) at q = d,
        where independent directions have one L^2 more) and |e|^2 <= (d^2 / q) L^2 |x-y|^2 / h^2 for
        DIFF.
        """
        diff = dim**2 / directions
        seen = math.sqrt(diff) + math.sqrt(dim)
        return Moments(diff / max(1, dim - 1), diff, seen, orthonormal=True)


class Haar(Frame):
    """Frames with the uniform law on all frames, by QR factorisation of a Gaussian matrix.

    G = Q R for a d x q Gaussian matrix G. Q has the uniform law once the diagonal of R is made
    positive (Stewart 1980; Mezzadri 2007). This costs O(d q^2), whatever rows are asked for.
    """

    name: ClassVar[str] = "haar"

    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> Float[Array, "keys q dim"]:
        """The whole frames: computed in float64, then rounded to `dtype`."""
        _require_fit(directions, dim)

        def frame(key: Key[Array, ""]) -> Float[Array, "q dim"]:
            streams = jnp.arange(directions, dtype=jnp.uint32)
            q, r = jnp.linalg.qr(draws.normals(key, streams, dim, jnp.float64).T)
            signs = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)
            return (q * signs).T.astype(dtype)

        return jax.vmap(frame)(keys)

    def rows(
        self, prepared: Float[Array, "q dim"], which: Which, directions: int, dim: int
    ) -> Parts:
        """Rows of the frame, as they are."""
        return (prepared if which is None else take_rows(prepared, which),)


class Structured(Frame):
    """Frames built from smaller frames, from about d log2(q) normal draws instead of q d.

    Three steps make a larger frame of uniform directions from smaller ones (why: docs/frames.md):

    - *turn*: join p = 2, 4 or 8 independent frames, row by row, weighted by the rows of an orthogonal
      p x p matrix: multiplication by a random complex number, quaternion or octonion. (With p = 2 a
      butterfly matrix; Genz 1998 multiplies these into random orthogonal matrices.)
    - *reflect*, for odd dimensions: put a 0 in front of each row, and take the first axis to a uniform
      direction (the subgroup algorithm of Diaconis and Shahshahani 1987);
    - *weigh*: where q is far below d, cut the coordinates into blocks of at least q, take q
      directions in each block, and join them, weighted by the norms of a Gaussian vector's parts.

    Each direction is exactly uniform, so no loss is estimated with a bias. Together the directions
    are less random than Haar's. This changes neither bias nor mean squared error, but it can change
    higher moments. Cost: O(q d) operations. The compact directions hold all levels but the last: a
    half to an eighth of the frame.
    """

    name: ClassVar[str] = "structured"

    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> tuple[LastLevel, ...]:
        """The last level of each size of block, before it is multiplied out."""
        _require_fit(directions, dim)
        if keys.size > 1 and jax.default_backend() != "cpu":
            # `build` puts keys in the last axis, and an accelerator is slow at transposing that.
            one = functools.partial(self.prepare, directions=directions, dim=dim, dtype=dtype)
            return jax.vmap(lambda key: first_of(one(key[None])))(keys)
        sizes = blocks(directions, dim)
        several = sum(copies for copies, _ in sizes) > 1
        levels = [(copies, Level(directions, size)) for copies, size in sizes]
        supply = draws.Supply.of(
            keys,
            sum(copies * level.normals for copies, level in levels) + (dim if several else 0),
            sum(copies * level.signs for copies, level in levels),
            dtype,
        )
        lengths = [jnp.ones((1, keys.size), dtype)]
        if several:
            squares = [
                squared_lengths(supply.normals(size, copies)).reshape(copies, -1)
                for copies, size in sizes
            ]
            whole = functools.reduce(operator.add, (jnp.sum(s, axis=0) for s in squares))
            lengths = [jnp.sqrt(square / whole).astype(dtype) for square in squares]
        return tuple(
            build(supply, level, length) for (_, level), length in zip(levels, lengths, strict=True)
        )

    def rows(
        self, prepared: tuple[LastLevel, ...], which: Which, directions: int, dim: int
    ) -> Parts:
        """The rows asked for, multiplied out: one part for each size of block."""
        parts = [
            finish_rows(Level(directions, size), last, which)
            for (_, size), last in zip(blocks(directions, dim), prepared, strict=True)
        ]
        return tuple(part.reshape(part.shape[0], -1) for part in parts)


def _require_fit(directions: int, dim: int) -> None:
    """Raise unless `directions` orthonormal directions exist in dimension `dim`."""
    if count("directions", directions) > count("dim", dim):
        raise InvalidArgument(
            f"directions must be at most dim = {dim} for an orthonormal frame, got {directions}: ask "
            f"for {dim} or fewer, or use independent directions (sphere)."
        )
