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
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.trusted import draws
from blindstep.trusted.directions import Directions, Parts
from blindstep.trusted.frame_levels import Level, cut, products

Take = Callable[[int, int], Float[Array, "rows columns"]]
# Up to here the way of doing it that is fast for few is the faster one.
_FEW_BLOCKS, _FEW_ROWS = 128, 8


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
        self, key: Key[Array, ""], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> Float[Array, "q dim"]:
        """The columns of Q, with the signs of R's diagonal; in float64, rounded at the end."""
        _require_fit(number, dim)
        gaussian = draws.normals(key, jnp.arange(number, dtype=jnp.uint32), dim, jnp.float64)
        q, r = jnp.linalg.qr(gaussian.T)
        signs = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)
        return (q * signs).T.astype(dtype)

    def rows(
        self,
        prepared: Float[Array, "q dim"],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
    ) -> Parts:
        """Those rows."""
        return (prepared if which is None else _choose(prepared, which),)

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
        self, key: Key[Array, ""], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> tuple[_Top, ...]:
        """For each size of block what its last level is made of: a half to an eighth of the frame."""
        _require_fit(number, dim)
        blocks = cut(number, dim)
        weighed = sum(copies for copies, _ in blocks) > 1
        levels = [(copies, Level(number, size)) for copies, size in blocks]
        supply = _Draws.of(
            key,
            sum(copies * level.normals for copies, level in levels) + (dim if weighed else 0),
            sum(copies * level.signs for copies, level in levels),
            dtype,
        )
        weights = [jnp.ones(1, dtype)]
        if weighed:
            squares = [_squares(supply.normals(*block)) for block in blocks]
            whole = sum(jnp.sum(square) for square in squares)
            weights = [jnp.sqrt(square / whole).astype(dtype) for square in squares]
        return tuple(
            _top(supply, level, lengths)
            for (_, level), lengths in zip(levels, weights, strict=True)
        )

    def rows(
        self,
        prepared: tuple[_Top, ...],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
    ) -> Parts:
        """The last level's turns and reflections, of those rows alone: a part for each block size."""
        grown = [
            _grow(Level(number, size), top, which)
            for (_, size), top in zip(cut(number, dim), prepared, strict=True)
        ]
        return tuple(part.reshape(part.shape[0], -1) for part in grown)

    def slack(self, number: int, dim: int, dtype: DTypeLike) -> float:
        """sqrt(q) u sum over levels of (16 + 4 size if odd), with u the unit roundoff.

        A turn is orthogonal for every w up to |w|, which is 1 within a few u whatever was rounded
        before; a rounded product of matrices moves each row by a few u, hence the frame by sqrt(q)
        times that; a reflection adds the error of a scalar product, at most (size + 8) u for unit
        vectors, and its own arithmetic.
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


class _Draws(NamedTuple):
    """Normal draws and random signs, handed out piece by piece."""

    normals: Take
    signs: Take
    dtype: DTypeLike

    @classmethod
    def of(cls, key: Key[Array, ""], normals: int, signs: int, dtype: DTypeLike) -> _Draws:
        """A supply of exactly so many."""
        stock = draws.normals(key, jnp.zeros(1, jnp.uint32), normals, dtype)[0]
        return cls(_dispense(stock), _dispense(draws.signs(key, signs, dtype)), dtype)


def _dispense(stock: Float[Array, " stock"]) -> Take:
    """A function that hands out a stock row by row, each number once."""
    used = 0

    def take(rows: int, columns: int) -> Float[Array, "rows columns"]:
        nonlocal used
        start, used = used, used + rows * columns
        return stock[start:used].reshape(rows, columns)

    return take


class _Top(NamedTuple):
    """What the last level of some frames is made of.

    Attributes:
        child: directions below, each of which is turned into `ways`.
        turns: the matrices that do it.
        lengths: that the directions of each frame shall have.
        axis: of the reflection, where the size is odd.
        along: scalar products of the turned directions with it.
    """

    child: Float[Array, "below frames ways small"]
    turns: Float[Array, "below ways frames ways"]
    lengths: Float[Array, " frames"]
    axis: Float[Array, "frames size"] | None = None
    along: Float[Array, "below ways frames"] | None = None


def _top(supply: _Draws, level: Level, lengths: Float[Array, " frames"]) -> _Top:
    """The last level of independent frames, with all levels below it built."""
    frames = lengths.size
    if level.number == 1:
        leaf = lengths[:, None] * _unit(supply.normals(frames, level.size))
        return _Top(leaf[None, :, None], jnp.ones((1, 1, frames, 1), supply.dtype), lengths)
    below, ways = level.below, level.ways
    child = _grow(below, _top(supply, below, jnp.repeat(lengths, ways)), None)
    child = child.reshape(-1, frames, ways, below.size)
    turns = _turns(supply, level, frames)
    if not level.odd:
        return _Top(child, turns, lengths)
    axis = _unit(supply.normals(frames, level.size))
    # Scalar products with the axis, from the fewer vectors below and then turned like them.
    along = _products_with(child, axis[:, 1:].reshape(frames, ways, below.size))[:, None]
    along = functools.reduce(operator.add, (along[..., v] * turns[..., v] for v in range(ways)))
    return _Top(child, turns, lengths, axis, along)


def _grow(
    level: Level, top: _Top, wanted: Int[Array, " some"] | None
) -> Float[Array, "some frames size"]:
    """Directions `wanted` of frames whose last level is given.

    None means all. Then which direction comes from which of those below is known beforehand: every
    operation is an elementwise one on neighbouring numbers, and nothing is looked up.
    """
    below, frames, ways, small = top.child.shape
    complete = level.complete and top.axis is not None
    child, turns, along = top.child[:, None], top.turns, top.along
    rows = level.number - complete
    if wanted is not None:
        rows, of_row = wanted.size, lambda x: x.reshape(-1, *x.shape[2:])
        child = _choose(top.child, jnp.minimum(wanted // ways, below - 1))
        turns = _choose(of_row(turns), wanted)
        along = None if along is None else _choose(of_row(along), wanted)
    turned = child * turns[..., None]
    if top.axis is None or along is None:
        return turned.reshape(-1, frames, ways * small)[:rows]
    rest = top.axis[:, 1:].reshape(frames, ways, small)
    head, turned = _reflect(turned, along[..., None, None], top.axis[:, 0, None, None], rest)
    pieces = [head, *(turned[..., v, :] for v in range(ways))]
    reflected = jnp.concatenate(
        [piece.reshape(-1, frames, piece.shape[-1])[:rows] for piece in pieces], axis=-1
    )
    if not complete:
        return reflected
    last = top.lengths[:, None] * top.axis
    if wanted is None:
        return jnp.concatenate([reflected, last[None]])
    return jnp.where((wanted == level.number - 1)[:, None, None], last, reflected)


def _products_with(
    rows: Float[Array, "some frames ways size"], axis: Float[Array, "frames ways size"]
) -> Float[Array, "some frames ways"]:
    """Scalar products of rows with the axis of their frame and way.

    Where there are few frames, as one product with a matrix that has the axes in its diagonal
    blocks: numbers stay where they are in memory.
    """
    some, frames, ways, size = rows.shape
    if frames * ways > _FEW_BLOCKS:
        return jnp.einsum("rfws,fws->rfw", rows, axis)
    blocks = jnp.eye(frames * ways, dtype=axis.dtype)[:, None] * axis.reshape(-1, size)[..., None]
    flat = rows.reshape(some, -1) @ blocks.reshape(-1, frames * ways)
    return flat.reshape(some, frames, ways)


def _turns(supply: _Draws, level: Level, frames: int) -> Float[Array, "children ways frames ways"]:
    """The p x p orthogonal matrices that turn p frames into one: one for each direction below.

    A unit vector w whose squares are Dirichlet(m/2, .., m/2) is split in halves again and again. Two
    halves of dimension h share the square as cos^2 t : sin^2 t ~ Beta(h/2, h/2), which makes cos 2t
    a coordinate of a uniform point of the sphere in dimension h + 1. The coordinates of one point
    serve all directions below, which are at most h. Random signs change no direction's law, but
    keep the errors of estimates from lining up across blocks.
    """
    children, ways = level.below.number, level.ways
    parts = [jnp.ones((children, frames), supply.dtype)]
    while (pieces := len(parts)) < ways:
        points = _unit(supply.normals(frames * pieces, level.size // 2 // pieces + 1))
        double = points[:, :children].T.reshape(children, frames, pieces)
        # Rounding may leave a coordinate just outside [-1, 1].
        parts = [
            part * jnp.sqrt(jnp.maximum(1.0 + sign * double[..., i], 0.0) / 2.0)
            for i, part in enumerate(parts)
            for sign in (1, -1)
        ]
    signs = supply.signs(children, frames * ways).reshape(children, frames, ways)
    parts = [part * signs[..., i] for i, part in enumerate(parts)]
    weights = jnp.stack(parts, axis=-1)
    # A product of matrices, so that the turns are stored: XLA would otherwise work out the roots
    # above once more for every number of the frame.
    return jnp.einsum("cfk,kwv->cwfv", weights, jnp.asarray(products(ways), supply.dtype))


def _reflect(
    rows: Float[Array, "*some frames ways size"],
    along: Float[Array, "*some frames 1 1"],
    first: Float[Array, "frames 1 1"],
    rest: Float[Array, "frames ways size"],
) -> tuple[Float[Array, "*some frames 1 1"], Float[Array, "*some frames ways size"]]:
    """The vectors (0, row) reflected by I - v v^T / (1 + |g_1|), v = g + sign(g_1) e_1.

    That reflection takes e_1 to -sign(g_1) g. `along` holds the scalar products of rows with the
    coordinates of the axis g after the first. First coordinates and others are given apart.
    """
    head = jnp.where(first < 0, 1.0, -1.0).astype(rows.dtype) * along
    return head, rows - along / (1.0 + jnp.abs(first)) * rest


def _squares(vectors: Float[Array, "rows size"]) -> Float[Array, " rows"]:
    """Squared lengths, in float64: a sum of many squares in float32 would be off by their number."""
    return jnp.sum(jnp.square(vectors.astype(jnp.float64)), axis=-1)


def _unit(vectors: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
    return vectors * jax.lax.rsqrt(_squares(vectors)).astype(vectors.dtype)[:, None]


def _choose(rows: Float[Array, "rows ..."], which: Int[Array, " some"]) -> Float[Array, "some ..."]:
    """Rows by number. A few are read from where they are; many are looked up number by number."""
    if which.size > _FEW_ROWS:
        return jnp.take(rows, which, axis=0, mode="clip")
    return jnp.stack([jax.lax.dynamic_index_in_dim(rows, i, keepdims=False) for i in which])
