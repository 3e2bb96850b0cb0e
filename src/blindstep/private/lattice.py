"""Lattice noise: whole numbers from a discrete Gaussian, made of a secret key's ChaCha20 stream.

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

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, UInt32, UInt64

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_DOUBLE_ROUNDS = 10
BLOCK_WORDS = 16  # of a block
# Blocks that one program of the kernel works on.
_BLOCKS_OF_KERNEL = 256

Words = tuple[UInt32[Array, "*lanes"], ...]


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

    def double_round(_: int | Array, state: Words) -> Words:
        a, b, c, d = _quarter_round(*state)
        # Diagonals become columns, and columns diagonals again.
        a, b, c, d = _quarter_round(a, _turned(b, 1), _turned(c, 2), _turned(d, 3))
        return a, _turned(b, 3), _turned(c, 2), _turned(d, 1)

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
        name="chacha20",
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
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(x: Array, bits: int) -> Array:
    return (x << bits) | (x >> (32 - bits))


def _turned(row: UInt32[Array, "4 lanes"], by: int) -> UInt32[Array, "4 lanes"]:
    return jnp.concatenate([row[by:], row[:by]])


_SIGMA = 2**10
_FACTOR = 2**8
VARIANCE = _SIGMA**2 * (_FACTOR**2 + 1)
STD = math.sqrt(VARIANCE)
DISTANCE = 2.0**-175

_BITS = 192
_BINS_LOG = 15
_BINS = 2**_BINS_LOG
_ZERO = _BINS // 2  # the bin of the value 0
LARGEST = (_FACTOR + 1) * _ZERO  # no draw is beyond this

WORDS = 2 * _BITS // 32  # random words that one draw takes


class AliasTable(NamedTuple):
    """Bin i gives i if the other 177 bits of the draw are below `threshold[:, i]`, else `alias[i]`.

    Attributes:
        threshold: most significant 64, next 64, last 49 bits.
        alias: the other value that shares the bin.
    """

    threshold: UInt64[np.ndarray, "3 bins"]
    alias: Int32[np.ndarray, " bins"]


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
    parts = [[t >> 113 for t in threshold], [t >> 49 & word for t in threshold]]
    parts.append([t & (2**49 - 1) for t in threshold])
    return AliasTable(np.asarray(parts, np.uint64), np.asarray(alias, np.int32))


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
