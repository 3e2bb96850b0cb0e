"""Gradients near a point, exact or estimated: what the search looks at and the bound is made of."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from blindstep.errors import InvalidArgument
from blindstep.estimate.frames import Structured
from blindstep.insight.certificate.search import CANDIDATES, rounds_for
from blindstep.losses.evaluators import LossEvaluator

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

    def explore(
        self, points: Float[np.ndarray, "some dim"], random: np.random.Generator
    ) -> Float[np.ndarray, "some dim"]:
        """Gradients for the search."""
        if self.smoothing == 0:
            return self.evaluator.gradients(points[None], self.explored[None])[0]
        rows = np.broadcast_to(self.explored, (len(points), len(self.explored)))
        return self._from_values(points, rows, random)

    def draw(
        self, points: Float[np.ndarray, "some dim"], random: np.random.Generator
    ) -> Float[np.ndarray, "some dim"]:
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
        self,
        points: Float[np.ndarray, "some dim"],
        rows: Int[np.ndarray, "some batch"],
        random: np.random.Generator,
    ) -> Float[np.ndarray, "some dim"]:
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
    centre: Float[np.ndarray, " dim"],
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
