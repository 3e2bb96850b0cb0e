"""Mean losses and mean gradients at many points over many records, in bounded memory."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from blindstep.errors import InvalidArgument
from blindstep.losses.engines import number, quietly
from blindstep.losses.error_checks import voiding
from blindstep.losses.pytrees import (
    Loss,
    ParameterSpace,
    UntraceableLoss,
    check_loss,
    count_records,
)
from blindstep.losses.silence import silence

Points = Float[np.ndarray, "sets some dim"]
Rows = Int[np.ndarray, "sets batch"]
# Numbers held at once for points times records: 2^21 float64 are 16 MiB.
_AT_ONCE = 2**21
_RECORDS_AT_ONCE = 2**12


def float64(space: ParameterSpace) -> ParameterSpace:
    """The same parameters in float64: steps of a millionth of a radius must not round away."""
    return replace(space, dtypes=(np.dtype(np.float64),) * len(space.dtypes))


class CompiledLoss:
    """A loss that JAX can trace. `evaluations` is how many are bearable unless the user says."""

    evaluations = 2**26
    differentiable = True

    def __init__(self, loss: Loss, space: ParameterSpace, data: PyTree) -> None:
        self.loss, self.space = loss, space
        self.data = jax.tree.map(jnp.asarray, data)
        self.records = count_records(data)

    def values(self, points: Points, rows: Rows) -> Float[np.ndarray, "sets some"]:
        """The mean loss over the rows of each set, at each of its points."""
        return self._means(points, rows, False)

    def each(self, point: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " records"]:
        """Every record's loss at one point, finite or not."""
        return np.asarray(_each(self.loss, self.space, self.data, point))

    def gradients(self, points: Points, rows: Rows) -> Points:
        """The gradient of that mean, by automatic differentiation."""
        return self._means(points, rows, True)

    def _means(self, points: np.ndarray, rows: np.ndarray, gradient: bool) -> np.ndarray:
        _, some, dim = points.shape
        chunk = min(rows.shape[1], max(1, _AT_ONCE // (some * dim)))
        together = max(1, _AT_ONCE // (some * dim * chunk))
        means = _means(self.loss, self.space, self.data, points, rows, gradient, chunk, together)
        means = np.asarray(means)
        if not np.all(np.isfinite(means)):
            raise InvalidArgument(
                "the loss or its gradient is not finite for some record near the point: leave such "
                "records out, or give a smaller radius."
            )
        return means


@eqx.filter_jit
def _means(
    loss: Loss,
    space: ParameterSpace,
    data: PyTree,
    points: Float[Array | np.ndarray, "sets some dim"],
    rows: Int[Array | np.ndarray, "sets batch"],
    gradient: bool,
    chunk: int,
    together: int,
) -> Array:
    batch = rows.shape[1]
    padding = -batch % chunk

    def total(point: Array, records: PyTree, counted: Array) -> Array:
        losses = jax.vmap(lambda record: loss(space.unflatten(point), record))(records)
        return jnp.sum(jnp.where(counted, losses.astype(jnp.float64), 0.0))

    at_point = jax.grad(total) if gradient else total

    def one_set(pair: tuple[Array, Array]) -> Array:
        own_points, own_rows = pair
        own_rows = jnp.pad(own_rows, (0, padding)).reshape(-1, chunk)
        counted = (jnp.arange(batch + padding) < batch).reshape(-1, chunk)

        def add(sums: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
            records = jax.tree.map(lambda leaf: leaf[part[0]], data)
            return sums + jax.vmap(at_point, (0, None, None))(own_points, records, part[1]), None

        start = jnp.zeros(own_points.shape if gradient else own_points.shape[:1], jnp.float64)
        return jax.lax.scan(add, start, (own_rows, counted))[0] / batch

    inputs = (jnp.asarray(points), jnp.asarray(rows))
    return jax.lax.map(one_set, inputs, batch_size=min(together, len(rows)))


@eqx.filter_jit
def _each(loss: Loss, space: ParameterSpace, data: PyTree, point: Array | np.ndarray) -> Array:
    checked, params = voiding(loss), space.unflatten(jnp.asarray(point))

    def one(record: PyTree) -> Array:
        return jnp.asarray(checked(params, record)).astype(jnp.float64)

    return jax.lax.map(one, data, batch_size=_RECORDS_AT_ONCE)


class PlainLoss:
    """Any Python function of NumPy parameters and one record."""

    evaluations = 2**18
    differentiable = False

    def __init__(self, loss: Loss, space: ParameterSpace, data: PyTree) -> None:
        self.loss, self.space, self.data = loss, space, data
        self.records = count_records(data)

    def values(self, points: Points, rows: Rows) -> Float[np.ndarray, "sets some"]:
        """The mean loss over the rows of each set, at each of its points."""
        means = np.zeros(points.shape[:2])
        for index, (own_points, own_rows) in enumerate(zip(points, rows, strict=True)):
            records = [jax.tree.map(lambda leaf, r=row: leaf[r], self.data) for row in own_rows]
            for place, point in enumerate(own_points):
                params = self.space.unflatten(point)
                losses = [number(self.loss(params, record)) for record in records]
                means[index, place] = np.mean(losses)
        if not np.all(np.isfinite(means)):
            raise InvalidArgument(
                "the loss is not a finite number for some record near the point: leave such records "
                "out, or give a smaller radius."
            )
        return means

    def each(self, point: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " records"]:
        """Every record's loss at one point; NaN where it raises or gives no number."""
        params = self.space.unflatten(point)
        records = (jax.tree.map(lambda leaf, r=r: leaf[r], self.data) for r in range(self.records))
        with silence(worker=False):
            return np.asarray([number(quietly(self.loss, params, record)) for record in records])

    def gradients(self, points: Points, rows: Rows) -> Points:
        """There is none: JAX cannot trace this loss."""
        raise InvalidArgument(
            "JAX cannot trace this loss, so it has no automatic derivative: use method='values'."
        )


LossEvaluator = CompiledLoss | PlainLoss


def evaluator(loss: Loss, space: ParameterSpace, params: PyTree, data: PyTree) -> LossEvaluator:
    """The evaluator for a loss: compiled where JAX can trace it, in plain Python where not."""
    data = jax.tree.map(np.asarray, data)
    try:
        check_loss(loss, params, data)
    except UntraceableLoss:
        return PlainLoss(loss, space, data)
    except InvalidArgument:
        raise
    except Exception:  # whatever a loss does that was never meant for JAX's tracers
        return PlainLoss(loss, space, data)
    return CompiledLoss(loss, space, data)
