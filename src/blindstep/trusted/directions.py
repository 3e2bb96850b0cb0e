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
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.trusted import draws

# Directions, their coordinates cut into parts.
Parts = tuple[Float[Array, "some _"], ...]


class Directions(eqx.Module):
    """How the probing directions of one record are drawn. Unit vectors, each uniform on the sphere."""

    name: ClassVar[str]
    orthonormal: ClassVar[bool]

    @abc.abstractmethod
    def prepare(
        self, keys: Key[Array, " keys"], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> PyTree:
        """What the `number` directions that each key stands for are made of: smaller than they are.

        The keys are the leading axis of all leaves. Each key's part depends on no other key.
        """

    @abc.abstractmethod
    def rows(
        self, prepared: PyTree, which: Int[Array, " some"] | None, number: int, dim: int
    ) -> Parts:
        """Directions `which` (each in 0 .. number-1) of one key; None means all, the fastest.

        The same key and index give the same direction, however the indices are split into calls,
        and in every dtype up to its rounding. Neighbouring coordinates, part after part: a sampler
        that makes them in parts need not join them.
        """

    def sample(
        self,
        key: Key[Array, ""],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
        dtype: DTypeLike = jnp.float64,
    ) -> Float[Array, "some dim"]:
        """Directions `which` of the `number` that `key` stands for: `prepare` and `rows` in one."""
        prepared = self.prepare(key[None], number, dim, dtype)
        return join(self.rows(first_of(prepared), which, number, dim))

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

    def prepare(
        self, keys: Key[Array, " keys"], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> tuple[Key[Array, " keys"], Float[Array, "keys 0"]]:
        """The keys themselves, and nothing of the right dtype."""
        return keys, jnp.zeros((keys.size, 0), dtype)

    def rows(
        self,
        prepared: tuple[Key[Array, ""], Float[Array, "0"]],
        which: Int[Array, " some"] | None,
        number: int,
        dim: int,
    ) -> Parts:
        """Normalised Gaussian vectors, one stream for each."""
        key, like = prepared
        streams = jnp.arange(number) if which is None else which
        normal = draws.normals(key, streams.astype(jnp.uint32), dim, like.dtype)
        return (normal / jnp.linalg.norm(normal, axis=-1, keepdims=True),)

    def gain(self, number: int, dim: int) -> float:
        """Worst case d, whatever the number of directions."""
        return float(dim)


def first_of(prepared: PyTree) -> PyTree:
    """What the directions of the first of some keys are made of."""
    return jax.tree.map(lambda leaf: leaf[0], prepared)


def join(parts: Parts) -> Float[Array, "some dim"]:
    """Parts as one array."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
