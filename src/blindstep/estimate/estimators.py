"""GRAD and DIFF: a gradient, and how it changed between two points, from function values.

Both evaluate the loss f of a record at a pair of points for each of q directions u_1 .. u_q:

    GRAD (Algorithm alg:first-grad):   c_j = (f(x + h u_j) - f(x - h u_j)) / (2 h)
    GRAD on one side:                  c_j = (f(x + h u_j) - mean over all j of f(x + h u_j)) / h
    DIFF (Algorithm alg:zeroth-diff):  c_j = (f(x + h u_j) - f(y + h u_j)) / h
    estimate of the record:            e = sum_j (d/q) c_j u_j

where d is the dimension and h the smoothing radius. In expectation e is the gradient of the uniform
smoothing of f at x, or the difference of these gradients between x and y (Lemmas lem:grad-estimator,
lem:diff-estimator). Along few random directions of very many parameters one side shows nearly the same,
in half the evaluations: curvature moves all values alike.

A record hands the gate e or, where a block shares its directions, the q coefficients (d/q) c_j, and the
directions are multiplied in after the release. Work is cut into chunks by the size of the machine;
results are the same, up to rounding.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.errors import count, positive
from blindstep.estimate import draws
from blindstep.estimate.bounds import Bounds, Differences, record_bound
from blindstep.estimate.directions import Directions, Parts, Which, first_of, join
from blindstep.estimate.draws import LANES
from blindstep.estimate.frames import Structured
from blindstep.estimate.vectors import Estimator, Query
from blindstep.private.noise import public_stream
from blindstep.private.schedule import Kind

# Two points for each of q directions.
Pairs = Float[Array, "2 q dim"]


class Sharing(enum.Enum):
    """Whether each record has directions of its own, or all records of a block share them."""

    RECORD = "record"
    BLOCK = "block"


class ValueEstimator(Estimator):
    """Says at which points to evaluate the loss, and turns its values into coefficients.

    Attributes:
        dim: d, the number of parameters.
        directions: q, the number of directions for each record.
        sampler: how directions are drawn.
        smoothing: h, the distance of probe points along a direction (the paper's delta).
        reach: D, the longest step of the learner; so |x - y| <= 2 D.
        bounds: what is known of the loss; differences beyond it are clamped.
        sharing: whether each record has directions of its own or a block shares them.
        curve: weight of the loss itself in a record's vector, whose last coordinate it then is; 0:
            it is not there. For shared directions only.
        precision: "float64" or "float32", of directions and probe points.
        sides: 2, or 1 for a GRAD that evaluates on one side of the point. For values from outside.
        breadth: dimension of the random subspace in which all directions of a step lie; 0: they lie
            anywhere. Noise outside of it can then be left out. For directions of each record's own.
    """

    dim: int = eqx.field(static=True)
    directions: int = eqx.field(static=True)
    sampler: Directions
    smoothing: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)
    bounds: Bounds = eqx.field(static=True)
    sharing: Sharing = eqx.field(static=True, default=Sharing.RECORD)
    precision: str = eqx.field(static=True, default="float64")
    curve: float = eqx.field(static=True, default=0.0)
    sides: int = eqx.field(static=True, default=2)
    breadth: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        count("dim", self.dim)
        count("directions", self.directions)
        positive("smoothing", self.smoothing)
        positive("reach", self.reach)
        self.bounds.require_finite(needs_diff=False)
        self.sampler.gain(self.directions, self.dim)  # raises if there are fewer

    @property
    def shared(self) -> bool:
        """Whether all records of a block use the same directions."""
        return self.sharing is Sharing.BLOCK

    @property
    def gradient_size(self) -> int:
        """Coordinates of the gradient: q coefficients if directions are shared, else d of its own."""
        return self.directions if self.shared else self.dim

    def subspace(
        self, public: Key[Array, ""], number: Int[Array, ""]
    ) -> Float[Array, "breadth dim"] | None:
        """Rows of a random frame, the next ones for each step; when all had their turn, of another."""
        if self.breadth == 0:
            return None
        turns = -(-self.dim // self.breadth)
        key = draws.fold_in(public_stream(public, "subspaces"), number // turns)
        frame = Structured().sample(key, None, self.dim, self.dim)
        # The last turn of a frame is moved back so that it has as many rows as the others.
        return jax.lax.dynamic_slice_in_dim(frame, number % turns * self.breadth, self.breadth)

    def turned(
        self, query: Query, directions: Float[Array, "*some dim"]
    ) -> Float[Array, "*some dim"]:
        """Uniform directions, as unit vectors in the subspace of the query: uniform there as well."""
        if query.within is None:
            return directions
        inside = (directions @ query.within.T) @ query.within
        return inside / jnp.linalg.norm(inside, axis=-1, keepdims=True)

    def prepare(self, keys: Key[Array, " keys"]) -> PyTree:
        """Compact directions of each key: arrays whose leading axis is the key."""
        return self.sampler.prepare(keys, self.directions, self.dim, jnp.dtype(self.precision))

    def prepare_one(self, key: Key[Array, ""]) -> PyTree:
        """Compact directions of one key, as `rows` takes them."""
        return first_of(self.prepare(key[None]))

    def rows(self, prepared: PyTree, which: Which = None) -> Parts:
        """Directions number `which` (None: all) of one key, from its compact directions."""
        return self.sampler.rows(prepared, which, self.directions, self.dim)

    def probes(self, query: Query, directions: Parts, into: Pairs | None = None) -> Pairs:
        """The pairs of points at which to evaluate the loss, one pair for each direction.

        They are written over the array `into`, if given.
        """
        on_accelerator = jax.default_backend() != "cpu"
        if into is None and (len(directions) == 1 or on_accelerator):
            bases, offsets = self._pairs(query)
            # Both points of a pair in one operation: one pass over memory. An accelerator joins
            # parts in the same pass; a CPU would take a pass more.
            return bases[:, None] + offsets[:, None, None] * join(directions)
        if into is None:
            into = jnp.zeros((2, len(directions[0]), self.dim), self.precision)
        return self.write_probes(query, directions, into, 0)

    def write_probes(self, query: Query, directions: Parts, into: Pairs, place: int) -> Pairs:
        """`into` with the points of these directions as pairs number `place`, `place` + 1, ..."""
        bases, offsets = self._pairs(query)
        start = 0
        for part in directions:
            stop = start + part.shape[1]
            points = bases[:, None, start:stop] + offsets[:, None, None] * part
            into = jax.lax.dynamic_update_slice(into, points, (0, place, start))
            start = stop
        return into

    def _pairs(self, query: Query) -> tuple[Float[Array, "2 dim"], Float[Array, "2"]]:
        """Bases and offsets of a pair of points: along u they are base + offset u."""
        other = query.point if query.kind is Kind.GRAD else query.reference
        sign = -1.0 if query.kind is Kind.GRAD else 1.0
        bases, h = jnp.stack([query.point, other]).astype(self.precision), self._distance(query)
        return bases, jnp.stack([h, sign * h]).astype(self.precision)

    def _distance(self, query: Query) -> Float[Array, ""]:
        """h for this query."""
        near = 1.0 if query.nearness is None else query.nearness
        return jnp.asarray(self.smoothing * near)

    def coefficients(
        self, query: Query, values: Float[Array, "*records sides q"]
    ) -> Float[Array, "*records size"]:
        """The coefficients (d/q) c_j from the values along each direction, and the loss if wanted.

        Differences of values are clamped to what the bounds allow. A value that is not finite gives
        NaN, and the gate counts a record with a NaN as 0.
        """
        values = values.astype(jnp.float64)
        first, second = values[..., 0, :], values[..., -1, :]
        if self.sides == 1:
            second = jnp.broadcast_to(jnp.mean(first, axis=-1, keepdims=True), first.shape)
        limit = self._clamp(query)
        difference = jnp.clip(first - second, -limit, limit)
        both = query.kind is Kind.GRAD and self.sides == 2
        width = self._distance(query) * (2.0 if both else 1.0)
        finite = jnp.isfinite(first) & jnp.isfinite(second)
        slopes = jnp.where(finite, (self.dim / self.directions) * difference / width, jnp.nan)
        return self.joined(slopes, jnp.mean(values, axis=(-2, -1)))

    def _clamp(self, query: Query) -> Float[Array, ""]:
        """The largest difference of two values that the bounds allow."""
        slope, width = self.bounds.lipschitz, self.bounds.width
        if query.kind is Kind.GRAD:
            return jnp.asarray(min(2.0 * self.smoothing * slope, width))
        distance = length(query.point - query.reference)
        distance = jnp.minimum(distance, 2.0 * self.reach)
        # Without a slope the distance must not enter: 0 * inf is NaN.
        return jnp.minimum(distance * slope, width) if slope < math.inf else jnp.asarray(width)

    def record_bound(self, kind: Kind) -> float:
        """The clip norm for the gate: no longer than the bounds leave a record's vector."""
        gain = gain_of(self.sampler, self.sharing, self.directions, self.dim)
        made_of = Differences(gain, self.smoothing, self.reach)
        return record_bound(kind, self.bounds, made_of, self.curve)

    def evaluations(self, kind: Kind) -> int:
        """Both points of a pair along each direction; of a GRAD on one side, one."""
        return (self.sides if kind is Kind.GRAD else 2) * self.directions


def from_values(estimate: Estimator) -> ValueEstimator:
    """The estimate, where it can only be one from values: what comes from outside has no gradient."""
    assert isinstance(estimate, ValueEstimator)
    return estimate


def gain_of(sampler: Directions, sharing: Sharing, directions: int, dim: int) -> float:
    """The longest that a record's vector can be if all |c_j| <= 1.

    With directions of its own the vector is (d/q) sum_j c_j u_j, and this is the sampler's gain. With
    shared directions it is (d/q) (c_1, .., c_q), of length d / sqrt(q) at most.
    """
    gain = sampler.gain(directions, dim)  # raises if there are fewer
    return gain if sharing is Sharing.RECORD else dim / math.sqrt(directions)


def length(vector: Float[Array, " dim"]) -> Float[Array, ""]:
    """|vector|, from a scalar product: XLA compiles that into one operation, a norm into three."""
    return jnp.sqrt(jnp.vdot(vector, vector))


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


# Measured: docs/performance.md. On a CPU what is read next should still be in the cache (2^20 float32
# are 4 MiB), and a matrix product of 2^16 numbers is worth its start.
_CPU = Limits(2**21, 2**21, 2**20, busy=2**16, large_dim=2**12, large_points=8, slow_start=False)
_ACCELERATOR = Limits(2**26, 2**28, 2**26, 2**40, large_dim=1, large_points=2**20, slow_start=True)


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
    return even_part(batch, limits().memory // (2 * dim + size_of_record(data)))


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

    A shared frame takes a CPU hardly any time, and an accelerator many short operations.
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
