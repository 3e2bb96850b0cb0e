"""The shortest vector in the convex hull of gradients, by non-negative least squares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls


class Hull(NamedTuple):
    """The shortest convex combination found: weights, which add up to 1, and the combination p."""

    weights: Float[np.ndarray, " number"]
    shortest: Float[np.ndarray, " dim"]
    # max_k (|p|^2 - <g_k, p>) / max_k |g_k|^2: at most 0 exactly at the optimum (Karush-Kuhn-Tucker).
    residual: float


def shortest_in_hull(vectors: Float[np.ndarray, "number dim"], ridge: float = 0.0) -> Hull:
    """Minimise |sum_k w_k g_k|^2 + ridge^2 |w|^2 over weights w >= 0 that add up to 1.

    Solved as min over v >= 0 of |G^T v|^2 + ridge^2 |v|^2 + (1 - sum v)^2 by Lawson and Hanson's
    active sets (`scipy.optimize.nnls`). For v = s w with sum w = 1 the best s leaves q / (1 + q)
    with q the value at w, which grows with q: so v / sum v is the exact optimum, for no choice of a
    penalty. Any weights give an upper bound on the smallest norm; the solver decides its tightness.
    """
    number = len(vectors)
    scale = float(np.linalg.norm(vectors, axis=1).max(initial=0.0))
    if scale == 0.0:
        return Hull(np.full(number, 1.0 / number), np.zeros(vectors.shape[1]), 0.0)
    unit = vectors / scale
    rows = [unit.T, np.ones((1, number))]
    if ridge > 0:
        rows.insert(1, ridge / scale * np.eye(number))
    matrix = np.concatenate(rows)
    target = np.zeros(len(matrix))
    target[-1] = 1.0
    raw, _ = nnls(matrix, target, maxiter=50 * number)
    weights = raw / raw.sum()
    shortest = weights @ unit
    value = shortest @ shortest + (ridge / scale) ** 2 * (weights @ weights)
    slack = value - unit @ shortest - (ridge / scale) ** 2 * weights
    return Hull(weights, weights @ vectors, float(slack.max()))
