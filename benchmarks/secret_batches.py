"""What secret batches cost: the accountant of random allocation, on the host, in float64.

A pass has t steps. A secret key puts each record into one of them, independently and uniformly. Every
step releases the sum of its records' vectors plus Gaussian noise of its own. c is the longest that a
vector counts, rounding included, divided by the noise's standard deviation.

*The pair.* R is the law of all releases without a record, P with it, Q with another in its place.
1. Tell the adversary where all others are. That is independent of this record, and only helps. Now,
   under R and given the past, a release is a known vector plus noise. Let the noise have deviation 1.
2. In P the record is in step i with probability 1 / t, and then it moves release i alone, by v_i. So
   dP/dR is S, the mean over i of L_i = exp(<v_i, y_i> - |v_i|^2 / 2). dQ/dR is S', the mean of L'_i,
   with v'_i. The adversary chooses v_i and v'_i, and may look at the releases before i.
3. The privacy profiles are E (S - k)+ of P against R, E (1 - k S)+ of R against P, and E (S - k S')+
   of P against Q, all under R. The three functions are convex, and have decreasing differences: what
   they gain with S is never more where S' is larger.
4. Longer vectors are worse. Making v_i as long as c multiplies L_i by an independent factor of mean 1;
   the same for L'_i. By Jensen the mean of a convex function cannot fall.
5. Opposite vectors are worst. L_i and L'_i are now two lognormal numbers. Of all pairs with these two
   laws, the one that falls as the other rises gives the largest mean to every function with
   decreasing differences (Tchen 1980). v'_i = -v_i is that pair.
6. Begin with the last step, given the past: by 4 and 5 nothing is worse than v_t = -v'_t of length c.
   What is left is a mean of shifts of one function. So it is convex with decreasing differences in
   the sums so far, and the step before goes the same way. So no strategy beats
   L_i = exp(c x_i - c^2 / 2) and L'_i = exp(-c x_i - c^2 / 2), x_i independent and standard normal.
7. More steps are never worse: a mean of t is the mean of its t means of t - 1, and Jensen again. So a
   pass costs at most what one step does: c (without the record) or 2c (with another).

*The currency.* A pass costs (mu, slack) if telling P from R, either way, is at least as hard as
f(a) = (1 - slack) G_mu(a / (1 - slack)). That is the trade-off of mu-Gaussian-DP composed with
(0, slack)-DP: the latter's worst pair is two laws that share all but a mass of `slack` each. The
profile is slack + (1 - slack) delta_mu(eps). f is symmetric, so a pass costs (mu, slack) if and only if
both its profiles are below that at all eps >= 0 (Dong, Roth & Su 2022, Propositions 4 to 6). Passes
compose, adaptively (their Theorem 4): mus add in squares, and 1 - slack multiplies, so the sum of the
slacks is enough. Each pass needs a fresh allocation. The total variation of discrete noise is another
thing: see `delta_with`.

*Rounding outwards.* A mean of m copies is kept as masses on a grid.
1. A mass between two points is shared out between them so that its mean stays. By Jensen the mean of a
   convex function cannot fall, nor can it after independent sums. So one law bounds both orders.
2. A mass above the last point goes down to it. (1 - k S)+ can only grow. (S - k)+ and (W)+ fall by at
   most the mean that is lost, which is kept and added.
3. A mass below the first point: there is none if that is 0; else it goes up, and (W)+ can only grow.
Nothing here depends on where the points are: a bad grid costs accuracy, never privacy.

*Arithmetic.* Weights are sums of products of numbers that are not negative. So a sum of N is off by at
most N 2^-53 of itself; N is below 2^22, first masses are good to 1e-10, and after t steps weights are
good to t 1e-9. What underflows is below 1e-290; only numbers above slack >= 1e-50 count. Points are
moved up by more than they may be off. That is right for (W)+ and (S - k)+; for (1 - k S)+ it is taken
back at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from blindstep.errors import InvalidArgument, count, positive, probability
from blindstep.private import accounting

# Distance of grid points around the middle, in standard deviations, and where it begins to grow. A
# profile of P against Q needs a law of its own for each k, so theirs is coarser.
_STEP, _COARSE, _WIDTH = 0.03, 0.06, 4.0
_TAIL = 1e-4  # each end that is cut off is at most this share of the slack
# By how much points are moved up: each time two are added, and at first; more than their roundings.
_UP, _FIRST = 2.0**-49, 1e-11
_VALUES, _WEIGHTS = 1e-10, 1e-9  # how far up points are at the end; how far off weights are, a step
_SAFE = 1e-9  # Phi and its inverse are far better than this
_CLOSE = 2e-3  # how close the inverse comes
# A shorter c counts as this; a pass with a longer one, or private only beyond that epsilon, counts as
# one step; more steps count as so many. All of that is never too little.
_LEAST, _MOST, _FAR, _MOST_STEPS = 1e-4, 10.0, 50.0, 2**20
_LEAST_SLACK = 1e-50

_Grid = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class _Law:
    """Masses at increasing points, and the mean that was lost above the last of them."""

    points: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    lost: float


# -- the currency ----------------------------------------------------------------------------------


def _rest(slack: float) -> float:
    """1 - slack, or an error: it must be a probability below 1, and may be 0."""
    if not 0.0 <= slack < 1.0:
        raise InvalidArgument(f"slack must be at least 0 and below 1, got {slack!r}: give less.")
    return 1.0 - slack


def delta_with(mu: float, slack: float, epsilon: float, variation: float = 0.0) -> float:
    """The smallest delta at which a cost of (mu, slack) gives (epsilon, delta)-DP, rounded up.

    Guarantee: slack + (1 - slack) delta_mu(epsilon), the profile of the currency. If the run is only
    within a total variation of `variation` of one that costs this, as with the discrete noise, an event
    is likelier by `variation` at most, and less likely by as much: (1 + e^epsilon) variation more.
    """
    gaussian = _rest(slack) * accounting.delta(mu, epsilon)
    added = math.log(variation) + float(np.logaddexp(0.0, epsilon)) if variation else -math.inf
    return min(1.0, (slack + gaussian + math.exp(min(added, 0.0))) * (1 + _SAFE))


def epsilon_with(mu: float, slack: float, delta: float, variation: float = 0.0) -> float:
    """The smallest epsilon at which a cost of (mu, slack) gives (epsilon, delta)-DP, rounded up.

    Guarantee: slack + (1 - slack) delta_mu(epsilon) + (1 + e^epsilon) variation <= delta. Take the
    slack off and divide by 1 - slack: `accounting.epsilon` solves the rest.
    """
    rest, delta = _rest(slack), probability("delta", delta)
    if slack >= delta:
        raise InvalidArgument(
            f"a slack of {slack:g} leaves nothing of delta = {delta:g}: give a larger delta."
        )
    left = (delta - slack) / rest * (1 - _SAFE)
    return accounting.epsilon(mu, left, variation / rest * (1 + _SAFE))


def exceeds_with(mu: float, slack: float, epsilon: float) -> float:
    """A bound on the probability that the privacy loss exceeds epsilon, rounded up.

    Let E be the event that it does: P(E) > e^epsilon Q(E). Also P(E) <= 1 - f(Q(E)), and f falls. So
    P(E) is at most the largest p with p <= 1 - f(e^-epsilon p) = slack + (1 - slack) Phi(mu + z), where
    Phi(z) = e^-epsilon p / (1 - slack). The right side is concave, and above p near 0: they cross once.
    For a Gaussian the answer of `accounting.exceeds` is exact and smaller; here the law is not known.
    """
    mu, rest, low, high = positive("mu", mu), _rest(slack), 1e-300, 1.0
    while high > low * (1 + _SAFE):
        p = math.sqrt(low) * math.sqrt(high)
        z = ndtri(min(1.0, math.exp(-epsilon) * p / rest))
        low, high = (p, high) if p <= slack + rest * ndtr(mu + z) else (low, p)
    return min(1.0, high * (1 + _SAFE))


def group(mu: float, slack: float, size: int) -> tuple[float, float]:
    """The cost of changing `size` records, each of which costs (mu, slack): size mu, and more slack.

    Guarantee: proved for one record more. Before it, m1 = mu (size - 1); it adds m2 = mu; let s be the
    slack so far, at least that of one. Write r = s / (1 - s), m = m1 + m2, K_m = 1 - G_m: that is
    concave and rises.
    1. Of three data sets in a row, let a test have the level (1 - s) a under the first. Under the
       second it is at most s + (1 - s) u, u = K_m1(a), and under the third s + (1 - s) K_m2(u + r).
    2. K_m2(u) = K_m(a), since Gaussians add up. D(u) = K_m2(u + r) - K_m2(u) is what the slack adds. It
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
    is a mechanism, and so are all of them. The second gives less slack, and leaves to other releases
    what they cost by a better argument.
    """
    total, kept, rest = positive("mu", mu), slack, _rest(slack)
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
                f"no bound for {size} records at mu = {mu:g} with slack = {slack:g}: give less slack."
            )
        kept = (kept + rest * added) * (1 + _SAFE)
        rest = 1.0 - kept
    return total * (1 + _SAFE if size > 2 else 1.0), kept


def replace_one(mu: float, slack: float) -> tuple[float, float]:
    """The cost of replacing a record where leaving it out, or adding one, costs (mu, slack).

    Guarantee: `group` of two, one out and one in: 2 mu, and 2.1 times the slack at mu = 0.016, 3.2
    times at 0.134, 6.5 times at 0.3 (slack 1e-8). For a pass of secret batches `replace_mu` is better.
    """
    return group(mu, slack, 2)


# -- the law of a mean -----------------------------------------------------------------------------


def _nodes(low: float, high: float, width: float, step: float) -> Float[np.ndarray, " n"]:
    """Points from `low` to `high`: `step` times width / 4 apart around 0, geometrically far out."""
    start, end = math.asinh(low / width), math.asinh(high / width)
    return width * np.sinh(np.linspace(start, end, 2 + math.ceil(_WIDTH * (end - start) / step)))


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


def _one_step(c: float, k: float, cut: float, step: float) -> _Law:
    """The law of L - k L' for one x: the mass of a cell is shared out between its ends.

    By its exact mean: weighted by L, x is N(c, 1), and by L' it is N(-c, 1), so the mean is a ratio of
    normal masses. Above the last point at most the mean of L is lost, and how far that is below 0.
    """
    low = float(ndtri(cut))
    x = _nodes(low - c if k else low, c - low, _WIDTH, step)
    points = np.exp(c * x - c * c / 2)
    if k:
        points -= k * np.exp(-c * x - c * c / 2)
    else:
        x, points = np.append(-np.inf, x), np.append(0.0, points)
    mass = _cells(x)
    rise, fall = _cells(x - c) / mass, k * _cells(x + c) / mass
    mean = rise - fall + _FIRST * (rise + fall)
    share = np.clip((mean - points[:-1]) / np.diff(points), 0.0, 1.0)
    below, above = float(ndtr(x[0])), float(ndtr(-x[-1]))
    weights = np.append(below, mass * share)
    weights += np.append(mass * (1.0 - share), above)
    return _Law(points, weights, float(ndtr(c - x[-1])) + max(-float(points[-1]), 0.0) * above)


def _mean(one: _Law, steps: int, grid: _Grid, cut: float) -> _Law:
    """The law of the mean of independent copies: of two halves, or of all but one and one.

    `grid` makes points for the values that the mean of so many copies has. Ends with hardly any mass
    are cut off afterwards, by the rules for what lies above the last and below the first point.
    """
    if steps == 1:
        return one
    part = _mean(one, steps - 1 if steps % 2 else steps // 2, grid, cut)
    raised = part.points + _UP * np.abs(part.points)
    if steps % 2:
        other = one.points + _UP * np.abs(one.points)
        values = (((steps - 1) * raised[:, None] + other) / steps).ravel()
        weights = np.outer(part.weights, one.weights).ravel()
        lost = ((steps - 1) * part.lost + one.lost) / steps
    else:
        i, j = np.triu_indices(len(raised))
        values = (raised[i] + raised[j]) / 2
        weights = part.weights[i] * part.weights[j] * np.where(i == j, 1.0, 2.0)
        lost = part.lost
    law = _spread(values, weights, grid(values, steps), lost)
    size = (1 + np.abs(law.points)) * law.weights
    keep = (np.cumsum(law.weights) > cut) & (np.cumsum(size[::-1])[::-1] > cut)
    keep[0] |= law.points[0] == 0.0
    return _spread(law.points, law.weights, law.points[keep], law.lost)


def _needed(
    power: Float[np.ndarray, " lines"], size: Float[np.ndarray, " lines"], slack: float
) -> float:
    """The smallest mu for which the profile of f is above max_j (power_j - k size_j), rounded up.

    The profile of f at k is the largest 1 - f(a) - k a. So a line is below it at all k if f allows a
    test of that size and power: power <= 1 - f(size) = slack + (1 - slack) Phi(mu + z), where
    Phi(z) = size / (1 - slack). Nothing is left to prove between grid points, or at large epsilon.
    """
    live = (power > slack) & (size < 1 - slack)
    power = np.minimum((power[live] - slack) / (1 - slack), 1.0)
    needed = ndtri(power) - ndtri(size[live] / (1 - slack))
    return float(np.max(needed, initial=0.0)) * (1 + _SAFE) + 1e-12


def _checked(c: float, steps: int, slack: float) -> tuple[float, int, float]:
    """Arguments that can be worked with; a larger c and fewer steps cost no less."""
    slack = probability("slack", slack)
    if slack < _LEAST_SLACK:
        raise InvalidArgument(f"slack must be at least {_LEAST_SLACK:g}, got {slack:g}: give more.")
    return positive("c", c), min(count("steps", steps), _MOST_STEPS), slack


def _left_out(c: float, steps: int, slack: float) -> _Law:
    """The law of S: the density of a pass with a record against one without, under the latter."""
    cut = _TAIL * slack

    def grid(values: np.ndarray, copies: int) -> np.ndarray:
        deviation = math.sqrt(math.log1p(math.expm1(c * c) / copies))
        low = float(np.min(values, where=values > 0, initial=1.0))
        ends = math.log(low), math.log(float(np.max(values)))
        return np.append(0.0, np.exp(_nodes(*ends, _WIDTH * deviation, _STEP)))

    return _mean(_one_step(c, 0.0, cut, _STEP), steps, grid, cut)


@lru_cache(maxsize=4096)
def zero_out_mu(c: float, steps: int, slack: float) -> float:
    """The mu of a pass of `steps` secret steps, for a record's presence, rounded up.

    Guarantee: leaving a record out, or adding one, costs (mu, slack). mu <= c; at one step mu = c, and
    no slack is used. Proof: mu <= c by 7 above. Else S is rounded outwards, and both profiles are the
    largest of lines in k. E (S - k)+ has for each point the mass of P above it, less k times that of R;
    at k >= 1 only points with the next at 1 or above matter. E (1 - k S)+ has for each point the mass
    of R up to it, less k times that of P; at k >= 1 only points up to 1 matter. Weights that are off by
    a factor move a line by this factor; points that are, move the mass of P.
    """
    c, steps, slack = _checked(c, steps, slack)
    if steps == 1 or c > _MOST:
        return c
    law = _left_out(max(c, _LEAST), steps, slack)
    with_it = law.points * law.weights
    above = np.append(law.points[1:] >= 1 - 1e-6, True)
    below = law.points <= 1 + 1e-6

    def after(masses: np.ndarray) -> np.ndarray:
        return np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)

    power = np.append((law.lost + after(with_it))[above], np.cumsum(law.weights)[below])
    size = np.append(after(law.weights)[above], np.cumsum(with_it)[below])
    off = 1 + steps * _WEIGHTS
    return min(c, _needed(power * off * (1 + _VALUES), size * off * (1 - _VALUES), slack))


def _replaced(c: float, steps: int, k: float, slack: float) -> float:
    """E (W)+ for W the mean of L_i - k L'_i, rounded up: a profile of P against Q."""
    cut, middle = _TAIL * slack, 1 - k

    def nodes(low: float, high: float, width: float) -> np.ndarray:
        ends = math.asinh(low / width), math.asinh(high / width)
        return width * np.sinh(_nodes(*ends, 1.0, _COARSE))

    def grid(values: np.ndarray, copies: int) -> np.ndarray:
        low, high = float(np.min(values)), float(np.max(values))
        # Fine around the mean, and around 0, where (W)+ bends: whichever asks for more.
        turn = min(max(middle * (0.5 + 8 * c * c / copies), low), high)
        deviation = c / math.sqrt(copies)
        narrow = 2 * deviation * math.sqrt(k) * math.exp(-c * c / 2)
        left = middle + nodes(low - middle, turn - middle, _WIDTH * deviation * (1 + k))
        return np.unique(np.append(left, nodes(turn, high, _WIDTH * narrow)))

    law = _mean(_one_step(c, k, cut, _COARSE), steps, grid, cut)
    positive_part = float(np.sum(np.maximum(law.points, 0.0) * law.weights))
    return (positive_part + law.lost) * (1 + steps * _WEIGHTS) * (1 + _VALUES)


@lru_cache(maxsize=4096)
def replace_mu(c: float, steps: int, slack: float) -> float:
    """The mu of a pass of `steps` secret steps, for a record's replacement by another, rounded up.

    Guarantee: replacing a record costs (mu, slack). mu <= 2c; at one step mu = 2c, and no slack is
    used. Proof: mu <= 2c by 7 above. Else the profile of P against Q is bounded at some k >= 1. It
    falls and is convex in k. So between two of these k it is below the chord of the bounds, which is a
    line; beyond the last it is below `slack`. With -x_i for x_i, P and Q change places: one order is
    enough. New k are put where a chord asks for most, until that one is short.
    """
    c, steps, slack = _checked(c, steps, slack)
    if steps == 1 or c > _MOST:
        return 2 * c
    length = max(c, _LEAST)
    found: dict[float, float] = {}

    def profile(epsilon: float) -> float:
        if epsilon not in found:
            found[epsilon] = _replaced(length, steps, math.exp(epsilon), slack)
        return found[epsilon]

    end = 2 * length / math.sqrt(steps) * (1 + abs(float(ndtri(slack))))
    while end <= _FAR and profile(end) > slack:
        end *= 1.25
    if end > _FAR:
        return 2 * c
    at = np.linspace(0.0, end, 8)
    while True:
        known = np.minimum.accumulate([profile(float(epsilon)) for epsilon in at])
        k = np.exp(at)
        size = -np.diff(known) / np.diff(k)
        power = known[:-1] + k[:-1] * size
        needed = [_needed(power[i : i + 1], size[i : i + 1], slack) for i in range(len(size))]
        worst = int(np.argmax(needed))
        if at[worst + 1] - at[worst] <= max(min(needed[worst], 2 * c) / 6, end / 256):
            return min(2 * c, needed[worst])
        at = np.insert(at, worst + 1, (at[worst] + at[worst + 1]) / 2)


@lru_cache(maxsize=4096)
def noise_for(mu: float, steps: int, slack: float, *, replace: bool = False) -> float:
    """The largest c, that is the least noise, whose pass of `steps` secret steps costs (mu, slack).

    Guarantee: `zero_out_mu(c, steps, slack) <= mu`, or `replace_mu` with `replace`: this very c was
    asked for. Either it costs at least 0.998 mu, or one that is 0.2% longer costs more than mu.
    """
    low = positive("mu", mu) / (2 if replace else 1)
    _, steps, slack = _checked(low, steps, slack)
    if steps == 1:
        return low
    cost, high = (replace_mu if replace else zero_out_mu), low * math.sqrt(steps)
    if replace:  # leaving a record out costs no more than replacing it
        high = min(high, noise_for(mu, steps, slack))
        near = 0.98 * noise_for(low, steps, slack)
        low, high = (near, high) if cost(near, steps, slack) <= mu else (low, near)
    while cost(high, steps, slack) <= mu:
        low, high = high, 1.25 * high
    while high > low * (1 + _CLOSE) and cost(low, steps, slack) < mu * (1 - _CLOSE):
        # A power law through both ends, aimed just below mu.
        before, after = (math.log(cost(c, steps, slack) / mu) for c in (low, high))
        share = min(max((before + _CLOSE / 2) / (before - after), 0.05), 0.9)
        c = low ** (1 - share) * high**share
        low, high = (c, high) if cost(c, steps, slack) <= mu else (low, c)
    return low
