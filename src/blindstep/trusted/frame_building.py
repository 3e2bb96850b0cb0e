"""Structured frames put together from normal draws: turns and reflections, of many frames at once.

`frames.Structured` says why the result is a frame of uniform directions; here is how it is computed.
Frames that are built together are pieces of larger frames, copies for blocks of coordinates, and
belong to different keys. Small arrays have all that in one axis, `frames`, in this order.

A processor does at once what is side by side in memory. The lowest levels have many frames of short
vectors: they are worked on *across* frames, in arrays "rows size frames". The last levels have few
frames of long vectors, and are worked on *along* them, in arrays "keys rows copies width": of every
frame there, all pieces have the columns that they will have in the end, and no number is moved.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from blindstep.trusted import draws
from blindstep.trusted.frame_levels import Level, multiplication
from blindstep.trusted.stored import stored, true_for

Take = Callable[[int, int], Float[Array, "rows frames"]]
Products = Callable[[Float[Array, "size frames"]], Float[Array, "number frames"]]
# Pieces with weights of their own into which a row may be cut where it is worked on along itself.
_PIECES = 8
# Sums of up to so many terms are written out.
_SHORT = 64
# Up to here the way of choosing rows that is fast for few is the faster one.
_FEW_ROWS = 8


class Supply(NamedTuple):
    """Normal draws and random signs of some keys, handed out piece by piece: rows x frames.

    `true` is for `stored`.
    """

    normals: Take
    signs: Take
    dtype: DTypeLike
    true: Bool[Array, ""]

    @classmethod
    def of(cls, keys: Key[Array, " keys"], normals: int, signs: int, dtype: DTypeLike) -> Supply:
        """A supply of exactly so many for each key."""
        return cls(
            _dispense(draws.normals_of_each(keys, normals, dtype)),
            _dispense(draws.signs_of_each(keys, signs, dtype)),
            dtype,
            true_for(jax.random.key_data(keys)),
        )


def _dispense(stock: Float[Array, "stock keys"]) -> Take:
    """A function that hands out a stock row by row, each number once."""
    used = 0

    def take(rows: int, copies: int) -> Float[Array, "rows frames"]:
        nonlocal used
        start, used = used, used + rows * copies
        return stock[start:used].reshape(rows, -1)

    return take


class Top(NamedTuple):
    """What the last level of frames is made of. Row r comes from c = child[r // p], w = turns[r]:

        row r = (w_1 c^1, .., w_p c^p) - slope_r mirror

    where c^i is the part of c that belongs to the i-th of the p frames below. For a reflection c
    begins with a 0. The axis of a reflection, where it is the last row, is the last child: turned
    by 1 and not reflected. (Otherwise the last child is not used.)

    Attributes:
        child: the directions below, and one more.
        turns: the weights w of each of the p rows that come from one child.
        slope: <(w_1 c^1, ..), g> / (1 + |g_1|) for a reflection with axis g, else None.
        mirror: g + sign(g_1) e_1, else None.
    """

    child: Float[Array, "*keys below copies width"]
    turns: Float[Array, "*keys below ways copies parts"]
    slope: Float[Array, "*keys below ways copies pieces"] | None
    mirror: Float[Array, "*keys copies width"] | None


def top(supply: Supply, level: Level, lengths: Float[Array, "copies keys"]) -> Top:
    """The last level of every key's frames, all levels below it built; directions get `lengths`."""
    copies, keys = lengths.shape
    made, _ = _along(supply, level, (), (copies, keys))
    scale = lengths.T[:, None, None, :, None]
    slope = None if made.slope is None else made.slope * scale
    return made._replace(turns=made.turns * scale, slope=slope)


def grow(
    level: Level, made_of: Top, wanted: Int[Array, " some"] | None
) -> Float[Array, "some copies size"]:
    """Directions `wanted` of one key's frames; None means all, and nothing is looked up."""
    child, turns, slope, mirror = made_of
    if wanted is None:
        child = child[:, None]
    else:
        child = choose(child, wanted // turns.shape[1])
        turns = choose(turns.reshape(-1, *turns.shape[2:]), wanted)
        slope = None if slope is None else choose(slope.reshape(-1, *slope.shape[2:]), wanted)
    rows = _weighed(child, turns, _cuts(level, [0]))
    if slope is not None and mirror is not None:
        rows = rows - slope * mirror
    return rows.reshape(-1, *rows.shape[-2:])[: level.number if wanted is None else None]


def choose(rows: Float[Array, "rows ..."], which: Int[Array, " some"]) -> Float[Array, "some ..."]:
    """Rows by number. A few are read from where they are; many are looked up number by number."""
    if which.size > _FEW_ROWS:
        return jnp.take(rows, which, axis=0, mode="clip")
    return jnp.stack([jax.lax.dynamic_index_in_dim(rows, i, keepdims=False) for i in which])


def squared_lengths(vectors: Float[Array, "size frames"]) -> Float[Array, " frames"]:
    """Off by a few roundings: few squares are added in pairs, many in float64."""
    if len(vectors) > _SHORT:
        return jnp.sum(jnp.square(vectors.astype(jnp.float64)), axis=0)
    squares = [vector * vector for vector in vectors]
    while len(squares) > 1:
        pairs = zip(squares[::2], squares[1::2], strict=False)
        squares = [a + b for a, b in pairs] + squares[len(squares) // 2 * 2 :]
    return squares[0]


# --- along vectors: the last levels ------------------------------------------------------------------


def _along(
    supply: Supply, level: Level, above: tuple[Level, ...], shape: tuple[int, int]
) -> tuple[Top, Products]:
    """What frames are made of that are pieces of the rows of larger ones, `above` (the next first).

    Weights and slopes have a number for each piece. `shape` is (copies, keys). And a function that
    gives the scalar products of all directions with a vector for each frame.
    """
    starts, true = _starts(above), supply.true
    copies = len(starts) * shape[0]
    if level.number == 1:
        leaf = _unit(supply.normals(level.size, copies))[None]
        ones = jnp.ones((shape[1], 1, 1, shape[0], len(starts)), supply.dtype)
        made = Top(_placed(leaf, above, shape), ones, None, None)
        return made, functools.partial(_products, leaf)
    below, cuts = level.below, _cuts(level, starts)
    if below.number > 1 and len(cuts) * below.ways <= _PIECES:
        made, products_below = _along(supply, below, (level, *above), shape)
        place = functools.partial(_all_rows, below, starts=cuts)
    else:
        made = _across(supply, below, copies * level.ways)
        products_below = functools.partial(stored, true, _products, made)
        place = functools.partial(_placed, above=(level, *above), shape=shape, more=1)
    weights = _weights(supply, level, copies)
    products_turned = functools.partial(_turned, products_below, _turns(weights), len(starts))
    turns = _at_places(weights, len(starts), shape)
    if not level.odd:
        child = stored(true, place, made)
        return Top(child, turns, None, None), lambda a: _in_one(products_turned(a), level)
    axis = _unit(supply.normals(level.size, copies))
    # The reflection I - v v^T / (1 + |g_1|), v = g + sign(g_1) e_1, takes e_1 to -sign(g_1) g, and
    # (0, row) to (0, row) - v <row, rest of g> / (1 + |g_1|).
    sign = jnp.where(axis[0] < 0, -1.0, 1.0).astype(axis.dtype)
    mirror = axis.at[0].add(sign)
    slope = stored(
        true,
        lambda along, first: along / (1.0 + jnp.abs(first)),
        products_turned(axis[1:]),
        axis[0],
    )

    def reflected(vectors: Float[Array, "size frames"]) -> Float[Array, "number frames"]:
        of_axis = stored(true, _products, axis[None], vectors)
        rows = products_turned(vectors[1:]) - slope * (of_axis + sign * vectors[0])
        rows = _in_one(rows, level)
        return jnp.concatenate([rows, of_axis]) if level.complete else rows

    placed = functools.partial(_placed, above=above, shape=shape)
    row, mirror_there = stored(
        true, lambda *both: tuple(placed(x[None]) for x in both), axis, mirror
    )
    # The axis joins the children, as the last one, with slope 0.
    last = (np.arange(below.number + 1) == below.number)[:, None, None]
    child = stored(true, lambda made, row: jnp.where(last, row, place(made)), made, row)
    return Top(child, turns, _slopes(slope, len(starts), shape), mirror_there[:, 0]), reflected


def _products(
    rows: Float[Array, "number size frames"], vectors: Float[Array, "size frames"]
) -> Float[Array, "number frames"]:
    """Scalar products of each frame's rows with its vector."""
    if len(vectors) > _SHORT:
        return jnp.sum(rows * vectors, axis=1)
    # Term by term: sums along an axis that is not the last are slow.
    return _sum(rows[:, i] * vectors[i] for i in range(len(vectors)))


def _turned(
    products_below: Products,
    turns: Float[Array, "ways ways below frames"],
    starts: int,
    vectors: Float[Array, "size frames"],
) -> Float[Array, "below ways frames"]:
    """Scalar products of turned directions: from the fewer below, and turned like them."""
    ways, _, number, frames = turns.shape
    # The frames below are in the order (start, way, copy, key).
    parts = vectors.reshape(ways, -1, starts, frames // starts)
    along = products_below(jnp.transpose(parts, (1, 2, 0, 3)).reshape(parts.shape[1], -1))
    along = jnp.swapaxes(along.reshape(number, starts, ways, -1), 1, 2)
    along = along.reshape(number, ways, frames)
    return _sum(jnp.swapaxes(turns[:, v], 0, 1) * along[:, None, v] for v in range(ways))


def _in_one(
    products: Float[Array, "below ways frames"], level: Level
) -> Float[Array, "rows frames"]:
    """A level's scalar products in the order of its directions, without a reflection's axis."""
    return products.reshape(-1, products.shape[-1])[: level.number - level.complete]


def _at_places(
    weights: Float[Array, "ways below frames"], starts: int, shape: tuple[int, int]
) -> Float[Array, "keys below+1 ways copies parts"]:
    """The turns of each child's rows, those of the axis last: `_turns` for the places of pieces."""
    ways, number, _ = weights.shape
    weights = weights.reshape(ways, number, starts, *shape)
    weights = jnp.transpose(weights, (4, 1, 3, 2, 0))  # key, child, copy, piece, way
    unit, sign = multiplication(ways)
    turns = jnp.asarray(sign, weights.dtype) * weights[..., unit]
    turns = jnp.moveaxis(turns, -2, 2)  # key, child, way, copy, piece, way below
    turns = turns.reshape(*turns.shape[:4], -1)
    # The axis, if it is a row, is turned by 1 in its first way; the others are not used, and 0.
    last = np.zeros((turns.shape[0], 1, *turns.shape[2:]))
    last[:, :, 0] = 1.0
    return jnp.concatenate([turns, jnp.asarray(last, turns.dtype)], axis=1)


def _slopes(
    slope: Float[Array, "below ways frames"], starts: int, shape: tuple[int, int]
) -> Float[Array, "keys below+1 ways copies pieces"]:
    """The slopes of each child's rows; the axis has 0."""
    slope = jnp.pad(slope, ((0, 1), (0, 0), (0, 0)))
    slope = slope.reshape(*slope.shape[:2], starts, *shape)
    return jnp.transpose(slope, (4, 0, 1, 3, 2))


def _all_rows(level: Level, made_of: Top, starts: list[int]) -> Float[Array, "keys _ copies width"]:
    """All directions of the frames that begin at `starts`, and a row that is 0."""
    child, turns, slope, mirror = made_of
    rows = _weighed(child[:, :, None], turns, _cuts(level, starts))
    if slope is not None and mirror is not None:
        rows = rows - _weighed(mirror[:, None, None], slope, starts)
    return rows.reshape(len(rows), -1, *rows.shape[3:])[:, : level.number + 1]


def _cuts(level: Level, starts: list[int]) -> list[int]:
    """Where the p parts of pieces begin: after the first coordinate where there is a reflection."""
    if level.number == 1:
        return starts
    parts = range(level.odd, level.size, level.below.size)
    return [start + part for start in starts for part in parts]


def _starts(above: tuple[Level, ...]) -> list[int]:
    """Where the pieces of a row begin that lie so many levels below."""
    return functools.reduce(lambda starts, level: _cuts(level, starts), above[::-1], [0])


def _weighed(
    rows: Float[Array, "*#rows width"], weights: Float[Array, "*#rows pieces"], starts: list[int]
) -> Float[Array, "*rows width"]:
    """The pieces of each row times their weights."""
    width, pieces = rows.shape[-1], len(starts)
    if pieces == 1:
        return rows * weights
    small = width // pieces
    if starts == list(range(0, width, small)):
        cut = rows.reshape(*rows.shape[:-1], pieces, small) * weights[..., None]
        return cut.reshape(*cut.shape[:-2], width)
    spread = weights[..., :1]
    for i, start in enumerate(starts[1:], 1):
        spread = jnp.where(np.arange(width) < start, spread, weights[..., i : i + 1])
    return rows * spread


def _placed(
    vectors: Float[Array, "rows size frames"],
    above: tuple[Level, ...],
    shape: tuple[int, int],
    more: int = 0,
) -> Float[Array, "keys _ copies width"]:
    """Vectors at the places in rows where they will be in the end: 0 at the heads of reflections.

    And so many `more` vectors that are 0.
    """
    vectors = jnp.pad(vectors, ((0, more), (0, 0), (0, 0)))
    rows, size, _ = vectors.shape
    pieces = vectors.reshape(rows, size, -1, shape[0] * shape[1])
    parts, end = [], 0
    for i, start in enumerate(_starts(above)):
        if start > end:
            parts.append(jnp.zeros((rows, start - end, pieces.shape[-1]), vectors.dtype))
        parts.append(pieces[:, :, i])
        end = start + size
    whole = jnp.concatenate(parts, axis=1)
    return jnp.transpose(whole.reshape(rows, -1, *shape), (3, 0, 2, 1))


# --- across frames: the levels below ------------------------------------------------------------------


def _across(supply: Supply, level: Level, copies: int) -> Float[Array, "number size frames"]:
    """Frames of short vectors, with all levels below built."""
    if level.number == 1:
        return _unit(supply.normals(level.size, copies))[None]
    ways, small = level.ways, level.below.size
    below = _across(supply, level.below, copies * ways)
    child = jnp.swapaxes(below.reshape(*below.shape[:2], ways, -1), 1, 2)  # row, way, coordinate
    turns = _turns(_weights(supply, level, copies))
    # Row, way, way below, coordinate.
    turned = child[:, None] * jnp.transpose(turns, (2, 0, 1, 3))[:, :, :, None]
    rows = level.number - level.complete
    if not level.odd:
        return turned.reshape(-1, level.size, turned.shape[-1])[:rows]
    axis = _unit(supply.normals(level.size, copies))
    rest = axis[1:].reshape(ways, small, -1)
    along = stored(
        supply.true,
        lambda below, turns, rest: _turned(functools.partial(_products, below), turns, 1, rest),
        below,
        turns,
        axis[1:],
    )
    head = jnp.where(axis[0] < 0, 1.0, -1.0).astype(axis.dtype) * along
    slope = along / (1.0 + jnp.abs(axis[0]))
    tail = turned - slope[:, :, None, None] * rest
    parts = [head[:, :, None], tail.reshape(*tail.shape[:2], ways * small, -1)]
    reflected = jnp.concatenate(parts, axis=2).reshape(-1, level.size, axis.shape[1])[:rows]
    return jnp.concatenate([reflected, axis[None]]) if level.complete else reflected


def _sum(terms: Iterable[Array]) -> Array:
    return functools.reduce(operator.add, terms)


def _turns(weights: Float[Array, "ways below frames"]) -> Float[Array, "ways ways below frames"]:
    """The p x p orthogonal matrices that turn p frames into one: one for each direction below."""
    unit, sign = multiplication(len(weights))
    return weights[unit] * jnp.asarray(sign, weights.dtype)[:, :, None, None]


def _weights(supply: Supply, level: Level, copies: int) -> Float[Array, "ways below frames"]:
    """The first rows of the matrices that turn p frames into one, from which the others follow.

    A unit vector w whose squares are Dirichlet(m/2, .., m/2) is split in halves again and again. Two
    halves of dimension h share the square as cos^2 t : sin^2 t ~ Beta(h/2, h/2), which makes cos 2t
    a coordinate of a uniform point of the sphere in dimension h + 1. The coordinates of one point
    serve all directions below, which are at most h. Random signs change no direction's law, but
    keep the errors of estimates from lining up across blocks.
    """
    children, ways = level.below.number, level.ways
    signs = supply.signs(ways * children, copies)
    weights = jnp.ones((1, children, signs.shape[1]), supply.dtype)
    while (pieces := len(weights)) < ways:
        points = _unit(supply.normals(level.size // 2 // pieces + 1, copies * pieces))
        double = jnp.swapaxes(points[:children].reshape(children, pieces, -1), 0, 1)
        # Rounding may leave a coordinate just outside [-1, 1].
        halves = [jnp.sqrt(jnp.maximum(1.0 + sign * double, 0.0) / 2.0) for sign in (1, -1)]
        weights = jnp.stack([weights * half for half in halves], axis=1)
        weights = weights.reshape(2 * pieces, *weights.shape[2:])
    return weights * signs.reshape(weights.shape)


def _unit(vectors: Float[Array, "size frames"]) -> Float[Array, "size frames"]:
    return vectors * jax.lax.rsqrt(squared_lengths(vectors)).astype(vectors.dtype)
