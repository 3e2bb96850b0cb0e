"""`blindstep.certificate`: how stationary a point is, measured."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.errors import InvalidArgument, count, positive, probability
from blindstep.estimate.bounds import Bounds
from blindstep.insight import certificate_private as private
from blindstep.insight.certificate_private import Measured
from blindstep.insight.certificate_search import (
    Bundle,
    Source,
    derivative_is_true,
    rows_to_explore,
    search,
    shortest_in_hull,
    stratified_error,
)
from blindstep.ledger.budget import Privacy
from blindstep.losses.evaluators import LossEvaluator, evaluator, float64
from blindstep.losses.pytrees import Loss, ParameterSpace
from blindstep.planning.statement import SEEDED, Statement, round_up

METHODS = ("auto", "autodiff", "values")
# Of exact arithmetic on the gradients: their own rounding, relative to the longest.
_ROUNDING = 1e-9
# Estimates of each gradient before the last combination.
_REFINEMENTS = 16
# Smoothing as a share of the radius: a promised slope bears a small one, a promised range does not.
_FINE, _COARSE, _PRIVATE = 0.02, 0.5, 0.25


@dataclass(frozen=True)
class Certificate:
    """An upper bound on the Goldstein norm of the mean loss at a point.

    The Goldstein norm is min |g| over the convex hull of the gradients of the mean loss within
    `radius`: what the theorems bound, and 0 at a minimum, smooth or not.

    Attributes:
        norm_bound: the upper bound: `measured` + `error`, or the promised slope if that is less.
        confidence: probability that it holds; 1 where nothing was estimated.
        radius: how far from the point gradients were taken.
        measured: norm of the shortest combination found.
        error: what is added for estimation and noise, so that the bound holds.
        points: how many gradients are combined.
        method: "autodiff" or "values".
        records: how many records the mean is over.
        privacy: what it cost; None for data declared public.
        assumes: what it takes on the user's word, one sentence each.
    """

    norm_bound: float
    confidence: float
    radius: float
    measured: float
    error: float
    points: int
    method: str
    records: int
    privacy: Statement | None
    assumes: tuple[str, ...]

    @property
    def public(self) -> bool:
        """Whether it was made of data declared public, so that it cost nothing."""
        return self.privacy is None

    def __str__(self) -> str:
        gradients = "1 gradient" if self.points == 1 else f"{self.points} gradients"
        bound, sure = f"{self.norm_bound:.4g}", "certain up to rounding"
        if self.confidence < 1:
            bound, sure = round_up(self.norm_bound, 4), f"confidence {self.confidence:g}"
        cost = "declared public: it cost no privacy."
        if self.privacy is not None:
            spent = map(round_up, (self.privacy.epsilon, self.privacy.delta, self.privacy.mu))
            cost = "private: it cost ({}, {})-DP (mu = {}), charged to the ledger.".format(*spent)
        added = f"{self.error:.2g} is added for estimation{' and noise' if self.privacy else ''}."
        combined = f"{gradients} within the radius combine to norm {self.measured:.4g}"
        lines = [
            f"Goldstein norm at radius {self.radius:g}: at most {bound} ({sure}).",
            f"Measured: {combined}; {added}",
            f"Made by {self.method} from {self.records:,} records, {cost}",
            *(f"Assumes that {each}." for each in self.assumes),
            *([SEEDED] if self.privacy is not None and self.privacy.seeded else []),
        ]
        return "\n".join(lines)


def certificate(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    radius: float,
    *,
    public: bool = False,
    privacy: Privacy | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
    bounds: Bounds | None = None,
    method: str = "auto",
    smoothing: float | None = None,
    batch: int | None = None,
    samples: int | None = None,
    confidence: float = 0.999,
    seed: int | None = None,
) -> Certificate:
    """An upper bound on the Goldstein norm of the mean loss at a point, with its confidence.

        made = bs.certificate(loss, result.params, public_records, radius=0.5, public=True)
        print(made.norm_bound)

    It reads records, so say whose: `public=True` for records that are no secret (simulated, or
    published), or `privacy` and `ledger` for private ones, which are then charged.

    Args:
        loss: a function of parameters and one record, as for `minimize`.
        params: where to measure, such as `result.params`.
        data: records, as for `minimize`.
        radius: the Goldstein radius, such as `result.plan.radius`.
        public: declares that these records are public. Nothing is charged then.
        privacy: what the certificate may spend on private records instead.
        ledger: where that is written before anything is released: a ledger, or a run directory.
        budget: what all runs in the ledger together may spend.
        bounds: what is promised about the loss: Bounds(lipschitz=L) or Bounds(range=(low, high)).
            Needed wherever gradients are estimated: from values, from a batch, or privately (there
            it is enforced).
        method: "autodiff" (exact; the loss must be differentiable almost everywhere, as Lipschitz
            functions are), "values" (function values only), or "auto": the first where it serves.
        smoothing: h of estimates from values; within the radius.
        batch: records of one estimate; left out, all of them if that takes no more than about 1e8
            evaluations in all (2e5 for a loss that JAX cannot trace).
        samples: independent estimates that the final bound is made of; left out, as many as bring
            the error from values below 3% of the slope if the loss is mostly smooth.
        confidence: probability that the bound holds, where something is estimated.
        seed: for reproduction; a private certificate is then not private against anyone who knows it.

    Returns:
        The certificate. On private records everything in it is covered by its privacy statement.
    """
    radius, failure = positive("radius", radius), 1.0 - probability("confidence", confidence)
    if public == (privacy is not None) or not isinstance(public, bool):
        raise InvalidArgument(
            "say whose records these are: public=True declares them public; for private ones give "
            "privacy=Privacy(...) and ledger=..., and they are charged."
        )
    if method not in METHODS:
        raise InvalidArgument(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    space = float64(ParameterSpace.of(params))
    with jax.enable_x64(True):
        centre = np.asarray(space.flatten(params))
        data = jax.tree.map(np.asarray, data)
        evaluates = evaluator(loss, space, space.unflatten(centre), data)
        bounds = bounds or Bounds()
        if privacy is None:
            if ledger is not None or budget is not None:
                raise InvalidArgument(
                    "public records are not charged: leave out ledger and budget."
                )
            usual = math.ceil(1500 * math.sqrt(centre.size))
            samples = usual if samples is None else count("samples", samples, 2)
            made = _Public(evaluates, centre, radius, bounds, samples, failure, seed)
            found = made.measure(method, smoothing, batch)
        else:
            if ledger is None or method == "autodiff" or batch is not None:
                raise InvalidArgument(
                    "a private certificate is made from values of all records and charged before it "
                    "is released: give ledger=..., and leave out batch and method='autodiff'."
                )
            bounds.require_finite(needs_diff=False)
            h = _smoothing(smoothing, radius, _PRIVATE)
            payer = private.Payer(privacy, ledger, budget)
            found = private.measure(
                evaluates, space, centre, radius, h, bounds, payer, failure, seed
            )
    return Certificate(
        norm_bound=min(found.norm + found.error, bounds.lipschitz),
        confidence=1.0 if found.exact else confidence,
        radius=radius,
        measured=found.norm,
        error=found.error,
        points=found.points,
        method=found.method,
        records=evaluates.records,
        privacy=found.statement,
        assumes=() if found.exact else _promises(bounds),
    )


@dataclass(frozen=True)
class _Public:
    """A certificate of public records."""

    evaluates: LossEvaluator
    centre: Float[np.ndarray, " dim"]
    radius: float
    bounds: Bounds
    samples: int
    failure: float
    seed: int | None

    def measure(self, method: str, smoothing: float | None, batch: int | None) -> Measured:
        random = np.random.default_rng(self.seed)
        source = self._source(method, smoothing, batch, random)
        reach = self.radius - source.smoothing
        bundle = search(lambda points: source.explore(points, random), self.centre, reach, random)
        if source.exact:
            bundle = bundle.used()
            measured = float(np.linalg.norm(bundle.hull.weights @ bundle.gradients))
            error = _ROUNDING * float(np.linalg.norm(bundle.gradients, axis=1).max())
        else:
            # The search saw one estimate of each gradient, and combined those that erred in its favour.
            points = bundle.points
            estimates = source.draw(np.repeat(points, _REFINEMENTS, axis=0), random)
            means = estimates.reshape(len(points), _REFINEMENTS, -1).mean(axis=1)
            bundle = Bundle(points, means, shortest_in_hull(means)).used()
            measured, error = self._estimated(source, bundle, random)
        made_by = "values" if source.smoothing else "autodiff"
        return Measured(measured, error, len(bundle.points), made_by, source.exact, None)

    def _source(
        self, method: str, smoothing: float | None, batch: int | None, random: np.random.Generator
    ) -> Source:
        dim, records = self.centre.size, self.evaluates.records
        if batch is not None:
            batch = min(records, count("batch", batch))
        if method != "values" and self.evaluates.differentiable:
            rows = rows_to_explore(self.evaluates, batch or 1, dim, False, random)
            if derivative_is_true(self.evaluates, self.centre, self.radius, rows, random):
                batch = batch or records
                if batch == records:  # the search then sees every record: nothing is estimated
                    return Source(self.evaluates, np.arange(records), records, math.inf, 0.0)
                self._require_lipschitz()
                return Source(self.evaluates, rows, batch, self.bounds.lipschitz, 0.0)
            if method == "autodiff" or self.bounds == Bounds():
                raise InvalidArgument(
                    "the automatic derivative of this loss does not add up to its differences (a "
                    "step, a rounding or a stopped gradient?), so it certifies nothing: use "
                    "method='values' with bounds=Bounds(range=(low, high)) or Bounds(lipschitz=L)."
                )
        if method == "autodiff":
            self.evaluates.gradients(self.centre[None, None], np.zeros((1, 1), np.int64))
        if min(self.bounds.lipschitz, self.bounds.width) == math.inf:
            self._require_lipschitz()
        share = _FINE if self.bounds.lipschitz < math.inf else _COARSE
        h = _smoothing(smoothing, self.radius, share)
        if batch is None:
            bearable = self.evaluates.evaluations // (2 * dim * self.samples)
            batch = min(records, max(1, bearable))
        rows = rows_to_explore(self.evaluates, batch, dim, True, random)
        slope = min(self.bounds.lipschitz, self.bounds.width / (2 * h))
        return Source(self.evaluates, rows, batch, slope, h)

    def _require_lipschitz(self) -> None:
        if self.bounds.lipschitz == math.inf:
            raise InvalidArgument(
                "gradients are estimated here, and how far an estimate can be off depends on how "
                "steep the loss can be: give bounds=Bounds(lipschitz=L); with method='values', "
                "Bounds(range=(low, high)) will do too."
            )

    def _estimated(
        self, source: Source, bundle: Bundle, random: np.random.Generator
    ) -> tuple[float, float]:
        """The combination that the search chose, estimated anew, so that the choice cannot bias it."""
        weights = bundle.hull.weights
        counts = 2 * np.ceil(weights * self.samples / 2).astype(np.int64)
        stratum = np.repeat(np.arange(len(weights)), counts)
        estimates = source.draw(bundle.points[stratum], random)
        combined = (weights / counts)[stratum] @ estimates
        bound = source.estimate_bound(self.centre.size)
        error = stratified_error(estimates, stratum, weights, bound, self.failure)
        return float(np.linalg.norm(combined)), error


def _smoothing(given: float | None, radius: float, share: float) -> float:
    h = share * radius if given is None else positive("smoothing", given)
    if h >= radius:
        raise InvalidArgument(
            f"smoothing {h:g} is not below the radius {radius:g}: estimates would look outside it."
        )
    return h


def _promises(bounds: Bounds) -> tuple[str, ...]:
    said = []
    if bounds.lipschitz < math.inf:
        said.append(f"every record's loss has slope at most {bounds.lipschitz:g} within the radius")
    if bounds.width < math.inf:
        said.append(f"every record's loss varies by at most {bounds.width:g}")
    return tuple(said)
