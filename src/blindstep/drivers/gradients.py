"""One noisy gradient of all records at a public point, through a gate: for certificates."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.drivers.error_checks import voiding
from blindstep.drivers.evaluators import CompiledLoss, Evaluator, PlainLoss
from blindstep.drivers.pytrees import Loss, ParameterSpace
from blindstep.drivers.query import points_at
from blindstep.drivers.tasks import Task, Work, perform
from blindstep.estimate.estimators import Estimator, Query
from blindstep.estimate.probing import Probing, probing_of_answers, probing_of_loss
from blindstep.private.gate import Gate, Memory, Permit
from blindstep.private.schedule import Kind

# Numbers in the probe points of a loss outside JAX that are held at once.
_AT_ONCE = 2**21


def release_gradient(
    gate: Gate,
    estimator: Estimator,
    evaluator: Evaluator,
    space: ParameterSpace,
    point: Float[np.ndarray, " dim"],
    key: Key[Array, ""],
) -> Float[np.ndarray, " dim"]:
    """The next release of `gate`: the mean of all records' gradient estimates at `point`, noisy."""
    query = Query(jnp.asarray(point), jnp.asarray(point), key, Kind.GRAD)
    if isinstance(evaluator, CompiledLoss):
        loss, data = evaluator.loss, evaluator.data

        def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
            return _from_loss(permit, memory, estimator, loss, space, data, query)
    else:
        # The rows of the release, in their order: answers belong to places of the batch.
        answers = _answers(estimator, evaluator, space, query, gate.rows(gate.position))

        def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
            return _from_answers(permit, memory, estimator, answers, query)

    return np.asarray(gate.through(program))


def _answers(
    estimator: Estimator,
    evaluator: PlainLoss,
    space: ParameterSpace,
    query: Query,
    rows: Int[np.ndarray, " batch"],
) -> Float[Array, "batch 2 q"]:
    """The losses of all rows; what raises or is no finite number makes its record count 0."""
    work = Work(evaluator.loss, space, vectorized=False, timeout=None)
    size = max(1, _AT_ONCE // (2 * estimator.directions * estimator.dim))
    values = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        points = np.asarray(points_at(estimator, query, jnp.arange(start, start + len(some))))
        records = jax.tree.map(lambda leaf, some=some: leaf[some], evaluator.data)
        points = points.reshape(len(points), -1, estimator.dim)
        values.append(perform(Task(work, points, records, len(some))))
    return jnp.asarray(np.concatenate(values).reshape(len(rows), 2, estimator.directions))


@eqx.filter_jit
def _from_loss(
    permit: Permit,
    memory: Memory,
    estimator: Estimator,
    loss: Loss,
    space: ParameterSpace,
    data: PyTree,
    query: Query,
) -> tuple[Memory, Float[Array, " dim"]]:
    checked = voiding(loss)
    probing = probing_of_loss(
        estimator, lambda point, record: checked(space.unflatten(point), record), data
    )
    return _release(permit, memory, probing, query)


@eqx.filter_jit
def _from_answers(
    permit: Permit, memory: Memory, estimator: Estimator, answers: Array, query: Query
) -> tuple[Memory, Float[Array, " dim"]]:
    return _release(permit, memory, probing_of_answers(estimator, answers), query)


def _release(
    permit: Permit, memory: Memory, probing: Probing, query: Query
) -> tuple[Memory, Float[Array, " dim"]]:
    batch = permit.terms.schedule.batch_of(Kind.GRAD)
    return permit.release(memory, Kind.GRAD, probing.contributions(query, batch))
