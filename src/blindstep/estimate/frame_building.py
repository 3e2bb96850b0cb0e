"""Computes structured frames level by level, many frames at once. `frames.Structured` says why.

*One level.* A frame is a matrix whose rows are directions. They come from p = `fan_in` child frames
A^1 .. A^p. Row c of all children and a random orthogonal p x p matrix W make p rows, v = 1 .. p:

    turn:     row = (W[v,1] A^1_c, .., W[v,p] A^p_c)
    reflect:  row - slope mirror,    mirror = g + sign(g_1) e_1,    slope = <row, g> / (1 + |g_1|)

Only odd dimensions have a reflection. It takes rows with a 0 in front; g is a random unit vector, the
*axis*. If there are as many rows as dimensions, g is the last row.

*Many frames.* All frames of a level are computed together. Every key has one frame in each of
`copies` blocks of columns. The rows of a block consist of *pieces*: the columns of its children, or of
their children, and so on. Frames are stored in two layouts:

- *frames last*, "rows dim frames", for the lower levels: many frames of short rows. The last axis runs
  over pieces, copies and keys, the keys fastest;
- *columns last*, "keys rows copies width", for the upper levels: few frames of long rows. `width` is
  the dimension of the whole block. Row r holds row r of all pieces, each at its final columns. So
  joining children moves no number: a level multiplies each piece of a row by its own weight.

A CPU is fast at loops over numbers that lie side by side in memory; in both layouts these are many.
The last level of a block is kept as factors (`LastLevel`), and rows are multiplied out on demand.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.estimate.draws import Supply, stored
from blindstep.estimate.frame_levels import Level, turn_pattern

# From one vector for each frame to its scalar products with all rows of the frame.
Products = Callable[[Float[Array, "dim frames"]], Float[Array, "rows frames"]]
# In the columns-last layout, rows have at most this many pieces.
_MAX_PIECES = 8
# Sums of at most this many terms are written out, one operation for each term.
_WRITTEN_OUT = 64
# At most this many rows are read one by one, which is faster than a gather.
_FEW_ROWS = 8


class LastLevel(NamedTuple):
    """The last level of frames, as factors. With c = child[r // p] and w = weights[r // p, r % p],

        row r = (w_1 c^1, .., w_p c^p) - slope[r // p, r % p] mirror

    where c^i is the part of c in the columns of child i. With a reflection c begins with a 0. There is
    one more child row than the children have: the axis, where it is a row of the frame (w is 1 and the
    slope 0). Where it is not, nothing reads the last child row.

    Attributes:
        child: a row of all children side by side.
        weights: W. In a frame that is a piece of larger rows, each piece has weights of its own.
        slope: <row, g> / (1 + |g_1|) for each piece; None without a reflection.
        mirror: g + sign(g_1) e_1; None without a reflection.
    """

    child: Float[Array, "*keys child_rows copies width"]
    weights: Float[Array, "*keys child_rows p copies pieces_by_p"]
    slope: Float[Array, "*keys child_rows p copies pieces"] | None
    mirror: Float[Array, "*keys copies width"] | None


def build(supply: Supply, level: Level, lengths: Float[Array, "copies keys"]) -> LastLevel:
    """Each key's frames with all levels computed but the last; rows get these `lengths`."""
    copies, keys = lengths.shape
    last, _ = _columns_last(supply, level, (), (copies, keys))
    scale = lengths.T[:, None, None, :, None]
    slope = None if last.slope is None else last.slope * scale
    return last._replace(weights=last.weights * scale, slope=slope)


def finish_rows(
    level: Level, last: LastLevel, which: Int[Array, " some"] | None
) -> Float[Array, "some copies dim"]:
    """Rows number `which` of one key's frames, multiplied out; None means all, without a look-up."""
    child, weights, slope, mirror = last
    if which is None:
        child = child[:, None]
    else:
        child = take_rows(child, which // weights.shape[1])
        weights = take_rows(weights.reshape(-1, *weights.shape[2:]), which)
        slope = None if slope is None else take_rows(slope.reshape(-1, *slope.shape[2:]), which)
    rows = _scale_pieces(child, weights, _child_starts(level, [0]))
    if slope is not None and mirror is not None:
        rows = rows - slope * mirror
    return rows.reshape(-1, *rows.shape[-2:])[: level.rows if which is None else None]


def take_rows(rows: Float[Array, "n ..."], which: Int[Array, " k"]) -> Float[Array, "k ..."]:
    """rows[which], in the way that is fastest for this number of rows."""
    if which.size > _FEW_ROWS:
        return jnp.take(rows, which, axis=0, mode="clip")
    return jnp.stack([jax.lax.dynamic_index_in_dim(rows, i, keepdims=False) for i in which])


def squared_lengths(vectors: Float[Array, "dim frames"]) -> Float[Array, " frames"]:
    """|vector|^2 to a few roundings: few squares are added in pairs, many in float64."""
    if len(vectors) > _WRITTEN_OUT:
        return jnp.sum(jnp.square(vectors.astype(jnp.float64)), axis=0)
    squares = [vector * vector for vector in vectors]
    while len(squares) > 1:
        pairs = zip(squares[::2], squares[1::2], strict=False)
        squares = [a + b for a, b in pairs] + squares[len(squares) // 2 * 2 :]
    return squares[0]


# --- columns last: the upper levels ------------------------------------------------------------------


def _columns_last(
    supply: Supply, level: Level, above: tuple[Level, ...], shape: tuple[int, int]
) -> tuple[LastLevel, Products]:
    """Frames of this level, as factors, and how to take scalar products with their rows.

    `above` are the larger frames that they are pieces of: the parent first, the whole block last.
    `shape` is (copies, keys).
    """
    starts, true = _piece_starts(above), supply.true
    per_key = len(starts) * shape[0]
    if level.rows == 1:
        row = _normalized(supply.normals(level.dim, per_key))[None]
        ones = jnp.ones((shape[1], 1, 1, shape[0], len(starts)), supply.dtype)
        last = LastLevel(_to_columns_last(row, above, shape), ones, None, None)
        return last, functools.partial(_products, row)
    child, child_starts = level.child, _child_starts(level, starts)
    if child.rows > 1 and len(child_starts) * child.fan_in <= _MAX_PIECES:
        children, child_products = _columns_last(supply, child, (level, *above), shape)
        place = functools.partial(_all_rows, child, starts=child_starts)
    else:
        children = _frames_last(supply, child, per_key * level.fan_in)
        child_products = functools.partial(stored, true, _products, children)
        place = functools.partial(_to_columns_last, above=(level, *above), shape=shape, zero_rows=1)
    weights = _turn_weights(supply, level, per_key)
    turned = functools.partial(_turned_products, child_products, _turns(weights), len(starts))
    row_weights = _row_weights(weights, len(starts), shape)
    if not level.reflected:
        last = LastLevel(stored(true, place, children), row_weights, None, None)
        return last, lambda vectors: _in_row_order(turned(vectors), level)
    axis = _normalized(supply.normals(level.dim, per_key))
    # With m = g + sign(g_1) e_1, the reflection I - m m^T / (1 + |g_1|) takes e_1 to -sign(g_1) g,
    # and (0, row) to (0, row) - m <row, rest of g> / (1 + |g_1|).
    sign = jnp.where(axis[0] < 0, -1.0, 1.0).astype(axis.dtype)
    mirror = axis.at[0].add(sign)
    slope = stored(true, _slopes, turned(axis[1:]), axis[0])

    def reflected(vectors: Float[Array, "dim frames"]) -> Float[Array, "rows frames"]:
        of_axis = stored(true, _products, axis[None], vectors)
        rows = turned(vectors[1:]) - slope * (of_axis + sign * vectors[0])
        rows = _in_row_order(rows, level)
        return jnp.concatenate([rows, of_axis]) if level.axis_is_row else rows

    def place_each(*vectors: Float[Array, "dim frames"]) -> tuple[Array, ...]:
        return tuple(_to_columns_last(vector[None], above, shape) for vector in vectors)

    def place_with_axis(children: Any, axis: Array) -> Array:
        is_last = (np.arange(child.rows + 1) == child.rows)[:, None, None]
        return jnp.where(is_last, axis, place(children))

    axis_row, mirror_row = stored(true, place_each, axis, mirror)
    rows = stored(true, place_with_axis, children, axis_row)
    # Slopes in the columns-last layout, with 0 for the axis as the last child row.
    slopes = jnp.pad(slope, ((0, 1), (0, 0), (0, 0)))
    slopes = slopes.reshape(*slopes.shape[:2], len(starts), *shape)
    row_slopes = jnp.transpose(slopes, (4, 0, 1, 3, 2))
    return LastLevel(rows, row_weights, row_slopes, mirror_row[:, 0]), reflected


def _slopes(products: Float[Array, "c p frames"], first: Float[Array, " frames"]) -> Array:
    """<row, g> / (1 + |g_1|), from the products <row, g> and the first coordinates g_1."""
    return products / (1.0 + jnp.abs(first))


def _products(
    rows: Float[Array, "rows dim frames"], vectors: Float[Array, "dim frames"]
) -> Float[Array, "rows frames"]:
    """Scalar products of each frame's rows with its vector."""
    if len(vectors) > _WRITTEN_OUT:
        return jnp.sum(rows * vectors, axis=1)
    # Term by term: a sum over an axis that is not the last is slow.
    return _sum(rows[:, i] * vectors[i] for i in range(len(vectors)))


def _turned_products(
    child_products: Products,
    turns: Float[Array, "p p child_rows frames"],
    pieces: int,
    vectors: Float[Array, "dim frames"],
) -> Float[Array, "child_rows p frames"]:
    """Scalar products of turned rows: computed on the child frames, then turned.

    <(W[v,1] A^1_c, .., W[v,p] A^p_c), a> = sum_i W[v,i] <A^i_c, a^i>. Children have 1/p of the rows.
    """
    p, _, child_rows, frames = turns.shape
    # The child frames come in the order (piece, child, copy, key).
    parts = vectors.reshape(p, -1, pieces, frames // pieces)
    products = child_products(jnp.transpose(parts, (1, 2, 0, 3)).reshape(parts.shape[1], -1))
    products = jnp.swapaxes(products.reshape(child_rows, pieces, p, -1), 1, 2)
    products = products.reshape(child_rows, p, frames)
    return _sum(jnp.swapaxes(turns[:, i], 0, 1) * products[:, None, i] for i in range(p))


def _in_row_order(products: Float[Array, "c p frames"], level: Level) -> Float[Array, "r frames"]:
    """Scalar products of the level's turned rows, in one axis; rows too many are cut off."""
    return products.reshape(-1, products.shape[-1])[: level.rows - level.axis_is_row]


def _row_weights(
    weights: Float[Array, "p child_rows frames"], pieces: int, shape: tuple[int, int]
) -> Float[Array, "keys child_rows+1 p copies {pieces}*p"]:
    """The matrices W in the columns-last layout, with those of the axis as the last child row."""
    p, child_rows, _ = weights.shape
    weights = weights.reshape(p, child_rows, pieces, *shape)
    weights = jnp.transpose(weights, (4, 1, 3, 2, 0))  # key, child row, copy, piece, p
    index, sign = turn_pattern(p)
    turns = jnp.asarray(sign, weights.dtype) * weights[..., index]
    turns = jnp.moveaxis(turns, -2, 2)  # key, child row, row of W, copy, piece, column of W
    turns = turns.reshape(*turns.shape[:4], -1)
    # The axis is the first of the p rows that come from the last child row; nothing reads the others.
    of_axis = np.zeros((turns.shape[0], 1, *turns.shape[2:]))
    of_axis[:, :, 0] = 1.0
    return jnp.concatenate([turns, jnp.asarray(of_axis, turns.dtype)], axis=1)


def _all_rows(
    level: Level, last: LastLevel, starts: list[int]
) -> Float[Array, "keys rows_and_axis copies width"]:
    """All rows of the frames whose pieces begin at `starts`, and one more as a place for an axis."""
    child, weights, slope, mirror = last
    rows = _scale_pieces(child[:, :, None], weights, _child_starts(level, starts))
    if slope is not None and mirror is not None:
        rows = rows - _scale_pieces(mirror[:, None, None], slope, starts)
    return rows.reshape(len(rows), -1, *rows.shape[3:])[:, : level.rows + 1]


def _child_starts(level: Level, starts: list[int]) -> list[int]:
    """The columns at which the children of frames begin that begin at `starts`.

    A reflected frame has one column before its first child.
    """
    if level.rows == 1:
        return starts
    inside = range(level.reflected, level.dim, level.child.dim)
    return [start + place for start in starts for place in inside]


def _piece_starts(above: tuple[Level, ...]) -> list[int]:
    """The columns at which the pieces below the levels `above` begin in the rows of a block."""
    return functools.reduce(lambda starts, level: _child_starts(level, starts), above[::-1], [0])


def _scale_pieces(
    rows: Float[Array, "*#rows width"], weights: Float[Array, "*#rows pieces"], starts: list[int]
) -> Float[Array, "*rows width"]:
    """Rows whose pieces, which begin at `starts`, are multiplied by their weights."""
    width, pieces = rows.shape[-1], len(starts)
    if pieces == 1:
        return rows * weights
    size = width // pieces
    if starts == list(range(0, width, size)):
        scaled = rows.reshape(*rows.shape[:-1], pieces, size) * weights[..., None]
        return scaled.reshape(*scaled.shape[:-2], width)
    spread = weights[..., :1]
    for i, start in enumerate(starts[1:], 1):
        spread = jnp.where(np.arange(width) < start, spread, weights[..., i : i + 1])
    return rows * spread


def _to_columns_last(
    vectors: Float[Array, "rows dim frames"],
    above: tuple[Level, ...],
    shape: tuple[int, int],
    zero_rows: int = 0,
) -> Float[Array, "keys _ copies width"]:
    """Frames-last to columns-last: every piece at its columns, 0 in the columns between pieces.

    Rows of zeros are added at the end.
    """
    vectors = jnp.pad(vectors, ((0, zero_rows), (0, 0), (0, 0)))
    rows, dim, _ = vectors.shape
    pieces = vectors.reshape(rows, dim, -1, shape[0] * shape[1])
    columns, end = [], 0
    for i, start in enumerate(_piece_starts(above)):
        if start > end:
            columns.append(jnp.zeros((rows, start - end, pieces.shape[-1]), vectors.dtype))
        columns.append(pieces[:, :, i])
        end = start + dim
    joined = jnp.concatenate(columns, axis=1)
    return jnp.transpose(joined.reshape(rows, -1, *shape), (3, 0, 2, 1))


# --- frames last: the lower levels -------------------------------------------------------------------


def _frames_last(supply: Supply, level: Level, per_key: int) -> Float[Array, "rows dim frames"]:
    """`per_key` frames of this level for every key, with all levels below it."""
    if level.rows == 1:
        return _normalized(supply.normals(level.dim, per_key))[None]
    p, child_dim = level.fan_in, level.child.dim
    children = _frames_last(supply, level.child, per_key * p)
    child = jnp.swapaxes(children.reshape(*children.shape[:2], p, -1), 1, 2)  # row, child, column
    turns = _turns(_turn_weights(supply, level, per_key))
    # Child row, row of W, column of W (that is, child), column.
    turned = child[:, None] * jnp.transpose(turns, (2, 0, 1, 3))[:, :, :, None]
    rows = level.rows - level.axis_is_row
    if not level.reflected:
        return turned.reshape(-1, level.dim, turned.shape[-1])[:rows]
    axis = _normalized(supply.normals(level.dim, per_key))
    rest = axis[1:].reshape(p, child_dim, -1)

    def multiply(children: Array, turns: Array, vectors: Array) -> Array:
        return _turned_products(functools.partial(_products, children), turns, 1, vectors)

    products = stored(supply.true, multiply, children, turns, axis[1:])
    # Row minus slope times mirror: the first column, then the others.
    head = jnp.where(axis[0] < 0, 1.0, -1.0).astype(axis.dtype) * products
    tail = turned - _slopes(products, axis[0])[:, :, None, None] * rest
    columns = [head[:, :, None], tail.reshape(*tail.shape[:2], p * child_dim, -1)]
    reflected = jnp.concatenate(columns, axis=2).reshape(-1, level.dim, axis.shape[1])[:rows]
    return jnp.concatenate([reflected, axis[None]]) if level.axis_is_row else reflected


def _turn_weights(
    supply: Supply, level: Level, per_key: int
) -> Float[Array, "p child_rows frames"]:
    """For each child row the random unit vector w of R^p that its matrix W is made of.

    Its squares are Dirichlet(m/2, .., m/2), m the children's dimension: 1 is split in halves again and
    again, with shares cos^2 t and sin^2 t (docs/frames.md, *weights*). Random signs change no row's
    law, but they keep the errors of estimates from lining up across blocks.
    """
    child_rows, p = level.child.rows, level.fan_in
    signs = supply.signs(p * child_rows, per_key)
    weights = jnp.ones((1, child_rows, signs.shape[1]), supply.dtype)
    while (pieces := len(weights)) < p:
        points = _normalized(supply.normals(level.dim // 2 // pieces + 1, per_key * pieces))
        cos_2t = jnp.swapaxes(points[:child_rows].reshape(child_rows, pieces, -1), 0, 1)
        # cos t and sin t. Rounding may leave a coordinate just outside [-1, 1].
        halves = [jnp.sqrt(jnp.maximum(1.0 + sign * cos_2t, 0.0) / 2.0) for sign in (1, -1)]
        weights = jnp.stack([weights * half for half in halves], axis=1)
        weights = weights.reshape(2 * pieces, *weights.shape[2:])
    return weights * signs.reshape(weights.shape)


def _turns(weights: Float[Array, "p child_rows frames"]) -> Float[Array, "p p child_rows frames"]:
    """The orthogonal p x p matrix W of each child row: its entries are those of w, with signs."""
    index, sign = turn_pattern(len(weights))
    return weights[index] * jnp.asarray(sign, weights.dtype)[:, :, None, None]


def _normalized(vectors: Float[Array, "dim frames"]) -> Float[Array, "dim frames"]:
    return vectors * jax.lax.rsqrt(squared_lengths(vectors)).astype(vectors.dtype)


def _sum(terms: Iterable[Array]) -> Array:
    return functools.reduce(operator.add, terms)
