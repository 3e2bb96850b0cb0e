"""How the compiled driver evaluates: what is done together, sized to the machine it runs on.

Values do not depend on any of it, up to the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, PyTree

from blindstep.drivers import mesh
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.trusted.draws import LANES
from blindstep.trusted.estimators import Estimator, Sharing
from blindstep.trusted.increments import Chunk, evenly


@dataclass(frozen=True)
class Sizes:
    """Numbers that are held at once.

    Attributes:
        memory: for one record's directions and probe points, or for a batch's values.
        cache: for the directions of several records or steps that are drawn together.
        own: for the directions and probe points that are evaluated together, of several records with
            directions of their own or of a shared frame.
        work: parameters x records that keep the machine busy: fewer, and more points of a shared
            frame are evaluated together.
        large: parameters from which on `points` points of a shared frame are evaluated together.
        points: how many that are.
        equal_groups: whether each operation is slow to start, and a loop slow whose end is not known
            beforehand: then even shared frames are drawn ahead, for groups of steps of one size.
    """

    memory: int
    cache: int
    own: int
    work: int
    large: int
    points: int
    equal_groups: bool


# A processor: what is computed next should still be in its cache (2^20 float32 are 4 MiB); one matrix
# product of 2^16 numbers pays for starting it; the products of several large points are shared out
# over its cores. An accelerator: as much at once as is sensible. Measured: docs/scaling.md.
_PROCESSOR = Sizes(
    memory=2**21,
    cache=2**21,
    own=2**20,
    work=2**16,
    large=2**12,
    points=8,
    equal_groups=False,
)
_ACCELERATOR = Sizes(
    memory=2**26, cache=2**28, own=2**26, work=2**40, large=1, points=2**20, equal_groups=True
)


def sizes() -> Sizes:
    """What suits the devices that JAX computes on."""
    return _PROCESSOR if jax.default_backend() == "cpu" else _ACCELERATOR


def chunk_of(estimator: Estimator, records: PyTree) -> Chunk:
    """Records and directions that are evaluated at once, for this batch of records."""
    leaves, limits = jax.tree.leaves(records), sizes()
    batch = leaves[0].shape[0]
    dim, number = estimator.dim, estimator.number
    if estimator.sharing is Sharing.RECORD:
        directions = evenly(number, limits.memory // (3 * dim))
        records = evenly(batch, limits.own // (3 * dim * directions))
        chunks = -(-batch // records)
        drawn = records * evenly(chunks, limits.cache // (number * dim * records))
        return Chunk(records, directions, drawn)
    pairs = max(limits.points // 2 * (dim >= limits.large), limits.own // (3 * dim))
    directions = evenly(number, min(pairs, limits.memory // (3 * dim)))
    each = 2 * number + sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    return Chunk(evenly(batch, limits.memory // each), directions)


def steps_ahead(estimator: Estimator, steps: int, batch: int, *, spread: bool) -> int:
    """Of how many steps directions and noise are drawn together; 1 where each step draws its own.

    Records that are spread over devices draw theirs where they are. On a processor a frame that a
    batch shares takes no time against the batch; an accelerator waits for the start of each of the
    many short operations that draw one.
    """
    limits, own = sizes(), estimator.sharing is Sharing.RECORD
    if spread or not (own or limits.equal_groups):
        return 1
    most = max(1, limits.cache // ((batch if own else 1) * estimator.number * estimator.dim))
    if limits.equal_groups:
        return evenly(steps, most)
    return min(steps, most // LANES * LANES if most > LANES else most)


@dataclass(frozen=True)
class Evaluator:
    """The loss at pairs of points, for one record; batched over records by `jax.vmap`."""

    loss: Callable[[PyTree, PyTree], Any]
    space: ParameterSpace
    estimator: Estimator
    sharding: NamedSharding | None

    def of(self, batch: int) -> Callable[..., Array]:
        """The evaluation for a batch of so many records."""

        def at(point: Float[Array, " dim"], record: PyTree) -> Any:
            return self.loss(self.space.unflatten(point), record)

        # Points in one axis: with two, XLA would turn them around in memory for a matrix product.
        def together(points: Float[Array, "2 q dim"], record: PyTree) -> Float[Array, "2 q"]:
            flat = points.reshape(-1, points.shape[-1])
            return jax.vmap(lambda point: at(point, record))(flat).reshape(points.shape[:2])

        def in_turn(points: Float[Array, "2 q dim"], record: PyTree) -> Float[Array, "2 q"]:
            # One point for all records is a plain matrix product for most losses.
            flat = points.reshape(-1, points.shape[-1])
            limits, dim = sizes(), self.estimator.dim
            size = max(limits.points if dim >= limits.large else 1, limits.work // (batch * dim))
            values = jax.lax.map(
                lambda point: at(point, record), flat, batch_size=size if size > 1 else None
            )
            return values.reshape(points.shape[:2])

        shared = self.estimator.sharing is not Sharing.RECORD
        return mesh.spread(in_turn if shared else together, self.sharding)
