"""Running sums from releases: B y, post-processing of what the gate gave out.

The gate releases y = C m + z (`private.mechanisms`). With A the lower-triangular ones and B = A C^-1,

    B y = A m + B z:     the running sums of the increments, with noise B z.

Accuracy is read off the rows of B (`row_norms`): the noise on sum t has standard deviation
noise_std |row t of B|. Nothing here can weaken privacy.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_banded, solve_triangular

from blindstep.private.mechanisms import (
    BLT,
    BinaryTree,
    ColumnNormalised,
    Independent,
    Mechanism,
    PerStep,
    Place,
    SquareRoot,
    State,
    Vector,
    matrix_of,
)

Of = TypeVar("Of", bound=Mechanism)
Normalised = TypeVar("Normalised", bound=ColumnNormalised)


class Prefix(eqx.Module, Generic[Of]):
    """The running sums of a block's increments, streamed from the releases of a mechanism."""

    mechanism: Of

    @abc.abstractmethod
    def init(self, size: int) -> State:
        """The streaming state before a block's first release."""

    @abc.abstractmethod
    def next(self, state: State, release: Vector, place: Place) -> tuple[State, Vector]:
        """Take the release at `place` = 0 .. steps - 1 of the block and give (B y) there."""

    @abc.abstractmethod
    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        """B, dense: for tests and audits."""

    @abc.abstractmethod
    def row_norms(self) -> PerStep:
        """Euclidean norms of the rows of B: the noise on each running sum, in units of noise_std."""


class PlainSums(Prefix[Independent]):
    """B = A for independent noise: releases are increments, and sums are sums of them."""

    def init(self, size: int) -> State:
        """The sum so far."""
        return jnp.zeros((1, size))

    def next(self, state: State, release: Vector, place: Place) -> tuple[State, Vector]:
        """Add the release."""
        total = state[0] + release
        return total[None], total

    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        """Lower-triangular ones."""
        return np.tri(self.mechanism.steps)

    def row_norms(self) -> PerStep:
        """sqrt(t): the noise of t releases adds up."""
        return np.sqrt(np.arange(1, self.mechanism.steps + 1, dtype=np.float64))


class TreeSums(Prefix[BinaryTree]):
    """NODE(t) of the paper: one node for each one-bit of t, so popcount(t) draws of noise."""

    def init(self, size: int) -> State:
        """One slot for each level: the node of that level now in the sum."""
        return jnp.zeros((self.mechanism.steps.bit_length(), size))

    def next(self, state: State, release: Vector, place: Place) -> tuple[State, Vector]:
        """The node that ends here replaces all smaller ones; the sum is over levels."""
        end = jnp.asarray(place) + 1
        levels = jnp.arange(state.shape[0])
        lowbit = end & -end
        here, below = (lowbit >> levels) == 1, (lowbit >> levels) > 1
        state = jnp.where(here[:, None], release, jnp.where(below[:, None], 0.0, state))
        return state, jnp.sum(state, axis=0)

    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        """Row t: ones at the ends of NODE(t)."""
        matrix = np.zeros((self.mechanism.steps, self.mechanism.steps))
        for t in range(1, self.mechanism.steps + 1):
            end = t
            while end:
                matrix[t - 1, end - 1] = 1
                end -= end & -end
        return matrix

    def row_norms(self) -> PerStep:
        """Root of popcount(t)."""
        steps = np.arange(1, self.mechanism.steps + 1)
        return np.sqrt(np.bitwise_count(steps).astype(np.float64))


class ToeplitzSums(Prefix[Normalised]):
    """B = A D T^-1 for C = T D^-1, T a Toeplitz matrix with coefficients c and D its column norms n.

    Sums run: with x = T^-1 y, (B y)_t = (B y)_{t-1} + n_t x_t.
    """

    @abc.abstractmethod
    def inverse_coefficients(self) -> PerStep:
        """First column of T^-1: h_0 = 1, h_1, ..."""

    @abc.abstractmethod
    def overlaps(self, sums: PerStep, falls: Float[np.ndarray, " steps-1"]) -> PerStep:
        """sum_j h_{t-j} w_t(j), where w_t(j) is the sum over i < t of (n_i - n_{i+1}) g_{i-j}.

        Given `sums`, the coefficients g of A T^-1, and `falls`, the n_i - n_{i+1}: see `row_norms`.
        """

    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        """A D T^-1."""
        inverse = _lower_toeplitz(self.inverse_coefficients())
        return np.cumsum(self.mechanism.scaling()[:, None] * inverse, axis=0)

    def row_norms(self) -> PerStep:
        """Roots of the variances V_t = V_{t-1} + (n_t g_{t-1})^2 + 2 n_t overlap_t.

        By parts, row t of B is n_t g_{t-j} + w_t(j), and row t - 1 is n_t g_{t-1-j} + w_t(j); they
        differ by n_t h_{t-j}. Taken so, terms of order 1 that cancel never meet: rounding stays
        below 1e-10 relative up to a million steps, and memory grows like `steps`.
        """
        scaling, sums = self.mechanism.scaling(), np.cumsum(self.inverse_coefficients())
        overlaps = self.overlaps(sums, scaling[:-1] - scaling[1:])
        return np.sqrt(np.cumsum(scaling * (scaling * sums**2 + 2 * overlaps)))


class SquareRootSums(ToeplitzSums[SquareRoot]):
    """T^-1 has h_k = -c_k / (2k - 1), the coefficients of (1 - x)^(1/2)."""

    def init(self, size: int) -> State:
        """Slot 0 is the running sum, slot i is release i."""
        return jnp.zeros((self.mechanism.steps + 1, size))

    def next(self, state: State, release: Vector, place: Place) -> tuple[State, Vector]:
        """Keep the release, filter all releases so far by T^-1, and add n_t times that."""
        slot = jnp.arange(self.mechanism.steps + 1)
        lag = place + 1 - slot
        inverse = jnp.asarray(self.inverse_coefficients())[jnp.maximum(lag, 0)]
        weights = jnp.where((slot >= 1) & (lag >= 0), inverse, 0.0)
        state = state.at[place + 1].set(release)
        total = state[0] + jnp.asarray(self.mechanism.scaling())[place] * (weights @ state)
        return state.at[0].set(total), total

    def inverse_coefficients(self) -> PerStep:
        """-c_k / (2k - 1)."""
        return -self.mechanism.coefficients() / (2 * np.arange(self.mechanism.steps) - 1)

    def overlaps(self, sums: PerStep, falls: Float[np.ndarray, " steps-1"]) -> PerStep:
        """Exact, by one convolution: g = c, and the inner sums telescope to

        sum_{j <= i} c_{i-j} h_{t-j} = -(2i - 1) c_{i-1} c_{t-1} / (2 (t - i) - 1).
        """
        coefficients = self.mechanism.coefficients()
        odd = 2.0 * np.arange(1, self.mechanism.steps) - 1
        parts = falls * odd * coefficients[:-1]
        return -coefficients * np.concatenate([[0.0], _convolve(parts, 1 / odd)])


class BLTSums(ToeplitzSums[BLT]):
    """T^-1 streamed from T's buffers: x_t = y_t - sum_b omega_b s_b, then s_b <- theta_b s_b + x_t."""

    def init(self, size: int) -> State:
        """One slot for each buffer; the last is the running sum."""
        return jnp.zeros((len(self.mechanism.decays) + 1, size))

    def next(self, state: State, release: Vector, place: Place) -> tuple[State, Vector]:
        """x = the release less what the buffers foresee; the running sum takes n_t x."""
        decays, scales = self.mechanism.decays, self.mechanism.scales
        filtered = release
        for scale, buffer in zip(scales, state, strict=False):
            filtered = filtered - scale * buffer
        norm = self.mechanism.norm_of_column(jnp.asarray(place))
        # All slots at once: the sum forgets nothing and takes n_t x, a buffer fades and takes x.
        kept = jnp.asarray([*decays, 1.0])
        taken = jnp.stack([*jnp.ones(len(decays)), norm])
        state = kept[:, None] * state + taken[:, None] * filtered
        return state, state[-1]

    def inverse_coefficients(self) -> PerStep:
        """1, then sum_b kappa_b lambda_b^(k-1): see `_inverse`."""
        powers, weights = _inverse(self.mechanism.decays, self.mechanism.scales)
        k = np.arange(self.mechanism.steps - 1, dtype=np.float64)
        pairs = zip(powers, weights, strict=True)
        return np.concatenate([[1.0], sum(weight * power**k for power, weight in pairs)])

    def overlaps(self, sums: PerStep, falls: Float[np.ndarray, " steps-1"]) -> PerStep:
        """Exact, in the coordinates where the inverse is diagonal.

        There x_t = y_t + sum_b kappa_b u_b, then u_b <- lambda_b u_b + y_t. The covariance q_b(t) of
        w_t's noise with u_b as x_t meets it obeys

            q_b(t) = lambda_b q_b(t-1) + (n_{t-1} - n_t) sum_{k < t-1} g_k lambda_b^k.
        """
        k = np.arange(self.mechanism.steps - 1, dtype=np.float64)
        overlaps = np.zeros(self.mechanism.steps)
        inverse = _inverse(self.mechanism.decays, self.mechanism.scales)
        for power, weight in zip(*inverse, strict=True):
            drive = falls * np.cumsum(sums[:-1] * power**k)
            overlaps[1:] += weight * _leaky_sum(drive, power)
        return overlaps


class DenseSums(Prefix[Mechanism]):
    """B = A C^-1 of any mechanism, from C as the gate streams it. Its state is a block's releases."""

    factor: Float[Array, "steps steps"]

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        with jax.enable_x64(True):
            self.factor = jnp.asarray(self.matrix())

    def init(self, size: int) -> State:
        """No release yet."""
        return jnp.zeros((self.mechanism.steps, size))

    def next(self, state: State, release: Vector, place: Place) -> tuple[State, Vector]:
        """Keep the release, and weigh all releases so far."""
        state = state.at[place].set(release)
        return state, self.factor[place] @ state

    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        """A C^-1, by a triangular system."""
        whole = np.tri(self.mechanism.steps)
        return solve_triangular(matrix_of(self.mechanism).T, whole.T, lower=False).T

    def row_norms(self) -> PerStep:
        """Read off the matrix."""
        return np.linalg.norm(self.matrix(), axis=1)


_SUMS: dict[type[Mechanism], type[Prefix[Any]]] = {
    Independent: PlainSums,
    BinaryTree: TreeSums,
    SquareRoot: SquareRootSums,
    BLT: BLTSums,
}


def prefix_of(mechanism: Mechanism) -> Prefix[Any]:
    """The running sums that belong to a mechanism's releases; of an unknown one, by a dense B."""
    known = _SUMS.get(type(mechanism))
    return DenseSums(mechanism) if known is None else known(mechanism)


def _lower_toeplitz(first_column: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
    """The lower-triangular matrix that is constant along diagonals and has this first column."""
    lag = np.subtract.outer(np.arange(first_column.size), np.arange(first_column.size))
    return np.where(lag >= 0, first_column[np.maximum(lag, 0)], 0.0)


def _inverse(
    decays: Sequence[float], scales: Sequence[float]
) -> tuple[Float[np.ndarray, " buffers"], Float[np.ndarray, " buffers"]]:
    """lambda and kappa of T^-1, whose coefficients are 1, then sum_b kappa_b lambda_b^(k-1).

    The buffers s obey s <- (diag(theta) - 1 omega^T) s + 1 y. Scaled by sqrt(omega) that matrix is
    symmetric, so its spectrum is real and well conditioned.
    """
    root = np.sqrt(np.asarray(scales))
    powers, vectors = np.linalg.eigh(np.diag(decays) - np.outer(root, root))
    return powers, -((vectors.T @ root) ** 2)


def _leaky_sum(drive: Float[np.ndarray, " n"], keep: float) -> Float[np.ndarray, " n"]:
    """q_t = keep q_{t-1} + drive_t, as a bidiagonal system (LAPACK, since a Python loop is slow)."""
    bands = np.stack([np.ones(drive.size), np.full(drive.size, -keep)])
    return solve_banded((1, 0), bands, drive, overwrite_ab=True, check_finite=False)


def _convolve(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The first n terms of a * b."""
    size = 2 * a.size
    if size == 0:
        return a
    return np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)[: a.size]
