"""How much is computed at once, by the size of the machine. Results are the same, up to rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
from jaxtyping import PyTree

from blindstep.estimate.draws import LANES
from blindstep.estimate.estimators import ValueEstimator


@dataclass(frozen=True)
class Limits:
    """The most floats that are held or evaluated at once on one kind of device."""

    memory: int  # floats in one record's directions and probe points, or in a batch's values
    drawn: int  # floats in directions of several records or steps that are drawn together
    evaluated: int  # floats in directions and probe points that are evaluated together
    # parameters x records that keep the device busy. With fewer, several points of a shared frame
    # are evaluated together
    busy: int
    large_dim: int  # with this many parameters or more, several points are evaluated together, too
    large_points: int  # how many points these are
    # whether starting an operation takes long. Then even shared frames are drawn ahead, for groups
    # of steps of equal size
    slow_start: bool


# Measured: docs/scaling.md. On a CPU, what is read next should still be in the cache (2^20 float32 are
# 4 MiB), a matrix product of 2^16 numbers is worth its start, and the products of several large
# points keep all cores busy.
_CPU = Limits(2**21, 2**21, 2**20, busy=2**16, large_dim=2**12, large_points=8, slow_start=False)
_ACCELERATOR = Limits(
    2**26, 2**28, 2**26, busy=2**40, large_dim=1, large_points=2**20, slow_start=True
)


def limits() -> Limits:
    """The limits of the device that JAX computes on."""
    return _CPU if jax.default_backend() == "cpu" else _ACCELERATOR


class Chunk(NamedTuple):
    """How much of a batch is in memory at once."""

    records: int  # records that are evaluated together
    directions: int  # directions of each of these records that are evaluated together
    drawn: int  # records whose directions are drawn together; a multiple of `records`


def chunk_for(estimator: ValueEstimator, batch: int, record_size: int) -> Chunk:
    """The chunk for a batch of records, each of which holds `record_size` numbers."""
    most, dim, q = limits(), estimator.dim, estimator.directions
    if not estimator.shared:
        directions = even_part(q, most.memory // (3 * dim))
        records = even_part(batch, most.evaluated // (3 * dim * directions))
        chunks = -(-batch // records)
        drawn = records * even_part(chunks, most.drawn // (q * dim * records))
        return Chunk(records, directions, drawn)
    pairs = max(most.large_points // 2 * (dim >= most.large_dim), most.evaluated // (3 * dim))
    directions = even_part(q, min(pairs, most.memory // (3 * dim)))
    records = even_part(batch, most.memory // (2 * q + record_size))
    return Chunk(records, directions, records)


def chunk_of_answers(estimator: ValueEstimator, batch: int) -> Chunk:
    """The chunk for a batch whose values came from outside: all directions of some records."""
    records = even_part(batch, limits().memory // (3 * estimator.dim * estimator.directions))
    return Chunk(records, estimator.directions, records)


def gradients_together(dim: int, batch: int, data: PyTree) -> int:
    """How many records are differentiated together: they and their gradients fit into memory."""
    each = 2 * dim + size_of_record(data)
    return even_part(batch, limits().memory // each)


def size_of_record(data: PyTree) -> int:
    """How many numbers one record of `data` holds."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data))


def points_together(estimator: ValueEstimator, batch: int) -> int:
    """How many points of a shared frame are evaluated together, each on all records of the batch.

    Few are best: one point on all records is a plain matrix product for most losses.
    """
    most, dim = limits(), estimator.dim
    return max(most.large_points if dim >= most.large_dim else 1, most.busy // (batch * dim))


def steps_ahead(estimator: ValueEstimator, steps: int, batch: int) -> int:
    """For how many steps directions and noise are drawn together; 1 means each step for itself.

    A shared frame takes a CPU no time against the batch, but it takes an accelerator many short
    operations, each of which has to be started.
    """
    most = limits()
    if estimator.shared and not most.slow_start:
        return 1
    step_size = (1 if estimator.shared else batch) * estimator.directions * estimator.dim
    together = max(1, most.drawn // step_size)
    if most.slow_start:
        return even_part(steps, together)
    return min(steps, together // LANES * LANES if together > LANES else together)


def even_part(total: int, most: int) -> int:
    """The size, at most `most`, of equal parts of `total`; the last part may be a little shorter.

    It divides `total` if any size in (most / 2, most] does.
    """
    most = max(1, min(total, most))
    for size in range(most, most // 2, -1):
        if total % size == 0:
            return size
    parts = -(-total // most)
    return -(-total // parts)
