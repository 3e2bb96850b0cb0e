"""Samplers of random directions: the interface, and independent directions on the sphere.

A record's estimate is e = (d/q) sum_j c_j u_j, with q directions u_j in dimension d. If |c_j| <= c for
all j, then |e| <= gain c. Each sampler knows its `gain`. So a clamp on function differences says how
long e can be, and the gate is asked for no longer a clip norm.

Directions are public. Privacy rests neither on their law nor on their length: the gate clips e.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.estimate import draws

# Directions as arrays of neighbouring columns, from left to right; `join` makes them one array.
Parts = tuple[Float[Array, "some _"], ...]


class Directions(eqx.Module):
    """A sampler. Each of its directions is a unit vector, uniform on the sphere.

    A key stands for `directions` directions in dimension `dim`. They are made in two steps. `prepare`
    does the work that is shared by all directions of a key; its result, the *compact* directions, is
    smaller than the directions. `rows` makes from it the directions that are asked for.
    """

    name: ClassVar[str]
    orthonormal: ClassVar[bool]

    @abc.abstractmethod
    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> PyTree:
        """Compact directions of each key: arrays whose leading axis is the key.

        What belongs to a key depends on no other key.
        """

    @abc.abstractmethod
    def rows(
        self, prepared: PyTree, which: Int[Array, " some"] | None, directions: int, dim: int
    ) -> Parts:
        """Directions number `which` (0 .. directions - 1) of one key, from its compact directions.

        None means all of them, and is fastest. The same key and number give the same direction,
        however the numbers are split into calls, and in every dtype up to its rounding. A sampler
        that makes its columns in several parts returns them as they are.
        """

    def sample(
        self,
        key: Key[Array, ""],
        which: Int[Array, " some"] | None,
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


class Sphere(Directions):
    """Independent directions, each uniform on the sphere (Algorithms alg:first-grad, alg:zeroth-diff).

    Any number of them. Estimates are unbiased for the gradient of the uniform smoothing (Lemma
    lem:uniform-smoothing (iv)).
    """

    name: ClassVar[str] = "sphere"
    orthonormal: ClassVar[bool] = False

    def prepare(
        self, keys: Key[Array, " keys"], directions: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> tuple[Key[Array, " keys"], Float[Array, "keys 0"]]:
        """The keys themselves; an empty array carries the dtype."""
        return keys, jnp.zeros((keys.size, 0), dtype)

    def rows(
        self,
        prepared: tuple[Key[Array, ""], Float[Array, "0"]],
        which: Int[Array, " some"] | None,
        directions: int,
        dim: int,
    ) -> Parts:
        """Gaussian vectors divided by their lengths; direction j comes from the key's stream j."""
        key, like = prepared
        streams = jnp.arange(directions) if which is None else which
        normal = draws.normals(key, streams.astype(jnp.uint32), dim, like.dtype)
        return (normal / jnp.linalg.norm(normal, axis=-1, keepdims=True),)

    def gain(self, directions: int, dim: int) -> float:
        """d for any q: if all u_j coincide and c_j = 1, then |e| = (d/q) q."""
        return float(dim)


def first_of(prepared: PyTree) -> PyTree:
    """The compact directions of the first key."""
    return jax.tree.map(lambda leaf: leaf[0], prepared)


def join(parts: Parts) -> Float[Array, "some dim"]:
    """Parts side by side, as one array."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
