"""Keeping XLA from working things out again and again.

On a processor XLA joins cheap operations with the ones that read them. Where many numbers are made
from few (a row from a turn, a frame from its draws) the few are then worked out once for each of the
many. What a branch of a conditional reads and gives is stored, so `stored` puts a computation there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, UInt32

Made = TypeVar("Made")


def true_for(words: UInt32[Array, "*any"]) -> Bool[Array, ""]:
    """True, whatever the words are, but not before the program runs."""
    return (words.ravel()[0] | 1) != 0


def stored(true: Bool[Array, ""], make: Callable[..., Made], *of: object) -> Made:
    """`make(*of)`; arguments and results are stored. `true` is `true_for` some public words.

    An accelerator is better at recognising what is worth storing, and slow at conditionals.
    """

    def made(*of: object) -> Made:
        return jax.tree.map(_in_order, make(*of))

    def never(*of: object) -> Made:
        return jax.tree.map(lambda like: _in_order(_useless(like)), jax.eval_shape(make, *of))

    on_processor = jax.default_backend() == "cpu"
    return jax.lax.cond(true, made, never, *of) if on_processor else make(*of)


def _useless(like: jax.ShapeDtypeStruct) -> Array:
    """For the branch that is never taken: NaN, so that no mistake could make noise of 0 there."""
    floating = jnp.issubdtype(like.dtype, jnp.floating)
    return jnp.full(like.shape, jnp.nan if floating else 0, like.dtype)


def _in_order(x: Array) -> Array:
    """The last axis is the one whose numbers lie side by side."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
