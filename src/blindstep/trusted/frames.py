"""Orthonormal frames: q <= d directions at right angles, each uniform on the sphere.

With u_1 .. u_q orthonormal and |c_j| <= c, a record's estimate e = (d/q) sum_j c_j u_j has

    |e| = (d/q) |(c_1 .. c_q)| <= (d/q) sqrt(q) c = (d / sqrt(q)) c

for every draw (Pythagoras): the gain is d / sqrt(q), against d for independent directions. If
moreover each u_j, taken by itself, is uniform on the sphere, then

- E e is that of independent directions, since term j depends on u_j only: estimates stay unbiased
  for the gradient of the uniform smoothing, whatever the loss;
- E|e|^2 = (d/q)^2 sum_j E c_j^2 depends on the law of one direction only: all such frames have the
  same mean squared error, however their directions depend on each other.

Both frames here have this property exactly. `Haar` is uniform as a whole and costs a QR
factorisation. `Structured` costs less than drawing independent directions.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.trusted import draws
from blindstep.trusted.directions import Directions, Parts, first_of
from blindstep.trusted.frame_building import Supply, Top, choose, grow, squared_lengths, top
from blindstep.trusted.frame_levels import Level, cut


class Frame(Directions):
    """Orthonormal directions, each uniform on the sphere."""

    orthonormal: ClassVar[bool] = True

    @abc.abstractmethod
    def slack(self, number: int, dim: int, dtype: DTypeLike) -> float:
        """By how much rounding may stretch: |sum_j c_j u_j| <= (1 + slack) |c|, for every draw."""

    def gain(self, number: int, dim: int) -> float:
        """d / sqrt(q): |(d/q) sum_j c_j u_j| = (d/q) |c| <= (d/q) sqrt(q) max_j |c_j|."""
        _require_fit(number, dim)
        return dim / math.sqrt(number)


class Haar(Frame):
    """The uniform law on all frames, by QR factorisation of a Gaussian matrix.

    G = Q R with G a d x q Gaussian matrix; Q is Haar distributed once R has a positive diagonal
    (Stewart 1980; Mezzadri 2007: without the signs it is not). The whole frame is factorised, in
    O(d q^2), whatever rows are asked for.
    """

    name: ClassVar[str] = "haar"

    def prepare(
        self, keys: Key[Array, " keys"], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> Float[Array, "keys q dim"]:
        """The columns of Q, with the signs of R's diagonal; in float64, rounded at the end."""
        _require_fit(number, dim)

        def frame(key: Key[Array, ""]) -> Float[Array, "q dim"]:
            gaussian = draws.normals(key, jnp.arange(number, dtype=jnp.uint32), dim, jnp.float64)
            q, r = jnp.linalg.qr(gaussian.T)
            signs = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)
            return (q * signs).T.astype(dtype)

        return jax.vmap(frame)(keys)

    def rows(
        self,
        prepared: Float[Array, "q dim"],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
    ) -> Parts:
        """Those rows."""
        return (prepared if which is None else choose(prepared, which),)

    def slack(self, number: int, dim: int, dtype: DTypeLike) -> float:
        """Householder QR's backward error (Higham 2002, theorem 19.4), and the final rounding."""
        factorised = 8.0 * dim * number**1.5 * _unit_roundoff(jnp.float64)
        return factorised + math.sqrt(number) * _unit_roundoff(dtype)


class Structured(Frame):
    """A frame built from smaller ones, from about d log2(q) normal draws instead of q d.

    Three steps lead from frames whose directions are each uniform to a larger one of that kind:

    - *turn*: take p independent frames A^1 .. A^p in dimension m, and for each j a random unit
      vector w of R^p whose squares are Dirichlet(m/2, .., m/2). Then (w_1 A^1_j, .., w_p A^p_j) is
      uniform in dimension p m, since so does a Gaussian vector's norm split over p parts. For p = 2,
      4, 8 multiplication by w, of complex numbers, quaternions or octonions, is an orthogonal matrix
      whose rows are signed permutations of w. So each j gives p directions, orthogonal to one
      another and, as A^i_j is orthogonal to A^i_k, to those of every other j;
    - *reflect*: take a frame A in dimension m, and g uniform in dimension m + 1. A Householder
      reflection that takes the first axis to the line of g takes the vectors (0, A_j) to directions
      orthogonal to g and uniform among those, hence uniform (the subgroup algorithm of Diaconis and
      Shahshahani 1987). If q = m + 1 then g is the last direction;
    - *weigh*: where q is far below d, cut the coordinates into blocks of at least q, take q
      directions in each, and join them with the norms of a Gaussian vector's parts as weights.

    A direction by itself is exactly uniform, so no loss is estimated with a bias. Taken together
    the directions are less random than Haar's, which moves neither bias nor mean squared error but
    can move higher moments. (The turn with p = 2 is a butterfly matrix, as Genz 1998 multiplies them
    into random orthogonal matrices.)

    Cost: O(q d) operations, as each level holds a fraction of the directions of the next. Memory: a
    direction comes from one of the level below, which is all that has to be held.
    """

    name: ClassVar[str] = "structured"

    def prepare(
        self, keys: Key[Array, " keys"], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> tuple[Top, ...]:
        """For each size of block what its last level is made of: a half to an eighth of the frame."""
        _require_fit(number, dim)
        if keys.size > 1 and jax.default_backend() != "cpu":
            # An accelerator is slow at turning arrays around whose last axis is the key.
            return jax.vmap(lambda key: first_of(self.prepare(key[None], number, dim, dtype)))(keys)
        blocks = cut(number, dim)
        weighed = sum(copies for copies, _ in blocks) > 1
        levels = [(copies, Level(number, size)) for copies, size in blocks]
        supply = Supply.of(
            keys,
            sum(copies * level.normals for copies, level in levels) + (dim if weighed else 0),
            sum(copies * level.signs for copies, level in levels),
            dtype,
        )
        lengths = [jnp.ones((1, keys.size), dtype)]
        if weighed:
            squares = [
                squared_lengths(supply.normals(size, copies)).reshape(copies, -1)
                for copies, size in blocks
            ]
            whole = functools.reduce(operator.add, (jnp.sum(s, axis=0) for s in squares))
            lengths = [jnp.sqrt(square / whole).astype(dtype) for square in squares]
        return tuple(
            top(supply, level, length) for (_, level), length in zip(levels, lengths, strict=True)
        )

    def rows(
        self,
        prepared: tuple[Top, ...],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
    ) -> Parts:
        """The last level's turns and reflections, of those rows alone: a part for each block size."""
        grown = [
            grow(Level(number, size), made_of, which)
            for (_, size), made_of in zip(cut(number, dim), prepared, strict=True)
        ]
        return tuple(part.reshape(part.shape[0], -1) for part in grown)

    def slack(self, number: int, dim: int, dtype: DTypeLike) -> float:
        """sqrt(q) u sum over levels of (16 + 4 size if odd), with u the unit roundoff.

        A turn is orthogonal for every w up to |w|, which is 1 within a few u whatever was rounded
        before; a rounded product of matrices moves each row by a few u, hence the frame by sqrt(q)
        times that; a reflection adds sqrt(2) times the error of a scalar product, and its own
        arithmetic. Products are made from those below: an error of sqrt(2) (size + 8) u at each
        reflection on the way, whose sizes halve, and of a few u at each turn.
        """
        worst = 0.0
        for _, size in cut(number, dim):
            level, total = Level(number, size), 16.0
            while level.number > 1:
                total += 16.0 + (4.0 * level.size if level.odd else 0.0)
                level = level.below
            worst = max(worst, total)
        return math.sqrt(number) * _unit_roundoff(dtype) * worst


def _unit_roundoff(dtype: DTypeLike) -> float:
    return float(jnp.finfo(dtype).eps) / 2.0


def _require_fit(number: int, dim: int) -> None:
    """Raise unless `number` orthonormal directions exist in dimension `dim`."""
    if count("directions", number) > count("dim", dim):
        raise InvalidArgument(
            f"directions must be at most dim = {dim} for an orthonormal frame, got {number}: ask "
            f"for {dim} or fewer, or use independent directions (sphere)."
        )
