"""Random directions and their gain.

A record's estimate is e = (d/q) sum_j c_j u_j, with q directions u_j and coefficients |c_j| <= c. A
sampler knows the worst |e| / c over all coefficients, its `gain`: that is how a clamp on function
differences becomes a bound on the record's contribution. The gain is deterministic: it holds for
every draw, so privacy does not depend on directions being random or secret.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


class Directions(eqx.Module):
    """How the probing directions of one record are drawn. Unit vectors, each uniform on the sphere."""

    name: ClassVar[str]
    orthonormal: ClassVar[bool]

    @abc.abstractmethod
    def sample(
        self, key: Key[Array, ""], which: Int[Array, " some"], number: int, dim: int
    ) -> Float[Array, "some dim"]:
        """Directions `which` (each in 0 .. number-1) of the `number` that `key` stands for.

        The same key and index give the same direction, however the indices are split into calls.
        """

    @abc.abstractmethod
    def gain(self, number: int, dim: int) -> float:
        """The largest |(dim/number) sum_j c_j u_j| over |c_j| <= 1 and all draws."""


class Sphere(Directions):
    """Independent uniform directions on the sphere (Algorithms alg:first-grad, alg:zeroth-diff).

    Gain: all u_j may coincide, so |e| <= (d/q) q c = d c. Any q. Unbiased for the gradient of the
    uniform smoothing (Lemma lem:uniform-smoothing (iv)).
    """

    name: ClassVar[str] = "sphere"
    orthonormal: ClassVar[bool] = False

    def sample(
        self, key: Key[Array, ""], which: Int[Array, " some"], number: int, dim: int
    ) -> Float[Array, "some dim"]:
        """Normalised Gaussian vectors, one key for each."""
        keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(which)
        normal = jax.vmap(lambda k: jax.random.normal(k, (dim,), jnp.float64))(keys)
        return normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)

    def gain(self, number: int, dim: int) -> float:
        """Worst case d, whatever the number of directions."""
        return float(dim)
