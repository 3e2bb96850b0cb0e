"""What secret batches cost: the accountant of random allocation, on the host, in float64.

A pass has t steps. A secret key puts each record into one of them, independently and uniformly. Every
step releases the sum of its records' vectors, divided by a public number, plus Gaussian noise of its
own. c is the longest that a vector counts, rounding included, in standard deviations of the noise.

*The pair.* R is the law of all releases of a pass without a record, P with it.
1. Tell the adversary where all others are. That is independent of this record, and only helps. Now,
   under R and given the past, a release is a known vector plus noise. Let the noise have deviation 1.
2. In P the record is in step i with probability 1 / t, and then it moves release i alone, by v_i. So
   dP/dR is S, the mean over i of L_i = exp(<v_i, y_i> - |v_i|^2 / 2). The adversary chooses v_i after
   a look at the releases before i.
3. The privacy profiles are E (S - k)+ of P against R and E (1 - k S)+ of R against P, under R. Both
   functions are convex.
4. Longer vectors are worse. Making v_i as long as c multiplies L_i by an independent factor of mean 1,
   and by Jensen the mean of a convex function cannot fall.
5. Begin with the last step, given the past: by 4 nothing is worse than a v_t of length c. What is left
   is a mean of shifts of one convex function of the sum so far, so it is convex, and the step before
   goes the same way. So no strategy beats L_i = exp(c x_i - c^2 / 2), x_i independent and standard
   normal. (Feldman & Shenfeld 2025, arXiv 2502.08202, prove the same of any mechanism.)
6. More steps are never worse: a mean of t is the mean of its t means of t - 1, and Jensen again. So a
   pass costs at most what one step does: c.

*The currency.* A pass costs (mu, secrecy) if telling P from R, either way, is at least as hard as
f(a) = (1 - s) G_mu(a / (1 - s)) with s = secrecy. That is the trade-off of mu-Gaussian-DP composed with
(0, s)-DP: the latter's worst pair is two laws that share all but a mass of s each. The profile is
s + (1 - s) delta_mu(eps). f is symmetric, so a pass costs (mu, s) if and only if both its profiles are
below that at all eps >= 0 (Dong, Roth & Su 2022, Propositions 4 to 6). Passes compose, adaptively
(their Theorem 4): mus add in squares, and 1 - s multiplies, so the sum of all s is enough. Each pass
needs a fresh allocation.

*Rounding outwards.* A mean of m copies is kept as masses on a grid.
1. A mass between two points is shared out between them so that its mean stays. By Jensen the mean of a
   convex function cannot fall, nor can it after independent sums. So one law bounds both orders.
2. A mass above the last point goes down to it. (1 - k S)+ can only grow. (S - k)+ falls by at most the
   mean that is lost, which is kept and added.
3. There is no mass below the first point, which is 0.
Nothing here depends on where the points are: a bad grid costs accuracy, never privacy.

*Arithmetic.* Weights are sums of products of numbers that are not negative. So a sum of N is off by at
most N 2^-53 of itself; N is below 2^22, first masses are good to 1e-10, and after t steps weights are
good to t 1e-9. What underflows is below 1e-290; only numbers above 1e-50 count. Points are moved up by
more than they may be off. That is right for (S - k)+; for (1 - k S)+ it is taken back at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from blindstep.errors import InvalidArgument, count, positive, probability
from blindstep.private import accounting

# Distance of grid points around the middle, in standard deviations, and where it begins to grow.
_STEP, _WIDTH = 0.03, 4.0
_TAIL = 1e-4  # each end that is cut off is at most this share of the secrecy
# By how much points are moved up: each time two are added, and at first; more than their roundings.
_UP, _FIRST = 2.0**-49, 1e-11
_VALUES, _WEIGHTS = 1e-10, 1e-9  # how far up points are at the end; how far off weights are, a step
_SAFE = 1e-9  # Phi and its inverse are far better than this
_CLOSE = 2e-3  # how close the inverse comes
# A shorter c counts as this; a pass with a longer one counts as one step.
_LEAST, _MOST = 1e-4, 10.0
LEAST_SECRECY = 1e-50


@dataclass(frozen=True)
class _Law:
    """Masses at increasing points, and the mean that was lost above the last of them."""

    points: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    lost: float


# -- the currency ----------------------------------------------------------------------------------


def _rest(secrecy: float) -> float:
    """1 - secrecy, or an error: it must be a probability below 1, and may be 0."""
    if not 0.0 <= secrecy < 1.0:
        raise InvalidArgument(
            f"secrecy must be at least 0 and below 1, got {secrecy!r}: give less."
        )
    return 1.0 - secrecy


def exceeds_with(mu: float, secrecy: float, epsilon: float) -> float:
    """A bound on the probability that the privacy loss exceeds epsilon, rounded up.

    Let E be the event that it does: P(E) > e^epsilon Q(E). Also P(E) <= 1 - f(Q(E)), and f falls. So
    P(E) is at most the largest p with p <= 1 - f(e^-epsilon p) = s + (1 - s) Phi(mu + z), where s is
    the secrecy and Phi(z) = e^-epsilon p / (1 - s). The right side is concave, and above p near 0: they
    cross once. Without secrecy `accounting.exceeds` is exact and smaller; here the law is not known.
    """
    mu, rest, low, high = positive("mu", mu), _rest(secrecy), 1e-300, 1.0
    while high > low * (1 + _SAFE):
        p = math.sqrt(low) * math.sqrt(high)
        z = ndtri(min(1.0, math.exp(-epsilon) * p / rest))
        low, high = (p, high) if p <= secrecy + rest * ndtr(mu + z) else (low, p)
    return min(1.0, high * (1 + _SAFE))


def group(mu: float, secrecy: float, size: int) -> tuple[float, float]:
    """The cost of changing `size` records, each of which costs (mu, secrecy): size x mu, more secrecy.

    Guarantee: proved for one record more. Before it, m1 = mu (size - 1); it adds m2 = mu; let s be the
    secrecy so far, at least that of one. Write r = s / (1 - s), m = m1 + m2, K_m = 1 - G_m: that is
    concave and rises.
    1. Of three data sets in a row, let a test have the level (1 - s) a under the first. Under the
       second it is at most s + (1 - s) u, u = K_m1(a), and under the third s + (1 - s) K_m2(u + r).
    2. K_m2(u) = K_m(a), since Gaussians add up. D(u) = K_m2(u + r) - K_m2(u) is what secrecy adds. It
       falls, because K is concave.
    3. Claim: the profile is below s' + (1 - s') delta_m(eps), eps >= 0, with s' = s + (1 - s) w, if
       D(K_m1((1 - w) b)) <= w (1 - delta_m(eps_b)) at all b up to b_0. Here e^eps_b is the slope of
       K_m at b, and b_0 is where it is 1. Let k = e^eps. Levels a beyond b_0 are no better than b_0,
       for there power grows by less than k times the level. Otherwise let b = min(a / (1 - w), b_0),
       with slope h. Use the tangent K_m(a) <= K_m(b) + h (a - b), and delta_m(eps) >= K_m(b) - k b: the
       claim holds for this a if D(u) <= w (1 - K_m(b)) + k (a - (1 - w) b) + h (b - a). If
       a = (1 - w) b, the right side is w (1 - K_m(b) + h b) = w (1 - delta_m(eps_b)). If b = b_0, then
       h = 1 <= k and a >= (1 - w) b_0: the right side is no less, and D(u) no more.
    4. Two cells will do. Let w <= 1/2; then K_m1((1 - w) b) >= u / 2 with u = K_m1(b). Where u <= cut,
       D is at most D(0) = K_m2(r), and eps_b at least what it is at the cut. Elsewhere D is at most
       r K_m2'(cut / 2), and 1 - delta_m(eps_b) at least 1 - delta_m(0) = 2 Phi(-m / 2).
    At a = 0 nothing below s + (1 - s) K_m2(r) is possible: s' is above that by the first quotient only.

    Passes may be composed first and records changed then, or changed in each pass and composed: a pass
    is a mechanism, and so are all of them. The second gives less secrecy, and leaves to other releases
    what they cost by a better argument.
    """
    total, kept, rest = positive("mu", mu), secrecy, _rest(secrecy)
    for _ in range(1, count("size", size)):
        total += mu
        if kept == 0.0:
            continue
        ratio = kept / rest
        cut = min(math.sqrt(ratio), 0.5)
        at_cut = total * (total / 2 - mu - float(ndtri(cut)))
        steep = math.exp(-mu * float(ndtri(cut / 2)) - mu * mu / 2)
        near = float(ndtr(ndtri(ratio) + mu)) / max(1 - accounting.delta(total, at_cut), 1e-300)
        far = ratio * steep / max(2 * float(ndtr(-total / 2)), 1e-300)
        added = max(near, far) * (1 + _SAFE)
        if not (ratio < 1.0 and added <= 0.5):
            raise InvalidArgument(
                f"no bound for {size} records at mu = {mu:g} with secrecy = {secrecy:g}: give less."
            )
        kept = (kept + rest * added) * (1 + _SAFE)
        rest = 1.0 - kept
    return total * (1 + _SAFE if size > 2 else 1.0), kept


# -- the law of a mean -----------------------------------------------------------------------------


def _nodes(low: float, high: float, width: float) -> Float[np.ndarray, " n"]:
    """Points from `low` to `high`: `_STEP` times width / 4 apart around 0, geometrically far out."""
    start, end = math.asinh(low / width), math.asinh(high / width)
    return width * np.sinh(np.linspace(start, end, 2 + math.ceil(_WIDTH * (end - start) / _STEP)))


def _spread(
    values: Float[np.ndarray, " pairs"],
    weights: Float[np.ndarray, " pairs"],
    points: Float[np.ndarray, " n"],
    lost: float,
) -> _Law:
    """Share masses out between the points around them: their means stay, or rise by a rounding."""
    lost += float(np.sum(np.maximum(values - points[-1], 0.0) * weights))
    values = np.clip(values, points[0], points[-1])
    left = np.minimum(np.searchsorted(points, values, side="right"), len(points) - 1) - 1
    share = (values - points[left]) / (points[left + 1] - points[left])
    share = np.minimum(share * (1 + _UP), 1.0)
    spread = np.bincount(left, weights * (1.0 - share), len(points))
    spread += np.bincount(left + 1, weights * share, len(points))
    return _Law(points, spread, lost)


def _cells(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " cells"]:
    """The mass of N(0, 1) between neighbouring numbers, from the nearer tail: no digits cancel."""
    low, high = x[:-1], x[1:]
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _one_step(c: float, cut: float) -> _Law:
    """The law of L for one x: the mass of a cell is shared out between its ends.

    By its exact mean: weighted by L, x is N(c, 1), so the mean is a ratio of normal masses. Above the
    last point the mean of L is lost.
    """
    low = float(ndtri(cut))
    x = _nodes(low, c - low, _WIDTH)
    points = np.append(0.0, np.exp(c * x - c * c / 2))
    x = np.append(-np.inf, x)
    mass = _cells(x)
    mean = _cells(x - c) / mass * (1 + _FIRST)
    share = np.clip((mean - points[:-1]) / np.diff(points), 0.0, 1.0)
    weights = np.append(0.0, mass * share) + np.append(mass * (1.0 - share), float(ndtr(-x[-1])))
    return _Law(points, weights, float(ndtr(c - x[-1])))


def _law_of_mean(c: float, steps: int, cut: float) -> _Law:
    """The law of S: of the mean of two halves, each of which has the law of half as many steps.

    Points with hardly any mass are left out; the first, 0, stays.
    """
    if steps == 1:
        return _one_step(c, cut)
    part = _law_of_mean(c, steps // 2, cut)
    raised = part.points * (1 + _UP)
    i, j = np.triu_indices(len(raised))
    values = (raised[i] + raised[j]) / 2
    weights = part.weights[i] * part.weights[j] * np.where(i == j, 1.0, 2.0)
    deviation = math.sqrt(math.log1p(math.expm1(c * c) / steps))
    low = float(np.min(values, where=values > 0, initial=1.0))
    ends = math.log(low), math.log(float(np.max(values)))
    points = np.append(0.0, np.exp(_nodes(*ends, _WIDTH * deviation)))
    law = _spread(values, weights, points, part.lost)
    size = (1 + law.points) * law.weights
    keep = (np.cumsum(law.weights) > cut) & (np.cumsum(size[::-1])[::-1] > cut)
    keep[0] = True
    return _spread(law.points, law.weights, law.points[keep], law.lost)


def _needed(
    power: Float[np.ndarray, " lines"], size: Float[np.ndarray, " lines"], secrecy: float
) -> float:
    """The smallest mu for which the profile of f is above max_j (power_j - k size_j), rounded up.

    The profile of f at k is the largest 1 - f(a) - k a. So a line is below it at all k if f allows a
    test of that size and power: power <= 1 - f(size) = secrecy + (1 - secrecy) Phi(mu + z), where
    Phi(z) = size / (1 - secrecy). Nothing is left to prove between grid points, or at large epsilon.
    """
    live = (power > secrecy) & (size < 1 - secrecy)
    power = np.minimum((power[live] - secrecy) / (1 - secrecy), 1.0)
    needed = ndtri(power) - ndtri(size[live] / (1 - secrecy))
    return float(np.max(needed, initial=0.0)) * (1 + _SAFE) + 1e-12


def _checked(c: float, steps: int, secrecy: float) -> tuple[float, int, float]:
    """Arguments that can be worked with."""
    secrecy, steps = probability("secrecy", secrecy), count("steps", steps)
    if secrecy < LEAST_SECRECY:
        raise InvalidArgument(f"secrecy must be at least {LEAST_SECRECY:g}, got {secrecy:g}.")
    if steps & (steps - 1):
        raise InvalidArgument(f"a pass of secret batches has 2, 4, 8, .. steps, got {steps}.")
    return positive("c", c), steps, secrecy


@lru_cache(maxsize=4096)
def presence_mu(c: float, steps: int, secrecy: float) -> float:
    """The mu of a pass of `steps` secret steps, for a record's presence, rounded up.

    Guarantee: leaving a record out, or adding one, costs (mu, secrecy). mu <= c; at one step mu = c,
    and no secrecy is used. Proof: mu <= c by 6 above. Else S is rounded outwards, and both profiles are
    the largest of lines in k. E (S - k)+ has for each point the mass of P above it, less k times that
    of R; at k >= 1 only points with the next at 1 or above matter. E (1 - k S)+ has for each point the
    mass of R up to it, less k times that of P; at k >= 1 only points up to 1 matter. Weights that are
    off by a factor move a line by this factor; points that are, move the mass of P.
    """
    c, steps, secrecy = _checked(c, steps, secrecy)
    if steps == 1 or c > _MOST:
        return c
    law = _law_of_mean(max(c, _LEAST), steps, _TAIL * secrecy)
    with_it = law.points * law.weights
    above = np.append(law.points[1:] >= 1 - 1e-6, True)
    below = law.points <= 1 + 1e-6

    def after(masses: np.ndarray) -> np.ndarray:
        return np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)

    power = np.append((law.lost + after(with_it))[above], np.cumsum(law.weights)[below])
    size = np.append(after(law.weights)[above], np.cumsum(with_it)[below])
    off = 1 + steps * _WEIGHTS
    return min(c, _needed(power * off * (1 + _VALUES), size * off * (1 - _VALUES), secrecy))


@lru_cache(maxsize=4096)
def longest(mu: float, steps: int, secrecy: float) -> float:
    """The largest c, that is the least noise, whose pass of `steps` secret steps costs (mu, secrecy).

    Guarantee: `presence_mu(c, steps, secrecy) <= mu`: this very c was asked for. Either it costs at
    least 0.998 mu, or one that is 0.2% longer costs more than mu.
    """
    low = positive("mu", mu)
    _, steps, secrecy = _checked(low, steps, secrecy)
    if steps == 1:
        return low
    high = low * math.sqrt(steps)
    while presence_mu(high, steps, secrecy) <= mu:
        low, high = high, 1.25 * high
    while high > low * (1 + _CLOSE) and presence_mu(low, steps, secrecy) < mu * (1 - _CLOSE):
        # A power law through both ends, aimed just below mu.
        before, after = (math.log(presence_mu(c, steps, secrecy) / mu) for c in (low, high))
        share = min(max((before + _CLOSE / 2) / (before - after), 0.05), 0.9)
        c = low ** (1 - share) * high**share
        low, high = (c, high) if presence_mu(c, steps, secrecy) <= mu else (low, c)
    return low


def secrecy_for(mu: float, size: int, room: float) -> float:
    """The secrecy of one record's presence that leaves at most `room` for changing `size` records.

    Guarantee: `group(mu, secrecy, size)` has a secrecy of at most `room`: this very one was asked for.
    """
    secrecy = probability("room", room)
    while secrecy >= LEAST_SECRECY:
        try:
            _, taken = group(mu, secrecy, size)
        except InvalidArgument:  # no bound for so much
            taken = math.inf
        if taken <= room:
            return secrecy
        secrecy *= min(0.5, max(0.01, 0.99 * room / taken))
    raise InvalidArgument(
        f"no secrecy leaves {room:g} at mu = {mu:g}: spend less, or take public batches."
    )
