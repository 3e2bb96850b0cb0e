"""Whether a loss has gradients, found out before anything is charged.

JAX may not know how to differentiate a loss (whole numbers, callbacks, loops of unknown length). Or it
does, and the gradient says nothing: that of a staircase (a 0/1 loss, an accuracy, ranks) is 0 wherever
it exists. A run on either would be noise that was paid for.

Guarantee: of the data only names, shapes and dtypes enter; no value is read.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from blindstep.drivers.error_checks import voiding
from blindstep.drivers.pytrees import Loss, ParameterSpace
from blindstep.drivers.trial import words
from blindstep.errors import InvalidArgument

# How far from the start a staircase is looked for, in units of a parameter's size (at least 1). At the
# start alone a smooth loss may be flat as well: at a saddle, where a network's weights are all 0.
_AWAY = (0.0, 0.01, 0.3, 1.0, 10.0)
_REMEDY = "Nothing was spent. Leave out estimate='gradient': values of the loss are enough."


def check_gradient(loss: Loss, params: PyTree, data: PyTree) -> None:
    """Trace the gradient on shapes alone; it must exist, and do nothing but compute.

    What a gradient prints or calls back with (in a `jax.custom_vjp`) would pass by the noise.
    """
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    shaped = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), params
    )
    try:
        traced = jax.make_jaxpr(jax.grad(voiding(loss)))(shaped, record)
    except Exception as error:
        raise InvalidArgument(
            f"JAX cannot differentiate the loss: this raises {words(error)}. {_REMEDY}"
        ) from error
    if traced.effects:
        raise InvalidArgument(
            "the gradient of the loss prints, calls back or checks while the program runs "
            "(jax.debug.print, io_callback, checkify.check), and what it says of a record would pass "
            f"by the noise. Take that out. {_REMEDY}"
        )


def refuse_staircase(loss: Loss, params: PyTree, records: PyTree) -> None:
    """Raise if losses of made-up `records` change, and their gradients are 0 wherever we look."""
    space = ParameterSpace.of(params)
    start = np.asarray(space.flatten(params))
    size = max(1.0, math.sqrt(float(np.mean(start**2))))
    moves = np.random.default_rng(0).normal(size=(len(_AWAY), space.dim))
    points = start + size * np.asarray(_AWAY)[:, None] * moves
    try:
        values, slopes = map(np.asarray, _looked(loss, space, points, records))
    except jax.errors.JaxRuntimeError:  # a callback fails for one of them, as it may
        return
    finite = np.isfinite(values) & np.isfinite(slopes)
    lowest = np.min(np.where(finite, values, np.inf), axis=0)
    highest = np.max(np.where(finite, values, -np.inf), axis=0)
    if np.any(lowest < highest) and not np.any(slopes[finite]):
        raise InvalidArgument(
            "the loss changes with the parameters, but its gradient is 0: so it was on made-up "
            f"records, at the start and at {len(_AWAY) - 1} points around it. That is a loss of steps, "
            "as of right and wrong answers or of ranks, and a gradient sees none of them. "
            f"{_REMEDY} (If made-up records are the reason, give rehearse=False.)"
        )


@eqx.filter_jit
def _looked(
    loss: Loss,
    space: ParameterSpace,
    points: Float[Array | np.ndarray, "points dim"],
    records: PyTree,
) -> tuple[Float[Array, "points records"], Float[Array, "points records"]]:
    """At each point, the loss of each record and the largest part of its gradient."""
    checked = voiding(loss)

    def at(point: Float[Array, " dim"], record: PyTree) -> Any:
        return checked(space.unflatten(point), record)

    def one(point: Float[Array, " dim"], record: PyTree) -> tuple[Array, Array]:
        value, slopes = jax.value_and_grad(at)(point, record)
        return value, jnp.max(jnp.abs(slopes))

    of_all = jax.vmap(one, in_axes=(None, 0))
    return jax.lax.map(lambda point: of_all(point, records), jnp.asarray(points))
