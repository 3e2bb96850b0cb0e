"""Slow, readable NumPy twin of "Private Zeroth-Order Nonsmooth Nonconvex Optimization".

Written from the paper alone and cited by its LaTeX labels. Randomness is always an argument. Plain
loops, float64. `printed_*` is what the paper says; `exact_*` and `corrected_*` is what is true.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

Array = np.ndarray
Loss = Callable[[Array, Any], float]
Batch = Sequence[Any]
Limit = float | None
Bound = float | Callable[[float], float] | None
Nested = Sequence[Sequence[Any]]  # indexed [k][t]
Oracle = Callable[[int, int, Array], Array]  # (k, t, w) -> g~_t^k, seeing w up to [k, t]


# --- zeroth-order estimators (sec:estimator) ---
@np.errstate(all="ignore")
def _record(
    pairs: list[Any], f: Loss, z: Any, us: Array, scale: float, clamp: Limit, clip: Limit
) -> Array:
    """One record's estimate: 1/q sum_j scale * (f(a_j, z) - f(b_j, z)) u_j, for pairs (a_j, b_j).

    Not in the paper: each raw difference is clamped to [-clamp, clamp], and the average is scaled
    down to Euclidean norm `clip` when longer. If f raises, or any value or difference or the
    average itself is not finite, the record contributes exactly 0.
    """
    zero = total = np.zeros(us.shape[1])
    for (a, b), u in zip(pairs, us, strict=True):
        try:
            fa, fb = float(f(a, z)), float(f(b, z))
        except Exception:
            return zero
        difference = fa - fb
        if not (math.isfinite(fa) and math.isfinite(fb) and math.isfinite(difference)):
            return zero
        if clamp is not None:
            difference = max(-clamp, min(clamp, difference))
        total = total + scale * difference * u
    estimate = total / len(us)
    if not np.all(np.isfinite(estimate)):
        return zero
    if clip is not None and math.hypot(*estimate) > clip:
        estimate = estimate * (clip / math.hypot(*estimate))
    return estimate


def grad(f: Loss, x: Array, batch: Batch, directions: Array, delta: float, *,
         clamp: Limit = None, clip: Limit = None) -> Array:  # fmt: skip
    """GRAD of alg:first-grad, with directions u_ij of shape (b, q, d); the paper has q = d.

    1/b sum_i 1/q sum_j d/(2 delta) (f(x + delta u_ij, z_i) - f(x - delta u_ij, z_i)) u_ij.
    """
    d, total = len(x), np.zeros(len(x))
    for z, us in zip(batch, directions, strict=True):
        pairs = [(x + delta * u, x - delta * u) for u in us]
        total = total + _record(pairs, f, z, us, d / (2 * delta), clamp, clip)
    return total / len(batch)


def diff(f: Loss, x: Array, y: Array, batch: Batch, directions: Array, delta: float, *,
         clamp: Limit = None, clip: Limit = None) -> Array:  # fmt: skip
    """DIFF of alg:zeroth-diff, with the same directions u_ij at both points x and y.

    1/b sum_i 1/q sum_j d/delta (f(x + delta u_ij, z_i) - f(y + delta u_ij, z_i)) u_ij.
    """
    d, total = len(x), np.zeros(len(x))
    for z, us in zip(batch, directions, strict=True):
        pairs = [(x + delta * u, y + delta * u) for u in us]
        total = total + _record(pairs, f, z, us, d / delta, clamp, clip)
    return total / len(batch)


# --- tree mechanism (alg:tree) ---
def node(t: int) -> list[tuple[int, int]]:
    """NODE(t) of alg:tree, 1-based; the printed S u {(k+1), k'} is read as S u {(k+1, k')}.

    Down the layers i of a tree of depth ceil(log2 t), take (k+1, k + 2^(depth-i)) if within t.
    """
    depth = (t - 1).bit_length()  # ceil(log2 t), exactly
    k, found = 0, []
    for i in range(depth + 1):  # the printed "while k < t" is implied: past t nothing fits
        k_next = k + 2 ** (depth - i)
        if k_next <= t:
            found.append((k + 1, k_next))
            k = k_next
    return found


def tree(t: int, xi: Array) -> Array:
    """TREE(t) of alg:tree: sum of xi_i over (., i) in NODE(t); xi has shape (T, d)."""
    total = np.zeros(xi.shape[1])
    for _, end in node(t):
        total = total + xi[end - 1]
    return total


def tree_matrices(T: int) -> tuple[Array, Array]:
    """(B, C) with B @ C = lower-triangular ones, by brute force from NODE.

    B[t-1, i-1] = 1 if a node ending at i is in NODE(t); C[i-1] marks the leaves of that node. The
    node ending at i is the same for every t (which thm:tree needs: each xi_i serves one node).
    """
    B, C = np.zeros((T, T)), np.zeros((T, T))
    for t in range(1, T + 1):
        for start, end in node(t):
            leaves = np.zeros(T)
            leaves[start - 1 : end] = 1.0
            if C[end - 1].any() and not np.array_equal(C[end - 1], leaves):
                raise AssertionError(f"two different nodes end at {end}")
            B[t - 1, end - 1] = 1.0
            C[end - 1] = leaves
    return B, C


# --- O2NC and its oracles (alg:PONC, alg:oracle-variance-reduced, alg:oracle-standard) ---
def project(v: Array, D: float) -> Array:
    """Pi_D of sec:algorithm: the nearest point of the ball of radius D around 0."""
    length = math.hypot(*v)
    return v * (D / length) if length > D else v


def osd(delta_prev: Array, g: Array, eta: float, D: float) -> Array:
    """Projected online subgradient descent: Delta_t = Pi_D(Delta_{t-1} - eta g~_{t-1})."""
    return project(delta_prev - eta * g, D)


@dataclass
class Trace:
    """All that a run of alg:PONC goes through; index [k, t] is step t+1 of the learner's k+1-th round

    (which the paper calls round t+1 of epoch k+1).
    """

    w: Array  # (K, T, d): the query points w_t^k
    released: Array  # (K, T, d): the noisy oracle answers g~_t^k
    moves: Array  # (K, T, d): the learner's Delta_t^k
    round_means: Array  # (K, d): the candidate outputs w-bar^k
    x_final: Array  # (d,): x_{T+1}^K


def _o2nc(oracle: Oracle, x1: Array, s: Array, eta: float, D: float) -> Trace:
    """alg:PONC with OSD: x_{t+1} = x_t + Delta_t, w_t = x_t + s_t Delta_t, learner restarted."""
    (K, T), d = s.shape, len(x1)
    w, released, moves = np.zeros((K, T, d)), np.zeros((K, T, d)), np.zeros((K, T, d))
    means, x = np.zeros((K, d)), np.array(x1, dtype=float)
    for k in range(K):
        for t in range(T):
            if t >= 1:  # and Delta_1 = 0
                moves[k, t] = osd(moves[k, t - 1], released[k, t - 1], eta, D)
            w[k, t] = x + s[k, t] * moves[k, t]
            x = x + moves[k, t]
            released[k, t] = oracle(k, t, w)
            means[k] = means[k] + w[k, t] / T
    return Trace(w=w, released=released, moves=moves, round_means=means, x_final=x)


def snap(v: Array, width: float) -> Array:
    """The nearest whole multiple of `width`; v itself for a width of 0, as in the paper."""
    return width * np.rint(v / width) if width else v


def _at(bound: Bound, distance: float) -> Limit:
    """A bound that may depend on the distance |w_t - w_{t-1}|."""
    return bound(distance) if callable(bound) else bound


def variance_reduced_run(
        f: Loss, x1: Array, batches: Nested, directions: Nested, s: Array, xi: Array, *,
        delta: float, eta: float, D: float, first_clamp: Limit = None, diff_clamp: Bound = None,
        first_clip: Limit = None, diff_clip: Bound = None, width: float = 0.0) -> Trace:  # fmt: skip
    """alg:PONC with alg:oracle-variance-reduced.

    m_1 = GRAD(w_1, Z_1), m_t = DIFF(w_t, w_{t-1}, Z_t). The paper's g~_t = m_1 + .. + m_t + TREE(t)
    (as in the proof of cor:privacy; the algorithm prints g~_t + TREE(t)) is made of one release for
    each node: y_i = (sum of m over the leaves of the node that ends at i) + xi_i, and g~_t = the sum
    of y_i over the ends i in NODE(t). xi: (K, T, d), already scaled. With a `width`, the sums of m are
    snapped first.
    """
    B, C = tree_matrices(s.shape[1])
    m, y = np.zeros((2, s.shape[1], len(x1)))

    def oracle(k: int, t: int, w: Array) -> Array:
        Z, U = batches[k][t], directions[k][t]
        if t == 0:
            m[0] = grad(f, w[k, 0], Z, U, delta, clamp=first_clamp, clip=first_clip)
        else:
            now, before = w[k, t], w[k, t - 1]
            distance = math.hypot(*(now - before))
            clamp, clip = _at(diff_clamp, distance), _at(diff_clip, distance)
            m[t] = diff(f, now, before, Z, U, delta, clamp=clamp, clip=clip)
        y[t] = snap(C[t, : t + 1] @ m[: t + 1], width) + xi[k, t]
        return B[t, : t + 1] @ y[: t + 1]

    return _o2nc(oracle, x1, s, eta, D)


def naive_run(
        f: Loss, x1: Array, batches: Nested, directions: Nested, s: Array, xi: Array, *,
        delta: float, eta: float, D: float, first_clamp: Limit = None, diff_clamp: Bound = None,
        first_clip: Limit = None, diff_clip: Bound = None, width: float = 0.0) -> Trace:  # fmt: skip
    """alg:PONC with alg:oracle-standard: g~_t = GRAD(w_t, Z_t) + xi_t, directions (B, 1, d).

    There is no DIFF here: diff_clamp and diff_clip are accepted for symmetry, and ignored.
    """

    def oracle(k: int, t: int, w: Array) -> Array:
        Z, U = batches[k][t], directions[k][t]
        m = grad(f, w[k, t], Z, U, delta, clamp=first_clamp, clip=first_clip)
        return snap(m, width) + xi[k, t]

    return _o2nc(oracle, x1, s, eta, D)


# --- theory: lemmas, as printed ---
def grad_variance_bound(d: int, L: float, b: int) -> float:
    """lem:grad-estimator (variance, q = d): E|GRAD - grad F^|^2 <= 16 d L^2 / b."""
    return 16 * d * L**2 / b


def diff_variance_bound(d: int, L: float, b: int, delta: float, distance: float) -> float:
    """lem:diff-estimator (variance, q = d): <= 16 d L^2 / (b delta^2) |x - y|^2."""
    return 16 * d * L**2 / (b * delta**2) * distance**2


def grad_sensitivity(d: int, L: float, b: int) -> float:
    """lem:grad-estimator (sensitivity): 2 d L / b."""
    return 2 * d * L / b


def diff_sensitivity(d: int, L: float, b: int, delta: float, distance: float) -> float:
    """lem:diff-estimator (sensitivity): 2 d L / (b delta) |x - y|."""
    return 2 * d * L / (b * delta) * distance


def oracle_variance_bound(d: int, L: float, B1: int, B2: int, T: int) -> float:
    """lem:oracle-variance (D <= delta/T): E|grad F^(w_t) - g_t|^2 <= 16dL^2/B1 + 64dL^2/(B2 T).

    The proof of thm:convergence prints 80dL^2/(B2 T) and credits B1 >= T B2 / 2; that condition
    gives 96. 80 needs B1 >= T B2, which its own B1 = T + 1, B2 = 1 satisfies.
    """
    return 16 * d * L**2 / B1 + 64 * d * L**2 / (B2 * T)


def printed_sigma(T: int, d: int, L: float, B2: int, mu: float) -> float:
    """cor:privacy AS PRINTED (for B1 >= T B2 / 2): sqrt(2 ln T) 4 d L / (B2 T mu).

    It is 0 at T = 1, and at B1 = T B2 / 2 also too small for T = 2 and 4.
    """
    return math.sqrt(2 * math.log(T)) * 4 * d * L / (B2 * T * mu)


def exact_node_count(T: int) -> int:
    """Most nodes that one leaf enters, by brute force; thm:tree bounds it by 2 ln T."""
    return max(int(column.sum()) for column in tree_matrices(T)[1].T)


def corrected_sigma(T: int, d: int, L: float, B1: int, B2: int, mu: float) -> float:
    """cor:privacy CORRECTED: the sigma with block_mu = mu, at D = delta/T and for any B1."""
    later = diff_sensitivity(d, L, B2, 1.0, 2.0 / T)  # rmk:w-distance: |w_t - w_{t-1}| <= 2 delta/T
    sensitivities = [grad_sensitivity(d, L, B1)] + [later] * (T - 1)
    return block_mu(sensitivities, tree_matrices(T)[1], 1.0) / mu


def printed_tree_noise(T: int, d: int, L: float, B2: int, mu: float) -> float:
    """cor:tree-noise AS PRINTED: E|TREE(t)|^2 <= (8 ln T d^1.5 L/(B2 T mu))^2 (not its root)."""
    return (8 * math.log(T) * d**1.5 * L / (B2 * T * mu)) ** 2


def exact_tree_noise(T: int, d: int, sigma: float) -> float:
    """cor:tree-noise CORRECTED: max_t E|TREE(t)|^2 = max_t |NODE(t)| d sigma^2."""
    return max(len(node(t)) for t in range(1, T + 1)) * d * sigma**2


def balancing_horizons(
    M: float, d: int, L: float, delta: float, gap: float, mu: float
) -> tuple[float, float]:
    """thm:convergence: (T_statistical, T_private) =

    (sqrt(d) L delta M / (F* + L delta))^(2/3), (d^1.5 L delta M / ((F* + L delta) mu))^(1/2).
    PRINTED: T is the minimum of the two. CORRECTED: the maximum.
    """
    ratio = delta * M / (gap + L * delta)
    return (math.sqrt(d) * L * ratio) ** (2 / 3), (d**1.5 * L * ratio / mu) ** 0.5


def order_bound(T: float, M: float, d: int, L: float, delta: float, gap: float, mu: float) -> float:
    """Proof of thm:convergence, last display before T is chosen, with constants and logs 1:

    (F* + L delta) T / (delta M) + sqrt(d) L / sqrt(T) + d^1.5 L / (T mu).
    """
    start = (gap + L * delta) * T / (delta * M)
    return start + math.sqrt(d) * L / math.sqrt(T) + d**1.5 * L / (T * mu)


def proof_bound(T: int, K: int, B1: int, B2: int, d: int, L: float, delta: float, gap: float,
                D: float, tree_noise_rms: float) -> float:  # fmt: skip
    """Explicit bound on E|grad F(w-bar)|_{2 delta}: the proof of thm:convergence added up.

    With V = oracle_variance_bound and N = tree_noise_rms = sqrt(max_t E|TREE(t)|^2):
      (F* + 2 L delta) / (D K T)                                         cor:O2NC-smoothing
      + K * D sqrt(T (3 V + 3 L^2 + 3 N^2)) / (D K T)                    regret of OSD
      + K T * 2 D (sqrt(V) + N) / (D K T)                                inner products.
    Needs D <= delta/T and OSD's eta = D / sqrt(sum_t E|g~_t|^2).
    """
    if T * D / delta > 1 + 1e-12:
        raise ValueError("cor:O2NC-smoothing and lem:oracle-variance need D <= delta / T")
    V = oracle_variance_bound(d, L, B1, B2, T)
    regret = D * math.sqrt(T * (3 * V + 3 * L**2 + 3 * tree_noise_rms**2))
    inner = 2 * D * (math.sqrt(V) + tree_noise_rms)
    return (gap + 2 * L * delta + K * regret + K * T * inner) / (D * K * T)


# --- privacy accounting ---
def printed_epsilon(mu: float, delta: float) -> float:
    """sec:pre AS PRINTED: 2 mu sqrt(ln(1/delta)). Valid for delta <= exp(-mu^2), not >=."""
    return 2 * mu * math.sqrt(math.log(1 / delta))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """sec:pre CORRECTED: the exact delta of N(0, 1) against N(mu, 1), mu > 0.

    Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), written as Phi_1 (1 - e^eps Phi_2 / Phi_1).
    """
    log_first = norm.logcdf(mu / 2 - epsilon / mu)
    log_second = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
    return float(np.exp(log_first) * -np.expm1(log_second - log_first))


def block_mu(sensitivities: Sequence[float], C: Array, sigma: float) -> float:
    """mu of one round, thm:tree with the nodes really used: max_i s_i |C[:, i]|_2 / sigma."""
    return max(s_i * math.hypot(*C[:, i]) / sigma for i, s_i in enumerate(sensitivities))
