"""Samplers of random directions: the interface, independent directions on the sphere, random signs.

A record's estimate is e = (d/q) sum_j c_j u_j, with q directions u_j in dimension d. If |c_j| <= c for
all j, then |e| <= gain c, so a clamp on function differences says how long a clip norm the gate needs.
Directions are public. Privacy rests neither on their law nor on their length: the gate clips e.

Random signs are never stored: each is one bit of a hash of its address.

    s(key, direction j, tensor l, index i) = bit (i mod 64) of word(seed(key, j, l), i div 64)
    seed = mix(key xor mix(address of j and l)),     word number k = mix(seed xor mix(k + 1))

`mix` is the finalizer of SplitMix64 (Steele, Lea, Flood 2014) after a multiplication by its odd
constant. All of it is arithmetic modulo 2^64, so NumPy, JAX and PyTorch get the same integers on every
device, and anyone who has the key can make any part of a direction again.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree, UInt64

from blindstep.errors import Names
from blindstep.estimate import draws

# Directions as arrays of neighbouring columns, from left to right; `join` makes them one array.
Parts = tuple[Float[Array, "some _"], ...]
# Numbers of directions; None: all of them.
Which = Int[Array, " some"] | None
# Every sampler by its name: a plan's file has the name alone.
SAMPLERS: Names[type[Directions]] = Names("sampler")


@dataclass(frozen=True)
class Moments:
    """Second moments of one record's estimate, for a loss with Lipschitz constant L.

    Attributes:
        grad: bound on E|e|^2 / L^2 of GRAD.
        diff: bound on E|e|^2 h^2 / (L |x - y|)^2 of DIFF.
        seen: bound on |e - mean| h / (L |x - y|) of DIFF along directions that x and y depend on.
        orthonormal: whether directions are orthonormal, so that |e|^2 = (d/q)^2 sum c_j^2.
    """

    grad: float
    diff: float
    seen: float
    orthonormal: bool


class Directions(eqx.Module):
    """A sampler. Each of its directions is a unit vector, uniform on the sphere.

    A subclass with a `name` can be asked for by that name, in a method and in a plan's file.

    A key stands for `directions` directions in dimension `dim`. `prepare` does the work that they all
    share. Its result, the *compact* directions, is small. `rows` makes the directions from it.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        SAMPLERS.add(cls)

    @abc.abstractmethod
    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> PyTree:
        """Compact directions of each key: arrays whose leading axis is the key.

        What belongs to a key depends on no other key.
        """

    @abc.abstractmethod
    def rows(self, prepared: PyTree, which: Which, directions: int, dim: int) -> Parts:
        """Directions number `which` (0 .. directions - 1; None: all) of one key, in parts or whole.

        The same key and number give the same direction, however the numbers are split into calls,
        and in every dtype up to its rounding.
        """

    def sample(
        self,
        key: Key[Array, ""],
        which: Which,
        directions: int,
        dim: int,
        dtype: DTypeLike = jnp.float64,
    ) -> Float[Array, "some dim"]:
        """Directions number `which` of `key` in one array: `prepare`, then `rows`."""
        prepared = self.prepare(key[None], directions, dim, dtype)
        return join(self.rows(first_of(prepared), which, directions, dim))

    @abc.abstractmethod
    def gain(self, directions: int, dim: int) -> float:
        """The largest |(d/q) sum_j c_j u_j| over all draws and all |c_j| <= 1."""

    @abc.abstractmethod
    def moments(self, directions: int, dim: int) -> Moments | None:
        """Proved bounds on a record's estimate; None if nothing is proved along these directions."""


class Sphere(Directions):
    """Any number of independent directions, each uniform on the sphere.

    Estimates are unbiased for the gradient of the uniform smoothing (Lemma lem:uniform-smoothing (iv);
    Algorithms alg:first-grad, alg:zeroth-diff).
    """

    name: ClassVar[str] = "sphere"

    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> tuple[Key[Array, " keys"], Float[Array, "keys 0"]]:
        """The keys themselves; an empty array carries the dtype."""
        return keys, jnp.zeros((keys.size, 0), dtype)

    def rows(self, prepared: PyTree, which: Which, directions: int, dim: int) -> Parts:
        """Gaussian vectors divided by their lengths; direction j comes from the key's stream j."""
        key, like = prepared
        streams = jnp.arange(directions) if which is None else which
        normal = draws.normals(key, streams.astype(jnp.uint32), dim, like.dtype)
        return (normal / jnp.linalg.norm(normal, axis=-1, keepdims=True),)

    def gain(self, directions: int, dim: int) -> float:
        """d for any q: if all u_j coincide and c_j = 1, then |e| = (d/q) q."""
        return float(dim)

    def moments(self, directions: int, dim: int) -> Moments:
        """Those of independent directions.

        GRAD: c = (f(x+hu) - f(x-hu)) / 2h is odd in u and L-Lipschitz on the sphere, whose spectral
        gap is d - 1, so E c^2 <= L^2 / (d-1) and E|e|^2 <= (d^2 / q) L^2 / (d-1) + (1 - 1/q) L^2.
        DIFF: |c| <= L |x-y| / h and the smoothing is sqrt(d) L / h smooth, so
        E|e|^2 <= (d^2 / q + (1 - 1/q) d) L^2 |x-y|^2 / h^2. On every path |e| <= d L |x-y| / h.
        """
        rest = 1.0 - 1.0 / directions
        grad = dim**2 / directions / max(1, dim - 1) + rest
        diff = dim**2 / directions + rest * dim
        return Moments(grad, diff, dim + math.sqrt(dim), orthonormal=False)


def first_of(prepared: PyTree) -> PyTree:
    """The compact directions of the first key."""
    return jax.tree.map(lambda leaf: leaf[0], prepared)


def join(parts: Parts) -> Float[Array, "some dim"]:
    """Parts side by side, as one array."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


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
    sizes: tuple[int, ...] = eqx.field(static=True, default=())

    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> PyTree:
        """The keys as numbers; an empty array carries the dtype."""
        return key_number(keys), jnp.zeros((keys.size, 0), dtype)

    def rows(self, prepared: PyTree, which: Which, directions: int, dim: int) -> Parts:
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

    def moments(self, directions: int, dim: int) -> None:
        """Nothing is proved: the smoothing is not the uniform one."""


def _signs(seed: UInt64[Array, " some"], size: int, dtype: Any) -> Float[Array, "some size"]:
    """The first `size` signs of each seed."""
    numbers = jnp.arange(-(-size // BITS), dtype=jnp.uint64)
    found = words(seed[:, None], numbers)[..., None] >> jnp.arange(BITS, dtype=jnp.uint64)
    bits = (found & np.uint64(1)).reshape(len(seed), -1)[:, :size]
    return 2.0 * bits.astype(dtype) - 1.0
