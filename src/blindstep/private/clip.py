"""A record's vector, at most `clip` long: the only thing that bounds a record.

Clipped vectors are written in whole multiples of a small unit, so that float64 adds up a batch of
them without any rounding: the sum is the same in every order, on every number of devices, and it
moves by what one record moves, exactly.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from blindstep.errors import InvalidArgument

# A sum of whole numbers is exact in float64 below 2^53; one bit is kept in reserve.
_EXACT_BITS = 52
_FINEST = 40  # finer units than bound / 2^40 change nothing that noise would not hide
Scalar = float | Float[Array, ""]


def unit_of(bound: Scalar, batch: int) -> Scalar:
    """The unit in which vectors of norm at most `bound` are written where `batch` of them are added.

    The unit is bound / 2^p with batch * 2^p <= 2^52 and p <= 40. So a sum of `batch` vectors has
    coordinates of at most 2^52 units, which float64 holds exactly.
    """
    return bound * 2.0 ** -_fineness(batch)


def check_fits(size: int, batch: int) -> None:
    """Raise where rounding `size` coordinates to whole units would take up half of the clip norm."""
    if _inside(size, batch) < 0.5:
        raise InvalidArgument(
            f"a batch of {batch} vectors with {size} coordinates cannot be added exactly in float64: "
            "take a smaller batch, or fewer directions and a frame shared by a block."
        )


def clip(
    vectors: Float[Array, "records size"], bound: Scalar, batch: int
) -> Float[Array, "records size"]:
    """Each vector scaled down to norm `bound` if it is longer, in whole units of `unit_of`.

    Guarantee: every result is a vector of whole numbers k with |unit k| <= bound, whatever the input
    is. A vector that holds a NaN or an infinity, or is 1e154 times too long, becomes exactly 0. A row
    of the result depends on the same row of the input alone.
    """
    # In units of the bound: squares of what matters neither overflow nor underflow.
    vectors = vectors.astype(jnp.float64) / bound
    norm = jnp.sqrt(jnp.vecdot(vectors, vectors))[:, None]
    keep, aim = jnp.isfinite(norm), _inside(vectors.shape[1], batch)
    scale = jnp.where(norm > aim, aim / norm, 1.0) * 2.0 ** _fineness(batch)
    return jnp.where(keep, jnp.rint(jnp.where(keep, vectors, 0.0) * scale), 0.0)


def _fineness(batch: int) -> int:
    """p: the number of units in `bound` is 2^p."""
    return min(_FINEST, _EXACT_BITS - (batch - 1).bit_length())


def _inside(size: int, batch: int) -> float:
    """The share of `bound` to which vectors are scaled, so that no rounding carries them beyond it.

    The computed norm is off by at most (size + 2) 2^-53 and scaling by a few roundings, relatively;
    rounding to whole units adds at most sqrt(size) / 2 units.
    """
    return 1.0 - (size + 16) * 2.0**-52 - math.sqrt(size) / 2.0 * 2.0 ** -_fineness(batch)
