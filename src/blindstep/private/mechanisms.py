"""The factor C of a mechanism: what a block's increments are multiplied by before noise joins them.

The gate releases y = C m + z for a block of increments m_1 .. m_T, with independent noise z. Privacy
is read off the columns of C, and nothing else about a mechanism matters for it. With A the
lower-triangular ones and B = A C^-1, the running sums are B y = A m + B z: post-processing, done
outside (`optimize.prefix`). Every entry of C lies between 0 and 1.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.errors import count

State = Float[Array, "slots size"]
Vector = Float[Array, " size"]
Place = Int[Array, ""]
PerStep = Float[np.ndarray, " steps"]


class Mechanism(eqx.Module):
    """A lower-triangular matrix C of size `steps`, with entries in [0, 1]."""

    name: ClassVar[str]
    steps: eqx.AbstractVar[int]

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

    Guarantee: |column i of C| <= 1 for any coefficients: good ones are accurate, all are private. The
    n_i are rounded up by more than the error of computing them. The coefficients there are, square
    root and BLT, stand in `tables.toeplitz`.
    """

    @abc.abstractmethod
    def coefficients(self) -> PerStep:
        """First column of T: c_0 = 1, c_1, ..."""

    @abc.abstractmethod
    def scaling(self) -> PerStep:
        """The diagonal of D: n_i >= |column i of T|, larger by rounding only."""

    def column_norms(self) -> PerStep:
        """Ones. The truth is at most 1, and below it by no more than the rounding of `scaling`."""
        return np.ones(self.steps)

    def column_counts(self) -> PerStep:
        """All releases from i on: steps - i + 1."""
        return np.arange(self.steps, 0, -1, dtype=np.float64)
