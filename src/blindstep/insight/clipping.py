"""How many records a clip norm would cut: on public records only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from blindstep.drivers.pytrees import Loss, ParameterSpace, check_loss, count_records
from blindstep.estimate.vectors import Query
from blindstep.estimate.ways import vectors_of_loss
from blindstep.optimize.plan import Plan
from blindstep.private.noise import fresh_keys
from blindstep.private.schedule import Kind

# A vector that its clamps leave just as long as the clip norm is not cut: that is rounding.
_ROUNDING = 1e-6


def fraction_clipped(loss: Loss, params: PyTree, public_data: PyTree, plan: Plan) -> float:
    """The share of records whose GRAD vector at `params` is longer than the plan's clip norm.

    `public_data` must be public: simulated, or published. This function looks at records directly
    and charges nothing. On private records its answer would be a release without noise. So would be
    a clip norm chosen by looking at private records, here or in any other way, or by comparing runs
    with several clip norms: no privacy statement of this package accounts for such a choice. Choose
    on public records, or before seeing any.
    """
    space, records = ParameterSpace.of(params), count_records(public_data)
    with jax.enable_x64(True):
        check_loss(loss, params, public_data)
        point = space.flatten(params)
        made = vectors_of_loss(
            plan.estimator.working_in(np.result_type(*space.dtypes)),
            lambda at, record: loss(space.unflatten(at), record),
            jax.tree.map(jnp.asarray, public_data),
        )
        query = Query(point, point, fresh_keys().public, Kind.GRAD)
        vectors = made.contributions(query, records)
        longest = float(plan.terms.first_clip) * (1 + _ROUNDING)

        def cut(start: Int[Array, ""]) -> Bool[Array, " some"]:
            # Past the end the last record is asked again, and cut off below.
            rows = jnp.minimum(start + jnp.arange(vectors.together), records - 1)
            return jnp.linalg.norm(vectors.of(rows, rows), axis=1) > longest

        cuts = jax.lax.map(cut, jnp.arange(0, records, vectors.together))
        return float(jnp.mean(cuts.ravel()[:records]))
