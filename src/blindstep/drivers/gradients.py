"""One gradient of all records at a public point, released through an oracle.

For who wants single gradients and not a run. It charges nothing: that is done between
`increment_at`, which is secret, and `release`.
"""

from __future__ import annotations

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.drivers.answers import combine, number
from blindstep.drivers.evaluators import CompiledLoss, Evaluator, Loss
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.trusted.estimators import Estimator, Kind, Query
from blindstep.trusted.increments import chunk_for, increment, probe_points
from blindstep.trusted.oracle import Oracle
from blindstep.trusted.randomness import NoiseKey

# Numbers in the probe points of a loss outside JAX that are held at once.
_AT_ONCE = 2**21


def increment_at(
    estimator: Estimator,
    evaluator: Evaluator,
    space: ParameterSpace,
    data: PyTree,
    point: Float[np.ndarray, " dim"],
    key: Key[Array, ""],
) -> Float[Array, " dim"]:
    """The mean of all records' enforced estimates: before noise, so secret."""
    query = Query(jnp.asarray(point), jnp.asarray(point), key, Kind.GRAD)
    if isinstance(evaluator, CompiledLoss):
        return _compiled(estimator, evaluator.loss, space, evaluator.data, query)
    answers, size = [], max(1, _AT_ONCE // (2 * estimator.number * estimator.dim))
    for start in range(0, evaluator.records, size):
        positions = jnp.arange(start, min(start + size, evaluator.records))
        for row, points in zip(positions, _points(estimator, query, positions), strict=True):
            record = jax.tree.map(lambda leaf, r=int(row): leaf[r], data)
            answers.append(_answers(evaluator.loss, space, record, np.asarray(points)))
    return _combined(estimator, query, jnp.asarray(np.stack(answers)))


def _answers(
    loss: Loss, space: ParameterSpace, record: PyTree, points: Float[np.ndarray, "2 q dim"]
) -> Float[np.ndarray, "2 q"]:
    """One record's losses; what raises or is no finite number makes it count 0, and nothing is said."""
    values = np.full(points.shape[:2], np.nan)
    for place in np.ndindex(*values.shape):
        with contextlib.suppress(Exception):
            values[place] = number(loss(space.unflatten(points[place]), record))
    return values


_points = eqx.filter_jit(probe_points)
_combined = eqx.filter_jit(combine)


@eqx.filter_jit
def _compiled(
    estimator: Estimator, loss: Loss, space: ParameterSpace, data: PyTree, query: Query
) -> Float[Array, " dim"]:
    def evaluate(points: Float[Array, "2 q dim"], record: PyTree) -> Float[Array, "2 q"]:
        return jax.vmap(jax.vmap(lambda point: loss(space.unflatten(point), record)))(points)

    batch = jax.tree.leaves(data)[0].shape[0]
    return increment(
        estimator, query, evaluate, data, chunk_for(batch, estimator.number, estimator.dim)
    )


def release(
    oracle: Oracle, moved: Float[Array, " dim"], step: int, noise: NoiseKey
) -> Float[np.ndarray, " dim"]:
    """The increment with its noise: the only thing that leaves."""
    return np.asarray(_noisy(oracle, moved, jnp.asarray(step), noise))


@eqx.filter_jit
def _noisy(
    oracle: Oracle, moved: Float[Array, " dim"], block: Int[Array, ""], noise: NoiseKey
) -> Float[Array, " dim"]:
    return oracle.release(oracle.init(), moved, block, 1, noise)[1]
