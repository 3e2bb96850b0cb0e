"""Cheap public randomness for directions: normal draws and signs, addressed by (key, stream).

Directions need not be secret, and privacy does not rest on their law: what is enforced on a record
is enforced after they have been used. So they come from a fast counter-based generator, in one call,
from 23 bits each. Unbiasedness does rest on their law, and holds to that precision. Secret noise is
never drawn here: see `randomness`.

The bits are the same in every precision: a direction in float32 is that in float64, rounded.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, UInt32

from blindstep.trusted.stored import stored, true_for

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# sin(pi t / 2) / t as a polynomial in t^2, least squares on Chebyshev points: relative error below
# 2e-7 on (0, 1), which is that of float32.
_SINE = (
    1.5707963200653523,
    -0.6459637604384809,
    0.07968992260041961,
    -0.004674150668842556,
    0.0001516751177470344,
)
# Numbers in one vector register: rows of this length need no slow remainder loop.
LANES = 16


def threefry(
    key: Key[Array, "*#shape"], counter: UInt32[Array, "*#shape"], stream: UInt32[Array, "*#shape"]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011) on the words (counter, stream).

    The generator behind `jax.random`, with its rounds written out: on a processor JAX keeps them in
    a loop through memory, which is several times slower.
    """
    data = jax.random.key_data(key)
    keys = (data[..., 0], data[..., 1], data[..., 0] ^ data[..., 1] ^ jnp.uint32(0x1BD11BDA))
    x, y = counter + keys[0], stream + keys[1]
    for i in range(5):
        for bits in _ROTATIONS[i % 2]:
            x = x + y
            y = ((y << bits) | (y >> (32 - bits))) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


def fold_in(
    key: Key[Array, ""], number: Int[Array, "*many"] | int, epoch: Int[Array, ""] | int = 0
) -> Key[Array, "*many"]:
    """The key with this number, made from a key; in epoch 0 that of `jax.random.fold_in`."""
    words = _words(key, number, epoch)
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl="threefry2x32")


def uniform(
    key: Key[Array, ""], number: Int[Array, ""] | int, epoch: Int[Array, ""] | int
) -> Float[Array, ""]:
    """A float64 in [0, 1) with this number: a multiple of 2^-52."""
    high, low = _words(key, number, epoch)
    bits = (high.astype(jnp.uint64) << 32) | low
    return (bits >> 12).astype(jnp.float64) * 2.0**-52


def _words(
    key: Key[Array, ""], number: Int[Array, "*many"] | int, epoch: Int[Array, ""] | int
) -> tuple[UInt32[Array, "*many"], UInt32[Array, "*many"]]:
    number = jnp.asarray(number).astype(jnp.uint32)
    epochs = jnp.broadcast_to(jnp.asarray(epoch).astype(jnp.uint32), number.shape)
    return threefry(key, epochs, number)


def normals(
    key: Key[Array, ""], streams: UInt32[Array, " some"], number: int, dtype: DTypeLike
) -> Float[Array, "some number"]:
    """`number` standard normal draws of each stream of a key.

    None is zero, so that every vector of them has a direction. They reach 5.7 standard deviations.
    """
    counter = jnp.arange(-(-number // (2 * LANES)) * LANES, dtype=jnp.uint32)
    pair = _two_normals(key, counter[None], streams[:, None], dtype)
    return jnp.concatenate(pair, axis=-1)[:, :number]


def normals_of_each(
    keys: Key[Array, " keys"], number: int, dtype: DTypeLike
) -> Float[Array, "number keys"]:
    """`number` standard normal draws of each key, in its column."""

    def make(keys: Key[Array, " keys"]) -> Float[Array, "2 half *keys"]:
        counter, keys = _by_counter(-(-number // 2), keys)
        return jnp.stack(_two_normals(keys, counter, jnp.zeros_like(counter), dtype))

    return stored(true_for(jax.random.key_data(keys)), make, keys).reshape(-1, keys.size)[:number]


def signs_of_each(
    keys: Key[Array, " keys"], number: int, dtype: DTypeLike
) -> Float[Array, "number keys"]:
    """Random signs of each key, in its column: the bits of a stream that no normal draw uses."""
    true = true_for(jax.random.key_data(keys))

    def make(keys: Key[Array, " keys"]) -> UInt32[Array, "2 half *keys"]:
        counter, keys = _by_counter(-(-number // 64), keys)
        return jnp.stack(threefry(keys, counter, jnp.full_like(counter, 0xFFFFFFFF)))

    def cut(words: UInt32[Array, "words 1 keys"]) -> Float[Array, "words 32 keys"]:
        return _sign(words >> jnp.arange(32, dtype=jnp.uint32)[:, None]).astype(dtype)

    words = stored(true, make, keys).reshape(-1, 1, keys.size)
    return stored(true, cut, words).reshape(-1, keys.size)[:number]


def _by_counter(
    number: int, keys: Key[Array, " keys"]
) -> tuple[UInt32[Array, "*counters"], Key[Array, "*keys"]]:
    """At least so many counters in rows, keys in columns; one key has no column, but a vector."""
    counter = jnp.arange(-(-number // LANES) * LANES, dtype=jnp.uint32)
    return (counter, keys[0]) if keys.size == 1 else (counter[:, None], keys)


def _two_normals(
    key: Key[Array, "*#shape"],
    counter: UInt32[Array, "*#shape"],
    stream: UInt32[Array, "*#shape"],
    dtype: DTypeLike,
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Two independent standard normal draws, by Box and Muller's formula."""
    a, b = threefry(key, counter, stream)
    radius = jnp.sqrt(-2.0 * jnp.log(_uniform(a, dtype)))
    turn = _uniform(b, dtype)
    # A quarter of the circle, and a sign for each coordinate: the whole circle.
    return radius * _sine(turn) * _sign(b), radius * _sine(1.0 - turn) * _sign(b >> 1)


def _sign(words: UInt32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 or -1, as the lowest bit of each word says."""
    return 1.0 - 2.0 * (words & 1).astype(jnp.int32).astype(jnp.float32)


def _uniform(words: UInt32[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Odd multiples of 2^-24 in (0, 1), from the upper 23 bits: never 0, never 1, 1 - u as good."""
    odd = ((words >> 8) | 1).astype(jnp.int32)
    return odd.astype(dtype) * 2.0**-24


def _sine(t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sin(pi t / 2) for t in (0, 1)."""
    if t.dtype == jnp.float64:
        return jnp.sin((jnp.pi / 2.0) * t)
    square, value = t * t, jnp.asarray(_SINE[-1], t.dtype)
    for coefficient in _SINE[-2::-1]:
        value = value * square + jnp.asarray(coefficient, t.dtype)
    return value * t
