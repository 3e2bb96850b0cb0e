"""What the theorems promise: explicit bounds on the Goldstein norm of the answer.

`order_bound` is the paper's own bound (proof of Theorem thm:convergence) with every constant set to
1: good for comparing horizons, not a promise. `explicit_bound` is a promise: Corollary
cor:O2NC-smoothing with all constants, and with moments of the estimators that are sharper than the
paper's lemmas (derived in docs/planning.md).

Symbols: L Lipschitz, h smoothing, D reach, T horizon, K rounds, q directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blindstep.estimate.directions import Moments


@dataclass(frozen=True)
class Theorem:
    """What the theorems need to know about the problem.

    Attributes:
        dim: number of parameters.
        records: number of records.
        lipschitz: Lipschitz bound of the loss.
        gap: bound on F(start) - inf F.
        smoothing: smoothing radius (the paper's delta; certifies radius 2 delta: erratum 5).
        mu: Gaussian-DP budget.
    """

    dim: int
    records: int
    lipschitz: float
    gap: float
    smoothing: float
    mu: float

    @property
    def _scale(self) -> float:
        """L delta M / (F* + L delta): what every horizon of the theorem is made of."""
        drop = self.gap + self.lipschitz * self.smoothing
        return self.lipschitz * self.smoothing * self.records / drop

    def balancing_horizons(self, batch: int = 1, *, naive: bool = False) -> tuple[float, float]:
        """The horizons that balance progress with statistics, and progress with privacy.

        Theorem thm:convergence takes their minimum; its bound is met with the maximum (erratum 2).
        With `batch` records a DIFF, or a step of the naive oracle, B T takes the place of T, and the
        regret L / sqrt(T) is no longer hidden by sqrt(d / (B T)) L where B > d.
        """
        scale = self._scale / batch
        statistical = (self._slope(batch) * scale) ** (2 / 3)
        private = (self.dim**1.5 * scale / (batch * self.mu)) ** (2 / 3 if naive else 1 / 2)
        return statistical, private

    def free_mu(self) -> float:
        """Privacy costs nothing, to the order of the theorem, from this mu upwards.

        Where the private balancing horizon is the smaller: mu >= d^(5/6) / scale^(1/3), which is
        the paper's mu >= sqrt(d) eps / L at its eps.
        """
        return self.dim ** (5 / 6) / self._scale ** (1 / 3)

    def order_bound(self, horizon: float, batch: int = 1, *, naive: bool = False) -> float:
        """(F* + L delta) T / (delta M) + sqrt(d) L / sqrt(T) + d^(3/2) L / (T mu) at B = 1.

        For the naive oracle (appendix app:comparison) sqrt(T) is in the place of T in the last term.
        """
        private = self.dim**1.5 / (batch * self.mu * (math.sqrt(horizon) if naive else horizon))
        statistical = self._slope(batch) / math.sqrt(horizon)
        return self.lipschitz * (horizon * batch / self._scale + statistical + private)

    def _slope(self, batch: int) -> float:
        """The larger of sqrt(d / B) and 1: errors of the estimates, and regret, in units of L."""
        return max(math.sqrt(self.dim / batch), 1.0)


def naive_batch(dim: int, mu: float) -> int:
    """The batch with which the naive oracle has its printed rate, about d^(3/2) / mu.

    Twice that, since a batch has sensitivity 2 d L / B (errata 8 and 9).
    """
    return math.ceil(2 * dim**1.5 / mu)


def clip_bias(moments: Moments, clip: float) -> float:
    """Bound on |E e - E clip(e)| / L for GRAD clipped to norm `clip` x L: E(|e| - clip)_+ / L.

    With m = grad, always at most m / (4 clip). For frames, (|e| - C)_+ <= (|e|^2 - C^2)_+ / 2C is
    convex in |e|^2 = mean_j (d^2/q) c_j^2, so it is enough to bound one c_j, which is odd and
    L-Lipschitz on the sphere: P(|c_j| > t) <= 2 exp(-(d-1) t^2 / 2 L^2) (Levy). That gives
    (2m / clip) exp(-clip^2 / 2m).
    """
    if clip == math.inf:
        return 0.0
    plain = moments.grad / (4.0 * clip)
    if not moments.orthonormal:
        return plain
    return min(plain, 2.0 * moments.grad / clip * math.exp(-clip * clip / (2.0 * moments.grad)))


def diff_clip_bias(moments: Moments, slope: float, clip: float) -> float:
    """Bound on |E e - E clip(e)| for one DIFF clipped to norm `clip`, with slope = L D / h.

    E(|e| - clip)_+ <= E|e|^2 / (4 clip), and E|e|^2 <= diff (L |x - y| / h)^2 with |x - y| <= 2 D.
    """
    return moments.diff * slope * slope / clip


@dataclass(frozen=True)
class BoundParts:
    """The parts of the explicit bound; they add up to it.

    Attributes:
        progress: what is left of the gap after so many steps.
        regret: what the online learner loses against the best fixed step.
        estimation: the share of the error term that is due to finite batches and directions.
        noise: the share that is due to the noise.
        bias: what clipping costs.
        gradient_rms: root mean square norm of a released gradient; not a part.
    """

    progress: float
    regret: float
    estimation: float
    noise: float
    bias: float
    gradient_rms: float

    @property
    def total(self) -> float:
        """The bound on the expected Goldstein norm."""
        return self.progress + self.regret + self.estimation + self.noise + self.bias

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        parts = ("progress", "regret", "estimation", "noise", "bias")
        return max(parts, key=lambda name: getattr(self, name))


def explicit_bound(
    *,
    lipschitz: float,
    gap: float,
    smoothing: float,
    reach: float,
    horizon: int,
    rounds: float,
    error: Float[np.ndarray, " period"],
    noise: Float[np.ndarray, " period"],
    bias: float | Float[np.ndarray, " period"] = 0.0,
    fresh: bool = True,
) -> BoundParts:
    """Corollary cor:O2NC-smoothing with explicit constants, at radius smoothing + reach x horizon.

    `error` and `noise` are root-mean-square norms of the estimation error and of the noise of each
    gradient of a block, `bias` bounds what clipping takes off its mean. With e_i the sum of error and
    noise at position i, and G the RMS norm of a released gradient:

        progress   (F* + 2 L h) / (D K T)
        regret     G / sqrt(T)
        errors     min( 2 mean e_i,  mean(min(2, i G_max / (G sqrt T)) e_i) + sqrt(period/T) mean e_i )
        bias       2 x mean bias

    The first error bound is |Delta_t - u| <= 2D. The second uses that errors are `fresh`, of mean zero
    given the start of their block: then <e_t, Delta_t> sees only how far Delta moved since, at most
    eta G a step, and the sum of <e_t, u> over blocks is a martingale. With period 1 it is the naive
    analysis of appendix app:comparison; docs/planning.md has the derivation.
    """
    period = len(error)
    position = np.arange(period)
    # The noise on a block's first gradient is independent of its estimate; on later ones it is not.
    together = np.where(position == 0, np.hypot(error, noise), error + noise)
    gradient = np.where(position == 0, np.hypot(lipschitz, together), lipschitz + together) + bias
    rms = math.sqrt(_mean(gradient * gradient))
    moved = np.minimum(2.0, position * float(gradient.max()) / (rms * math.sqrt(horizon)))
    mean, mean_error, mean_noise = _mean(together), _mean(error), _mean(noise)
    errors = 2.0 * mean
    if fresh:
        errors = min(errors, _mean(moved * together) + math.sqrt(period / horizon) * mean)
    share = mean_error / max(mean_error + mean_noise, 1e-300)
    return BoundParts(
        progress=(gap + 2 * lipschitz * smoothing) / (reach * rounds * horizon),
        regret=rms / math.sqrt(horizon),
        estimation=errors * share,
        noise=errors * (1 - share),
        bias=2.0 * (_mean(bias) if isinstance(bias, np.ndarray) else bias),
        gradient_rms=rms,
    )


def _mean(values: Float[np.ndarray, " n"]) -> float:
    """As np.mean, which takes longer than all the rest on short arrays."""
    return float(values.sum()) / len(values)


def oracle_errors(
    moments: Moments,
    *,
    lipschitz: float,
    smoothing: float,
    reach: float,
    period: int,
    first_batch: int | float,
    diff_batch: int | float,
    shared: bool,
) -> Float[np.ndarray, " period"]:
    """RMS estimation error of each gradient of a block (Lemma lem:oracle-variance, sharper).

    Successive points are D((1-s) + s') apart at most, with mean square 7/6 D^2. Records with
    directions of their own average out: grad/B1 + i diff 7/6 (D/h)^2 / B2. Records that share
    directions do not; and a block's later points depend on its directions, so that DIFFs along them
    have no mean to speak of: their errors are bounded on every path, and add up.
    """
    position = np.arange(period)
    drift = (7.0 / 6.0) * (reach / smoothing) * (reach / smoothing)
    if shared:
        return lipschitz * (math.sqrt(moments.grad) + position * moments.seen * math.sqrt(drift))
    variance = moments.grad / first_batch + position * moments.diff * drift / diff_batch
    return lipschitz * np.sqrt(variance)
