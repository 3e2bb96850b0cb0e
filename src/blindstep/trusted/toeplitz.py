"""Prefix noise from Toeplitz matrices whose columns are scaled to norm 1.

Let A be the lower-triangular ones, C a lower-triangular Toeplitz matrix with coefficients
c_0 = 1, c_1, ..., and D = diag(n_1, ..., n_T) with n_i >= |column i of C|. Then

    A = B' C',   C' = C D^-1,   B' = A C'^-1 = A D C^-1.

Only T - i + 1 coefficients of C fit into column i, so late columns of C are shorter than the first
one; dividing by n_i gives them the same norm, which costs no privacy and takes noise off later
releases. The noise B' z is a running sum: with y = C^-1 z,

    (B' z)_t = (B' z)_{t-1} + n_t y_t.

Guarantee: |column i of C'| = |column i of C| / n_i <= 1, so a block of increments with sensitivities
s_i under noise of standard deviation sigma is (max_i s_i / sigma)-Gaussian-DP, for increments chosen
adaptively too (`accounting.block_mu`). The n_i are rounded up by more than the error of computing
them; only they and the coefficients of C enter the argument, so any coefficients are private, and
good ones are accurate.
"""

from __future__ import annotations

import abc
from functools import lru_cache
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.errors import count
from blindstep.trusted.prefix import Prefix


class ColumnNormalised(Prefix):
    """A factorisation A = (A D C^-1) (C D^-1) with C Toeplitz and D its rounded-up column norms."""

    @abc.abstractmethod
    def coefficients(self) -> Float[np.ndarray, " steps"]:
        """First column of C: c_0 = 1, c_1, ..."""

    @abc.abstractmethod
    def inverse_coefficients(self) -> Float[np.ndarray, " steps"]:
        """First column of C^-1: h_0 = 1, h_1, ..."""

    @abc.abstractmethod
    def scaling(self) -> Float[np.ndarray, " steps"]:
        """The diagonal of D: n_i >= |column i of C|, larger by rounding only."""

    @abc.abstractmethod
    def overlaps(
        self, sums: Float[np.ndarray, " steps"], falls: Float[np.ndarray, " steps-1"]
    ) -> Float[np.ndarray, " steps"]:
        """sum_j h_{t-j} w_t(j), where w_t(j) is the sum over i < t of (n_i - n_{i+1}) g_{i-j}.

        Given `sums`, the coefficients g of A C^-1, and `falls`, the n_i - n_{i+1}: see `row_norms`.
        """

    def factors(self) -> tuple[Float[np.ndarray, "steps steps"], Float[np.ndarray, "steps steps"]]:
        """A D C^-1 and C D^-1."""
        scaling = self.scaling()
        inverse = _lower_toeplitz(self.inverse_coefficients())
        noise = np.cumsum(scaling[:, None] * inverse, axis=0)
        return noise, _lower_toeplitz(self.coefficients()) / scaling

    def column_norms(self) -> Float[np.ndarray, " steps"]:
        """Ones. The truth is at most 1, and below it by no more than the rounding of `scaling`."""
        return np.ones(self.steps)

    def row_norms(self) -> Float[np.ndarray, " steps"]:
        """Roots of the variances V_t = V_{t-1} + (n_t g_{t-1})^2 + 2 n_t overlap_t.

        By parts, row t of B' is n_t g_{t-j} + w_t(j), and row t - 1 is n_t g_{t-1-j} + w_t(j); they
        differ by n_t h_{t-j}. Taken so, terms of order 1 that cancel never meet: rounding stays
        below 1e-10 relative up to a million steps, and memory grows like `steps`.
        """
        scaling, sums = self.scaling(), np.cumsum(self.inverse_coefficients())
        overlaps = self.overlaps(sums, scaling[:-1] - scaling[1:])
        return np.sqrt(np.cumsum(scaling * (scaling * sums**2 + 2 * overlaps)))


class SquareRoot(ColumnNormalised):
    """The square root C = A^(1/2), columns scaled to norm 1.

    C has the coefficients c_k = binom(2k, k) / 4^k of (1 - x)^(-1/2) (Bennett 1977; Fichtenberger,
    Henzinger and Upadhyay 2023), C^-1 has h_k = -c_k / (2k - 1), those of (1 - x)^(1/2).
    Sensitivity: every column of C' has norm 1. State: all draws and the running sum,
    (steps + 1) x dim; each step reads all of it. `blt.BLT` is as accurate with a few vectors.
    """

    name: ClassVar[str] = "sqrt"
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def init(self, dim: int) -> Float[Array, "slots dim"]:
        """Slot 0 is the running sum, slot i is draw i."""
        return jnp.zeros((self.steps + 1, dim))

    def next(
        self, state: Float[Array, "slots dim"], draw: Float[Array, " dim"], step: Int[Array, ""]
    ) -> tuple[Float[Array, "slots dim"], Float[Array, " dim"]]:
        """Keep the draw, filter all draws so far by C^-1, and add n_step times that."""
        slot = jnp.arange(self.steps + 1)
        lag = step - slot
        inverse = jnp.asarray(self.inverse_coefficients())[jnp.maximum(lag, 0)]
        weights = jnp.where((slot >= 1) & (lag >= 0), inverse, 0.0)
        state = state.at[step].set(draw)
        total = state[0] + jnp.asarray(self.scaling())[step - 1] * (weights @ state)
        return state.at[0].set(total), total

    def coefficients(self) -> Float[np.ndarray, " steps"]:
        """binom(2k, k) / 4^k."""
        return _square_root(self.steps)[0]

    def inverse_coefficients(self) -> Float[np.ndarray, " steps"]:
        """-c_k / (2k - 1)."""
        coefficients = self.coefficients()
        return -coefficients / (2 * np.arange(self.steps) - 1)

    def scaling(self) -> Float[np.ndarray, " steps"]:
        """Column norms of C, rounded up by steps x 2^-50 relative.

        The unit of rounding is u = 2^-53. c_k is a product of k rounded quotients (2k u), its
        square is off by at most (4k + 1) u, the sum of `steps` of them by (5 steps + 1) u and its
        root by (2.5 steps + 2) u: less than the 8 steps u that are added.
        """
        return _square_root(self.steps)[1]

    def overlaps(
        self, sums: Float[np.ndarray, " steps"], falls: Float[np.ndarray, " steps-1"]
    ) -> Float[np.ndarray, " steps"]:
        """Exact, by one convolution: g = c, and the inner sums telescope to

        sum_{j <= i} c_{i-j} h_{t-j} = -(2i - 1) c_{i-1} c_{t-1} / (2 (t - i) - 1).
        """
        coefficients = self.coefficients()
        odd = 2.0 * np.arange(1, self.steps) - 1
        parts = falls * odd * coefficients[:-1]
        return -coefficients * np.concatenate([[0.0], _convolve(parts, 1 / odd)])


@lru_cache(maxsize=8)
def _square_root(
    steps: int,
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """Coefficients and scaling, kept: an eager run asks for them at every step."""
    k = np.arange(1, steps)
    coefficients = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    scaling = np.sqrt(np.cumsum(coefficients**2))[::-1] * (1 + steps * 2.0**-50)
    coefficients.setflags(write=False)
    scaling.setflags(write=False)
    return coefficients, scaling


def _lower_toeplitz(first_column: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
    steps = np.arange(first_column.size)
    lag = steps[:, None] - steps
    return np.where(lag >= 0, first_column[np.maximum(lag, 0)], 0.0)


def _convolve(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The first n terms of a * b."""
    size = 2 * a.size
    if size == 0:
        return a
    return np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)[: a.size]
