"""First order: a record's vector is its gradient, for losses that JAX can differentiate.

    GRAD:   v = grad f(x)                       |v| <= C1 = min(L, clip)
    DIFF:   v = grad f(x) - grad f(y)           |v| <= C2 = min(2 L, diff_clip)

where f is the record's loss, L its Lipschitz bound, and C1, C2 the norms to which the gate scales a
longer v down. A loss or a gradient that is not finite makes v NaN, which the gate counts as 0. No
directions are drawn, and v has all d coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from blindstep.errors import count
from blindstep.estimate import estimators
from blindstep.estimate.bounds import Bounds, record_bound
from blindstep.estimate.estimators import from_values
from blindstep.estimate.probing import probing_of_loss
from blindstep.estimate.vectors import Estimator, Query, Vectors
from blindstep.private.gate import Contributions, number_of_rows
from blindstep.private.schedule import Kind

# A gradient counts as three evaluations: the loss once, and hardly more than twice as long back.
COST = 3

# The loss of one record at one point.
At = Callable[[Float[Array, " dim"], PyTree], Any]
Spread = Callable[[Callable[..., Array]], Callable[..., Array]]


class GradientEstimator(Estimator):
    """Differentiates the loss.

    Attributes:
        dim: d, the number of parameters.
        bounds: what is known of the loss: a clip norm or a Lipschitz bound.
        precision: "float64" or "float32", in which the loss is evaluated and differentiated.
        curve: weight of the loss itself in a record's vector, whose last coordinate it then is; 0:
            it is not there.
    """

    dim: int = eqx.field(static=True)
    bounds: Bounds = eqx.field(static=True)
    precision: str = eqx.field(static=True, default="float64")
    curve: float = eqx.field(static=True, default=0.0)

    def __check_init__(self) -> None:
        count("dim", self.dim)
        self.bounds.require_finite(needs_diff=False, by_slope=True)

    def record_bound(self, kind: Kind) -> float:
        """C1 or C2, and room for the loss."""
        return record_bound(kind, self.bounds, curve=self.curve)

    def evaluations(self, kind: Kind) -> int:
        """One gradient, or that at the point before as well."""
        return COST if kind is Kind.GRAD else 2 * COST

    def vector(
        self, kind: Kind, points: Float[Array, "2 dim"], at: At, record: PyTree
    ) -> Float[Array, " size"]:
        """The vector of one record at the points x and y; `at(point, record)` is its loss."""
        value, slopes = self._differentiated(at, points[0], record)
        if kind is Kind.DIFF:
            before, other = self._differentiated(at, points[1], record)
            value, slopes = value + 0.0 * before, slopes - other  # NaN if either is not finite
        return self.joined(jnp.where(jnp.isfinite(value), slopes, jnp.nan), value)

    def _differentiated(
        self, at: At, point: Float[Array, " dim"], record: PyTree
    ) -> tuple[Float[Array, ""], Float[Array, " dim"]]:
        value, slopes = jax.value_and_grad(at)(point.astype(self.precision), record)
        return value.astype(jnp.float64), slopes.astype(jnp.float64)


@dataclass(frozen=True)
class Differentiating(Vectors):
    """The vectors of a batch's records, some records at a time."""

    estimator: GradientEstimator
    at: At
    data: PyTree  # arrays with one row for each record
    spread: Spread | None = None  # for records on several devices: work follows the records

    def contributions(self, query: Query, batch: int) -> Contributions:
        """Each record's gradient, or how it changed."""
        points = jnp.stack([query.point, query.reference])

        def vector(points: Float[Array, "2 dim"], record: PyTree) -> Float[Array, " size"]:
            return self.estimator.vector(query.kind, points, self.at, record)

        own = jax.vmap(vector if self.spread is None else self.spread(vector), (None, 0))
        return Contributions(
            estimators.gradients_together(self.estimator.dim, batch, self.data),
            lambda rows, _: own(points, jax.tree.map(lambda leaf: leaf[rows], self.data)),
            rows=number_of_rows(self.data),
        )


def vectors_of_loss(estimate: Estimator, at: At, data: PyTree, spread: Any = None) -> Vectors:
    """The vectors that `estimate` makes of the loss `at(point, record)` on `data`.

    `data` is a pytree of arrays with one row for each record. `spread`, for records on several devices,
    makes evaluations run where the records are.
    """
    if isinstance(estimate, GradientEstimator):
        return Differentiating(estimate, at, data, spread)
    return probing_of_loss(from_values(estimate), at, data, spread)
