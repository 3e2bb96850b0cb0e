"""Lower bounds on mu from counted guesses, and the exact conversions, worked out a second time.

Nothing here uses `private.accounting`: an audit that borrowed the arithmetic of what it audits would
share its mistakes.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats


def clopper_pearson_lower(hits: int, trials: int, miss: float) -> float:
    """The rate that `hits` in `trials` independent trials prove, wrong with probability <= miss."""
    return 0.0 if hits == 0 else float(stats.beta.ppf(miss, hits, trials - hits + 1))


def clopper_pearson_upper(hits: int, trials: int, miss: float) -> float:
    """The rate that cannot be exceeded, wrong with probability <= miss."""
    return 1.0 - clopper_pearson_lower(trials - hits, trials, miss)


def mu_lower_bound(
    scores: Float[np.ndarray, " n"],
    neighbour_scores: Float[np.ndarray, " m"],
    confidence: float = 0.999,
) -> float:
    """Mu that must hold, with this confidence, given scores from two neighbouring data sets.

    An attack with true positive rate a and false positive rate b proves mu >= Phi^-1(a) - Phi^-1(b)
    (Dong, Roth and Su 2022: a mu-Gaussian-DP mechanism admits no other). Each rate is bounded by
    Clopper and Pearson (1934) at half of the allowed failure probability, so scores of the two data
    sets may depend on each other; those of one data set must be independent, and the threshold is
    0, fixed beforehand.
    """
    miss = (1 - confidence) / 2
    hits, alarms = int(np.sum(neighbour_scores > 0)), int(np.sum(scores > 0))
    caught = clopper_pearson_lower(hits, len(neighbour_scores), miss)
    false = clopper_pearson_upper(alarms, len(scores), miss)
    return max(0.0, float(stats.norm.ppf(caught) - stats.norm.ppf(false)))


def mu_from_guesses(correct: int, guesses: int, confidence: float = 0.999) -> float:
    """Mu that `correct` guesses of fair, independent coins prove, one coin for each block of a run.

    Steinke, Nasr and Jagielski (2023) audit with many canaries in one run. Here they stand in
    disjoint blocks, which makes it simple and exact. Given everything released before block b, the
    block's transcript under the two values of its coin is a mu-Gaussian-DP pair, so a guess is
    right with probability at most

        max over tests of (true positives + true negatives) / 2 = Phi(mu / 2).

    What comes later depends on the coin through the transcript only. So the number of correct
    guesses is stochastically below Binomial(guesses, Phi(mu / 2)), whatever the blocks have to do
    with each other, and Clopper-Pearson holds for it.
    """
    rate = clopper_pearson_lower(correct, guesses, 1 - confidence)
    return max(0.0, 2.0 * float(stats.norm.ppf(rate)))


def expected_lower_bound(mu: float, trials: int, confidence: float = 0.999) -> float:
    """What `mu_lower_bound` gives where mu is the truth and every rate comes out as expected."""
    miss, rate = (1 - confidence) / 2, float(stats.norm.cdf(mu / 2))
    lower = clopper_pearson_lower(round(rate * trials), trials, miss)
    return max(0.0, 2.0 * float(stats.norm.ppf(lower)))


def epsilon_at(mu: float, delta: float) -> float:
    """Epsilon of mu-Gaussian-DP at delta, by bisection on the hockey-stick divergence of the pair.

    delta(epsilon) = P(N(mu, 1) > t) - e^epsilon P(N(0, 1) > t) at t = epsilon / mu + mu / 2, where the
    densities' ratio is e^epsilon.
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        threshold = epsilon / mu + mu / 2
        lost = math.exp(epsilon + stats.norm.logsf(threshold))
        return float(stats.norm.sf(threshold - mu) - lost - delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.bisect(excess, 0.0, high, xtol=1e-12, rtol=1e-13))  # pyright: ignore
