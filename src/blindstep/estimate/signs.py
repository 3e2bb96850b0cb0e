"""Random signs that are never stored: each is one bit of a hash of where it stands.

    s(key, direction j, tensor l, index i) = bit (i mod 64) of word(seed(key, j, l), i div 64)
    seed = mix(key xor mix(address of j and l)),     word number k = mix(seed xor mix(k + 1))

`mix` is the finalizer of SplitMix64 (Steele, Lea, Flood 2014) after a multiplication by its odd
constant. All of it is arithmetic of whole numbers modulo 2^64. So NumPy, JAX and PyTorch, on processors
and on accelerators, get the same integers, and whoever has the key can make any part of a direction
again.
Directions are public: secret noise never comes from here, but from `private.noise`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree, UInt64

from blindstep.estimate.directions import Directions, Parts

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Signs in a word.
BITS = 64


def mix(number: Any) -> Any:
    """64 bits that look random, a different 64 for each number; for NumPy and JAX uint64."""
    number = number * np.uint64(GOLDEN)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(FIRST)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(SECOND)
    return number ^ (number >> np.uint64(31))


def seeds(key: Any, direction: Any, tensor: Any) -> Any:
    """The seed of each direction in each tensor: all arguments are uint64 and broadcast."""
    return mix(key ^ mix((direction << np.uint64(32)) + tensor + np.uint64(1)))


def words(seed: Any, number: Any) -> Any:
    """Word `number` of the signs with this seed; both are uint64 and broadcast."""
    return mix(seed ^ mix(number + np.uint64(1)))


def key_number(key: Key[Array, "*keys"]) -> UInt64[Array, "*keys"]:
    """A public key as the number that signs are made from."""
    data = jax.random.key_data(key).astype(jnp.uint64)
    return (data[..., 0] << np.uint64(32)) | data[..., 1]


class Signs(Directions):
    """Directions of d signs, each divided by sqrt(d). They are isotropic, and not quite orthogonal.

    Estimates are unbiased for the gradient of a smooth loss up to O(h^2). They are not for that of the
    uniform smoothing, so nothing is certified along signs.

    Attributes:
        sizes: the number of parameters in each tensor, in their order; empty: one tensor.
    """

    name: ClassVar[str] = "signs"
    orthonormal: ClassVar[bool] = False
    sizes: tuple[int, ...] = eqx.field(static=True, default=())

    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> PyTree:
        """The keys as numbers; an empty array carries the dtype."""
        return key_number(keys), jnp.zeros((keys.size, 0), dtype)

    def rows(
        self, prepared: PyTree, which: Int[Array, " some"] | None, directions: int, dim: int
    ) -> Parts:
        """The signs of these directions, one part for each tensor."""
        key, like = prepared
        which = jnp.arange(directions) if which is None else which
        return tuple(
            _signs(seeds(key, which.astype(jnp.uint64), np.uint64(tensor)), size, like.dtype)
            / math.sqrt(dim)
            for tensor, size in enumerate(self.sizes or (dim,))
        )

    def gain(self, directions: int, dim: int) -> float:
        """d for any q: directions may coincide."""
        return float(dim)


def _signs(seed: UInt64[Array, " some"], size: int, dtype: Any) -> Float[Array, "some size"]:
    """The first `size` signs of each seed."""
    numbers = jnp.arange(-(-size // BITS), dtype=jnp.uint64)
    found = words(seed[:, None], numbers)[..., None] >> jnp.arange(BITS, dtype=jnp.uint64)
    bits = (found & np.uint64(1)).reshape(len(seed), -1)[:, :size]
    return 2.0 * bits.astype(dtype) - 1.0
