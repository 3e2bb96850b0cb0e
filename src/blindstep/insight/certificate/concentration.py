"""How far estimated vectors can be from their means: bounds that hold with stated confidence.

Every bound is for the Euclidean norm and free of the dimension (Pinelis 1994, Theorem 3.4: for
independent vectors X_j of mean 0 with |X_j| <= a and sum E|X_j|^2 <= T,

    P(|sum X_j| >= t) <= 2 exp(-T/a^2 h(a t / T)) <= 2 exp(-t^2 / (2 (T + a t / 3)))

with h(u) = (1+u) ln(1+u) - u; the second step is Bernstein's).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int


def bernstein(variance: float, largest: float, failure: float) -> float:
    """The t at which the bound above is `failure`, for sum E|X_j|^2 <= variance, |X_j| <= largest."""
    log = math.log(2.0 / failure)
    linear = largest * log / 3.0
    return linear + math.sqrt(linear**2 + 2.0 * variance * log)


def stratified_error(
    estimates: Float[np.ndarray, "samples dim"],
    stratum: Int[np.ndarray, " samples"],
    weights: Float[np.ndarray, " strata"],
    bound: float,
    failure: float,
) -> float:
    """Bound on |sum_k w_k (mean of stratum k's estimates - its expectation)|, from the sample itself.

    Independent estimates with |e| <= `bound`, so at most 2 `bound` from their means; each stratum
    has an even number of them, its pairs next to each other. Half of `failure` goes to the
    variance: pairs give Y = |e - e'|^2 / 2, in [0, 2 bound^2], with mean the variance; for
    independent Z_j in [0, M], P(sum E Z - sum Z >= t) <= exp(-t^2 / (2 M sum E Z)) (Maurer 2003),
    so that the root of the true sum T is at most sqrt(T^ + M l / 2) + sqrt(M l / 2), l = ln(2 /
    failure).
    """
    counts = np.bincount(stratum, minlength=len(weights))
    if np.any(counts % 2) or np.any((counts == 0) & (weights > 0)):
        raise ValueError("every stratum with a weight needs an even number of estimates")
    share = (weights / np.maximum(counts, 1))[stratum]
    pairs = 0.5 * np.sum((estimates[0::2] - estimates[1::2]) ** 2, axis=1)
    # Stratum k's part of the variance is (w_k / n_k)^2 n_k V_k, and V_k is the mean of n_k/2 pairs.
    pair_weights = 2.0 * share[0::2] ** 2
    log = math.log(2.0 / failure)
    largest_pair = float(pair_weights.max()) * 2.0 * bound**2
    half = largest_pair * log / 2.0
    root = math.sqrt(float(pair_weights @ pairs) + half) + math.sqrt(half)
    return bernstein(root**2, float(share.max()) * 2.0 * bound, failure / 2.0)


def gaussian_combination(
    weights_norm: float, std: float, dim: int, number: int, failure: float
) -> float:
    """Bound on |sum_k w_k xi_k| for *every* w of this norm, xi_1 .. xi_number ~ N(0, std^2 I).

    |w| times the operator norm of a dim x number Gaussian matrix, which exceeds
    sqrt(dim) + sqrt(number) + t with probability at most exp(-t^2 / 2) (Davidson and Szarek 2001).
    It holds for all w at once, so w may be chosen by looking at the noisy vectors.
    """
    spread = math.sqrt(dim) + math.sqrt(number) + math.sqrt(2.0 * math.log(1.0 / failure))
    return weights_norm * std * spread
