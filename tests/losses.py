"""Losses that the tests share: honest, steep and hostile. Parameters are flat vectors."""

import jax.numpy as jnp
import numpy as np


def capped_distance(x, z):
    """Nonsmooth and nonconvex, Lipschitz with constant 1."""
    return jnp.minimum(jnp.sqrt(jnp.sum((x - z) ** 2)), 1.5)


def capped_distance_numpy(x, z):
    """The same for the NumPy twin."""
    return min(float(np.sqrt(np.sum((x - z) ** 2))), 1.5)


def numpy_estimate(kind, f, query, batch, directions, smoothing, **rules):
    """The twin's GRAD or DIFF for a query."""
    import reference

    point, other = np.asarray(query.point), np.asarray(query.reference)
    if kind == "grad":
        return reference.grad(f, point, batch, directions, smoothing, **rules)
    return reference.diff(f, point, other, batch, directions, smoothing, **rules)
