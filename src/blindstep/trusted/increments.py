"""From the loss values of a batch to its increment, in bounded memory.

The increment is the mean of the records' enforced estimates. Records and directions are worked
through in chunks, so that memory is that of one chunk: never records x directions x dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from blindstep.trusted import draws
from blindstep.trusted.directions import join
from blindstep.trusted.estimators import Estimator, Query, Sharing
from blindstep.trusted.stored import stored, true_for

Evaluate = Callable[[Float[Array, "2 q dim"], PyTree], Float[Array, "2 q"]]
# What the directions are made of: of so many records from a place of the batch on, in one leading
# axis; or, where all share a frame, of that, whatever is asked for.
Prepared = Callable[[Int[Array, ""] | int, int], PyTree]

# Numbers held at once for probe points: 2^21 float64 are 16 MiB.
_BUDGET = 2**21
# Directions of a chunk that are made one by one.
_FEW = 8


class Chunk(NamedTuple):
    """How much is in memory at once.

    Attributes:
        records: so many records are evaluated together.
        directions: so many of each record's directions.
        drawn: of so many records the directions are drawn together, where each has its own.
    """

    records: int
    directions: int
    drawn: int = 1


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
    if estimator.sharing is Sharing.RECORD:
        prepared = estimator.prepare(draws.fold_in(query.key, positions))
        return jax.vmap(lambda own: estimator.probes(query, (join(estimator.rows(own)),)))(prepared)
    return estimator.probes(query, (estimator.directions(query.key),))[None]


def prepare_frame(estimator: Estimator, key: Key[Array, ""]) -> Prepared:
    """What a shared frame is made of: made once, for all who use it."""
    frame = estimator.prepare_one(key)
    return lambda _, __: frame


def prepare_steps(
    estimator: Estimator, keys: Key[Array, " steps"], batch: int
) -> Callable[[Int[Array, ""]], Prepared]:
    """What all directions of several steps are made of: of each step what `increment` takes.

    A function of the steps' public keys: it can be made before the steps are known.
    """
    shared = estimator.sharing is not Sharing.RECORD
    if not shared:
        keys = jax.vmap(lambda key: draws.fold_in(key, jnp.arange(batch)))(keys).reshape(-1)
    made = estimator.prepare(keys)

    def of_step(step: Int[Array, ""]) -> Prepared:
        if shared:
            return lambda _, __: jax.tree.map(lambda leaf: leaf[step], made)
        # Chunks that do not fit into the batch would reach beyond the end of the last step.
        return lambda first, some: (_neighbours if batch % some == 0 else _taken)(
            made, step * batch + first, some
        )

    return of_step


def _neighbours(made: PyTree, first: Int[Array, ""] | int, some: int) -> PyTree:
    """`some` of what was made, from number `first` on: there are so many."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, some), made)


def _taken(made: PyTree, first: Int[Array, ""] | int, some: int) -> PyTree:
    """`some` of what was made, from number `first` on; past the end, the last one again."""
    which = first + jnp.arange(some)
    return jax.tree.map(lambda leaf: jnp.take(leaf, which, axis=0, mode="clip"), made)


def increment(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    records: PyTree,
    chunk: Chunk,
    prepared: Prepared | None = None,
) -> Float[Array, " release_dim"]:
    """The batch's increment (1/b) sum_i e_i, with |e_i| <= record_bound enforced for each record.

    `evaluate(points, record)` gives one record's losses at pairs of points. `records` is a pytree
    with one leading axis over the batch. `prepared` tells what the directions are made of, where that
    was made before (`prepare_steps`).

    Guarantee: replacing one record moves the result by at most `estimator.sensitivity(kind, b)`,
    for every `evaluate` that treats records one by one and for every `prepared`. The number of
    evaluations and their order are functions of shapes alone.
    """
    own = estimator.sharing is Sharing.RECORD
    add_up = _sum_of_own if own else _sum_of_sharers
    batch = jax.tree.leaves(records)[0].shape[0]
    total = add_up(estimator, query, evaluate, records, chunk, prepared)
    return total / batch


def _sum_of_sharers(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    records: PyTree,
    chunk: Chunk,
    prepared: Prepared | None,
) -> Float[Array, " release_dim"]:
    """The sum of the estimates of all records, which share a frame."""
    batch = jax.tree.leaves(records)[0].shape[0]
    frame = (prepared or prepare_frame(estimator, query.key))(0, 1)

    def take(first: Int[Array, ""]) -> Float[Array, "some q"]:
        chosen = _taken(records, first, chunk.records)
        return _shared(estimator, query, evaluate, chunk, frame, chosen)

    total = _sum_over(take, jnp.zeros(estimator.number), batch, chunk.records, batch)
    return estimator.combine(total, frame) if estimator.sharing is Sharing.BATCH else total


def _sum_over(
    estimates: Callable[[Int[Array, ""]], Float[Array, "size n"]],
    start: Float[Array, " n"],
    number: int,
    size: int,
    counts: Int[Array, ""] | int,
) -> Float[Array, " n"]:
    """`start` and the sum of the estimates of records 0 .. number-1, `size` of them at a time.

    `estimates` gives those of the records from a number on. Those from number `counts` on do not
    count, nor what the last chunk has past the end.
    """

    def take(total: Array, first: Int[Array, ""]) -> tuple[Array, None]:
        counted = first + jnp.arange(size) < jnp.minimum(counts, number)
        some = jnp.where(counted[:, None], estimates(first), 0.0)
        return total + jnp.sum(some, axis=0), None

    return jax.lax.scan(take, start, jnp.arange(0, number, size))[0]


def _sum_of_own(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    records: PyTree,
    chunk: Chunk,
    prepared: Prepared | None,
) -> Float[Array, " dim"]:
    """The sum of all records' estimates, each along directions of its own."""
    batch, some = jax.tree.leaves(records)[0].shape[0], chunk.records
    # Whole chunks are drawn, even if the last one is longer than what is left of the batch.
    whole = -(-batch // some) * some
    size = whole if prepared is not None else min(max(chunk.drawn // some, 1) * some, whole)

    def draw(first: Int[Array, ""]) -> Prepared:
        made = estimator.prepare(draws.fold_in(query.key, first + jnp.arange(size)))
        return functools.partial(_neighbours, made)

    def take(total: Array, first: Int[Array, ""]) -> tuple[Array, None]:
        own = prepared if prepared is not None else draw(first)

        def estimates(later: Int[Array, ""]) -> Float[Array, "some dim"]:
            made, chosen = lambda: own(later, some), _taken(records, first + later, some)
            return _own(estimator, query, evaluate, chunk, made, chosen)

        return _sum_over(estimates, total, size, some, batch - first), None

    return jax.lax.scan(take, jnp.zeros(estimator.dim), jnp.arange(0, batch, size))[0]


def _own(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    chunk: Chunk,
    made: Callable[[], PyTree],
    records: PyTree,
) -> Float[Array, "some dim"]:
    """Some records' estimates along directions of their own, in all d coordinates."""
    if chunk.directions == estimator.number:
        estimates, valid = _own_at_once(estimator, query, evaluate, made, records)
    else:
        one = functools.partial(_own_in_chunks, estimator, query, evaluate, chunk)
        estimates, valid = jax.vmap(one)(made(), records)
    return estimator.enforce(query.kind, estimates, valid)


def _own_at_once(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    made: Callable[[], PyTree],
    records: PyTree,
) -> tuple[Float[Array, "some dim"], Bool[Array, " some"]]:
    """Some records' estimates before anything is enforced, and whether all their values were finite."""
    true = true_for(jax.random.key_data(query.key))

    def points_along(directions: Float[Array, "q dim"]) -> Float[Array, "2*q dim"]:
        return estimator.probes(query, (directions,)).reshape(-1, estimator.dim)

    def along(
        directions: Float[Array, "q dim"], points: Float[Array, "2*q dim"], record: PyTree
    ) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        values = evaluate(points.reshape(2, *directions.shape), record)
        coefficients, valid = estimator.coefficients(query, values)
        return _lift(coefficients, directions), valid

    directions = stored(true, lambda: jax.vmap(lambda own: join(estimator.rows(own)))(made()))
    # All points in one axis: XLA evaluates most losses faster there.
    points = stored(true, jax.vmap(points_along), directions)
    return jax.vmap(along)(directions, points, records)


def _own_in_chunks(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    chunk: Chunk,
    prepared: PyTree,
    record: PyTree,
) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
    """One record's estimate before anything is enforced, and whether all its values were finite."""
    number = estimator.number

    def take(carry: tuple[Array, Array], start: Int[Array, ""]) -> tuple[tuple[Array, Array], None]:
        which = start + jnp.arange(chunk.directions)
        directions = estimator.rows(prepared, jnp.minimum(which, number - 1))
        values = evaluate(estimator.probes(query, directions), record)
        values = jnp.where(which < number, values, 0.0)  # padding adds nothing, whatever it gave
        coefficients, valid = estimator.coefficients(query, values)
        return (carry[0] + _lift(coefficients, join(directions)), carry[1] & valid), None

    start = (jnp.zeros(estimator.dim), jnp.asarray(True))
    return jax.lax.scan(take, start, jnp.arange(0, number, chunk.directions))[0]


def _lift(
    coefficients: Float[Array, " q"], directions: Float[Array, "q dim"]
) -> Float[Array, " dim"]:
    """sum_j c_j u_j of one record, in the precision of the directions: it is clipped afterwards.

    Coefficients count as at most 2^96 in float32 (2^768 in float64), so that no sum of them overflows.
    (An accelerator may round the factors more; as the result is clipped, that is no matter of privacy.)
    """
    largest = 2.0 ** (0.75 * jnp.finfo(directions.dtype).maxexp)
    small = jnp.clip(coefficients, -largest, largest).astype(directions.dtype)
    return (small @ directions).astype(jnp.float64)


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
