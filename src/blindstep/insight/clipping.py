"""How many records a clip norm would cut: on public records only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from blindstep.drivers.compiled import Loss
from blindstep.drivers.pytrees import ParameterSpace, check_loss, count_records
from blindstep.optimize.plan import Plan, build_oracle
from blindstep.trusted.estimators import Kind, Query
from blindstep.trusted.randomness import fresh_keys


def fraction_clipped(loss: Loss, params: PyTree, public_data: PyTree, plan: Plan) -> float:
    """The share of records whose GRAD estimate at `params` is longer than the plan's clip norm.

    This looks at records directly and spends no budget: `public_data` must be public (simulated, or
    published). For private records there is no such number to be had without paying for it.
    """
    space = ParameterSpace.of(params)
    count_records(public_data)
    with jax.enable_x64(True):
        check_loss(loss, params, public_data)
        estimator = build_oracle(plan).estimator
        point = space.flatten(params)
        query = Query(point, point, fresh_keys().public, Kind.GRAD)

        def norm(index: Any, record: PyTree) -> Any:
            directions = estimator.directions(jax.random.fold_in(query.key, index))
            points = estimator.probes(query, (directions,))
            values = jax.vmap(jax.vmap(lambda p: loss(space.unflatten(p), record)))(points)
            coefficients, _ = estimator.coefficients(query, values)
            return jnp.linalg.norm(coefficients @ directions)

        rows = jnp.arange(count_records(public_data))
        data = jax.tree.map(jnp.asarray, public_data)
        norms = jax.lax.map(lambda pair: norm(*pair), (rows, data))
        return float(jnp.mean(norms > estimator.bounds.first_clip))
