"""From the loss values of a batch to its increment, in bounded memory.

The increment is the mean of the records' enforced estimates. Records and directions are worked
through in chunks, so that memory is that of one chunk: never records x directions x dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.trusted.directions import join
from blindstep.trusted.estimators import Estimator, Query, Sharing

Evaluate = Callable[[Float[Array, "2 q dim"], PyTree], Float[Array, "2 q"]]

# Numbers held at once for probe points: 2^21 float64 are 16 MiB.
_BUDGET = 2**21
# Directions of a chunk that are made one by one.
_FEW = 8


class Chunk(NamedTuple):
    """How many records, and how many of each record's directions, are in memory at once."""

    records: int
    directions: int


def chunk_for(batch: int, number: int, dim: int, budget: int = _BUDGET) -> Chunk:
    """The largest chunk whose directions and probe points fit into `budget` numbers, evenly split."""
    directions = evenly(number, budget // (3 * dim))
    return Chunk(evenly(batch, budget // (3 * dim * directions)), directions)


def evenly(total: int, most: int) -> int:
    """The size of equal parts of `total` that are at most `most`; of the last a little may be missing.

    Nothing is missing if there are parts of more than half that size that divide the total.
    """
    most = max(1, min(total, most))
    for size in range(most, most // 2, -1):
        if total % size == 0:
            return size
    parts = -(-total // most)
    return -(-total // parts)


def probe_points(
    estimator: Estimator, query: Query, positions: Int[Array, " some"]
) -> Float[Array, "sets 2 q dim"]:
    """The points that `increment` evaluates for the records at these places of the batch.

    For who evaluates the loss elsewhere and hands the values to `increment` as its records. One set
    of points for each record; where directions are shared, one set for all of them.
    """

    def own(position: Int[Array, ""]) -> Float[Array, "2 q dim"]:
        return estimator.probes(query, (own_directions(estimator, query.key, position),))

    if estimator.sharing is Sharing.RECORD:
        return jax.vmap(own)(positions)
    return estimator.probes(query, (estimator.directions(query.key),))[None]


def increment(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    records: PyTree,
    chunk: Chunk,
    drawn: Float[Array, "batch q dim"] | None = None,
) -> Float[Array, " release_dim"]:
    """The batch's increment (1/b) sum_i e_i, with |e_i| <= record_bound enforced for each record.

    `evaluate(points, record)` gives one record's losses at pairs of points. `records` is a pytree
    with one leading axis over the batch. `drawn` holds each record's own directions where they were
    drawn before (`own_directions`).

    Guarantee: replacing one record moves the result by at most `estimator.sensitivity(kind, b)`,
    for every `evaluate` that treats records one by one and for every `drawn`. The number of
    evaluations and their order are functions of shapes alone.
    """
    batch = jax.tree.leaves(records)[0].shape[0]
    shared = estimator.sharing is not Sharing.RECORD
    frame = estimator.prepare(query.key) if shared else None

    def take_records(total: Array, start: Int[Array, ""]) -> tuple[Array, None]:
        rows = start + jnp.arange(chunk.records)
        chosen = jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, batch - 1)], records)
        if frame is not None:
            estimates = _shared(estimator, query, evaluate, chunk, frame, chosen)
        elif drawn is not None:
            estimates = jax.vmap(lambda u, r: _along(estimator, query, evaluate, u, r))(
                drawn[jnp.minimum(rows, batch - 1)], chosen
            )
        else:
            estimates = jax.vmap(lambda i, r: _own(estimator, query, evaluate, chunk, i, r))(
                rows, chosen
            )
        estimates = jnp.where((rows < batch)[:, None], estimates, 0.0)
        return total + jnp.sum(estimates, axis=0), None

    size = estimator.number if shared else estimator.dim
    total, _ = jax.lax.scan(take_records, jnp.zeros(size), jnp.arange(0, batch, chunk.records))
    if frame is not None and estimator.sharing is Sharing.BATCH:
        total = estimator.combine(total, frame)
    return total / batch


def own_directions(
    estimator: Estimator, key: Key[Array, ""], place: Int[Array, ""]
) -> Float[Array, "q dim"]:
    """All directions of the record at this place of the batch that `key` stands for."""
    return estimator.directions(jax.random.fold_in(key, place))


def _own(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    chunk: Chunk,
    index: Int[Array, ""],
    record: PyTree,
) -> Float[Array, " dim"]:
    """One record's estimate along directions of its own, in all d coordinates."""
    number, dim = estimator.number, estimator.dim
    if chunk.directions == number:
        drawn = own_directions(estimator, query.key, index)
        return _along(estimator, query, evaluate, drawn, record)
    prepared = estimator.prepare(jax.random.fold_in(query.key, index))

    def take(carry: tuple[Array, Array], start: Int[Array, ""]) -> tuple[tuple[Array, Array], None]:
        which = start + jnp.arange(chunk.directions)
        directions = estimator.rows(prepared, jnp.minimum(which, number - 1))
        values = evaluate(estimator.probes(query, directions), record)
        values = jnp.where(which < number, values, 0.0)  # padding adds nothing, whatever it gave
        coefficients, valid = estimator.coefficients(query, values)
        return (carry[0] + _lift(coefficients, join(directions)), carry[1] & valid), None

    start = (jnp.zeros(dim), jnp.asarray(True))
    (total, valid), _ = jax.lax.scan(take, start, jnp.arange(0, number, chunk.directions))
    return estimator.enforce(query.kind, total, valid)


def _along(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    directions: Float[Array, "q dim"],
    record: PyTree,
) -> Float[Array, " dim"]:
    """One record's estimate along all these directions, in all d coordinates."""
    values = evaluate(estimator.probes(query, (directions,)), record)
    coefficients, valid = estimator.coefficients(query, values)
    return estimator.enforce(query.kind, _lift(coefficients, directions), valid)


def _lift(
    coefficients: Float[Array, " q"], directions: Float[Array, "q dim"]
) -> Float[Array, " dim"]:
    """sum_j c_j u_j of one record, in the precision of the directions: it is clipped afterwards.

    Coefficients are scaled to at most 1 on the way, so that none overflows in float32.
    """
    if directions.dtype == jnp.float64:
        return coefficients @ directions
    scale = jnp.maximum(jnp.max(jnp.abs(coefficients)), jnp.finfo(jnp.float64).tiny)
    small = (coefficients / scale).astype(directions.dtype)
    return scale * (small @ directions).astype(jnp.float64)


def _shared(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    chunk: Chunk,
    frame: PyTree,
    records: PyTree,
) -> Float[Array, "some q"]:
    """Records' estimates along one orthonormal frame, in its q coordinates (|e| is their norm)."""
    number, some = estimator.number, chunk.directions

    def place(points: Float[Array, "2 some dim"], start: Int[Array, ""]) -> Array:
        """The points of directions from `start` on, written over those of the chunk before."""
        if some == number:
            return estimator.probes(query, estimator.rows(frame))
        if some > _FEW:
            directions = estimator.rows(frame, start + jnp.arange(some))
            return estimator.probes(query, directions, points)
        for i in range(some):  # one by one: each goes where it belongs without being joined first
            direction = estimator.rows(frame, (start + i)[None])
            points = estimator.write_probes(query, direction, points, i)
        return points

    def take(points: Array, start: Int[Array, ""]) -> tuple[Array, Array]:
        points = place(points, start)
        return points, jax.vmap(evaluate, (None, 0))(points, records)  # (records, 2, directions)

    # Past the end the last directions are evaluated once more, and cut off below.
    starts = jnp.arange(0, number, some)
    room = jnp.zeros((2, some, estimator.dim), estimator.precision)
    _, values = jax.lax.scan(take, room, jnp.minimum(starts, number - some))
    values = jnp.moveaxis(values, 0, 2)  # (records, 2, chunks, directions)
    whole, last = (starts.size - 1) * some, values[:, :, -1]
    before = values[:, :, :-1].reshape(*last.shape[:2], whole)
    values = jnp.concatenate([before, last[..., whole - number :]], axis=-1)
    coefficients, valid = estimator.coefficients(query, values)
    return estimator.enforce(query.kind, coefficients, valid)
