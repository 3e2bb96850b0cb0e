"""Exact Gaussian-DP accounting, on the host, in float64.

One number carries the privacy of a run: mu. A mechanism is mu-Gaussian-DP when telling two
neighbouring data sets apart is at least as hard as telling N(0, 1) from N(mu, 1). The paper's
"(alpha, alpha rho^2 / 2)-RDP for all alpha" is the RDP curve of exactly that pair, and its mechanism
is an (adaptive) Gaussian one, so the paper's rho is mu and every other currency is a function of mu.
To most people rho is the parameter of zCDP, mu^2 / 2: so no name in this package is rho.

Direction of rounding: `epsilon` and `delta` never come out too small, `mu_for_epsilon` never spends
more than it was asked to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from blindstep.errors import InvalidArgument, positive, probability

RECORD, PERSON = "one record", "one person"  # whose mu it is; parentheses may explain it
# log_ndtr and root finding are good to about 1e-11 relative, at worst (small mu, where the two terms
# of the formula nearly cancel); answers are moved by far more than that to the safe side.
_SAFE = 1e-9
# The formula is that good between these two: below, what is left of its two terms is lost in rounding;
# above, the exponent epsilon + log Phi(...) is.
_LEAST, _MOST = 1e-7, 1e6


def _log_delta(mu: float, epsilon: float) -> float:
    """log of Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), stable in the tails."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    if first == -math.inf:
        return -math.inf
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    ratio = min(second - first, 0.0)
    if ratio == 0.0:
        return -math.inf
    return float(first + np.log(-np.expm1(ratio)))


def _refuse_above(name: str, value: float, most: float) -> None:
    if value > most:
        raise InvalidArgument(
            f"{name} must be at most {most:g}, got {value:g}: so large a budget protects nobody."
        )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return brentq(function, low, high, xtol=1e-290, rtol=1e-14)  # pyright: ignore


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta at which mu-Gaussian-DP gives (epsilon, delta)-DP.

    Guarantee: exact (Balle & Wang 2018, Theorem 8; Dong, Roth & Su 2022, Corollary 2.13),
    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), rounded up.
    """
    mu = positive("mu", mu)
    if not epsilon >= 0 or not math.isfinite(epsilon):
        raise InvalidArgument(f"epsilon must be at least 0, got {epsilon!r}: give a finite number.")
    mu = max(mu, _LEAST)  # a larger mu has a larger delta
    return min(1.0, math.exp(_log_delta(mu, epsilon)) * (1 + _SAFE))


def epsilon(mu: float, delta: float, slack: float = 0.0) -> float:
    """The smallest epsilon at which mu-Gaussian-DP gives (epsilon, delta)-DP, rounded up.

    (Erratum 3: the paper's 2 rho sqrt(ln(1/delta)) holds only for delta <= exp(-rho^2).)
    A mechanism within total variation `slack` of mu-Gaussian-DP is (epsilon, delta)-DP if the latter
    is (epsilon, delta - (1 + e^epsilon) slack)-DP. The bound on epsilon at delta / 2 is above the
    answer, so its exponential is enough.
    """
    mu, delta = positive("mu", mu), probability("delta", delta)
    _refuse_above("mu", mu, _MOST)
    mu = max(mu, _LEAST)  # a larger mu has a larger epsilon
    if slack > 0.0:
        most = _epsilon(mu, delta / 2)
        log_added = math.log(slack) + np.logaddexp(0.0, most)
        if log_added > math.log(delta / 2):
            raise InvalidArgument(
                f"epsilon is about {most:.3g} at delta = {delta:g}: too large to be stated for "
                "noise whose tails end. Give an epsilon of at most "
                f"{math.floor(0.97 * math.log(delta / 2 / slack))}."
            )
        delta -= math.exp(log_added)
    return _epsilon(mu, delta)


def _epsilon(mu: float, delta: float) -> float:
    target = math.log(delta)
    if _log_delta(mu, 0.0) <= target:
        return 0.0
    # Above this point even the first term of the formula alone is below delta.
    upper = mu * (mu / 2 + math.sqrt(-2 * target)) + 1e-9
    root = _root(lambda e: _log_delta(mu, e) - target, 0.0, upper)
    return root * (1 + _SAFE) + 1e-300


def mu_for_epsilon(epsilon: float, delta: float) -> float:
    """The largest mu that is still (epsilon, delta)-DP, rounded down: it never overshoots."""
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    _refuse_above("epsilon", epsilon, _MOST**2 / 2)
    target = math.log(delta)
    low, high = 0.0, 1.0
    while _log_delta(high, epsilon) < target:
        low, high = high, 2 * high
    if low == 0.0:
        low = high
        while _log_delta(low, epsilon) > target:
            low /= 2
        if low < _LEAST:
            raise InvalidArgument(
                f"epsilon = {epsilon:g} at delta = {delta:g} needs a mu below {_LEAST:g}: nothing can "
                "be learned with so little. Give a larger epsilon or delta."
            )
    root = _root(lambda m: _log_delta(m, epsilon) - target, low, high)
    return root * (1 - _SAFE)


def mu_for_zcdp(zcdp: float) -> float:
    """The mu that is zcdp-zero-concentrated DP, sqrt(2 zcdp), rounded down."""
    zcdp = positive("zcdp", zcdp)
    _refuse_above("zcdp", zcdp, _MOST**2 / 2)
    return math.sqrt(2.0 * zcdp) * (1 - _SAFE)


def exceeds(mu: float, epsilon: float) -> float:
    """The probability that the privacy loss of mu-Gaussian-DP exceeds epsilon.

    Phi(mu/2 - epsilon/mu): larger than delta, which only bounds what is left over after e^epsilon has
    been taken off. At epsilon 1 and delta 1e-5 it is 16 times delta.
    """
    return float(ndtr(positive("mu", mu) / 2 - epsilon / mu)) * (1 + _SAFE)


def compose(mus: Iterable[float]) -> float:
    """Mu of releases on the *same* records, adaptively chosen: sqrt(sum of mu^2)."""
    return math.sqrt(math.fsum(m * m for m in mus))
