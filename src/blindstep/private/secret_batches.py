"""What secret batches cost: the accountant of random allocation, on the host, in float64.

A secret key puts each record into one of the t steps of a pass, independently and uniformly. Every step
releases the sum of its records' vectors, divided by a public number, plus Gaussian noise of its own.
c is the longest that a vector counts, rounding included, in standard deviations of that noise.

*The pair.* R is the law of all releases of a pass without a record, P with it.
1. Tell the adversary where all others are: that is independent of this record, and only helps. Then,
   given the past, a release is under R a known vector plus noise, of deviation 1, say.
2. In P the record is in step i with probability 1 / t and moves release i alone, by v_i, which the
   adversary chooses after a look at the releases before it. So dP/dR is S, the mean over i of
   L_i = exp(<v_i, y_i> - |v_i|^2 / 2). The privacy profiles are E (S - k)+ of P against R and
   E (1 - k S)+ of R against P, under R: means of convex functions of S.
3. Making v_i as long as c multiplies L_i by an independent factor of mean 1. By Jensen the mean of a
   convex function cannot fall. So for the last step, given the past, nothing is worse than length c.
   What is left is a mean of shifts of one convex function of the sum so far, so it is convex, and the
   step before goes the same way. No strategy beats L_i = exp(c x_i - c^2 / 2), x_i independent and
   standard normal. (Feldman & Shenfeld 2025, arXiv 2502.08202, prove it of any mechanism.)
4. A mean of t is the mean of its t means of t - 1: by Jensen more steps are never worse, and a pass
   costs at most what one step does, c.
5. A run may end after r steps of a pass. The ratio of what is seen is then 1 - r / t + (r / t) M, the
   mean of S given these steps, with M the mean of their L_i: convex in M, so 3 holds as it stands.

*The currency.* A pass costs (mu, s), s its secrecy, if telling P from R, either way, is as hard as
f(a) = (1 - s) G_mu(a / (1 - s)) at least: as mu-Gaussian-DP composed with (0, s)-DP, whose worst pair
is two laws that share all but a mass of s each. f is symmetric, with profile s + (1 - s) delta_mu(eps).
So that holds if and only if both profiles are below this at all eps >= 0 (Dong, Roth & Su 2022,
Propositions 4 to 6). Passes, each with a fresh allocation, compose adaptively (their Theorem 4): mus
add in squares, and 1 - s multiplies, so the sum of all s is enough.

*Rounding outwards.* A mean of m copies is kept as masses on a grid, from 0 up. A mass between points is
shared out between these so that its mean stays: the mean of a convex function cannot fall, nor can it
after independent sums, so one law bounds both orders. A mass above the last point goes down to it:
(1 - k S)+ can only grow, and (S - k)+ falls by at most the mean that is lost, which is kept and added.
Nothing depends on where the points are: a bad grid costs accuracy, never privacy.

*Arithmetic.* Weights are sums of products of numbers that are not negative: a sum of N < 2^22 is off by
at most N 2^-53 of itself, first masses are good to 1e-10, and after t steps weights are good to t 1e-9.
What underflows is below 1e-290; only numbers above 1e-50 count. Points are moved up by more than they
may be off: right for (S - k)+, and taken back at the end for (1 - k S)+.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from blindstep.errors import InvalidArgument, count, fraction, positive, probability
from blindstep.private import accounting

# Distance of grid points around the middle, in standard deviations, and where it begins to grow.
_STEP, _WIDTH = 0.03, 4.0
_TAIL = 1e-4  # each end that is cut off is at most this share of the secrecy
# By how much points are moved up: each time two are added, and at first; more than their roundings.
_UP, _FIRST = 2.0**-49, 1e-11
_VALUES, _WEIGHTS = 1e-10, 1e-9  # how far up points are at the end; how far off weights are, a step
_SAFE = 1e-9  # Phi and its inverse are far better than this
# A shorter c counts as this; a pass with a longer one counts as one step.
_LEAST, _MOST = 1e-4, 10.0
LEAST_SECRECY = 1e-50
Points = Float[np.ndarray, " n"]
Pairs = Float[np.ndarray, " pairs"]


@dataclass(frozen=True)
class _Law:
    """Masses at increasing points, and the mean that was lost above the last of them."""

    points: Points
    weights: Points
    lost: float


def group(mu: float, secrecy: float, size: int) -> tuple[float, float]:
    """The cost of changing `size` records, each of which costs (mu, secrecy): size x mu, more secrecy.

    Guarantee: proved for one record more. The others cost m1 = mu (size - 1) and s, no less than that
    of one; it adds m2 = mu. Write r = s / (1 - s), m = m1 + m2, and K_m = 1 - G_m, concave and rising.
    1. Of three data sets in a row, let a test have the level (1 - s) a under the first. Then it has at
       most s + (1 - s) u, u = K_m1(a), under the second and s + (1 - s) K_m2(u + r) under the third.
    2. K_m2(u) = K_m(a), since Gaussians add up. So secrecy adds D(u) = K_m2(u + r) - K_m2(u), which
       falls, because K is concave.
    3. Claim: the profile is below s' + (1 - s') delta_m(eps), eps >= 0, with s' = s + (1 - s) w, if
       D(K_m1((1 - w) b)) <= w (1 - delta_m(eps_b)) at all b up to b_0. Here e^eps_b is the slope of
       K_m at b, and b_0 is where it is 1. Let k = e^eps. Levels a beyond b_0 are no better than b_0,
       for there power grows by less than k times the level. Otherwise let b = min(a / (1 - w), b_0),
       with slope h. By the tangent K_m(a) <= K_m(b) + h (a - b) and delta_m(eps) >= K_m(b) - k b, the
       claim holds for this a if D(u) <= w (1 - K_m(b)) + k (a - (1 - w) b) + h (b - a). If
       a = (1 - w) b, the right side is w (1 - K_m(b) + h b) = w (1 - delta_m(eps_b)). If b = b_0, then
       h = 1 <= k and a >= (1 - w) b_0: the right side is no less, and D(u) no more.
    4. Two cells will do. Let w <= 1/2; then K_m1((1 - w) b) >= u / 2 with u = K_m1(b). Where u <= cut,
       D is at most D(0) = K_m2(r), and eps_b at least what it is at the cut. Elsewhere D is at most
       r K_m2'(cut / 2), and 1 - delta_m(eps_b) at least 1 - delta_m(0) = 2 Phi(-m / 2).

    Changing records in each pass and composing then gives less secrecy than the other way round, and
    leaves to other releases what they cost by a better argument.
    """
    total, kept, rest = positive("mu", mu), secrecy, 1.0 - fraction("secrecy", secrecy)
    if secrecy == 0.0:
        return count("size", size) * mu, 0.0
    for _ in range(1, count("size", size)):
        total += mu
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


def _nodes(low: float, high: float, width: float) -> Points:
    """Points from `low` to `high`: `_STEP` times width / 4 apart around 0, geometrically far out."""
    start, end = math.asinh(low / width), math.asinh(high / width)
    return width * np.sinh(np.linspace(start, end, 2 + math.ceil(_WIDTH * (end - start) / _STEP)))


def _spread(values: Pairs, weights: Pairs, points: Points, lost: float) -> _Law:
    """Share masses out between the points around them: their means stay, or rise by a rounding."""
    lost += float(np.sum(np.maximum(values - points[-1], 0.0) * weights))
    values = np.clip(values, points[0], points[-1])
    left = np.minimum(np.searchsorted(points, values, side="right"), len(points) - 1) - 1
    share = (values - points[left]) / (points[left + 1] - points[left])
    share = np.minimum(share * (1 + _UP), 1.0)
    spread = np.bincount(left, weights * (1.0 - share), len(points))
    spread += np.bincount(left + 1, weights * share, len(points))
    return _Law(points, spread, lost)


def _cells(x: Points) -> Float[np.ndarray, " cells"]:
    """The mass of N(0, 1) between neighbouring numbers, from the nearer tail: no digits cancel."""
    low, high = x[:-1], x[1:]
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _one_step(c: float, cut: float) -> _Law:
    """The law of L for one x: the mass of a cell is shared out between its ends by its exact mean.

    Weighted by L, x is N(c, 1), so that mean is a ratio of normal masses.
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


def _law_of_mean(c: float, steps: int, cut: float, known: dict[int, _Law] | None = None) -> _Law:
    """The law of M, of the mean of its halves; points with hardly any mass, but 0, are left out."""
    known = {1: _one_step(c, cut)} if known is None else known  # halves are met more than once
    if steps in known:
        return known[steps]
    one, two = (_law_of_mean(c, some, cut, known) for some in (steps // 2, steps - steps // 2))
    share = (steps // 2) / steps
    if one is two:
        i, j = np.triu_indices(len(one.points))
        weights = one.weights[i] * one.weights[j] * np.where(i == j, 1.0, 2.0)
    else:
        i, j = (each.ravel() for each in np.indices((len(one.points), len(two.points))))
        weights = one.weights[i] * two.weights[j]
    values = (share * one.points[i] + (1 - share) * two.points[j]) * (1 + _UP)
    lost = share * one.lost + (1 - share) * two.lost
    deviation = math.sqrt(math.log1p(math.expm1(c * c) / steps))
    low = float(np.min(values, where=values > 0, initial=1.0))
    ends = math.log(low), math.log(float(np.max(values)))
    points = np.append(0.0, np.exp(_nodes(*ends, _WIDTH * deviation)))
    law = _spread(values, weights, points, lost)
    size = (1 + law.points) * law.weights
    keep = (np.cumsum(law.weights) > cut) & (np.cumsum(size[::-1])[::-1] > cut)
    keep[0] = True
    known[steps] = _spread(law.points, law.weights, law.points[keep], law.lost)
    return known[steps]


def _law_of_pass(c: float, steps: int, made: int, cut: float) -> _Law:
    """The law of S, where `made` steps of a pass are made: 1 - made / steps of it is certain (5)."""
    law, share = _law_of_mean(c, made, cut), made / steps
    return _Law((1 - share + share * law.points) * (1 + _UP), law.weights, share * law.lost)


def _needed(power: Points, size: Points, secrecy: float) -> float:
    """The smallest mu for which the profile of f is above max_j (power_j - k size_j), rounded up.

    The profile of f at k is the largest 1 - f(a) - k a. So a line is below it at all k if f allows a
    test of that size and power: power <= 1 - f(size) = secrecy + (1 - secrecy) Phi(mu + z), where
    Phi(z) = size / (1 - secrecy). Nothing is left to prove between grid points, or at large epsilon.
    """
    live = (power > secrecy) & (size < 1 - secrecy)
    power = np.minimum((power[live] - secrecy) / (1 - secrecy), 1.0)
    needed = ndtri(power) - ndtri(size[live] / (1 - secrecy))
    return float(np.max(needed, initial=0.0)) * (1 + _SAFE) + 1e-12


@lru_cache(maxsize=4096)
def presence_mu(c: float, steps: int, secrecy: float, made: int | None = None) -> float:
    """The mu of a pass of `steps` secret steps, a power of 2, for a record's presence, rounded up.

    The run makes `made` of them; all, if nothing is said.
    Guarantee: leaving a record out, or adding one, costs (mu, secrecy). mu <= c; at one step mu = c,
    and no secrecy is used. Proof: mu <= c by 4 above. Else S is rounded outwards, and both profiles are
    the largest of lines in k. E (S - k)+ has for each point the mass of P above it, less k times that
    of R; at k >= 1 only points with the next at 1 or above matter. E (1 - k S)+ has for each point the
    mass of R up to it, less k times that of P; at k >= 1 only points up to 1 matter. Weights that are
    off by a factor move a line by this factor; points that are, move the mass of P.
    """
    secrecy, steps, c = probability("secrecy", secrecy), count("steps", steps), positive("c", c)
    if secrecy < LEAST_SECRECY:
        raise InvalidArgument(f"secrecy must be at least {LEAST_SECRECY:g}, got {secrecy:g}.")
    made = steps if made is None else count("made", made)
    if made > steps:
        raise InvalidArgument(f"{made} steps of a pass that has {steps}: give no more.")
    if steps & (steps - 1):
        raise InvalidArgument(f"a pass of secret batches has 2, 4, 8, .. steps, got {steps}.")
    if steps == 1 or c > _MOST:
        return c
    law = _law_of_pass(max(c, _LEAST), steps, made, _TAIL * secrecy)
    with_it = law.points * law.weights
    above = np.append(law.points[1:] >= 1 - 1e-6, True)
    below = law.points <= 1 + 1e-6

    def after(masses: np.ndarray) -> np.ndarray:
        return np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)

    power = np.append((law.lost + after(with_it))[above], np.cumsum(law.weights)[below])
    size = np.append(after(law.weights)[above], np.cumsum(with_it)[below])
    off = 1 + steps * _WEIGHTS
    return min(c, _needed(power * off * (1 + _VALUES), size * off * (1 - _VALUES), secrecy))
