"""Prefix noise of nearly optimal variance from a state of a few vectors.

A buffered linear Toeplitz matrix (Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024) has the
coefficients

    c_0 = 1,   c_k = sum_b omega_b theta_b^(k-1)   (k >= 1),   omega_b > 0, 0 < theta_b < 1.

Its inverse is streamed from C's own buffers, with no parameter of the inverse: y = C^-1 z is

    y_t = z_t - sum_b omega_b s_b,   then   s_b <- theta_b s_b + y_t.

Columns are scaled to norm 1 as in `toeplitz`. The geometric sums in their norms have a closed form,
so nothing of the length of the run is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import solve_banded

from blindstep.errors import count
from blindstep.trusted.blt_parameters import TABLE
from blindstep.trusted.toeplitz import ColumnNormalised

# Covers the rounding of the closed-form norms, some 1e-15, with room for any backend's expm1.
_ROUND_UP = 1 + 1e-12


class BLT(ColumnNormalised):
    """Buffered linear Toeplitz, columns scaled to norm 1.

    Sensitivity: every column of C' has norm 1, whatever the parameters are: they decide about
    accuracy only. They come from a table made by `scripts/blt_parameters.py` and are found by
    elementary arithmetic, so equal `steps` give equal parameters to the last bit on every machine.
    State: (buffers + 1) x dim.

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
        self.decays, self.scales = parameters(self.steps)

    def init(self, dim: int) -> Float[Array, "slots dim"]:
        """One slot for each buffer; the last is the running sum."""
        return jnp.zeros((len(self.decays) + 1, dim))

    def next(
        self, state: Float[Array, "slots dim"], draw: Float[Array, " dim"], step: Int[Array, ""]
    ) -> tuple[Float[Array, "slots dim"], Float[Array, " dim"]]:
        """y = draw less what the buffers foresee; the running sum takes n_step y."""
        filtered = draw
        for scale, buffer in zip(self.scales, state, strict=False):
            filtered = filtered - scale * buffer
        remaining = (self.steps - jnp.asarray(step)).astype(draw.dtype)
        norm = column_norm(self.decays, self.scales, remaining, jnp)
        # All slots at once: the sum forgets nothing and takes n_step y, a buffer takes y.
        kept = jnp.asarray([*self.decays, 1.0])
        taken = jnp.stack([*jnp.ones(len(self.decays)), norm])
        state = kept[:, None] * state + taken[:, None] * filtered
        return state, state[-1]

    def coefficients(self) -> Float[np.ndarray, " steps"]:
        """1, then sum_b omega_b theta_b^(k-1)."""
        return _with_powers(self.decays, self.scales, self.steps)

    def inverse_coefficients(self) -> Float[np.ndarray, " steps"]:
        """1, then sum_b kappa_b lambda_b^(k-1): see `inverse`."""
        return _with_powers(*inverse(self.decays, self.scales), self.steps)

    def scaling(self) -> Float[np.ndarray, " steps"]:
        """Column norms of C, rounded up by 1e-12 relative."""
        remaining = np.arange(self.steps - 1, -1, -1, dtype=np.float64)
        return column_norm(self.decays, self.scales, remaining, np)

    def overlaps(
        self, sums: Float[np.ndarray, " steps"], falls: Float[np.ndarray, " steps-1"]
    ) -> Float[np.ndarray, " steps"]:
        """Exact, in the coordinates where the inverse is diagonal.

        There y_t = z_t + sum_b kappa_b u_b, then u_b <- lambda_b u_b + z_t. The covariance q_b(t)
        of w_t's noise with u_b as y_t meets it obeys

            q_b(t) = lambda_b q_b(t-1) + (n_{t-1} - n_t) sum_{k < t-1} g_k lambda_b^k.
        """
        k = np.arange(self.steps - 1, dtype=np.float64)
        overlaps = np.zeros(self.steps)
        for power, weight in zip(*inverse(self.decays, self.scales), strict=True):
            drive = falls * np.cumsum(sums[:-1] * power**k)
            overlaps[1:] += weight * _leaky_sum(drive, power)
        return overlaps


def column_norm(
    decays: Sequence[float], scales: Sequence[float], remaining: Any, xp: ModuleType
) -> Any:
    """sqrt(c_0^2 + ... + c_remaining^2), rounded up by 1e-12 relative.

    The square is 1 + sum_ab omega_a omega_b (1 - (theta_a theta_b)^remaining) / (1 - theta_a
    theta_b). No term is negative and powers go through expm1, so nothing cancels. `xp` is numpy on
    the host and jax.numpy where `remaining` is traced.
    """
    square = 1.0
    logs = [math.log(theta) for theta in decays]
    for a, (log_a, omega_a) in enumerate(zip(logs, scales, strict=True)):
        for b in range(a + 1):
            rate = log_a + logs[b]
            weight = (1 if a == b else 2) * omega_a * scales[b] / -math.expm1(rate)
            square = square + weight * -xp.expm1(remaining * rate)
    return xp.sqrt(square) * _ROUND_UP


def inverse(
    decays: Sequence[float], scales: Sequence[float]
) -> tuple[Float[np.ndarray, " buffers"], Float[np.ndarray, " buffers"]]:
    """lambda and kappa of C^-1, whose coefficients are 1, then sum_b kappa_b lambda_b^(k-1).

    The buffers s obey s <- (diag(theta) - 1 omega^T) s + 1 z. Scaled by sqrt(omega) that matrix is
    symmetric, so its spectrum is real and well conditioned.
    """
    root = np.sqrt(np.asarray(scales))
    powers, vectors = np.linalg.eigh(np.diag(decays) - np.outer(root, root))
    return powers, -((vectors.T @ root) ** 2)


def parameters(steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """theta and omega for a run of `steps` releases.

    The table has rows for powers of 2: time constants 1 / (1 - theta) and omega. Both are linear in
    `steps` between two rows; past the last row it is used unchanged.
    """
    rows = next((group for group in TABLE if steps <= group[-1].steps), TABLE[-1])
    low = [row for row in rows if row.steps <= steps][-1]
    high = next((row for row in rows if row.steps > steps), low)
    fraction = (steps - low.steps) / max(high.steps - low.steps, 1)
    times = _between(low.times, high.times, fraction)
    return tuple(1 - 1 / time for time in times), _between(low.scales, high.scales, fraction)


def _between(low: Sequence[float], high: Sequence[float], fraction: float) -> tuple[float, ...]:
    return tuple(a + fraction * (b - a) for a, b in zip(low, high, strict=True))


def _with_powers(
    powers: Iterable[float], weights: Iterable[float], steps: int
) -> Float[np.ndarray, " steps"]:
    """1, then sum_b weight_b power_b^(k-1) for k = 1 .. steps-1."""
    k = np.arange(steps - 1, dtype=np.float64)
    pairs = zip(powers, weights, strict=True)
    return np.concatenate([[1.0], sum(weight * power**k for power, weight in pairs)])


def _leaky_sum(drive: Float[np.ndarray, " steps"], keep: float) -> Float[np.ndarray, " steps"]:
    """q_t = keep q_{t-1} + drive_t, as a bidiagonal system (LAPACK, since a Python loop is slow)."""
    bands = np.stack([np.ones(drive.size), np.full(drive.size, -keep)])
    return solve_banded((1, 0), bands, drive, overwrite_ab=True, check_finite=False)
