"""Losses that the tests share. Parameters are flat vectors, a record is a point."""

import jax.numpy as jnp
import numpy as np


def capped_distance(x, z):
    """Nonsmooth and nonconvex, Lipschitz with constant 1. A NaN in the record is a NaN here."""
    distance = jnp.sqrt(jnp.sum((x - z) ** 2))
    return jnp.where(distance > 1.5, 1.5, distance)


def capped_distance_numpy(x, z):
    """The same for NumPy."""
    distance = float(np.sqrt(np.sum((x - z) ** 2)))
    return 1.5 if distance > 1.5 else distance
