"""The secret key, and the noise that it makes: whole numbers from a discrete Gaussian.

A run has two keys, drawn apart. The *noise key* has 256 bits and stays secret for ever: anyone who
knows it can subtract the noise. The *public key* drives directions, orders of records and points of
the path; privacy does not rest on it.

Noise is addressed, not streamed: a draw is a function of the key and of the number of the release. So
no restart can repeat a draw, and a resumed run makes exactly the draws that it made before. To anyone
without the key, draws are as good as random as long as ChaCha20 is a secure cipher.

*The stream* is ChaCha20 (RFC 8439). The state of a block is 16 words, a 4 x 4 matrix. A round works on
its columns, the next one on its diagonals. Two programs give the same integers: a loop over all blocks
at once, and a kernel for graphics cards in which each thread keeps its blocks in registers from the
first round to the last.

*The law* is P(z) proportional to exp(-z^2 / (2 S^2)) on the integers, with S near 2^18. Two small draws
make a large one. Let a, b be discrete Gaussians on the integers of width sigma = 2^10, from one table,
and K = 2^8. Then z = K a + b is a discrete Gaussian of width S, S^2 = (K^2 + 1) sigma^2, almost exactly
(the convolution of lattice Gaussians: Peikert 2010; Micciancio & Walter 2017). Here by hand: by Poisson
summation, for every centre c and width w >= 1,

    sum over integers a of exp(-(a - c)^2 / (2 w^2)) = w sqrt(2 pi) (1 + e),
    |e| <= E(w) = 2.1 exp(-2 pi^2 w^2).                                                        (1)

Completing the square, exp(-a^2 / 2 sigma^2 - (z - K a)^2 / 2 sigma^2) is exp(-z^2 / 2 S^2) times
exp(-(a - c z)^2 / 2 w^2) with w = sigma / sqrt(K^2 + 1) = 3.99997. So by (1) the probability of every z
is that of the discrete Gaussian up to a factor (1 + E) / (1 - E), E = E(w) < 1e-136.

*The table* is exact: 2^15 whole-number weights that sum to 2^192, drawn from by the alias method
(Walker 1977) with 192 bits of the stream for each of a and b. The number and kind of operations is the
same for every draw, and one table row is read. The distribution is the table's, to the last bit. The
table differs from the discrete Gaussian by rounding each weight (total variation at most 2^-178) and by
leaving out |a| >= 2^14 (16 sigma, 2^-189).

Guarantee: one coordinate's noise is within total variation `DISTANCE` = 2^-175 of the discrete
Gaussian of variance `VARIANCE`: 2 (2^-178 + 2^-189) and twice 1e-136 are less than half of that.
"""

from __future__ import annotations

import hashlib
import math
import os
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, Key, UInt32, UInt64

from blindstep.errors import InvalidArgument, NoEntropy, SecretCopied

# The uses of the key: another use of the same key must take another tag.
_TAG, _STEPS_TAG = 0x6C617474, 0x73746570
# The cipher: its words, its rounds, and how many blocks one program of the kernel works on.
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
BLOCK_WORDS, _DOUBLE_ROUNDS, _BLOCKS_OF_KERNEL = 16, 10, 256
Words = tuple[UInt32[Array, "*lanes"], ...]
# The law, and the table.
_SIGMA, _FACTOR = 2**10, 2**8
VARIANCE = _SIGMA**2 * (_FACTOR**2 + 1)
STD = math.sqrt(VARIANCE)
DISTANCE = 2.0**-175
_BITS, _BINS_LOG = 192, 15
_BINS = 2**_BINS_LOG
_ZERO = _BINS // 2  # the bin of the value 0
LARGEST = (_FACTOR + 1) * _ZERO  # no draw is beyond this
WORDS = 2 * _BITS // 32  # random words that one draw takes


class Uncopied:
    """A base for what holds a noise key: copying and pickling are refused, `repr` shows nothing."""

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
            raise InvalidArgument(f"8 words of 32 bits are a key, got {words.dtype} {words.shape}.")
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
    two runs the same noise only if they release the same. Directions are the seed's alone.
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
    noise, public = (np.frombuffer(each, "<u4").astype(np.uint32) for each in (noise, public))
    return Keys(NoiseKey(noise), public_key(public), seed is not None)


def second_seed(seed: int | None, use: str = "") -> int | None:
    """The seed of another gate in the same call; `use` tells several of them apart. None stays None.

    Guarantee: 128 bits of SHA-256 of `seed` and `use`. So two gates share a seed, and with it their
    noise, with probability 2^-128, unless somebody chose the seed for it.
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


def chacha20(
    key: UInt32[Array, "8"], nonce: UInt32[Array, "3 *many"], blocks: int
) -> UInt32[Array, "16 *many blocks"]:
    """The ChaCha20 key stream (RFC 8439, section 2.3) of each nonce, block counters 0 .. blocks-1."""
    many = nonce.shape[1:]
    counter = jnp.broadcast_to(jnp.arange(blocks, dtype=jnp.uint32), (*many, blocks)).ravel()
    tail = jnp.concatenate([counter[None], jnp.repeat(nonce.reshape(3, -1), blocks, axis=1)])
    # A kernel cannot be divided among several devices by the compiler.
    in_kernel = jax.default_backend() == "gpu" and jax.device_count() == 1
    words = (by_kernel if in_kernel else by_loop)(key, tail)
    return words.reshape(BLOCK_WORDS, *many, blocks)


def by_loop(key: UInt32[Array, "8"], tail: UInt32[Array, "4 lanes"]) -> UInt32[Array, "16 lanes"]:
    """Four rows of four words; a round works on all columns of all blocks at once."""
    head = jnp.broadcast_to(jnp.asarray(_CONSTANTS)[:, None], tail.shape)
    body = [jnp.broadcast_to(key[i : i + 4, None], tail.shape) for i in (0, 4)]
    start = (head, *body, tail)

    def double_round(_: int | Array, rows: Words) -> Words:
        for turn in (-1, 1):  # diagonals become columns, and columns diagonals again
            rows = _quarter_round(*rows)
            rows = tuple(jnp.roll(row, turn * place, axis=0) for place, row in enumerate(rows))
        return rows

    end = jax.lax.fori_loop(0, _DOUBLE_ROUNDS, double_round, start)
    return jnp.concatenate([last + first for last, first in zip(end, start, strict=True)])


def by_kernel(key: UInt32[Array, "8"], tail: UInt32[Array, "4 lanes"]) -> UInt32[Array, "16 lanes"]:
    """Word by word, `_BLOCKS_OF_KERNEL` blocks in each program. Guarantee: the words of `by_loop`."""
    # Not for everyone: importing it takes most of a second.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    size, lanes = _BLOCKS_OF_KERNEL, tail.shape[1]
    programs = -(-lanes // size)
    words = pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct((BLOCK_WORDS, programs * size), jnp.uint32),
        grid=(programs,),
        in_specs=[
            pl.BlockSpec((8,), lambda _: (0,)),
            pl.BlockSpec((4, size), lambda program: (0, program)),
        ],
        out_specs=pl.BlockSpec((BLOCK_WORDS, size), lambda program: (0, program)),
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=jax.devices()[0].platform == "cpu",  # as the tests run it
    )(key, jnp.pad(tail, ((0, 0), (0, programs * size - lanes))))
    return words[:, :lanes]


def _kernel(key: jax.Ref, tail: jax.Ref, words: jax.Ref) -> None:
    ones = jnp.ones(tail.shape[1], jnp.uint32)
    head = [ones * word for word in _CONSTANTS]
    start = (*head, *(ones * key[i] for i in range(8)), *(tail[i, :] for i in range(4)))
    end = jax.lax.fori_loop(0, _DOUBLE_ROUNDS, _double_round_of_words, start)
    for i in range(BLOCK_WORDS):
        words[i, :] = end[i] + start[i]


def _double_round_of_words(_: int | Array, state: Words) -> Words:
    words = list(state)
    for diagonal in (0, 1):
        for column in range(4):
            places = [4 * row + (column + diagonal * row) % 4 for row in range(4)]
            changed = _quarter_round(*(words[place] for place in places))
            for place, word in zip(places, changed, strict=True):
                words[place] = word
    return tuple(words)


def _quarter_round(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotate(d ^ a, first)
        c = c + d
        b = _rotate(b ^ c, second)
    return a, b, c, d


def _rotate(x: Array, bits: int) -> Array:
    return (x << bits) | (x >> (32 - bits))


class AliasTable(NamedTuple):
    """Bin i gives i if the other 177 bits of the draw are below `threshold[:, i]`, else `alias[i]`."""

    threshold: UInt64[np.ndarray, "3 bins"]  # most significant 64, next 64, last 49 bits
    alias: Int32[np.ndarray, " bins"]  # the other value that shares the bin


def weights() -> list[int]:
    """How many of the 2^192 equally likely outcomes give the value i - 2^14, for each i < 2^15.

    From the recursion p_{k+1} = p_k r_k, r_{k+1} = r_k exp(-1 / sigma^2) at 110 digits, whose error
    after 2^14 steps is below 1e-100. What rounding leaves over goes to the value 0.
    """
    with localcontext() as context:
        context.prec = 110
        ratio, fall = ((Decimal(-1) / (n * _SIGMA**2)).exp() for n in (2, 1))
        density = [Decimal(1)]
        while len(density) < _ZERO:
            density.append(density[-1] * ratio)
            ratio *= fall
        scale = Decimal(2**_BITS) / (2 * sum(density) - 1)
        half = [int((value * scale).to_integral_value()) for value in density]
    half[0] += 2**_BITS - (2 * sum(half) - half[0])
    return [0, *half[:0:-1], *half]


@lru_cache(maxsize=1)
def alias_table() -> AliasTable:
    """The weights as an alias table, in whole numbers: each bin holds 2^177 outcomes. 0.1 seconds."""
    capacity, left = 2 ** (_BITS - _BINS_LOG), weights()
    threshold, alias = [0] * _BINS, list(range(_BINS))
    small = [i for i, weight in enumerate(left) if weight < capacity]
    large = [i for i, weight in enumerate(left) if weight >= capacity]
    while small:
        i, other = small.pop(), large[-1]
        threshold[i], alias[i] = left[i], other
        left[other] -= capacity - left[i]
        if left[other] < capacity:
            small.append(large.pop())
    # Those that are left fill their bin: whichever way the comparison goes, it gives them.
    word = 2**64 - 1
    parts = [[t >> 113, t >> 49 & word, t & (2**49 - 1)] for t in threshold]
    return AliasTable(np.asarray(parts, np.uint64).T, np.asarray(alias, np.int32))


def look_up(table: AliasTable, words: UInt32[Array, "6 *n"]) -> Int32[Array, "*n"]:
    """One value for each column of 192 random bits: 15 choose the bin, 177 decide within it."""
    wide = words.astype(jnp.uint64)
    high, middle, low = (wide[i] << 32 | wide[i + 1] for i in (0, 2, 4))
    bin_ = (low & jnp.uint64(_BINS - 1)).astype(jnp.int32)
    low = low >> _BINS_LOG
    first, second, third = (jnp.asarray(part)[bin_] for part in table.threshold)
    below = (high < first) | (
        (high == first) & ((middle < second) | ((middle == second) & (low < third)))
    )
    return jnp.where(below, bin_, jnp.asarray(table.alias)[bin_]) - _ZERO


def from_words(words: UInt32[Array, "16 *many blocks"], size: int) -> Float[Array, "*many size"]:
    """`size` discrete Gaussian whole numbers of variance `VARIANCE`, as float64, from random words.

    Takes `WORDS` words for each number from the blocks of a key stream; none of them serves twice.
    Guarantee: |z| <= `LARGEST` < 2^23.
    """
    words = jnp.moveaxis(words, 0, -2)
    words = words.reshape(*words.shape[:-2], -1)[..., : WORDS * size]
    words = jnp.moveaxis(words.reshape(*words.shape[:-1], WORDS, size), -2, 0)
    table, half = alias_table(), WORDS // 2
    coarse, fine = look_up(table, words[:half]), look_up(table, words[half:])
    return (_FACTOR * coarse + fine).astype(jnp.float64)


def lattice_noise(
    key: UInt32[Array, "8"], release: Int[Array, "*many"], size: int
) -> Float[Array, "*many size"]:
    """The noise of release number `release`: `size` whole numbers, held exactly in float64.

    Guarantee: each is within total variation `DISTANCE` of the discrete Gaussian of standard deviation
    `STD`. Distinct releases are distinct nonces and read disjoint parts of the ChaCha20 stream, so to
    anyone without the key they are independent.
    """
    release = jnp.asarray(release).astype(jnp.uint32)
    nonce = jnp.stack([jnp.full_like(release, _TAG), release, jnp.zeros_like(release)])
    return from_words(chacha20(key, nonce, -(-size * WORDS // BLOCK_WORDS)), size)


# Compiled once for each number of records.
_stream = jax.jit(chacha20, static_argnums=2)


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
    stream = _stream(jnp.asarray(key), nonce, -(-records // BLOCK_WORDS))
    return np.asarray(stream).T.ravel()[:records].astype(np.int64) & (steps - 1)
