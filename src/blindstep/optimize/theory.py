"""What the theorems promise: explicit bounds on the Goldstein norm of the answer.

`order_bound` is the paper's own bound (proof of Theorem thm:convergence) with every constant set to
1: good for comparing horizons, not a promise. `explicit_bound` is a promise: Corollary
cor:O2NC-smoothing with all constants, and with moments of the estimators that are sharper than the
paper's lemmas (derived in docs/guarantees.md).

Symbols: L Lipschitz, h smoothing, D reach, T horizon, K epochs, q directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Problem:
    """What the theorems need to know about the problem.

    Attributes:
        dim: number of parameters.
        records: number of records.
        lipschitz: Lipschitz bound of the loss.
        gap: bound on F(start) - inf F.
        smoothing: smoothing radius (the paper's delta; certifies radius 2 delta: erratum 5).
        rho: Gaussian-DP budget.
    """

    dim: int
    records: int
    lipschitz: float
    gap: float
    smoothing: float
    rho: float

    @property
    def _scale(self) -> float:
        """L delta M / (F* + L delta): what every horizon of the theorem is made of."""
        drop = self.gap + self.lipschitz * self.smoothing
        return self.lipschitz * self.smoothing * self.records / drop

    def balancing_horizons(self) -> tuple[float, float]:
        """The horizons that balance progress with statistics, and progress with privacy.

        Theorem thm:convergence takes their minimum; its bound is met with the maximum (erratum 2).
        """
        statistical = (math.sqrt(self.dim) * self._scale) ** (2 / 3)
        private = math.sqrt(self.dim**1.5 * self._scale / self.rho)
        return statistical, private

    def naive_balancing_horizons(self) -> tuple[float, float]:
        """The same for the naive oracle with batches of one (appendix app:comparison)."""
        statistical = (math.sqrt(self.dim) * self._scale) ** (2 / 3)
        private = (self.dim**1.5 * self._scale / self.rho) ** (2 / 3)
        return statistical, private

    def free_rho(self) -> float:
        """Privacy costs nothing, to the order of the theorem, from this rho upwards.

        Where the private balancing horizon is the smaller: rho >= d^(5/6) / scale^(1/3), which is
        the paper's rho >= sqrt(d) eps / L at its eps.
        """
        return self.dim ** (5 / 6) / self._scale ** (1 / 3)

    def order_bound(self, horizon: float) -> float:
        """(F* + L delta) T / (delta M) + sqrt(d) L / sqrt(T) + d^(3/2) L / (T rho)."""
        return (
            (self.gap + self.lipschitz * self.smoothing) * horizon / (self.smoothing * self.records)
            + math.sqrt(self.dim) * self.lipschitz / math.sqrt(horizon)
            + self.dim**1.5 * self.lipschitz / (horizon * self.rho)
        )

    def naive_order_bound(self, horizon: float) -> float:
        """The same for the naive oracle with batches of one (appendix app:comparison)."""
        return (
            (self.gap + self.lipschitz * self.smoothing) * horizon / (self.smoothing * self.records)
            + (math.sqrt(self.dim) + 1) * self.lipschitz / math.sqrt(horizon)
            + self.dim**1.5 * self.lipschitz / (math.sqrt(horizon) * self.rho)
        )


def sphere_moments(dim: int, directions: int) -> tuple[float, float]:
    """Second moments of one record's GRAD / L, and of its DIFF h / (L |x - y|): sphere directions.

    GRAD: c = (f(x+hu) - f(x-hu)) / 2h is odd in u and L-Lipschitz on the sphere, whose spectral gap
    is d - 1, so E c^2 <= L^2 / (d-1) and E|e|^2 <= (d^2 / q) L^2 / (d-1) + (1 - 1/q) L^2.
    DIFF: |c| <= L |x-y| / h and the smoothing is sqrt(d) L / h smooth, so
    E|e|^2 <= (d^2 / q + (1 - 1/q) d) L^2 |x-y|^2 / h^2.
    """
    rest = 1.0 - 1.0 / directions
    grad = dim**2 / directions / max(1, dim - 1) + rest
    diff = dim**2 / directions + rest * dim
    return grad, diff


@dataclass(frozen=True)
class Terms:
    """The parts of the explicit bound; they add up to it."""

    progress: float
    regret: float
    estimation: float
    noise: float
    gradient_rms: float

    @property
    def total(self) -> float:
        """The bound on E of the Goldstein norm at radius 2 x smoothing."""
        return self.progress + self.regret + self.estimation + self.noise

    @property
    def binding(self) -> str:
        """The name of the largest part."""
        parts = ("progress", "regret", "estimation", "noise")
        return max(parts, key=lambda name: getattr(self, name))


def explicit_bound(
    problem: Problem,
    *,
    horizon: int,
    period: int,
    epochs: int,
    first_batch: int,
    diff_batch: int,
    moments: tuple[float, float],
    reach: float,
    release_std: Float[np.ndarray, " period"],
) -> Terms:
    """Corollary cor:O2NC-smoothing with explicit constants.

    progress = (F* + 2 L h) / (D K T);   regret = sqrt(T) G / T with G the RMS of |g~_t|;
    estimation, noise = mean over t of 2 (RMS error of g_t), 2 (RMS norm of the noise): |Delta - u|
    <= 2 D. Successive points are D((1-s) + s') apart at most, with mean square 7/6 D^2. With period
    1 (naive) errors are independent of the step taken, and the factor 2 / T becomes 1 / sqrt(T)
    (appendix app:comparison).
    """
    slope, smoothing = problem.lipschitz, problem.smoothing
    grad, diff = moments
    later = np.arange(period)
    drift = diff * (7.0 / 6.0) * (reach / smoothing) ** 2 / diff_batch
    error = slope * np.sqrt(grad / first_batch + later * drift)
    noise = math.sqrt(problem.dim) * release_std
    progress = (problem.gap + 2 * slope * smoothing) / (reach * epochs * horizon)
    if period == 1:
        gradient_rms = float(np.sqrt(slope**2 + error[0] ** 2 + noise[0] ** 2))
        root = 1.0 / math.sqrt(horizon)
        estimation, noisy = float(error[0]) * root, float(noise[0]) * root
    else:
        gradient_rms = float(np.sqrt(np.mean((slope + error + noise) ** 2)))
        estimation, noisy = 2.0 * float(np.mean(error)), 2.0 * float(np.mean(noise))
    return Terms(progress, gradient_rms / math.sqrt(horizon), estimation, noisy, gradient_rms)
