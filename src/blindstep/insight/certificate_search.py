"""The certificate's search: which points to take gradients at, and the estimates made there.

p = argmin |g| over the hull of the gradients so far is optimal for the whole ball when
<grad F(y), p> >= |p|^2 for every y in it. So each round looks for a y that violates this:

- along -p, at several distances: where F stops falling along -p, its gradient has turned (the step
  of Goldstein 1977, and of Mahdavi-Amiri and Yousefpour 2012);
- along the signs of -p in its largest coordinates, for losses whose kinks follow coordinates;
- across kinks that were crossed before, in the direction of the gradient's change; bent towards -p
  and at random;
- anywhere in the ball (gradient sampling: Burke, Lewis and Overton 2005).

The worst violations join, and the shortest combination is solved for again: a fully corrective
conditional-gradient method. The search decides how tight the certificate is, never whether it is true.
Every point gets a random shift, so that with probability 1 the loss is differentiable there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from scipy.optimize import nnls

from blindstep.errors import InvalidArgument
from blindstep.estimate.frames import Structured
from blindstep.losses.evaluators import LossEvaluator

CANDIDATES = 32
_KEPT = 4
# Relative sizes: of the random shift; of a norm that counts as 0; of a violation worth a point.
_SHIFT, _ZERO, _WORTH = 1e-4, 1e-3, 1e-3
_PATIENCE = 20

Point = Float[np.ndarray, " dim"]
Points = Float[np.ndarray, "some dim"]


@dataclass(frozen=True)
class Bundle:
    """Points within the radius, their gradients as they were found, and their best combination."""

    points: Points
    gradients: Points
    hull: Hull

    def used(self) -> Bundle:
        """The points with a weight alone."""
        kept = self.hull.weights > 0
        hull = self.hull._replace(weights=self.hull.weights[kept])
        return Bundle(self.points[kept], self.gradients[kept], hull)


def rounds_for(dim: int) -> int:
    """Most rounds: the shortest combination can need dim + 1 points."""
    return 30 + 4 * dim


def search(
    gradients: Callable[[Points], Points], centre: Point, radius: float, random: np.random.Generator
) -> Bundle:
    """A bundle of points within `radius` of the centre whose gradients have a short combination."""
    dim = centre.size
    steps = np.vstack([np.zeros((1, dim)), _anywhere(random, CANDIDATES - 1, dim)])
    points = _place(centre, radius, steps, random)
    found = gradients(points)
    idle, best = 0, np.inf
    for _ in range(rounds_for(dim)):
        hull = shortest_in_hull(found)
        length = float(np.linalg.norm(hull.shortest))
        scale = float(np.linalg.norm(found, axis=1).max(initial=0.0))
        idle = 0 if length < best * (1 - _WORTH) else idle + 1
        best = min(best, length)
        if length <= _ZERO * scale or idle > _PATIENCE:
            break
        if len(points) > 4 * (dim + 2) + 2 * CANDIDATES:
            used = hull.weights > 0
            used[0] = True  # the centre's own: the changes of the others are measured from it
            points, found = points[used], found[used]
        steps = _candidates(hull.shortest, found, random)
        fresh = _place(centre, radius, steps, random)
        at_fresh = gradients(fresh)
        gain = length**2 - at_fresh @ hull.shortest
        chosen = np.argsort(-gain)[:_KEPT]
        chosen = chosen[gain[chosen] > _WORTH * length**2]
        points = np.concatenate([points, fresh[chosen]])
        found = np.concatenate([found, at_fresh[chosen]])
    return Bundle(points, found, shortest_in_hull(found))


def _candidates(
    shortest: Point, found: Points, random: np.random.Generator
) -> Float[np.ndarray, "candidates dim"]:
    """Steps of norm at most 1 from the centre, a quarter of each kind."""
    each, dim = CANDIDATES // 4, shortest.size
    down = -_unit(shortest[None])
    along = down * np.linspace(1.0 / each, 1.0, each)[:, None]
    change = found[random.integers(len(found), size=each)] - found[:1]
    across = _unit(change)
    # As many coordinates as changed on the way to that point, or a few more; or any number.
    sizes = np.count_nonzero(np.abs(change) > 1e-3 * np.abs(change).max(initial=0.0), axis=1)
    sizes = sizes + random.integers(3, size=each)
    sizes[::3] = np.exp(np.log(dim) * random.uniform(size=len(sizes[::3]))).round()
    largest = np.argsort(-np.abs(shortest) * random.uniform(0.7, 1.0, dim))
    cut = np.zeros((each, dim))
    for row, size in zip(cut, sizes, strict=True):
        row[largest[: max(1, size)]] = -np.sign(shortest[largest[: max(1, size)]])
    tilt = _unit(random.standard_normal((each, dim)))
    bent = across + random.uniform(0, 1, (each, 1)) * down + random.uniform(0, 1, (each, 1)) * tilt
    return np.vstack([along, _unit(cut), _unit(bent), _anywhere(random, each, dim)])


def _anywhere(random: np.random.Generator, number: int, dim: int) -> Points:
    """Uniform on the unit ball for one half, on its sphere for the other."""
    lengths = random.uniform(size=(number, 1)) ** (1.0 / dim)
    lengths[number // 2 :] = 1.0
    return lengths * _unit(random.standard_normal((number, dim)))


def _place(centre: Point, radius: float, steps: Points, random: np.random.Generator) -> Points:
    """centre + radius x step, each shifted at random and still within the radius after rounding."""
    shift = random.uniform(size=(len(steps), 1)) * _unit(random.standard_normal(steps.shape))
    steps = steps + _SHIFT * shift
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    # A random factor, too, so that two points on the sphere are not at the same distance.
    inside = 1.0 - 1e-9 - 1e-6 * random.uniform(size=lengths.shape)
    return centre + radius * steps * np.minimum(1.0, inside / np.maximum(lengths, 1e-300))


def _unit(vectors: Points) -> Points:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)


def bernstein(variance: float, largest: float, failure: float) -> float:
    """The t that |sum X_j| reaches with probability at most `failure`.

    For independent vectors X_j of mean 0, in any dimension, with sum E|X_j|^2 <= variance = T and
    |X_j| <= largest = a:  P(|sum X_j| >= t) <= 2 exp(-t^2 / (2 (T + a t / 3)))  (Pinelis 1994, Theorem
    3.4, and Bernstein's second step).
    """
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


# Numbers in the probe points that are held at once.
_AT_ONCE = 2**21
_SEGMENTS, _NODES = 4, 48


@dataclass(frozen=True)
class Source:
    """Where gradients come from."""

    evaluator: LossEvaluator
    explored: Int[np.ndarray, " rows"]  # what the search looks at, the same rows at every point
    batch: int  # rows of one independent estimate; all of them if it is the number of records
    slope: float  # bound on the slope of the loss, as the user promised; inf if nothing was
    smoothing: float  # h of estimates from values; 0 for automatic differentiation

    @property
    def exact(self) -> bool:
        """Whether a gradient is that of the mean over all records, not an estimate of it."""
        return self.smoothing == 0 and self.batch == self.evaluator.records

    def estimate_bound(self, dim: int) -> float:
        """The longest an estimate can be: the slope, times sqrt(d) for frames of d directions."""
        return self.slope * (math.sqrt(dim) if self.smoothing else 1.0)

    def explore(self, points: Points, random: np.random.Generator) -> Points:
        """Gradients for the search."""
        if self.smoothing == 0:
            return self.evaluator.gradients(points[None], self.explored[None])[0]
        rows = np.broadcast_to(self.explored, (len(points), len(self.explored)))
        return self._from_values(points, rows, random)

    def draw(self, points: Points, random: np.random.Generator) -> Points:
        """One independent estimate at each point, unbiased for an element of the subdifferential."""
        records = self.evaluator.records
        if self.batch == records:
            rows = np.broadcast_to(np.arange(records), (len(points), records))
        else:
            rows = random.integers(records, size=(len(points), self.batch))
        if self.smoothing:
            return self._from_values(points, rows, random)
        estimates = self.evaluator.gradients(points[:, None], rows)[:, 0]
        self._require_promise(np.linalg.norm(estimates, axis=1))
        return estimates

    def _from_values(
        self, points: Points, rows: Int[np.ndarray, "some batch"], random: np.random.Generator
    ) -> Points:
        """sum_j c_j u_j with c_j = (F(y + h u_j) - F(y - h u_j)) / 2h along a frame u_1 .. u_d.

        Each u_j is uniform on the sphere, so the expectation is the gradient at y of F averaged
        over the ball of radius h: an element of Goldstein's subdifferential of radius h at y.
        """
        dim, h = points.shape[1], self.smoothing
        key = jax.random.key(int(random.integers(2**32)))
        size = max(1, _AT_ONCE // (2 * dim * dim))
        parts = []
        for start in range(0, len(points), size):
            own = points[start : start + size]
            frames = np.asarray(_frames(jax.random.fold_in(key, start), len(own), dim))
            probes = np.concatenate([own[:, None] + h * frames, own[:, None] - h * frames], axis=1)
            values = self.evaluator.values(probes, rows[start : start + size])
            slopes = (values[:, :dim] - values[:, dim:]) / (2.0 * h)
            self._require_promise(np.abs(slopes))
            parts.append(np.einsum("sj,sjd->sd", slopes, frames))
        return np.concatenate(parts)

    def _require_promise(self, slopes: np.ndarray) -> None:
        if np.any(slopes > self.slope * (1 + 1e-6)):
            raise InvalidArgument(
                f"the mean loss is steeper near the point than the {self.slope:g} that the bounds "
                "promise, so no bound with confidence can be given: correct the bounds."
            )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _frames(key: Key[Array, ""], number: int, dim: int) -> Float[Array, "number dim dim"]:
    every = jnp.arange(dim)
    sample = jax.vmap(lambda own: Structured().sample(own, every, dim, dim))
    return sample(jax.random.split(key, number))


def rows_to_explore(
    evaluator: LossEvaluator, batch: int, dim: int, values: bool, random: np.random.Generator
) -> Int[np.ndarray, " rows"]:
    """Rows for the search: all of them where that is bearable, a random choice where not."""
    calibrations = CANDIDATES * rounds_for(dim) * (2 * dim if values else 1)
    wanted = max(batch, evaluator.evaluations // calibrations)
    if wanted >= evaluator.records:
        return np.arange(evaluator.records)
    return np.sort(random.choice(evaluator.records, size=wanted, replace=False))


def derivative_is_true(
    evaluator: LossEvaluator,
    centre: Point,
    radius: float,
    rows: Int[np.ndarray, " rows"],
    random: np.random.Generator,
) -> bool:
    """Whether automatic derivatives, integrated along random chords, give the loss's differences.

    For a step function (0/1 loss, a rounded score, a stopped gradient) the automatic derivative is
    0 almost everywhere and says nothing: a certificate made of it would be false. A jittered sum
    over 48 nodes misses a kink by at most 1/48 of its jump; a fifth of the slope is allowed.
    """
    ends = random.standard_normal((2, _SEGMENTS, centre.size))
    ends /= np.linalg.norm(ends, axis=-1, keepdims=True)
    # From near the centre to the boundary: a loss may be symmetric about its centre.
    ends = centre + radius * ends * np.array([0.2, 1.0])[:, None, None]
    chords = ends[1] - ends[0]
    times = (np.arange(_NODES) + random.uniform(size=(_SEGMENTS, _NODES))) / _NODES
    nodes = ends[0][:, None] + times[..., None] * chords[:, None]
    slopes = evaluator.gradients(nodes.reshape(1, -1, centre.size), rows[None])[0]
    slopes = np.einsum("snd,sd->sn", slopes.reshape(nodes.shape), chords)
    values = evaluator.values(ends.reshape(1, -1, centre.size), rows[None]).reshape(2, _SEGMENTS)
    missed = np.abs(values[1] - values[0] - slopes.mean(axis=1))
    allowed = 0.2 * np.abs(slopes).max(axis=1) + 1e-9 * (1.0 + np.abs(values).max())
    return bool(np.sum(missed) <= np.sum(allowed))
