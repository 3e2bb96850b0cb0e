"""Noise for running sums: y_t = m_1 + ... + m_t + noise_t, streamed.

Let A be the lower-triangular matrix of ones and A = B C a factorisation into lower-triangular
matrices. Adding noise B z with z ~ N(0, sigma^2 I) to A m releases B (C m + z): a post-processing of
the Gaussian mechanism on C m. Privacy is read off the columns of C (`column_norms`), accuracy off the
rows of B (`row_norms`). A mechanism only says what B and C are and how to stream B z.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.errors import count


class Prefix(eqx.Module):
    """A factorisation A = B C for `steps` releases, with streaming noise.

    `integer` says that B and C are made of whole numbers and that `next` only adds: draws that are
    whole numbers give noise that is one, exactly.
    """

    name: ClassVar[str]
    integer: ClassVar[bool] = False
    steps: eqx.AbstractVar[int]

    @abc.abstractmethod
    def init(self, dim: int) -> Float[Array, "slots dim"]:
        """The streaming state before the first draw."""

    @abc.abstractmethod
    def next(
        self, state: Float[Array, "slots dim"], draw: Float[Array, " dim"], step: Int[Array, ""]
    ) -> tuple[Float[Array, "slots dim"], Float[Array, " dim"]]:
        """Take draw z_step (step = 1, 2, ...) and give (B z)_step."""

    @abc.abstractmethod
    def factors(self) -> tuple[Float[np.ndarray, "steps steps"], Float[np.ndarray, "steps steps"]]:
        """The matrices B and C, dense: for tests and audits."""

    def materialize(self, n: int | None = None) -> Float[np.ndarray, "n n"]:
        """The noise operator B, or its leading n x n corner."""
        return self.factors()[0][:n, :n]

    def strategy(self, n: int | None = None) -> Float[np.ndarray, "n n"]:
        """The strategy C, or its leading n x n corner."""
        return self.factors()[1][:n, :n]

    @abc.abstractmethod
    def column_norms(self) -> Float[np.ndarray, " steps"]:
        """Euclidean norms of the columns of C, exactly: what one unit of sensitivity costs."""

    @abc.abstractmethod
    def row_norms(self) -> Float[np.ndarray, " steps"]:
        """Euclidean norms of the rows of B: standard deviation of the noise on release t."""


class Independent(Prefix):
    """A fresh draw on every release: B = I, C = A. The naive oracle's noise, with steps = 1.

    An increment shows in all later releases, so column i has norm sqrt(steps - i + 1).
    """

    name: ClassVar[str] = "independent"
    integer: ClassVar[bool] = True
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def init(self, dim: int) -> Float[Array, "slots dim"]:
        """Nothing to remember."""
        return jnp.zeros((0, dim))

    def next(
        self, state: Float[Array, "slots dim"], draw: Float[Array, " dim"], step: Int[Array, ""]
    ) -> tuple[Float[Array, "slots dim"], Float[Array, " dim"]]:
        """The draw itself."""
        return state, draw

    def factors(self) -> tuple[Float[np.ndarray, "steps steps"], Float[np.ndarray, "steps steps"]]:
        """The identity, and lower-triangular ones."""
        return np.eye(self.steps), np.tri(self.steps)

    def column_norms(self) -> Float[np.ndarray, " steps"]:
        """sqrt(steps - i + 1)."""
        return np.sqrt(np.arange(self.steps, 0, -1, dtype=np.float64))

    def row_norms(self) -> Float[np.ndarray, " steps"]:
        """Ones."""
        return np.ones(self.steps)


class BinaryTree(Prefix):
    """The paper's tree mechanism (Algorithm alg:tree), as the Fenwick tree it is.

    Draw i is the noise of the node that ends at i and covers (i - lowbit(i), i]. NODE(t) takes one
    node for each one-bit of t, so row t of B has popcount(t) ones. Leaf i enters nodes i,
    i + lowbit(i), ... up to `steps`: the column norm is the root of that count, at most
    floor(log2 steps) + 1 (erratum 1: the paper's 2 ln T is false at T = 1, 2, 4).
    """

    name: ClassVar[str] = "tree"
    integer: ClassVar[bool] = True
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def init(self, dim: int) -> Float[Array, "slots dim"]:
        """One slot for each level: the noise of the node of that level now in the sum."""
        return jnp.zeros((self.steps.bit_length(), dim))

    def next(
        self, state: Float[Array, "slots dim"], draw: Float[Array, " dim"], step: Int[Array, ""]
    ) -> tuple[Float[Array, "slots dim"], Float[Array, " dim"]]:
        """The node ending here replaces all smaller ones; the noise is the sum over levels."""
        levels = jnp.arange(state.shape[0])
        lowbit = step & -step
        here = (lowbit >> levels) == 1
        below = (lowbit >> levels) > 1
        state = jnp.where(here[:, None], draw, jnp.where(below[:, None], 0.0, state))
        return state, jnp.sum(state, axis=0)

    def factors(self) -> tuple[Float[np.ndarray, "steps steps"], Float[np.ndarray, "steps steps"]]:
        """Row t of B: the ends of NODE(t). Row i of C: the leaves (i - lowbit(i), i]."""
        noise, strategy = np.zeros((2, self.steps, self.steps))
        for t in range(1, self.steps + 1):
            strategy[t - 1, t - (t & -t) : t] = 1
            end = t
            while end:
                noise[t - 1, end - 1] = 1
                end -= end & -end
        return noise, strategy

    def column_norms(self) -> Float[np.ndarray, " steps"]:
        """Root of the number of nodes i, i + lowbit(i), ... up to `steps`."""
        node = np.arange(1, self.steps + 1)
        nodes = np.zeros(self.steps)
        while (inside := node <= self.steps).any():
            nodes += inside
            node += node & -node
        return np.sqrt(nodes)

    def row_norms(self) -> Float[np.ndarray, " steps"]:
        """Root of popcount(t)."""
        return np.sqrt(np.bitwise_count(np.arange(1, self.steps + 1)).astype(np.float64))
