"""`stored`: makes XLA keep an intermediate result in memory instead of computing it again.

On a CPU XLA fuses a cheap operation into every operation that reads its result. Where a few numbers
are read by many (a frame's draws, the weights of its rows), each reader then computes them again. XLA
does not fuse across the border of a conditional: operands and results of its branches are stored. So
`stored` puts a computation into a conditional whose branch is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, UInt32

Made = TypeVar("Made")


def opaque_true(words: UInt32[Array, "*any"]) -> Bool[Array, ""]:
    """A run-time True that XLA cannot fold into a constant. `words` may be any public words."""
    return (words.ravel()[0] | 1) != 0


def stored(true: Bool[Array, ""], make: Callable[..., Made], *of: object) -> Made:
    """`make(*of)`, with its arguments and its results stored in memory. `true` is an `opaque_true`.

    On an accelerator it is just `make(*of)`: XLA fuses well there, and conditionals are slow.
    """

    def made(*of: object) -> Made:
        return jax.tree.map(_row_major, make(*of))

    def never(*of: object) -> Made:
        return jax.tree.map(lambda like: _row_major(_filler(like)), jax.eval_shape(make, *of))

    on_cpu = jax.default_backend() == "cpu"
    return jax.lax.cond(true, made, never, *of) if on_cpu else make(*of)


def _filler(like: jax.ShapeDtypeStruct) -> Array:
    """The result of the branch that is never taken: NaN, so that a mistake could not go unseen."""
    floating = jnp.issubdtype(like.dtype, jnp.floating)
    return jnp.full(like.shape, jnp.nan if floating else 0, like.dtype)


def _row_major(x: Array) -> Array:
    """The same array, its last axis contiguous in memory."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
