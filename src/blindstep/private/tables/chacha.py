"""ChaCha20 (RFC 8439): the key stream that secret noise is made of.

The state of a block is 16 words, a 4 x 4 matrix. A round works on its columns, the next one on its
diagonals. Two programs give the same integers: a loop over all blocks at once, and for a graphics
card a kernel in which each thread keeps its blocks in registers from the first round to the last.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_DOUBLE_ROUNDS = 10
WORDS = 16  # of a block
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
    return words.reshape(WORDS, *many, blocks)


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
        out_shape=jax.ShapeDtypeStruct((WORDS, programs * size), jnp.uint32),
        grid=(programs,),
        in_specs=[
            pl.BlockSpec((8,), lambda _: (0,)),
            pl.BlockSpec((4, size), lambda program: (0, program)),
        ],
        out_specs=pl.BlockSpec((WORDS, size), lambda program: (0, program)),
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
    for i in range(WORDS):
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
