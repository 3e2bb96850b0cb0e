"""From the loss values of a batch to its increment, in bounded memory.

The increment is the mean of the records' enforced estimates. Records and directions are worked
through in chunks, so that memory is that of one chunk: never records x directions x dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from blindstep.trusted.estimators import Estimator, Query, Sharing

Evaluate = Callable[[Float[Array, "2 q dim"], PyTree], Float[Array, "2 q"]]

# Numbers held at once for probe points: 2^21 float64 are 16 MiB.
_BUDGET = 2**21


class Chunk(NamedTuple):
    """How many records, and how many of each record's directions, are in memory at once."""

    records: int
    directions: int


def chunk_for(batch: int, number: int, dim: int, budget: int = _BUDGET) -> Chunk:
    """The largest chunk whose directions and probe points fit into `budget` numbers, evenly split."""

    def evenly(total: int, most: int) -> int:
        parts = -(-total // max(1, min(total, most)))
        return -(-total // parts)

    directions = evenly(number, budget // (3 * dim))
    return Chunk(evenly(batch, budget // (3 * dim * directions)), directions)


def probe_points(
    estimator: Estimator, query: Query, positions: Int[Array, " some"]
) -> Float[Array, "sets 2 q dim"]:
    """The points that `increment` evaluates for the records at these places of the batch.

    For who evaluates the loss elsewhere and hands the values to `increment` as its records. One set
    of points for each record; where directions are shared, one set for all of them.
    """

    def own(position: Int[Array, ""]) -> Float[Array, "2 q dim"]:
        directions = estimator.directions(jax.random.fold_in(query.key, position))
        return estimator.probes(query, directions)

    if estimator.sharing is Sharing.RECORD:
        return jax.vmap(own)(positions)
    return estimator.probes(query, estimator.directions(query.key))[None]


def increment(
    estimator: Estimator, query: Query, evaluate: Evaluate, records: PyTree, chunk: Chunk
) -> Float[Array, " release_dim"]:
    """The batch's increment (1/b) sum_i e_i, with |e_i| <= record_bound enforced for each record.

    `evaluate(points, record)` gives one record's losses at pairs of points. `records` is a pytree
    with one leading axis over the batch.

    Guarantee: replacing one record moves the result by at most `estimator.sensitivity(kind, b)`,
    for every `evaluate` that treats records one by one. The number of evaluations and their order
    are functions of shapes alone.
    """
    batch = jax.tree.leaves(records)[0].shape[0]
    shared = estimator.sharing is not Sharing.RECORD
    frame = estimator.directions(query.key) if shared else None

    def take_records(total: Array, start: Int[Array, ""]) -> tuple[Array, None]:
        rows = start + jnp.arange(chunk.records)
        chosen = jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, batch - 1)], records)
        if frame is None:
            estimates = jax.vmap(lambda i, r: _own(estimator, query, evaluate, chunk, i, r))(
                rows, chosen
            )
        else:
            estimates = _shared(estimator, query, evaluate, chunk, frame, chosen)
        estimates = jnp.where((rows < batch)[:, None], estimates, 0.0)
        return total + jnp.sum(estimates, axis=0), None

    size = estimator.number if shared else estimator.dim
    total, _ = jax.lax.scan(take_records, jnp.zeros(size), jnp.arange(0, batch, chunk.records))
    if frame is not None and estimator.sharing is Sharing.BATCH:
        total = total @ frame
    return total / batch


def _own(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    chunk: Chunk,
    index: Int[Array, ""],
    record: PyTree,
) -> Float[Array, " dim"]:
    """One record's estimate along directions of its own, in all d coordinates."""
    key = jax.random.fold_in(query.key, index)
    number, dim = estimator.number, estimator.dim

    def take(carry: tuple[Array, Array], start: Int[Array, ""]) -> tuple[tuple[Array, Array], None]:
        which = start + jnp.arange(chunk.directions)
        directions = estimator.sampler.sample(key, jnp.minimum(which, number - 1), number, dim)
        values = evaluate(estimator.probes(query, directions), record)
        values = jnp.where(which < number, values, 0.0)  # padding adds nothing, whatever it gave
        coefficients, valid = estimator.coefficients(query, values)
        return (carry[0] + coefficients @ directions, carry[1] & valid), None

    start = (jnp.zeros(dim), jnp.asarray(True))
    (total, valid), _ = jax.lax.scan(take, start, jnp.arange(0, number, chunk.directions))
    return estimator.enforce(query.kind, total, valid)


def _shared(
    estimator: Estimator,
    query: Query,
    evaluate: Evaluate,
    chunk: Chunk,
    frame: Float[Array, "q dim"],
    records: PyTree,
) -> Float[Array, "some q"]:
    """Records' estimates along one orthonormal frame, in its q coordinates (|e| is their norm)."""
    number = estimator.number

    def take(start: Int[Array, ""]) -> Array:
        which = start + jnp.arange(chunk.directions)
        points = estimator.probes(query, frame[jnp.minimum(which, number - 1)])
        return jax.vmap(evaluate, (None, 0))(points, records)  # (records, 2, directions)

    values = jax.lax.map(take, jnp.arange(0, number, chunk.directions))
    values = jnp.moveaxis(values, 0, 2)
    values = values.reshape(*values.shape[:2], -1)[..., :number]
    coefficients, valid = estimator.coefficients(query, values)
    return estimator.enforce(query.kind, coefficients, valid)
