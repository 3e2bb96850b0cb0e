"""Exact Gaussian-DP accounting, on the host, in float64.

One number carries the privacy of a run: mu. A mechanism is mu-Gaussian-DP when telling two neighbouring
data sets apart is at least as hard as telling N(0, 1) from N(mu, 1). The paper's rho is mu; to most
people rho is the parameter of zCDP, mu^2 / 2: so no name here is rho.

For every mu above 0, `epsilon` and `delta` never come out too small, and `mu_for_epsilon` never
spends more than it was asked to: `_log_delta` bounds its own error, and each answer is compared with
that bound before it is given. With x = epsilon/mu - mu/2 and w = x + mu, phi and Phi the density and
distribution of N(0, 1), and R(t) = Phi(-t) / phi(t),

    delta = Phi(-x) - e^epsilon Phi(-w) = phi(x) (R(x) - R(w)).

Where mu is small the two terms nearly cancel. Then we integrate: -R'(t) = Q(t) = 1 - t R(t), which
is the integral of s exp(-t s - s^2 / 2) over s > 0. So every even derivative of Q is positive, and
Simpson's rule, whose error is -mu^5 / 2880 times a fourth derivative, gives no less than the integral
of Q over [x, w]; for mu <= 0.002 it gives at most 5e-14 of it more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtri_exp

from blindstep.errors import InvalidArgument, fraction, positive, probability

RECORD, PERSON = "one record", "one person"  # whose mu it is; parentheses may explain it
# Answers are moved to the safe side by this share at once; it covers root finding and exponentials.
_SAFE = 1e-9
# Above _MOST the exponent epsilon + log Phi(...) has no digits left; below _LEAST nothing is learned.
_LEAST, _MOST = 1e-7, 1e6
_SIMPSON = 0.002  # up to this mu Simpson's rule is used
# What SciPy's functions are trusted to: relative error of erfcx, log_ndtr and ndtri_exp.
_ERFCX, _LOG_NDTR, _NDTRI_EXP = 2.0**-43, 2.0**-50, 2.0**-39
_SMALLEST = 5e-324


def _log_delta(mu: float, epsilon: float) -> tuple[float, float]:
    """log delta at (mu, epsilon), and how much larger the truth may be at most.

    Guarantee: the sum of the two is at least log delta, if SciPy's erfcx and log_ndtr are as good as
    `_ERFCX` and `_LOG_NDTR` say. With u = 2^-53 the computed x is off by 2 u w at most.
    """
    x, w = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if x > 1e100:
        return -math.inf, 0.0
    if x > 40.0:
        # phi(x) is below all floats. R(x) <= 1/x and Q(x) <= 1 / (1 + x^2), and Q falls.
        return -x * x / 2 + math.log(min(mu / (1 + x * x), 1 / x)), 2.0**-50 * x * w
    if mu <= _SIMPSON:
        ends = _slope(x), _slope(x + mu / 2), _slope(w)
        density = -x * x / 2 - math.log(math.sqrt(2 * math.pi))
        # Q(t) >= 1 / (t^2 + 3), so an error of 2 _ERFCX in t R(t) <= 1 is 2 (t^2 + 3) _ERFCX of it.
        # log delta moves by at most 2 |x| + 3 times the error of x.
        error = 4 * (3 + w * w) * _ERFCX
        return density + math.log((ends[0] + 4 * ends[1] + ends[2]) / 6) + math.log(mu), error
    first, tail = log_ndtr(-x), log_ndtr(-w)
    ratio = min(epsilon + tail - first, -_SMALLEST)
    # Each logarithm is off by its own share, and by its slope times the error of x or w.
    off = _LOG_NDTR * (2 + w * (1 + max(x, 0.0)) - first)
    off_tail = _LOG_NDTR * (2 + w * (1 + w) + epsilon - tail)
    left = -np.expm1(ratio)
    return float(first + np.log(left)), float((off + off_tail * math.exp(ratio)) / left)


def _slope(t: float) -> float:
    """Q(t) = 1 - t R(t), the slope of -R; R(t) = sqrt(pi / 2) erfcx(t / sqrt 2)."""
    return 1.0 - t * math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2)))


def _most(mu: float, epsilon: float) -> float:
    """A number that log delta is not above."""
    return sum(_log_delta(mu, epsilon))


def _refuse_above(name: str, value: float, most: float) -> None:
    if value > most:
        raise InvalidArgument(
            f"{name} must be at most {most:g}, got {value:g}: more protects nobody."
        )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return brentq(function, low, high, xtol=1e-290, rtol=1e-14, maxiter=2000)  # pyright: ignore


def _until(enough: Callable[[float], bool], value: float, sign: int) -> float:
    """The value, moved up or down by 1e-9 of itself, then 2e-9, and so on, until it is enough."""
    step = _SAFE
    while not enough(value):
        value, step = value * (1 + sign * min(step, 0.5)), 2 * step
    return value


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta at which mu-Gaussian-DP gives (epsilon, delta)-DP.

    Guarantee: exact (Balle & Wang 2018, Theorem 8; Dong, Roth & Su 2022, Corollary 2.13), and never
    too small for any mu above 0.
    """
    mu = positive("mu", mu)
    if not epsilon >= 0 or not math.isfinite(epsilon):
        raise InvalidArgument(f"epsilon must be at least 0, got {epsilon!r}: give a finite number.")
    most = math.exp(min(0.0, _most(mu, epsilon)))
    return min(1.0, most * (1 + _SAFE) + _SMALLEST)


def epsilon(mu: float, delta: float, slack: float = 0.0, secrecy: float = 0.0) -> float:
    """The smallest epsilon at which mu-Gaussian-DP gives (epsilon, delta)-DP (erratum 3).

    Guarantee: never too small, for any mu above 0. A mechanism within total variation `slack` of one
    that costs (mu, secrecy), see `secret_batches`, is (epsilon, delta)-DP if mu-Gaussian-DP is
    (epsilon, delta - secrecy - (1 + e^epsilon) slack)-DP. Epsilon at delta / 2 is above the answer:
    its exponential is enough.
    """
    mu, delta = positive("mu", mu), probability("delta", delta)
    _refuse_above("mu", mu, _MOST)
    if secrecy > delta / 4:
        raise InvalidArgument(
            f"secret batches cost {secrecy:.3g} beside mu, too much for delta = {delta:g}: quote it "
            f"at a delta of at least {4 * secrecy:.3g}."
        )
    added = 0.0
    if slack > 0.0:
        most = _epsilon(mu, delta / 2)
        log_added = math.log(slack) + float(np.logaddexp(0.0, most))
        if log_added > math.log(delta / 4):
            raise InvalidArgument(
                f"epsilon is about {most:.3g} at delta = {delta:g}: too large to be stated for noise "
                "whose tails end. Give an epsilon of at most "
                f"{math.floor(0.97 * math.log(delta / 4 / slack))}."
            )
        added = math.exp(log_added)
    return _epsilon(mu, delta - (secrecy + added) * (1 + _SAFE))


def _epsilon(mu: float, delta: float) -> float:
    target = math.log(delta) * (1 + 2.0**-50)  # rounded down
    if _most(mu, 0.0) <= target:
        return 0.0
    # Above this point even the first term of the formula alone is below delta.
    upper = mu * (mu / 2 + math.sqrt(-2 * target)) + 1e-9
    root = _root(lambda e: _most(mu, e) - target, 0.0, upper)
    return _until(lambda e: _most(mu, e) <= target, root * (1 + _SAFE) + 1e-300, +1)


def mu_for_epsilon(epsilon: float, delta: float, room: float = 0.0) -> float:
    """The largest mu that is still (epsilon, delta)-DP beside a secrecy of up to `room` x delta.

    Guarantee: it never overshoots. The room is taken off delta twice: once for slack.
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta) * (1 - 2 * room)
    _refuse_above("epsilon", epsilon, _MOST**2 / 2)

    def over(mu: float) -> float:
        return _log_delta(mu, epsilon)[0] - math.log(delta)

    high = 1.0
    while over(high) < 0.0:
        high *= 2
    low = high / 2
    while over(low) > 0.0:
        low /= 2
    if low < _LEAST:
        raise InvalidArgument(
            f"epsilon = {epsilon:g} at delta = {delta:g} needs a mu below {_LEAST:g}: nothing can be "
            "learned with so little. Give a larger epsilon or delta."
        )
    target, root = math.log(delta) * (1 + 2.0**-50), _root(over, low, high)
    return _until(lambda mu: _most(mu, epsilon) <= target, root * (1 - _SAFE), -1)


def mu_for_zcdp(zcdp: float) -> float:
    """The mu of zcdp-zero-concentrated DP, sqrt(2 zcdp), rounded down: mu^2 / 2 is never above zcdp."""
    zcdp = positive("zcdp", zcdp)
    _refuse_above("zcdp", zcdp, _MOST**2 / 2)
    return math.sqrt(2.0 * zcdp) * (1 - _SAFE)


def exceeds(mu: float, epsilon: float, secrecy: float = 0.0) -> float:
    """A bound on the probability that the privacy loss exceeds epsilon; it is larger than delta.

    Guarantee: never too small, whatever a run of cost (mu, secrecy) does. Let E be the event that the
    loss does: P(E) > e^epsilon Q(E), and P(E) <= 1 - f(Q(E)), where f falls. So P(E) is at most the
    largest p with p <= 1 - f(e^-epsilon p) = s + (1 - s) Phi(mu + z), where Phi(z) = e^-epsilon p /
    (1 - s). The right side is concave, and above p near 0: they cross once. Phi(mu/2 - epsilon/mu) is
    true of one release, but too small for many: a record may fall silent once the loss is that large.
    """
    mu, log_rest = positive("mu", mu), math.log(1.0 - fraction("secrecy", secrecy))
    log_secrecy = math.log(secrecy) if secrecy > 0.0 else -math.inf
    low, high = -1e3, 0.0
    while high - low > _SAFE:
        log_p = (low + high) / 2
        z = float(ndtri_exp(min(0.0, log_p - epsilon - log_rest)))
        power = log_rest + log_ndtr(mu + z + _NDTRI_EXP * (1 + abs(z)))
        low, high = (log_p, high) if log_p <= np.logaddexp(log_secrecy, power) else (low, log_p)
    return min(1.0, math.exp(high) * (1 + _SAFE) + _SMALLEST)


def compose(mus: Iterable[float]) -> float:
    """Mu of releases on the *same* records, adaptively chosen: sqrt(sum of mu^2)."""
    return math.sqrt(math.fsum(m * m for m in mus))
