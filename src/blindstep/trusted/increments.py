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

from blindstep.trusted.estimators import Estimator, Query, Tally

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


def increment(
    estimator: Estimator, query: Query, evaluate: Evaluate, records: PyTree, chunk: Chunk
) -> Float[Array, " dim"]:
    """The batch's increment (1/b) sum_i e_i, with |e_i| <= record_bound enforced for each record.

    `evaluate(points, record)` gives one record's losses at pairs of points. `records` is a pytree
    with one leading axis over the batch.

    Guarantee: replacing one record moves the result by at most `estimator.sensitivity(kind, b)`,
    for every `evaluate` that treats records one by one. The number of evaluations and their order
    are functions of shapes alone.
    """
    batch = jax.tree.leaves(records)[0].shape[0]
    number, dim = estimator.number, estimator.dim
    padded = number % chunk.directions != 0

    def take_directions(key: Array, record: PyTree, tally: Tally, start: Int[Array, ""]) -> Tally:
        which = start + jnp.arange(chunk.directions)
        directions = estimator.sampler.sample(key, jnp.minimum(which, number - 1), number, dim)
        values = evaluate(estimator.probes(query, directions), record)
        return estimator.add(query, tally, directions, values, which < number if padded else None)

    def estimate(index: Int[Array, ""], record: PyTree) -> Float[Array, " dim"]:
        key = jax.random.fold_in(query.key, index)
        starts = jnp.arange(0, number, chunk.directions)
        if starts.size == 1:
            tally = take_directions(key, record, estimator.start(), starts[0])
        else:
            tally, _ = jax.lax.scan(
                lambda t, s: (take_directions(key, record, t, s), None), estimator.start(), starts
            )
        return estimator.finish(query, tally)

    def take_records(
        total: Float[Array, " dim"], start: Int[Array, ""]
    ) -> tuple[Float[Array, " dim"], None]:
        rows = start + jnp.arange(chunk.records)
        chosen = jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, batch - 1)], records)
        estimates = jax.vmap(estimate)(rows, chosen)
        estimates = jnp.where((rows < batch)[:, None], estimates, 0.0)
        return total + jnp.sum(estimates, axis=0), None

    starts = jnp.arange(0, batch, chunk.records)
    total, _ = jax.lax.scan(take_records, jnp.zeros(dim), starts)
    return total / batch
