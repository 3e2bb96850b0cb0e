"""Cheap public randomness: normal draws, signs and keys, each a function of a key and its address.

Privacy does not rest on the law of directions, so they come from a fast counter-based generator, 23
bits for a draw. Estimates are unbiased to that precision. A float32 draw is the float64 draw, rounded.
Secret noise never comes from here, but from `private.noise`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Coefficients of sin(pi t / 2) / t as a polynomial in t^2, by least squares on Chebyshev points. Its
# relative error on (0, 1) is below 2e-7, about that of float32.
_SINE = (
    1.5707963200653523,
    -0.6459637604384809,
    0.07968992260041961,
    -0.004674150668842556,
    0.0001516751177470344,
)
# Numbers in a vector register. Loops over a multiple of it have no slow remainder.
LANES = 16

Take = Callable[[int, int], Float[Array, "rows frames"]]
# Arguments of the generator, which broadcast, and what it gives.
Keys = Key[Array, "*#shape"]
Counter = UInt32[Array, "*#shape"]
Words = UInt32[Array, "*shape"]
Numbers = Float[Array, "*shape"]


def threefry(key: Keys, counter: Counter, stream: Counter) -> tuple[Words, Words]:
    """Two random words: Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011).

    This is the generator behind `jax.random`, whose own loop is several times slower on a CPU.
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
    key: Key[Array, ""], number: Int[Array, "*many"] | int, round_: Int[Array, ""] | int = 0
) -> Key[Array, "*many"]:
    """A new key for each number and round. In round 0 it is that of `jax.random.fold_in`."""
    words = _words(key, number, round_)
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl="threefry2x32")


def uniform(
    key: Key[Array, ""], number: Int[Array, ""] | int, round_: Int[Array, ""] | int
) -> Float[Array, ""]:
    """A uniform draw from the multiples of 2^-52 in [0, 1), one for each number and round."""
    high, low = _words(key, number, round_)
    bits = (high.astype(jnp.uint64) << 32) | low
    return (bits >> 12).astype(jnp.float64) * 2.0**-52


def _words(
    key: Key[Array, ""], number: Int[Array, "*many"] | int, round_: Int[Array, ""] | int
) -> tuple[UInt32[Array, "*many"], UInt32[Array, "*many"]]:
    number = jnp.asarray(number).astype(jnp.uint32)
    rounds = jnp.broadcast_to(jnp.asarray(round_).astype(jnp.uint32), number.shape)
    return threefry(key, rounds, number)


def normals(
    key: Key[Array, ""], streams: UInt32[Array, " some"], number: int, dtype: DTypeLike
) -> Float[Array, "some number"]:
    """`number` standard normal draws for each stream of a key, at most 5.8 in size and never 0."""
    counter = jnp.arange(-(-number // (2 * LANES)) * LANES, dtype=jnp.uint32)
    pair = _two_normals(key, counter[None], streams[:, None], dtype)
    return jnp.concatenate(pair, axis=-1)[:, :number]


def normals_of_each(
    keys: Key[Array, " keys"], number: int, dtype: DTypeLike
) -> Float[Array, "number keys"]:
    """`number` standard normal draws for each key, one column for each key."""

    def make(keys: Key[Array, " keys"]) -> Float[Array, "2 half *keys"]:
        counter, keys = _counters_and_keys(-(-number // 2), keys)
        return jnp.stack(_two_normals(keys, counter, jnp.zeros_like(counter), dtype))

    drawn = stored(opaque_true(jax.random.key_data(keys)), make, keys)
    return drawn.reshape(-1, keys.size)[:number]


def signs_of_each(
    keys: Key[Array, " keys"], number: int, dtype: DTypeLike
) -> Float[Array, "number keys"]:
    """`number` random signs for each key, one column for each key, from a stream of their own."""
    true = opaque_true(jax.random.key_data(keys))

    def make(keys: Key[Array, " keys"]) -> UInt32[Array, "2 half *keys"]:
        counter, keys = _counters_and_keys(-(-number // 64), keys)
        return jnp.stack(threefry(keys, counter, jnp.full_like(counter, 0xFFFFFFFF)))

    def signs(words: UInt32[Array, "words 1 keys"]) -> Float[Array, "words 32 keys"]:
        return _sign(words >> jnp.arange(32, dtype=jnp.uint32)[:, None]).astype(dtype)

    words = stored(true, make, keys).reshape(-1, 1, keys.size)
    return stored(true, signs, words).reshape(-1, keys.size)[:number]


class Supply(NamedTuple):
    """The normal draws and random signs that the frames of several keys are made of."""

    normals: Take  # (rows, per_key): new numbers, `rows` for each of `per_key` frames of every key
    signs: Take
    dtype: DTypeLike
    true: Bool[Array, ""]  # an `opaque_true`

    @classmethod
    def of(cls, keys: Key[Array, " keys"], normals: int, signs: int, dtype: DTypeLike) -> Supply:
        """A supply of this many normal draws and signs for each key."""
        drawn = _dispense(normals_of_each(keys, normals, dtype))
        signed = _dispense(signs_of_each(keys, signs, dtype))
        return cls(drawn, signed, dtype, opaque_true(jax.random.key_data(keys)))


def _dispense(stock: Float[Array, "stock keys"]) -> Take:
    used = 0

    def take(rows: int, per_key: int) -> Float[Array, "rows frames"]:
        nonlocal used
        start, used = used, used + rows * per_key
        return stock[start:used].reshape(rows, -1)

    return take


def _counters_and_keys(
    number: int, keys: Key[Array, " keys"]
) -> tuple[UInt32[Array, "*counters"], Key[Array, "*keys"]]:
    """At least `number` counters down, keys across; counters alone, in one axis, for a single key."""
    counter = jnp.arange(-(-number // LANES) * LANES, dtype=jnp.uint32)
    return (counter, keys[0]) if keys.size == 1 else (counter[:, None], keys)


def _two_normals(
    key: Keys, counter: Counter, stream: Counter, dtype: DTypeLike
) -> tuple[Numbers, Numbers]:
    """Two independent standard normal draws: r cos a and r sin a (Box and Muller)."""
    a, b = threefry(key, counter, stream)
    radius = jnp.sqrt(-2.0 * jnp.log(_uniform(a, dtype)))
    turn = _uniform(b, dtype)
    # An angle in a quarter of the circle and two random signs make an angle in the whole circle.
    return radius * _sine(turn) * _sign(b), radius * _sine(1.0 - turn) * _sign(b >> 1)


def _sign(words: Words) -> Numbers:
    """1 or -1, by the lowest bit of each word."""
    return 1.0 - 2.0 * (words & 1).astype(jnp.int32).astype(jnp.float32)


def _uniform(words: Words, dtype: DTypeLike) -> Numbers:
    """Odd multiples of 2^-24 in (0, 1), from the upper 23 bits; 1 - u has the same law as u."""
    odd = ((words >> 8) | 1).astype(jnp.int32)
    return odd.astype(dtype) * 2.0**-24


def _sine(t: Numbers) -> Numbers:
    """sin(pi t / 2) for t in (0, 1)."""
    if t.dtype == jnp.float64:
        return jnp.sin((jnp.pi / 2.0) * t)
    square, value = t * t, jnp.asarray(_SINE[-1], t.dtype)
    for coefficient in _SINE[-2::-1]:
        value = value * square + jnp.asarray(coefficient, t.dtype)
    return value * t


Made = TypeVar("Made")


def opaque_true(words: UInt32[Array, "*any"]) -> Bool[Array, ""]:
    """A run-time True that XLA cannot fold into a constant. `words` may be any public words."""
    return (words.ravel()[0] | 1) != 0


def stored(true: Bool[Array, ""], make: Callable[..., Made], *of: object) -> Made:
    """`make(*of)`, with its arguments and its results stored in memory. `true` is an `opaque_true`.

    On a CPU XLA fuses a cheap operation into every operation that reads its result, and each of them
    computes it again. It does not fuse across the border of a conditional: so this is one whose branch
    is always the same. On an accelerator XLA fuses well, and conditionals are slow.
    """

    def made(*of: object) -> Made:
        return jax.tree.map(_row_major, make(*of))

    def never(*of: object) -> Made:
        # NaN in the branch that is never taken, so that a mistake could not go unseen.
        def filler(like: jax.ShapeDtypeStruct) -> Array:
            floating = jnp.issubdtype(like.dtype, jnp.floating)
            return _row_major(jnp.full(like.shape, jnp.nan if floating else 0, like.dtype))

        return jax.tree.map(filler, jax.eval_shape(make, *of))

    on_cpu = jax.default_backend() == "cpu"
    return jax.lax.cond(true, made, never, *of) if on_cpu else make(*of)


def _row_major(x: Array) -> Array:
    """The same array, its last axis contiguous in memory."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
