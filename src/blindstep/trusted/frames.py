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
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.trusted.directions import Directions

Take = Callable[[int, int], Float[Array, "rows columns"]]


class Frame(Directions):
    """Orthonormal directions, each uniform on the sphere."""

    orthonormal: ClassVar[bool] = True

    def gain(self, number: int, dim: int) -> float:
        """d / sqrt(q): |(d/q) sum_j c_j u_j| = (d/q) |c| <= (d/q) sqrt(q) max_j |c_j|."""
        _require_fit(number, dim)
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
        _require_fit(number, dim)
        q, r = jnp.linalg.qr(jax.random.normal(key, (dim, number), jnp.float64))
        signs = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)
        return _choose((q * signs).T, which)


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

    Cost: O(q d) operations and memory, as each level holds a fraction of the directions of the next.
    """

    name: ClassVar[str] = "structured"

    def sample(
        self, key: Key[Array, ""], which: Int[Array, " some"], number: int, dim: int
    ) -> Float[Array, "some dim"]:
        """Rows `which` of the frame; levels with fewer directions than that are built whole."""
        _require_fit(number, dim)
        blocks = _cut(number, dim)
        weighed = sum(copies for copies, _ in blocks) > 1
        levels = [(copies, _Level(number, size)) for copies, size in blocks]
        draws = _Draws.of(
            key,
            sum(copies * level.normals for copies, level in levels) + (dim if weighed else 0),
            sum(copies * level.signs for copies, level in levels),
        )
        weights = [jnp.ones(1, jnp.float64)]
        if weighed:
            norms = [jnp.linalg.norm(draws.normals(*block), axis=-1) for block in blocks]
            whole = jnp.linalg.norm(jnp.concatenate(norms))
            weights = [norm / whole for norm in norms]
        frame, start = jnp.zeros((which.size, dim), jnp.float64), 0
        for (copies, level), lengths in zip(levels, weights, strict=True):
            part = _grow(draws, level, lengths, which).reshape(which.size, -1)
            # Written into place: to concatenate would be to hold a large part twice.
            frame = jax.lax.dynamic_update_slice(frame, part, (0, start))
            start += copies * level.size
        return frame


def _require_fit(number: int, dim: int) -> None:
    """Raise unless `number` orthonormal directions exist in dimension `dim`."""
    if count("directions", number) > count("dim", dim):
        raise InvalidArgument(
            f"directions must be at most dim = {dim} for an orthonormal frame, got {number}: ask "
            f"for {dim} or fewer, or use independent directions (sphere)."
        )


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
        """Number p of smaller frames that are turned into one."""
        ways = 2
        while ways < 8 and self.size // 2 % ways == 0 and ways < self.number - self.complete:
            ways *= 2
        return ways

    @property
    def below(self) -> _Level:
        """Each of the p smaller frames."""
        return _Level(
            -(-(self.number - self.complete) // self.ways), self.size // 2 * 2 // self.ways
        )

    @property
    def normals(self) -> int:
        """Normal draws for the whole frame: a leaf; or angles, a reflection if odd, and all below."""
        if self.number == 1:
            return self.size
        angles = sum(k * (self.size // 2 // k + 1) for k in (1, 2, 4) if k < self.ways)
        return angles + (self.size if self.odd else 0) + self.ways * self.below.normals

    @property
    def signs(self) -> int:
        """Random signs for the whole frame: p for each direction below."""
        if self.number == 1:
            return 0
        return self.ways * (self.below.number + self.below.signs)


def _cut(number: int, dim: int) -> list[tuple[int, int]]:
    """Blocks as (how many, of which size): powers of two, and one block for what is left."""
    size = 1 << (number - 1).bit_length()
    copies, left = divmod(dim, size)
    if 0 < left < number:
        copies, left = copies - 1, left + size
    return [block for block in ((copies, size), (1, left)) if 0 not in block]


class _Draws(NamedTuple):
    """Normal draws and random signs, handed out piece by piece."""

    normals: Take
    signs: Take

    @classmethod
    def of(cls, key: Key[Array, ""], normals: int, signs: int) -> _Draws:
        """A supply of exactly so many."""
        first, second, third = jax.random.split(key, 3)
        # A loop, so that the draws are stored: XLA would otherwise repeat the inverse error
        # function inside every one of the many small operations that read them.
        halves = jax.lax.map(
            lambda k: jax.random.normal(k, (-(-normals // 2),), jnp.float64),
            jnp.stack([first, second]),
        )
        words = jax.random.bits(third, (-(-signs // 32), 1), jnp.uint32)
        bits = (words >> jnp.arange(32, dtype=jnp.uint32)) & 1
        flips = 1.0 - 2.0 * bits.reshape(-1).astype(jnp.float64)
        return cls(_dispense(halves.reshape(-1)), _dispense(flips))


def _dispense(stock: Float[Array, " stock"]) -> Take:
    """A function that hands out a stock row by row, each number once."""
    used = 0

    def take(rows: int, columns: int) -> Float[Array, "rows columns"]:
        nonlocal used
        start, used = used, used + rows * columns
        return stock[start:used].reshape(rows, columns)

    return take


def _grow(
    draws: _Draws, level: _Level, lengths: Float[Array, " frames"], wanted: Int[Array, " some"]
) -> Float[Array, "some frames size"]:
    """Directions `wanted` of independent frames, one for each of the `lengths` they shall have."""
    frames = lengths.size
    if level.number == 1:
        leaf = lengths[:, None] * _unit(draws.normals(frames, level.size))
        return jnp.broadcast_to(leaf, (wanted.size, *leaf.shape))
    below, ways = level.below, level.ways
    parents = jnp.minimum(wanted // ways, below.number - 1)
    # Where there are fewer directions below than are wanted here, each is built once and shared.
    shared = below.number <= wanted.size
    needed = jnp.arange(below.number) if shared else parents
    child = _grow(draws, below, jnp.repeat(lengths, ways), needed)
    child = child.reshape(-1, frames, ways, below.size)
    turns = _choose(_turns(draws, level, frames).reshape(-1, frames, ways), wanted)
    turned = (_choose(child, parents) if shared else child) * turns[..., None]
    turned = turned.reshape(wanted.size, frames, ways * below.size)
    if not level.odd:
        return turned
    axis = _unit(draws.normals(frames, level.size))
    # Scalar products with the axis, from the fewer vectors below and then turned like them.
    along = jnp.einsum("rfws,fws->rfw", child, axis[:, 1:].reshape(frames, ways, below.size))
    along = jnp.sum((_choose(along, parents) if shared else along) * turns, axis=-1)
    reflected = _reflect(turned, along[..., None], axis)
    if not level.complete:
        return reflected
    last = lengths[:, None] * axis
    return jnp.where((wanted == level.number - 1)[:, None, None], last, reflected)


def _turns(draws: _Draws, level: _Level, frames: int) -> Float[Array, "children ways frames ways"]:
    """The p x p orthogonal matrices that turn p frames into one: one for each direction below.

    A unit vector w whose squares are Dirichlet(m/2, .., m/2) is split in halves again and again. Two
    halves of dimension h share the square as cos^2 t : sin^2 t ~ Beta(h/2, h/2), which makes cos 2t
    a coordinate of a uniform point of the sphere in dimension h + 1. The coordinates of one point
    serve all directions below, which are at most h. Random signs change no direction's law, but
    keep the errors of estimates from lining up across blocks.
    """
    children, ways = level.below.number, level.ways
    weights = jnp.ones((children, frames, 1), jnp.float64)
    while (pieces := weights.shape[-1]) < ways:
        points = _unit(draws.normals(frames * pieces, level.size // 2 // pieces + 1))
        double = points[:, :children].T.reshape(children, frames, pieces)
        # Rounding may leave a coordinate just outside [-1, 1].
        halves = [jnp.sqrt(jnp.maximum(1.0 + sign * double, 0.0) / 2.0) for sign in (1, -1)]
        weights = weights[..., None] * jnp.stack(halves, axis=-1)
        weights = weights.reshape(children, frames, 2 * pieces)
    weights = weights * draws.signs(children, frames * ways).reshape(weights.shape)
    return jnp.einsum("cfk,kwv->cwfv", weights, jnp.asarray(_products(ways)))


def _reflect(
    rows: Float[Array, "some frames even"],
    along: Float[Array, "some frames 1"],
    axis: Float[Array, "frames odd"],
) -> Float[Array, "some frames odd"]:
    """The vectors (0, row) reflected by I - v v^T / (1 + |g_1|), v = g + sign(g_1) e_1.

    That reflection takes e_1 to -sign(g_1) g. `along` holds the scalar products of rows with the
    coordinates of the axis g after the first.
    """
    first, rest = axis[:, :1], axis[:, 1:]
    head = jnp.where(first < 0, 1.0, -1.0) * along
    return jnp.concatenate([head, rows - along / (1.0 + jnp.abs(first)) * rest], axis=-1)


@functools.cache
def _products(ways: int) -> Float[np.ndarray, "ways ways ways"]:
    """Products of the units of complex numbers (2), quaternions (4), octonions (8).

    e_w e_k = sum_v t[k, w, v] e_v, by doubling (Cayley and Dickson): (a, b)(c, d) = (a c - d* b,
    d a + b c*). Norms multiply, and so sum_k x_k t[k] is orthogonal for every unit vector x.
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


def _unit(vectors: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def _choose(rows: Float[Array, "rows ..."], which: Int[Array, " some"]) -> Float[Array, "some ..."]:
    return jnp.take(rows, which, axis=0, mode="clip")
