"""The secret key, and noise addressed by the number of a release.

A run has two keys, drawn apart. The *noise key* has 256 bits and stays secret for ever: who knows it
can subtract the noise. The *public key* drives directions, orders of records and points of the path;
privacy does not rest on it. They share no bits: knowing every direction says nothing about the noise.

Noise is addressed, not streamed: a draw is a function of the key and of the number of the release. So
no restart can repeat a draw, and a resumed run makes exactly the draws that it made before. To anyone
without the key, draws are as good as random as long as ChaCha20 is a secure cipher.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from blindstep.errors import InvalidArgument, NoEntropy, SecretCopied
from blindstep.private import lattice

# The uses of the key: another use of the same key must take another tag.
_TAG, _STEPS_TAG = 0x6C617474, 0x73746570


class Uncopied:
    """A base for what holds a noise key: copying and pickling are refused, `repr` shows nothing.

    A copy would release a second time under the same noise, and the difference of the two releases
    would hold no noise at all.
    """

    def _refuse(self, *_: Any) -> NoReturn:
        raise SecretCopied(
            f"a {type(self).__name__} holds the noise key, and a copy of it could release twice under "
            "the same noise: start a second run instead, or resume this one from its checkpoint."
        )

    __copy__ = __deepcopy__ = __reduce_ex__ = __reduce__ = __getstate__ = _refuse

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"


class NoiseKey(Uncopied):
    """256 secret bits. They leave this object through `words` alone: to the gate and a checkpoint."""

    __slots__ = ("_words",)

    def __init__(self, words: np.ndarray) -> None:
        if words.dtype != np.uint32 or words.shape != (8,):
            raise InvalidArgument(
                f"a noise key is 8 words of 32 bits, got {words.dtype} of shape {words.shape}."
            )
        self._words = words

    def words(self) -> UInt32[np.ndarray, "8"]:
        """The key itself. Whoever holds it can subtract the noise."""
        return self._words


class Keys(NamedTuple):
    """The two keys of a run, and whether a user's seed made them."""

    noise: NoiseKey
    public: Key[Array, ""]
    seeded: bool


def fresh_keys(seed: int | None = None, about: str = "") -> Keys:
    """Both keys of a run: from the operating system, or from a seed for reproduction.

    Guarantee: without a seed, 256 bits (noise) and 64 bits (public) of operating-system entropy,
    independent of each other. No entropy is an error, never a fallback. With a seed the run is
    reproducible and *not private against anyone who knows or can guess the seed*; `seeded` says so.
    The noise hangs on what the run is `about` as well (its data, start, loss and plan): one seed gives
    two runs the same noise only if they release the same, for otherwise the difference of their
    releases would hold none. Directions are the seed's alone.
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
        if type(seed) is not int or seed < 0:
            raise InvalidArgument(f"seed must be a whole number of at least 0, got {seed!r}.")
        noise = hashlib.sha256(f"blindstep noise {seed} {about}".rstrip().encode()).digest()
        public = hashlib.sha256(f"blindstep public {seed}".encode()).digest()[:8]
    return Keys(NoiseKey(_words(noise)), public_key(_words(public)), seed is not None)


def second_seed(seed: int | None, use: str = "") -> int | None:
    """The seed of another gate in the same call; `use` tells several of them apart.

    Two gates must not draw the same noise: the difference of their releases would hold none. Without a
    seed each takes its own keys from the operating system, and this is None.

    Guarantee: 128 bits of SHA-256 of `seed` and `use`. So two gates share a seed with probability
    2^-128, unless somebody chose the seed for it. Both are as secret as the seed, and both say so.
    """
    if seed is None:
        return None
    name = f"blindstep looks {seed} {use}" if use else f"blindstep looks {seed}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")


def public_key(words: UInt32[np.ndarray, "2"]) -> Key[Array, ""]:
    """The public key made of these words."""
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def public_stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """A named stream of public randomness: directions, order of records, points of the path."""
    tag = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") & 0x7FFFFFFF
    return jax.random.fold_in(key, tag)


def lattice_noise(
    key: UInt32[Array, "8"], release: Int[Array, "*many"], size: int
) -> Float[Array, "*many size"]:
    """The noise of release number `release`: `size` whole numbers, held exactly in float64.

    Guarantee: each is within total variation `lattice.DISTANCE` of the discrete Gaussian
    of standard deviation `lattice.STD`. Distinct releases are distinct nonces and read
    disjoint parts of the ChaCha20 stream, so to anyone without the key they are independent.
    """
    release = jnp.asarray(release).astype(jnp.uint32)
    words = (jnp.full_like(release, _TAG), release, jnp.zeros_like(release))
    blocks = -(-size * lattice.WORDS // lattice.BLOCK_WORDS)
    stream = lattice.chacha20(key, jnp.stack(words), blocks)
    return lattice.from_words(stream, size)


# Compiled once for each number of records.
_stream = jax.jit(lattice.chacha20, static_argnums=2)


def secret_steps(
    key: UInt32[np.ndarray, "8"], pass_index: int, records: int, steps: int
) -> Int[np.ndarray, " records"]:
    """The step of a pass in which each record answers: 0 .. steps - 1, a power of two of them.

    Guarantee: a record's step is the last bits of a word of its own in a part of the ChaCha20 stream
    that nothing else reads, and that each pass reads anew. So to anyone without the key steps are
    uniform and independent, of each other and of the noise.
    """
    if steps & (steps - 1) or not 0 < steps <= 2**32:
        raise InvalidArgument(f"{steps} steps: a power of two gives each record the same chance.")
    nonce = jnp.asarray([_STEPS_TAG, pass_index, 0], jnp.uint32)
    stream = _stream(jnp.asarray(key), nonce, -(-records // lattice.BLOCK_WORDS))
    return np.asarray(stream).T.ravel()[:records].astype(np.int64) & (steps - 1)


def _words(content: bytes) -> UInt32[np.ndarray, " words"]:
    return np.frombuffer(content, dtype="<u4").astype(np.uint32)
