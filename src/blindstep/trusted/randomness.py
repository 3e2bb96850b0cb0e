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
from blindstep.trusted import chacha, draws
from blindstep.trusted.stored import stored, true_for

NoiseKey = UInt32[Array, "8"]
_TAYLOR = 8  # terms of the series of `_on_circle` after the first
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
    return draws.fold_in(key, tag)


Address = Int[Array, "*many"] | int


def noise_words(
    key: NoiseKey, tag: int | UInt32[Array, ""], block: Address, step: Address, number: int
) -> UInt32[Array, "16 *many blocks"]:
    """At least `number` secret random words at each address (block, step), for the use named by `tag`.

    Guarantee: distinct (tag, block, step) are distinct nonces, so they read disjoint parts of the
    ChaCha20 stream: to anyone without the key, independent uniform words.
    """
    words = (jnp.asarray(word).astype(jnp.uint32) for word in (tag, block, step))
    nonce = jnp.stack(jnp.broadcast_arrays(*words))
    return chacha.chacha20(key, nonce, -(-number // chacha.WORDS))


def gaussian(key: NoiseKey, block: Address, step: Address, dim: int) -> Float[Array, "*many dim"]:
    """Standard normal noise number `step` of block `block`: float64, a vector of length `dim`.

    Guarantee: distinct (block, step) are independent to anyone without the key (`noise_words`).
    Box-Muller on 64-bit uniforms: the logarithm's argument keeps full relative precision near 0, so
    tails reach 9.4 standard deviations. Always float64.
    """
    words = noise_words(key, _GAUSSIAN_TAG, block, step, 4 * ((dim + 1) // 2))

    def box_muller(words: UInt32[Array, "4 4 lanes"]) -> Float[Array, "2 4 lanes"]:
        wide = words.astype(jnp.float64)
        # Both in (0, 1].
        first, second = (((wide[i] * 2.0**32 + wide[i + 1]) + 0.5) * 2.0**-64 for i in (0, 2))
        radius = jnp.sqrt(-2.0 * jnp.log(first))
        cosine, sine = _on_circle(second)
        return jnp.stack([radius * cosine, radius * sine])

    # No branch looks at the key: the address is public.
    true = true_for(jnp.asarray(step).astype(jnp.uint32))
    pair = stored(true, box_muller, words.reshape(4, 4, -1))
    of_block = jnp.moveaxis(pair.reshape(8, *words.shape[1:]), 0, -2)
    return of_block.reshape(*words.shape[1:-1], -1)[..., :dim]


def _on_circle(turns: Float[Array, "*any"]) -> tuple[Float[Array, "*any"], Float[Array, "*any"]]:
    """cos and sin of 2 pi x for x in [0, 1], in float64 with an error below 2^-51.

    x = k/4 + r with |r| <= 1/8, exactly; sums of Taylor's series at 2 pi r, up to terms of which the
    next is below 2^-54; then k quarter turns. Plain arithmetic: fast for many numbers at once.
    """
    quarters = jnp.round(4.0 * turns)
    angle = (2.0 * jnp.pi) * (turns - 0.25 * quarters)
    square = angle * angle
    cosine, sine = jnp.ones_like(square), jnp.ones_like(square)
    for n in range(_TAYLOR, 0, -1):
        cosine = 1.0 - cosine * square * (1.0 / ((2 * n - 1) * (2 * n)))
        sine = 1.0 - sine * square * (1.0 / ((2 * n) * (2 * n + 1)))
    sine = angle * sine
    odd = (quarters == 1.0) | (quarters == 3.0)
    cosine, sine = jnp.where(odd, sine, cosine), jnp.where(odd, cosine, sine)
    cosine = jnp.where((quarters == 1.0) | (quarters == 2.0), -cosine, cosine)
    sine = jnp.where((quarters == 2.0) | (quarters == 3.0), -sine, sine)
    return cosine, sine
