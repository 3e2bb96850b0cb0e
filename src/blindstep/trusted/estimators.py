"""GRAD and DIFF: gradients, and differences of gradients, from function values.

Both are one two-point estimator. With directions u_1..u_q of one record and a pair of points each,

    GRAD (Algorithm alg:first-grad):   c_j = (f(x + h u_j) - f(x - h u_j)) / (2 h)
    DIFF (Algorithm alg:zeroth-diff):  c_j = (f(x + h u_j) - f(y + h u_j)) / h
    record's estimate:                 e = (d / q) sum_j c_j u_j
    batch's increment:                 m = (1 / b) sum over records of e

with h the smoothing radius. Expectations are the gradient of the uniform smoothing at x, and its
difference between x and y (Lemmas lem:grad-estimator, lem:diff-estimator).

Sensitivity: before averaging, each record's e is forced to |e| <= `record_bound`, whatever values
the loss returned; replacing one record of b moves m by at most 2 record_bound / b.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from blindstep.errors import InvalidArgument, count, positive
from blindstep.trusted.bounds import Bounds
from blindstep.trusted.directions import Directions, Parts, first_of, join
from blindstep.trusted.frames import Frame

# Clips aim this much inside the bound, so that rounding (of unit vectors, of a sum over up to 1e6
# records) cannot push a contribution over the norm that the noise was calibrated for. On top of it
# comes the rounding of the norm itself, a sum of n squares: at most n 2^-52 in any order.
_MARGIN = 1e-9
# A frame that rounding could stretch more than this is not used in float32: the clip has to allow for
# it, so it costs as much in noise.
_MOST_SLACK = 2e-3
# Rows that `combine` adds in one pass: on a processor so many as its cache holds, on an accelerator
# so many as make the pass long against the start of it.
_ROWS, _ROWS_OF_ACCELERATOR = 8, 64

# Sums of directions, their coordinates cut into parts.
Sums = tuple[Float[Array, " _"], ...]


class Kind(enum.Enum):
    """Which of the two estimators a step uses."""

    GRAD = "grad"
    DIFF = "diff"


class Sharing(enum.Enum):
    """Who probes along the same directions."""

    RECORD = "record"
    BATCH = "batch"
    BLOCK = "block"


class Query(eqx.Module):
    """What a step wants to know: public, a function of past releases and public randomness only.

    Attributes:
        point: where the gradient is wanted (w_t).
        reference: the point before it (w_{t-1}); unused by GRAD.
        key: public key of the step's directions.
        kind: GRAD or DIFF.
    """

    point: Float[Array, " dim"]
    reference: Float[Array, " dim"]
    key: Key[Array, ""]
    kind: Kind = eqx.field(static=True)


class Estimator(eqx.Module):
    """The two-point estimator and its enforced bounds.

    Attributes:
        dim: d, the number of parameters.
        number: q, directions for each record.
        sampler: how directions are drawn.
        sharing: whether each record has its own directions, or a whole batch or block shares them.
            Shared directions must be orthonormal: |e| is then the norm of its q coefficients.
        smoothing: h, the paper's delta.
        reach: D, the largest step of the learner; |x - y| <= 2 D between two queries.
        bounds: what is enforced on each record.
        precision: of directions and probe points, "float64" or "float32". What is enforced, added
            up and released is float64 either way.
    """

    dim: int = eqx.field(static=True)
    number: int = eqx.field(static=True)
    sampler: Directions
    smoothing: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)
    bounds: Bounds = eqx.field(static=True)
    sharing: Sharing = eqx.field(static=True, default=Sharing.RECORD)
    precision: str = eqx.field(static=True, default="float64")

    def __check_init__(self) -> None:
        count("dim", self.dim)
        count("directions", self.number)
        positive("smoothing", self.smoothing)
        positive("reach", self.reach)
        self.bounds.require_finite(needs_diff=False)
        self.sampler.gain(self.number, self.dim)  # raises where so many directions do not exist
        if self.sharing is not Sharing.RECORD and not self.sampler.orthonormal:
            raise InvalidArgument(
                f"{self.sampler.name} directions cannot be shared by a {self.sharing.value}: take "
                "an orthonormal sampler, or directions for each record."
            )

    @property
    def release_dim(self) -> int:
        """Length of an increment: d, or q where a whole block lives in the span of one frame."""
        return self.number if self.sharing is Sharing.BLOCK else self.dim

    def working_in(self, dtype: DTypeLike) -> Estimator:
        """This estimator with directions and probe points in `dtype`, where that is precise enough.

        Whoever evaluates a loss of float32 parameters loses nothing by float32 probe points. A frame
        that a batch shares stays in float64 if rounding could stretch it by more than a permille.
        """
        single = jnp.finfo(dtype).bits <= 32 and self._slack("float32") <= _MOST_SLACK
        return dataclasses.replace(self, precision="float32" if single else "float64")

    def _slack(self, precision: str) -> float:
        """How much longer than its coefficients an estimate may be that a batch's frame lifts."""
        if self.sharing is Sharing.BATCH and isinstance(self.sampler, Frame):
            return self.sampler.slack(self.number, self.dim, jnp.dtype(precision))
        return 0.0

    @property
    def stretch(self) -> float:
        """What the clip of coefficients allows for: the same in both precisions, where both serve.

        So that a run does not depend on the precision of its directions beyond rounding.
        """
        single = self._slack("float32")
        return 1.0 + (single if single <= _MOST_SLACK else self._slack("float64"))

    def prepare(self, keys: Key[Array, " keys"]) -> PyTree:
        """What the directions that each key stands for are made of; the keys are its leading axis."""
        return self.sampler.prepare(keys, self.number, self.dim, jnp.dtype(self.precision))

    def prepare_one(self, key: Key[Array, ""]) -> PyTree:
        """What the directions of one key are made of, as `rows` takes it."""
        return first_of(self.prepare(key[None]))

    def rows(self, prepared: PyTree, which: Int[Array, " some"] | None = None) -> Parts:
        """Directions by their number, of those prepared; None means all."""
        return self.sampler.rows(prepared, which, self.number, self.dim)

    def directions(self, key: Key[Array, ""]) -> Float[Array, "q dim"]:
        """All directions that `key` stands for."""
        return join(self.rows(self.prepare_one(key)))

    def lift(
        self,
        released: Float[Array, " release_dim"],
        key: Key[Array, ""],
        frame: PyTree | None = None,
    ) -> Float[Array, " dim"]:
        """A released vector as a gradient: post-processing with the block's public frame.

        `frame` is what the directions of `key` are made of, where that was made before.
        """
        if self.sharing is Sharing.BLOCK:
            return self.combine(released, self.prepare_one(key) if frame is None else frame)
        return released

    def combine(self, coefficients: Float[Array, " q"], prepared: PyTree) -> Float[Array, " dim"]:
        """sum_j c_j u_j in float64, whatever the precision of the directions, a few at a time.

        A linear map of the coefficients up to float64 rounding: float32 arithmetic would round the
        sum of a whole batch by more than the one record in it that must not be seen.
        """

        def add(total: Sums, which: Int[Array, " some"]) -> tuple[Sums, None]:
            weights = coefficients[which]
            return tuple(
                map(functools.partial(_add_rows, weights), total, self.rows(prepared, which))
            ), None

        size = _ROWS if jax.default_backend() == "cpu" else _ROWS_OF_ACCELERATOR
        every, whole = jnp.arange(self.number), self.number // size * size
        like = jax.eval_shape(lambda: self.rows(prepared, every[:1]))
        total: Sums = tuple(jnp.zeros(part.shape[1:], jnp.float64) for part in like)
        total, _ = jax.lax.scan(add, total, every[:whole].reshape(-1, size))
        if whole < self.number:
            total, _ = add(total, every[whole:])
        return jnp.concatenate(total)

    def probes(
        self, query: Query, directions: Parts, into: Float[Array, "2 q dim"] | None = None
    ) -> Float[Array, "2 q dim"]:
        """The pairs of points at which the loss is to be evaluated; written over `into`, if given."""
        on_accelerator = jax.default_backend() != "cpu"
        if into is None and (len(directions) == 1 or on_accelerator):
            bases, widths = self._ends(query)
            # One sum with numbers repeated, and no joining of two: one pass over the points. (An
            # accelerator joins parts in that pass; a processor is slow at it.)
            return bases[:, None] + widths[:, None, None] * join(directions)
        if into is None:
            into = jnp.zeros((2, len(directions[0]), self.dim), self.precision)
        return self.write_probes(query, directions, into, 0)

    def write_probes(
        self, query: Query, directions: Parts, into: Float[Array, "2 q dim"], place: int
    ) -> Float[Array, "2 q dim"]:
        """`into` with the points of these directions from number `place` on: in place, by parts."""
        bases, widths = self._ends(query)
        start = 0
        for part in directions:
            stop = start + part.shape[1]
            moved = bases[:, None, start:stop] + widths[:, None, None] * part
            into = jax.lax.dynamic_update_slice(into, moved, (0, place, start))
            start = stop
        return into

    def _ends(self, query: Query) -> tuple[Float[Array, "2 dim"], Float[Array, "2"]]:
        """Of each pair of points, base and signed distance along the direction: base + width u."""
        other = query.point if query.kind is Kind.GRAD else query.reference
        sign = -1.0 if query.kind is Kind.GRAD else 1.0
        bases = jnp.stack([query.point, other]).astype(self.precision)
        return bases, jnp.asarray([self.smoothing, sign * self.smoothing], self.precision)

    def coefficients(
        self, query: Query, values: Float[Array, "*records 2 q"]
    ) -> tuple[Float[Array, "*records q"], Bool[Array, "*records"]]:
        """One record's clamped coefficients (d/q) c_j, and whether all its values were finite.

        Guarantee: |(d/q) c_j| <= (d/q) clamp / width, whatever the values are.
        """
        values = values.astype(jnp.float64)
        finite = jnp.isfinite(values)
        # A record with any value that is not finite will count 0: any finite stand-in will do.
        values = jnp.where(finite, values, 0.0)
        limit = self._clamp(query)
        difference = jnp.clip(values[..., 0, :] - values[..., 1, :], -limit, limit)
        width = 2.0 * self.smoothing if query.kind is Kind.GRAD else self.smoothing
        valid = jnp.all(finite[..., 0, :] & finite[..., 1, :], axis=-1)
        return (self.dim / self.number) * difference / width, valid

    def enforce(
        self, kind: Kind, estimate: Float[Array, "*records n"], valid: Bool[Array, "*records"]
    ) -> Float[Array, "*records n"]:
        """Each record's estimate, at most `record_bound` long; exactly 0 if it is not valid.

        Guarantee: |result| <= record_bound(kind), for every loss, after rounding. The estimate may
        be given in the coordinates of an orthonormal frame: they keep its length up to `stretch`,
        and are at most record_bound(kind) / stretch long.
        """
        inside = 1.0 - _MARGIN - estimate.shape[-1] * 2.0**-52
        bound = self.record_bound(kind) / self.stretch * inside
        norm = jnp.sqrt(jnp.vecdot(estimate, estimate))[..., None]
        keep = valid[..., None] & jnp.isfinite(norm)
        scale = jnp.where(norm > bound, bound / norm, 1.0)
        return jnp.where(keep, scale * jnp.where(keep, estimate, 0.0), 0.0)

    def _clamp(self, query: Query) -> Float[Array, ""]:
        """The largest function difference a record may report at one direction."""
        slope, width = self.bounds.lipschitz, self.bounds.width
        if query.kind is Kind.GRAD:
            return jnp.asarray(min(2.0 * self.smoothing * slope, width))
        distance = length(query.point - query.reference)
        distance = jnp.minimum(distance, 2.0 * self.reach)
        # 0 * inf is not a number: without a slope, the distance does not matter.
        return jnp.minimum(distance * slope, width) if slope < math.inf else jnp.asarray(width)

    def record_bound(self, kind: Kind) -> float:
        """The norm that one record's estimate cannot exceed: min(gain * clamp, clip)."""
        slope, width = self.bounds.lipschitz, self.bounds.width
        gain = self.sampler.gain(self.number, self.dim)
        if kind is Kind.GRAD:
            clamp = min(2.0 * self.smoothing * slope, width)
            return min(gain * clamp / (2.0 * self.smoothing), self.bounds.first_clip)
        clamp = min(2.0 * self.reach * slope, width)
        return min(gain * clamp / self.smoothing, self.bounds.diff_clip)

    def sensitivity(self, kind: Kind, batch: int) -> float:
        """How far replacing one record of `batch` can move the increment: 2 record_bound / batch.

        With Lipschitz(L), sphere directions and reach = smoothing / T this is 2 d L / B1 for GRAD
        and 4 d L / (B2 T) for DIFF, as in Lemmas lem:grad-estimator and lem:diff-estimator.
        """
        return 2.0 * self.record_bound(kind) / batch


def length(vector: Float[Array, " dim"]) -> Float[Array, ""]:
    """|vector|, as a scalar product: one operation, where a sum of squares is compiled into three."""
    return jnp.sqrt(jnp.vdot(vector, vector))


def _add_rows(
    weights: Float[Array, " some"], total: Float[Array, " part"], rows: Float[Array, "some part"]
) -> Float[Array, " part"]:
    for weight, row in zip(weights, rows, strict=True):
        total = total + weight * row.astype(jnp.float64)
    return total
