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

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.trusted.directions import Directions

Wanted = Int[Array, " some"] | None  # which rows of a frame; None: all of them


def require_fit(number: int, dim: int) -> None:
    """Raise unless `number` orthonormal directions exist in dimension `dim`."""
    if count("directions", number) > count("dim", dim):
        raise InvalidArgument(
            f"directions must be at most dim = {dim} for an orthonormal frame, got {number}: ask "
            f"for {dim} or fewer, or use independent directions (sphere)."
        )


class Frame(Directions):
    """Orthonormal directions, each uniform on the sphere."""

    orthonormal: ClassVar[bool] = True

    def gain(self, number: int, dim: int) -> float:
        """d / sqrt(q): |(d/q) sum_j c_j u_j| = (d/q) |c| <= (d/q) sqrt(q) max_j |c_j|."""
        require_fit(number, dim)
        return dim / math.sqrt(number)


class Haar(Frame):
    """The uniform law on all frames, by QR factorisation of a Gaussian matrix.

    G = Q R with G a d x q Gaussian matrix; Q is Haar distributed once R has a positive diagonal
    (Stewart 1980; Mezzadri 2007: without the signs it is not). Each call factorises the whole
    frame, O(d q^2), whatever rows are asked for.
    """

    name: ClassVar[str] = "haar"

    def sample(
        self, key: Key[Array, ""], which: Int[Array, " some"], number: int, dim: int
    ) -> Float[Array, "some dim"]:
        """Columns `which` of Q, with the signs of R's diagonal."""
        require_fit(number, dim)
        q, r = jnp.linalg.qr(jax.random.normal(key, (dim, number), jnp.float64))
        signs = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)
        return _choose((q * signs).T, which)


class Structured(Frame):
    """A frame built from smaller ones, from about d (2 + log2 q) / 2 normals instead of q d.

    Three steps lead from frames whose directions are uniform to a larger one whose directions are:

    - *turn*: let A^1 .. A^p be independent frames of the same size in dimension m, and w a random
      unit vector of R^p whose squares are Dirichlet(m/2, .., m/2). Then (w_1 A^1_j, .., w_p A^p_j)
      is uniform in dimension p m: that is how a Gaussian vector's norm splits over its p parts.
      For p = 2, 4, 8 multiplication by w of complex numbers, quaternions, octonions is an
      orthogonal matrix whose rows are signed permutations of w: so each j gives p directions,
      orthogonal to each other and, since A^i_j is orthogonal to A^i_k, to those of other j;
    - *reflect*: let g be uniform in odd dimension m + 1, and A a frame in dimension m. A Householder
      reflection that takes the first axis to the line of g takes the vectors (0, A_j) to directions
      orthogonal to g, uniform among those, so uniform (the subgroup algorithm, Diaconis and
      Shahshahani 1987). If q = m + 1 then g itself is the last direction;
    - *weigh*: where q is far below d, cut the d coordinates into blocks of at least q, take a frame
      of q directions in each, and join them with the norms of a Gaussian vector's parts as weights.

    A direction by itself is exactly uniform, so no loss is estimated with a bias; taken together
    they are not as random as Haar's, which moves neither bias nor mean squared error but can move
    higher moments. (Genz 1998 builds random orthogonal matrices from butterfly matrices; quaternions,
    octonions and the two other steps make any d and any q possible here.)

    Cost: O(q d) operations and memory: each level of the construction is a fraction of the next.
    """

    name: ClassVar[str] = "structured"

    def sample(
        self, key: Key[Array, ""], which: Int[Array, " some"], number: int, dim: int
    ) -> Float[Array, "some dim"]:
        """Rows `which` of the frame, in O(some d) operations apart from the shared levels."""
        require_fit(number, dim)
        parts = [_Part.of(number, size, copies) for copies, size in _cut(number, dim)]
        weighed = sum(part.copies for part in parts) > 1
        take = _supply(key, sum(part.normals for part in parts) + weighed * dim)
        joined = [_grow(take, part.levels, part.leaf, part.copies, which) for part in parts]
        if weighed:
            lengths = [jnp.linalg.norm(take(part.copies, part.size), axis=-1) for part in parts]
            whole = jnp.sqrt(sum(jnp.sum(length**2) for length in lengths))
            joined = [
                rows * (length / whole)[:, None]
                for rows, length in zip(joined, lengths, strict=True)
            ]
        return _side_by_side([rows.reshape(rows.shape[0], -1) for rows in joined], which.size, dim)


@dataclass(frozen=True)
class _Level:
    """A frame of `number` directions in dimension `size`, and how it comes from smaller ones."""

    number: int
    size: int

    @property
    def odd(self) -> bool:
        """Whether the frame is the reflection of one in dimension size - 1."""
        return self.size % 2 == 1

    @property
    def complete(self) -> bool:
        """Whether the vector that defines the reflection is the last direction."""
        return self.odd and self.number == self.size

    @property
    def ways(self) -> int:
        """Number p of frames that are turned into one."""
        even, ways = self.size - self.odd, 2
        while ways < 8 and even % (2 * ways) == 0 and ways < self.number - self.complete:
            ways *= 2
        return ways

    @property
    def below(self) -> _Level:
        """Each of the p smaller frames."""
        rows = self.number - self.complete
        return _Level(-(-rows // self.ways), (self.size - self.odd) // self.ways)

    @property
    def normals(self) -> int:
        """Normal draws that the step up to this frame needs: angles, and a reflection if odd."""
        angles = self.size // 2 * int(math.log2(self.ways)) + self.ways - 1
        return angles + self.odd * self.size


@dataclass(frozen=True)
class _Part:
    """Equal blocks of coordinates and the levels that build a frame in each of them."""

    copies: int
    size: int
    levels: tuple[_Level, ...]
    leaf: int

    @classmethod
    def of(cls, number: int, size: int, copies: int) -> _Part:
        level, levels = _Level(number, size), []
        while level.number > 1:
            levels.append(level)
            level = level.below
        return cls(copies, size, tuple(levels), level.size)

    @property
    def normals(self) -> int:
        """Normal draws for all blocks."""
        total, frames = 0, self.copies
        for level in self.levels:
            total += frames * level.normals
            frames *= level.ways
        return total + frames * self.leaf


def _cut(number: int, dim: int) -> list[tuple[int, int]]:
    """Blocks as (how many, of which size): powers of two, and one block for what is left."""
    size = 1 << (number - 1).bit_length()
    blocks, left = divmod(dim, size)
    if 0 < left < number:
        blocks, left = blocks - 1, left + size
    return [(copies, width) for copies, width in ((blocks, size), (1, left)) if copies and width]


def _supply(key: Key[Array, ""], total: int) -> Callable[[int, int], Float[Array, "rows columns"]]:
    """Hands out `total` normal draws, row by row."""
    half = -(-total // 2)
    # A loop, so that the draws are stored: XLA would otherwise repeat the inverse error function
    # inside every one of the many small operations that read them.
    normals = jax.lax.map(
        lambda k: jax.random.normal(k, (half,), jnp.float64), jax.random.split(key)
    ).reshape(-1)
    used = 0

    def take(rows: int, columns: int) -> Float[Array, "rows columns"]:
        nonlocal used
        start, used = used, used + rows * columns
        return normals[start:used].reshape(rows, columns)

    return take


def _grow(
    take: Callable[[int, int], Array],
    levels: tuple[_Level, ...],
    leaf: int,
    frames: int,
    wanted: Wanted,
) -> Float[Array, "rows frames size"]:
    """The wanted directions of `frames` independent frames, built from the bottom up."""
    if not levels:
        return _unit(take(frames, leaf))[None]
    level, below = levels[0], levels[0].below
    ways = level.ways
    parents = jnp.minimum(wanted // ways, below.number - 1)
    # Fewer directions below than are wanted here: build them all once; else only those needed.
    share = below.number <= wanted.size
    needed = jnp.arange(below.number) if share else parents
    child = _grow(take, levels[1:], leaf, frames * ways, needed)
    child = child.reshape(-1, frames, ways, below.size)
    share_choose = (lambda t: _choose(t, parents)) if share else (lambda t: t)
    turn = _choose(_turns(take, level, frames).reshape(-1, frames, ways), wanted)
    rows = (share_choose(child) * turn[..., None]).reshape(-1, frames, below.size * ways)
    if not level.odd:
        return rows
    axis = _unit(take(frames, level.size))
    along = jnp.einsum("rfws,fws->rfw", child, axis[:, 1:].reshape(frames, ways, below.size))
    along = jnp.sum(share_choose(along) * turn, axis=-1, keepdims=True)
    return _reflect(rows, along, axis, level, wanted)


def _turns(
    take: Callable[[int, int], Array], level: _Level, frames: int
) -> Float[Array, "children ways frames ways"]:
    """The p x p orthogonal matrices that turn p frames into one: one for each direction below.

    A unit vector w whose squares are Dirichlet(m/2, .., m/2) is split in halves again and again. Two
    halves of dimension h share the square as cos^2 t : sin^2 t ~ Beta(h/2, h/2), which makes cos 2t
    a coordinate of a uniform point of the sphere in dimension h + 1. Its h + 1 coordinates give the
    angles of all the directions below, which are at most h.
    """
    children, ways = level.below.number, level.ways
    weights = jnp.ones((children, frames, 1), jnp.float64)
    while (pieces := weights.shape[-1]) < ways:
        points = _unit(take(frames * pieces, level.size // 2 // pieces + 1))
        double = points[:, :children].T.reshape(children, frames, pieces)
        # Rounding may leave a coordinate just outside [-1, 1].
        halves = [jnp.sqrt(jnp.maximum(1.0 + sign * double, 0.0) / 2.0) for sign in (1, -1)]
        weights = weights[..., None] * jnp.stack(halves, axis=-1)
        weights = weights.reshape(children, frames, 2 * pieces)
    return jnp.einsum("cfk,kwv->cwfv", weights, jnp.asarray(_products(ways)))


def _reflect(
    rows: Float[Array, "rows frames even"],
    along: Float[Array, "rows frames 1"],
    axis: Float[Array, "frames odd"],
    level: _Level,
    wanted: Wanted,
) -> Float[Array, "rows frames odd"]:
    """The vectors (0, row) reflected by I - v v^T / (1 + |g_1|), v = g + sign(g_1) e_1.

    That reflection takes e_1 to -sign(g_1) g. `along` holds the scalar products of rows with the
    coordinates of g after the first.
    """
    first, rest = axis[:, :1], axis[:, 1:]
    sign = jnp.where(first < 0, -1.0, 1.0)
    rows = rows - along / (1.0 + jnp.abs(first)) * rest
    rows = jnp.concatenate([-sign * along, rows], axis=-1)
    if wanted is None:
        return jnp.concatenate([rows, axis[None]]) if level.complete else rows[: level.number]
    if level.complete:
        return jnp.where((wanted == level.number - 1)[:, None, None], axis, rows)
    return rows


def _side_by_side(
    parts: list[Float[Array, "rows width"]], rows: int, dim: int
) -> Float[Array, "rows dim"]:
    """All parts as one array. A single leaf row stands for every row."""
    first = jnp.broadcast_to(parts[0], (rows, parts[0].shape[1]))
    if len(parts) == 1:
        return first
    # Written into place: a concatenation would store the large first part twice.
    padded = jnp.pad(first, ((0, 0), (0, dim - first.shape[1])))
    return jax.lax.dynamic_update_slice(padded, parts[1], (0, first.shape[1]))


@functools.cache
def _products(ways: int) -> Float[np.ndarray, "ways ways ways"]:
    """Multiplication of complex numbers (2), quaternions (4), octonions (8): e_w e_k = sum_v t[k,w,v] e_v.

    By doubling (Cayley and Dickson): (a, b)(c, d) = (a c - d* b, d a + b c*). Norms multiply, and so
    sum_k x_k t[k] is orthogonal for every unit vector x.
    """

    def conjugate(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:1], -x[1:]])

    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.size == 1:
            return x * y
        (a, b), (c, d) = np.split(x, 2), np.split(y, 2)
        left = product(a, c) - product(conjugate(d), b)
        return np.concatenate([left, product(d, a) + product(b, conjugate(c))])

    units = np.eye(ways)
    return np.array([[product(units[w], units[k]) for w in range(ways)] for k in range(ways)])


def _unit(vectors: Float[Array, "*lead size"]) -> Float[Array, "*lead size"]:
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def _choose(rows: Float[Array, "rows ..."], which: Int[Array, " some"]) -> Float[Array, "some ..."]:
    return jnp.take(rows, which, axis=0, mode="clip")
