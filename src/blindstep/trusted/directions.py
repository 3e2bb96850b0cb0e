"""Random directions and their gain.

A record's estimate is e = (d/q) sum_j c_j u_j, with q directions u_j and coefficients |c_j| <= c. A
sampler knows the worst |e| / c over all coefficients, its `gain`: that is how a clamp on function
differences becomes a bound on the record's contribution. The gain is deterministic: it holds for
every draw, so privacy does not depend on directions being random or secret.

It holds for exact unit vectors. Directions may be rounded to float32, and then the estimate is
clipped to the bound in float64 after it was made (`Estimator.enforce`); where many records share a
frame and are added up first, the clip allows for how far rounding can stretch the frame
(`Frame.slack`).
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from blindstep.trusted import draws


class Directions(eqx.Module):
    """How the probing directions of one record are drawn. Unit vectors, each uniform on the sphere."""

    name: ClassVar[str]
    orthonormal: ClassVar[bool]

    @abc.abstractmethod
    def sample(
        self,
        key: Key[Array, ""],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
        dtype: DTypeLike = jnp.float64,
    ) -> Float[Array, "some dim"]:
        """Directions `which` (each in 0 .. number-1) of the `number` that `key` stands for.

        The same key and index give the same direction, however the indices are split into calls,
        and in every `dtype` up to its rounding. None means all of them, which is the fastest.
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
        self,
        key: Key[Array, ""],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
        dtype: DTypeLike = jnp.float64,
    ) -> Float[Array, "some dim"]:
        """Normalised Gaussian vectors, one stream for each."""
        streams = jnp.arange(number) if which is None else which
        normal = draws.normals(key, streams.astype(jnp.uint32), dim, dtype)
        return normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)

    def gain(self, number: int, dim: int) -> float:
        """Worst case d, whatever the number of directions."""
        return float(dim)
