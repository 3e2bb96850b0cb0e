"""Keys and streams: secret noise from ChaCha20, public randomness from JAX's own generator.

Two keys, drawn apart. The *noise key* has 256 bits and is secret for ever: who knows it can subtract
the noise. The *public key* drives directions, the order of records and the points w_t; privacy does
not rest on it. They share no bits, so knowing every direction says nothing about the noise (a peer
seeds its noise with its direction's seed).

Noise is addressed, not streamed: draw number `step` of block `block` is a function of
(key, block, step) and of nothing else. So no draw can be repeated by restarting a generator, and a
resumed run regenerates exactly the draws it made.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from blindstep.errors import InvalidArgument, NoEntropy

NoiseKey = UInt32[Array, "8"]
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")
_WORDS_PER_BLOCK = 16
_DOUBLE_ROUNDS = 10
_GAUSSIAN_TAG = 0x626C696E  # this use of the key; another use takes another tag


class Keys(NamedTuple):
    """The two keys of a run, and whether a user's seed made them."""

    noise: NoiseKey
    public: Key[Array, ""]
    seeded: bool


def fresh_keys(seed: int | None = None) -> Keys:
    """Both keys of a run: from the operating system, or from a seed for reproduction.

    Guarantee: without a seed, 256 bits (noise) and 64 bits (public) of operating-system entropy,
    independent of each other; no entropy is an error, never a fallback. With a seed, the run is
    reproducible and *not private against anyone who knows or guesses the seed*; `seeded` says so.
    """
    if seed is None:
        try:
            noise, public = os.urandom(32), os.urandom(8)
        except (NotImplementedError, OSError) as error:
            raise NoEntropy(
                "the operating system gave no randomness (os.urandom failed): nothing was released. "
                "Run where /dev/urandom or getrandom works."
            ) from error
    else:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidArgument(f"seed must be a whole number of at least 0, got {seed!r}.")
        noise = hashlib.sha256(f"blindstep noise {seed}".encode()).digest()
        public = hashlib.sha256(f"blindstep public {seed}".encode()).digest()[:8]
    return Keys(
        noise=jnp.asarray(np.frombuffer(noise, dtype="<u4").astype(np.uint32)),
        public=jax.random.wrap_key_data(
            jnp.asarray(np.frombuffer(public, dtype="<u4").astype(np.uint32)), impl="threefry2x32"
        ),
        seeded=seed is not None,
    )


def public_stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """A named stream of public randomness: directions, order of records, points of the path."""
    tag = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") & 0x7FFFFFFF
    return jax.random.fold_in(key, tag)


def _rotate(x: Array, bits: int) -> Array:
    return (x << bits) | (x >> (32 - bits))


def _quarter_round(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def chacha20(key: NoiseKey, nonce: UInt32[Array, "3"], blocks: int) -> UInt32[Array, "blocks 16"]:
    """The ChaCha20 key stream (RFC 8439, section 2.3) for block counters 0 .. blocks-1."""
    counter = jnp.arange(blocks, dtype=jnp.uint32)
    head = [jnp.full((blocks,), word, jnp.uint32) for word in _CONSTANTS]
    body = [jnp.broadcast_to(key[i], (blocks,)) for i in range(8)]
    tail = [counter] + [jnp.broadcast_to(nonce[i], (blocks,)) for i in range(3)]
    start = (*head, *body, *tail)

    def double_round(_: int | Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        words = list(state)
        for column in (0, 1, 2, 3, 4, 5, 6, 7):
            # Columns of the 4 x 4 state first, then its diagonals.
            shift = column // 4
            places = [4 * row + (column + shift * row) % 4 for row in range(4)]
            for place, word in zip(
                places, _quarter_round(*(words[p] for p in places)), strict=True
            ):
                words[place] = word
        return tuple(words)

    # The same integers either way. An accelerator pays for each turn of a loop, and its compiler for
    # rounds that it may all join into one.
    if jax.default_backend() == "cpu":
        end = jax.lax.fori_loop(0, _DOUBLE_ROUNDS, double_round, start)
    else:
        end = start
        for turn in range(_DOUBLE_ROUNDS):
            end = jax.lax.optimization_barrier(double_round(turn, end))
    return jnp.stack([last + first for last, first in zip(end, start, strict=True)], axis=1)


def noise_words(
    key: NoiseKey,
    tag: int | UInt32[Array, ""],
    block: Int[Array, ""] | int,
    step: Int[Array, ""] | int,
    number: int,
) -> UInt32[Array, " number"]:
    """The first `number` secret random words at the address (block, step), for the use named by `tag`.

    Guarantee: distinct (tag, block, step) are distinct nonces, so they read disjoint parts of the
    ChaCha20 stream: to anyone without the key, independent uniform words.
    """
    blocks = -(-number // _WORDS_PER_BLOCK)
    nonce = jnp.stack(
        [jnp.uint32(tag), jnp.asarray(block, jnp.uint32), jnp.asarray(step, jnp.uint32)]
    )
    return chacha20(key, nonce, blocks).reshape(-1)[:number]


def gaussian(
    key: NoiseKey, block: Int[Array, ""] | int, step: Int[Array, ""] | int, dim: int
) -> Float[Array, " dim"]:
    """Standard normal noise number `step` of block `block`: float64, one vector of length `dim`.

    Guarantee: distinct (block, step) are independent to anyone without the key (`noise_words`).
    Box-Muller on 64-bit uniforms: the logarithm's argument keeps full relative precision near 0, so
    tails reach 9.4 standard deviations. Always float64.
    """
    pairs = (dim + 1) // 2
    words = noise_words(key, _GAUSSIAN_TAG, block, step, 4 * pairs).astype(jnp.float64)
    low, high = words[0::2], words[1::2]
    uniform = ((high * 2.0**32 + low) + 0.5) * 2.0**-64  # in (0, 1]
    radius = jnp.sqrt(-2.0 * jnp.log(uniform[0::2]))
    angle = 2.0 * jnp.pi * uniform[1::2]
    return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[:dim]
