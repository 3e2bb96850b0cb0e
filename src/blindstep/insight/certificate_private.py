"""A certificate of private records: noisy smoothed gradients, charged before each is released.

Each release goes through a gate of its own: a GRAD of all records at a public point, each record
clamped and clipped. So `_RELEASES` of them cost what as many passes of a run cost. Everything after
that (where to look next, which combination, the bound) only post-processes.

With releases r_k = g_k + b_k + e_k + xi_k (g_k the smoothed gradient, b_k the bias of clipping and
rounding, e_k the error of random directions, xi_k the noise) and any weights w, chosen after the fact
or not,

    |sum w_k g_k| <= |sum w_k r_k| + max_k |b_k| + max_k |e_k| + |w| |(xi_1 .. xi_m)|

and each term on the right is known or bounded with confidence.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.estimators import Query, ValueEstimator
from blindstep.estimate.frames import Structured
from blindstep.estimate.probing import probing_of_answers, probing_of_loss
from blindstep.insight import certificate_search as search
from blindstep.insight.certificate_search import Point, Points, shortest_in_hull
from blindstep.ledger import files, fingerprints
from blindstep.ledger.account import RunIdentity
from blindstep.ledger.budget import Privacy
from blindstep.ledger.ledger import Ledger, cohort_of
from blindstep.ledger.storage import LEDGER
from blindstep.losses.engines import Task, Work, perform
from blindstep.losses.error_checks import voiding
from blindstep.losses.evaluators import CompiledLoss, LossEvaluator, PlainLoss
from blindstep.losses.pytrees import Loss, ParameterSpace
from blindstep.planning.checks import check_delta
from blindstep.planning.noise import calibrated
from blindstep.planning.statement import Statement, statement
from blindstep.planning.theory import clip_bias
from blindstep.private.clip import unit_of
from blindstep.private.gate import Gate, Memory, Permit
from blindstep.private.mechanisms import Independent
from blindstep.private.noise import STD, fresh_keys, public_stream
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms
from blindstep.run.query import points_at

_RELEASES = 12
# Numbers in the probe points of a loss outside JAX that are held at once.
_AT_ONCE = 2**21
# Clip norm in units of the slope: the clipped part is then below 2e-4 of the slope.
_CLIP = 4.0
_REACH = (1.0, 0.5, 1.0, 0.25)


@dataclass(frozen=True)
class Payer:
    """The ledger that is charged for a certificate, and how much may be spent."""

    privacy: Privacy  # what the certificate may spend
    ledger: str | os.PathLike[str]  # written to first; a run directory stands for its own ledger
    budget: Privacy | None  # of all runs in the ledger together; None: what the ledger says

    def open(self) -> Ledger:
        """The ledger, with the name it gives its people; a new one names them after its file."""
        path = os.path.abspath(self.ledger)
        if os.path.isdir(path):
            path = os.path.join(path, LEDGER)
        return Ledger.open(
            path, cohort=cohort_of(path) or os.path.basename(path), budget=self.budget
        )


@dataclass(frozen=True)
class _Charged:
    """The port of a certificate's gate (`gate.Port`): it charges a run of an open ledger."""

    ledger: Ledger
    run: str

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Write the releases down, durably. They are never repeated, so answers need no name."""
        self.ledger.begin(self.run, first, count)


@dataclass(frozen=True)
class Measured:
    """A norm with what has to be added to it, and what it cost."""

    norm: float
    error: float
    points: int  # how many gradients are combined
    method: str
    exact: bool  # nothing was estimated
    statement: Statement | None  # None for public records


def measure(
    evaluator: LossEvaluator,
    space: ParameterSpace,
    centre: Point,
    radius: float,
    smoothing: float,
    bounds: Bounds,
    payer: Payer,
    failure: float,
    seed: int | None,
) -> Measured:
    """Release noisy gradients within the radius, each charged first, and combine them."""
    dim, records = centre.size, evaluator.records
    check_delta(payer.privacy, records)
    check_delta(payer.budget, records, "budget")
    estimator, terms, error = prepare(dim, records, smoothing, bounds, payer.privacy, failure)
    about = ""
    if seed is not None:
        judged = evaluator.loss, space.unflatten(centre), evaluator.data
        known = fingerprints.of_values([judged], evaluator.data)
        about = f"{known.about} {radius} {smoothing} {bounds} {terms.noise_std}"
    keys = fresh_keys(seed, about)
    random = np.random.default_rng(np.asarray(jax.random.key_data(keys.public)))
    spread = search.gaussian_combination(1.0, float(terms.noise_std), dim, _RELEASES, failure / 2.0)
    released = np.zeros((0, dim))
    with payer.open() as ledger:
        name = ledger.name_of(keys.noise)
        identity = _identity(estimator, terms, centre, radius, payer.privacy.delta, name)
        ledger.register(identity)
        gate = Gate(terms, keys, _Charged(ledger, identity.run))
        for step in range(_RELEASES):
            point = _next_point(released, centre, radius - smoothing, spread, random)
            key = jax.random.fold_in(public_stream(keys.public, "directions"), step)
            noisy = release_gradient(gate, estimator, evaluator, space, point, key)
            released = np.vstack([released, noisy])
    # The bound is |sum w r| + spread |w|; the solver minimises the sum of their squares.
    hull = shortest_in_hull(released, ridge=spread)
    return Measured(
        norm=float(np.linalg.norm(hull.shortest)),
        error=error + spread * float(np.linalg.norm(hull.weights)),
        points=int(np.sum(hull.weights > 0)),
        method="values",
        exact=False,
        statement=replace(
            statement(terms, payer.privacy.delta, seeded=keys.seeded),
            released="every noisy gradient that the certificate is made of, so the certificate",
        ),
    )


def prepare(
    dim: int, records: int, smoothing: float, bounds: Bounds, privacy: Privacy, failure: float
) -> tuple[ValueEstimator, Terms, float]:
    """How gradients are estimated, on which terms they are released, and how far off they are.

    The last is a bound on bias and direction error of all releases; noise is not in it.
    """
    sampler = Structured()
    moments = sampler.moments(dim, dim)
    known = bounds.lipschitz < math.inf
    if known:
        bounds = bounds & Bounds(clip=_CLIP * bounds.lipschitz)
    elif bounds.clip < math.inf:
        raise InvalidArgument(
            "a clip alone does not say how much it clips away, so it bounds nothing: add "
            "lipschitz, as in Bounds(lipschitz=1.0, clip=2.0)."
        )
    estimator = ValueEstimator(
        dim=dim,
        directions=dim,
        sampler=sampler,
        smoothing=smoothing,
        reach=smoothing,
        bounds=bounds,
    )
    bound = estimator.record_bound(Kind.GRAD)
    unclipped = replace(bounds, clip=math.inf)
    longest = replace(estimator, bounds=unclipped).record_bound(Kind.GRAD)
    bias, second_moment = 0.0, bound**2
    if known:
        slope = bounds.lipschitz
        second_moment = min(second_moment, moments.grad * slope**2)
        bias = 0.0 if longest <= bound else slope * clip_bias(moments, bound / slope)
    schedule = Schedule(records, records, 1, 1, _RELEASES)
    terms = calibrated(schedule, Independent(1), dim, bound, bound, privacy.mu, privacy.neighbours)
    # On a coordinate: a sum is rounded by half a step of the lattice, the noise is a step off a
    # Gaussian's, and a record's clipped vector a unit off.
    step = float(terms.noise_std) / STD
    bias += math.sqrt(dim) * (2.0 * step + float(unit_of(bound, records)))
    # |e - E e| <= 2 bound for each record, whose directions are its own.
    failure /= 2.0 * _RELEASES
    error = search.bernstein(second_moment / records, 2.0 * bound / records, failure)
    return estimator, terms, error + bias


def _identity(
    estimator: ValueEstimator,
    terms: Terms,
    centre: Point,
    radius: float,
    delta: float,
    noise_key: str,
) -> RunIdentity:
    plan = {"certificate": centre.tolist(), "radius": radius, "releases": _RELEASES}
    plan |= {"smoothing": estimator.smoothing, "noise_std": float(terms.noise_std)}
    plan["bounds"] = {k: v for k, v in asdict(estimator.bounds).items() if v != math.inf}
    return RunIdentity.of(
        terms,
        run=f"certificate-{os.urandom(6).hex()}",
        plan=files.fingerprint(plan),
        # A certificate is never resumed, so nobody needs to recognise its data.
        data=os.urandom(32).hex(),
        noise_key=noise_key,
        delta=delta,
    )


def _next_point(
    released: Points, centre: Point, reach: float, spread: float, random: np.random.Generator
) -> Point:
    """First the point itself; then across from the shortest combination so far, now and then aside."""
    done = len(released)
    if done == 0:
        return centre
    direction = -shortest_in_hull(released, ridge=spread).shortest
    if done % 4 == 3:
        direction = random.standard_normal(centre.size)
    direction = direction / max(float(np.linalg.norm(direction)), 1e-300)
    return centre + (1 - 1e-9) * reach * _REACH[done % 4] * direction


def release_gradient(
    gate: Gate,
    estimator: ValueEstimator,
    evaluator: LossEvaluator,
    space: ParameterSpace,
    point: Point,
    key: Key[Array, ""],
) -> Point:
    """The next release of `gate`: the mean of all records' gradient estimates at `point`, noisy."""
    query = Query(jnp.asarray(point), jnp.asarray(point), key, Kind.GRAD)
    if isinstance(evaluator, CompiledLoss):
        loss, values = evaluator.loss, evaluator.data
    else:
        # The rows of the release, in their order: answers belong to places of the batch.
        rows = gate.rows(gate.position)
        loss, values = None, _answers(estimator, evaluator, space, query, rows)

    def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
        return _release(permit, memory, estimator, loss, space, values, query)

    return np.asarray(gate.through(program))


def _answers(
    estimator: ValueEstimator,
    evaluator: PlainLoss,
    space: ParameterSpace,
    query: Query,
    rows: Int[np.ndarray, " batch"],
) -> Float[Array, "batch 2 q"]:
    """The losses of all rows; what raises or is no finite number makes its record count 0."""
    work = Work(evaluator.loss, space, vectorized=False, timeout=None)
    size = max(1, _AT_ONCE // (2 * estimator.directions * estimator.dim))
    values = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        points = np.asarray(points_at(estimator, query, jnp.arange(start, start + len(some))))
        records = jax.tree.map(lambda leaf, some=some: leaf[some], evaluator.data)
        points = points.reshape(len(points), -1, estimator.dim)
        values.append(perform(Task(work, points, records, len(some))))
    return jnp.asarray(np.concatenate(values).reshape(len(rows), 2, estimator.directions))


@eqx.filter_jit
def _release(
    permit: Permit,
    memory: Memory,
    estimator: ValueEstimator,
    loss: Loss | None,
    space: ParameterSpace,
    values: PyTree,
    query: Query,
) -> tuple[Memory, Float[Array, " dim"]]:
    """A release; `values` are the records of this loss, or answers where there is no loss to trace."""
    if loss is None:
        probing = probing_of_answers(estimator, values)
    else:
        checked = voiding(loss)
        probing = probing_of_loss(estimator, lambda at, z: checked(space.unflatten(at), z), values)
    batch = permit.terms.schedule.batch_of(Kind.GRAD)
    return permit.release(memory, Kind.GRAD, probing.contributions(query, batch))
