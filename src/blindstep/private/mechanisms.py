"""The factor C of a mechanism: what a block's increments are multiplied by before noise joins them.

The gate releases y = C m + z for a block of increments m_1 .. m_T, with independent noise z. Privacy
is read off the columns of C, and nothing else about a mechanism matters for it. With A the
lower-triangular ones and B = A C^-1, the running sums are B y = A m + B z: post-processing, done
outside (`optimize.prefix`). Every entry of C lies between 0 and 1.

Four mechanisms stand here: independent noise, the paper's tree, and two Toeplitz matrices, the square
root and a few fading buffers (BLT). The numbers behind the last two decide about accuracy alone: what
their columns cost, `columns` computes. It measures a mechanism that is defined elsewhere.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.errors import InvalidArgument, count
from blindstep.private import blt_table

State = Float[Array, "slots size"]
Vector = Float[Array, " size"]
Place = Int[Array, ""]
PerStep = Float[np.ndarray, " steps"]


class Mechanism(eqx.Module):
    """A lower-triangular matrix C of size `steps`, with entries in [0, 1].

    A subclass with a `name` of its own can be asked for by that name (`Mechanism.named`). All its
    fields must be static: equal mechanisms are one.
    """

    name: ClassVar[str]
    steps: eqx.AbstractVar[int]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            return
        there = MECHANISMS.get(cls.name, cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidArgument(
                f"there is a mechanism {cls.name!r} already, {there.__module__}."
                f"{there.__qualname__}: give {cls.__qualname__} another name."
            )
        MECHANISMS[cls.name] = cls

    @staticmethod
    def named(name: str) -> type[Mechanism]:
        """The mechanism of this name."""
        if name not in MECHANISMS:
            raise InvalidArgument(
                f"no mechanism {name!r}: there are {', '.join(MECHANISMS)}. For one of your own, "
                "import the module that defines it first."
            )
        return MECHANISMS[name]

    @property
    def roundings(self) -> int:
        """The most relative roundings of 2^-53 between the increments and any (C m)_t.

        A sum over the block, or as many steps of a recursion, with a few roundings each.
        """
        return 4 * (self.steps + 8) if self.steps > 1 else 0

    @abc.abstractmethod
    def init(self, size: int) -> State:
        """The streaming state before a block's first increment."""

    @abc.abstractmethod
    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """Take the increment at `place` = 0 .. steps - 1 of the block and give (C m) there."""

    def column_norms(self) -> PerStep:
        """Euclidean norms of the columns of C, never too small: the cost of a unit of sensitivity.

        For a C of zeros and ones, the roots of `column_counts`.
        """
        return np.sqrt(self.column_counts())

    @abc.abstractmethod
    def column_counts(self) -> PerStep:
        """The number of releases that each increment enters: nonzero entries of the columns of C."""


MECHANISMS: dict[str, type[Mechanism]] = {}


class Independent(Mechanism):
    """C is the identity: each increment is released once, with noise of its own."""

    name: ClassVar[str] = "independent"
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def init(self, size: int) -> State:
        """Nothing to remember."""
        return jnp.zeros((0, size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """The increment itself."""
        return state, increment

    def column_counts(self) -> PerStep:
        """Ones."""
        return np.ones(self.steps)


class BinaryTree(Mechanism):
    """The paper's tree mechanism (Algorithm alg:tree), as the Fenwick tree it is.

    Release t (from 1) is the node that ends at t and covers the increments (t - lowbit(t), t].
    Increment i enters the nodes i, i + lowbit(i), ... up to `steps`, at most floor(log2 steps) + 1 of
    them (erratum 1: the paper's 2 ln T is false at T = 1, 2, 4).
    """

    name: ClassVar[str] = "tree"
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def init(self, size: int) -> State:
        """One slot for each level: the finished node of that level which no larger one has joined."""
        return jnp.zeros((self.steps.bit_length(), size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """The node that ends here: the increment and the finished nodes of all levels below it."""
        end = jnp.asarray(place) + 1
        levels = jnp.arange(state.shape[0])
        lowbit = end & -end
        here, below = (lowbit >> levels) == 1, (lowbit >> levels) > 1
        node = increment + jnp.sum(jnp.where(below[:, None], state, 0.0), axis=0)
        state = jnp.where(here[:, None], node, jnp.where(below[:, None], 0.0, state))
        return state, node

    def column_counts(self) -> PerStep:
        """The number of nodes i, i + lowbit(i), ... up to `steps`."""
        node = np.arange(1, self.steps + 1)
        nodes = np.zeros(self.steps)
        while (inside := node <= self.steps).any():
            nodes += inside
            node += node & -node
        return nodes


class ColumnNormalised(Mechanism):
    """C = T D^-1: a lower-triangular Toeplitz matrix T with its columns scaled to norm 1.

    T has coefficients c_0 = 1, c_1, ... >= 0, and D = diag(n_1, .., n_T) with n_i >= |column i of T|.
    Only T - i + 1 coefficients fit into column i, so late columns are shorter than the first one;
    dividing by n_i gives them the same norm, which costs no privacy and takes noise off later sums.

    |column i of C| <= 1 for any coefficients, as long as n_i is never too small: `columns`
    compares. The n_i are rounded up by more than the error of computing them.
    """

    @abc.abstractmethod
    def coefficients(self) -> PerStep:
        """First column of T: c_0 = 1, c_1, ..."""

    @abc.abstractmethod
    def scaling(self) -> PerStep:
        """The diagonal of D: n_i >= |column i of T|, larger by rounding only."""

    def column_norms(self) -> PerStep:
        """Ones. The truth is below it by no more than the rounding of `scaling`."""
        return np.ones(self.steps)

    def column_counts(self) -> PerStep:
        """All releases from i on: steps - i + 1."""
        return np.arange(self.steps, 0, -1, dtype=np.float64)


# Covers the rounding of BLT's closed-form norms, some 1e-15, with room for any backend's expm1.
_ROUND_UP = 1 + 1e-12


class SquareRoot(ColumnNormalised):
    """The square root of A: c_k = binom(2k, k) / 4^k, the coefficients of (1 - x)^(-1/2).

    (Bennett 1977; Fichtenberger, Henzinger and Upadhyay 2023.) Its state holds all increments of a
    block, steps x size, and each release reads all of it. `BLT` is as accurate with a few vectors.
    """

    name: ClassVar[str] = "sqrt"
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def init(self, size: int) -> State:
        """Slot i holds m_i / n_i."""
        return jnp.zeros((self.steps, size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """sum over i <= place of c_(place - i) m_i / n_i."""
        state = state.at[place].set(increment / jnp.asarray(self.scaling())[place])
        lag = place - jnp.arange(self.steps)
        weights = jnp.asarray(self.coefficients())[jnp.maximum(lag, 0)]
        # Not a matrix product: an accelerator may round its factors.
        return state, jnp.sum(jnp.where(lag >= 0, weights, 0.0)[:, None] * state, axis=0)

    def coefficients(self) -> PerStep:
        """binom(2k, k) / 4^k."""
        return square_root(self.steps)[0]

    def scaling(self) -> PerStep:
        """Column norms of T, rounded up by steps x 2^-50 relative."""
        return square_root(self.steps)[1]


class BLT(ColumnNormalised):
    """Buffered linear Toeplitz: c_0 = 1, c_k = sum_b omega_b theta_b^(k-1) with a few buffers b.

    (Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024.) Streaming needs no memory of the block:
    with u = m_t / n_t, (C m)_t = u + sum_b omega_b s_b, then s_b <- theta_b s_b + u. Parameters come
    from a table and decide about accuracy only; equal `steps` give equal parameters to the last bit.

    Attributes:
        steps: number of releases.
        decays: theta of each buffer.
        scales: omega of each buffer.
    """

    name: ClassVar[str] = "blt"
    steps: int = eqx.field(static=True)
    decays: tuple[float, ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, steps: int) -> None:
        self.steps = count("steps", steps)
        self.decays, self.scales = blt_table.parameters(self.steps)

    def init(self, size: int) -> State:
        """One slot for each buffer."""
        return jnp.zeros((len(self.decays), size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """The scaled increment and what the buffers remember; each buffer fades and takes it in."""
        scaled = increment / self.norm_of_column(jnp.asarray(place))
        total = scaled
        for scale, buffer in zip(self.scales, state, strict=True):
            total = total + scale * buffer
        return jnp.asarray(self.decays)[:, None] * state + scaled, total

    def coefficients(self) -> PerStep:
        """1, then sum_b omega_b theta_b^(k-1)."""
        k = np.arange(self.steps - 1, dtype=np.float64)
        pairs = zip(self.decays, self.scales, strict=True)
        return np.concatenate([[1.0], sum(scale * decay**k for decay, scale in pairs)])

    def scaling(self) -> PerStep:
        """Column norms of T, rounded up by 1e-12 relative."""
        remaining = np.arange(self.steps - 1, -1, -1, dtype=np.float64)
        return blt_norm(self.decays, self.scales, remaining, np)

    def norm_of_column(self, place: Place) -> Float[Array, ""]:
        """`scaling` at one place, where the place is known only while a program runs."""
        remaining = (self.steps - 1 - place).astype(jnp.float64)
        return blt_norm(self.decays, self.scales, remaining, jnp)


@lru_cache(maxsize=8)
def square_root(
    steps: int,
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """binom(2k, k) / 4^k, and the column norms of their Toeplitz matrix, rounded up.

    With u = 2^-53, coefficient k is a product of k rounded quotients (2k u), its square is off by at
    most (4k + 1) u, the sum of `steps` of them by (5 steps + 1) u and its root by (2.5 steps + 2) u:
    less than the 8 steps u that are added. Kept: an eager run asks for them at every release.
    """
    k = np.arange(1, steps)
    coefficients = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    norms = np.sqrt(np.cumsum(coefficients**2))[::-1] * (1 + steps * 2.0**-50)
    coefficients.setflags(write=False)
    norms.setflags(write=False)
    return coefficients, norms


def blt_norm(
    decays: Sequence[float], scales: Sequence[float], remaining: Any, xp: ModuleType
) -> Any:
    """sqrt(c_0^2 + ... + c_remaining^2) for c_0 = 1, c_k = sum_b omega_b theta_b^(k-1), rounded up.

    The square is 1 + sum_ab omega_a omega_b (1 - (theta_a theta_b)^remaining) / (1 - theta_a
    theta_b). No term is negative and powers go through expm1, so nothing cancels. `xp` is numpy on
    the host and jax.numpy inside a program.
    """
    square = 1.0
    logs = [math.log(theta) for theta in decays]
    for a, (log_a, omega_a) in enumerate(zip(logs, scales, strict=True)):
        for b in range(a + 1):
            rate = log_a + logs[b]
            weight = (1 if a == b else 2) * omega_a * scales[b] / -math.expm1(rate)
            square = square + weight * -xp.expm1(remaining * rate)
    return xp.sqrt(square) * _ROUND_UP
