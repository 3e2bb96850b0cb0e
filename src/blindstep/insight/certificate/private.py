"""A certificate of private records: noisy smoothed gradients, charged before each is released.

Each release is one step of the trusted oracle on all records: GRAD at a public point, each record
clamped and clipped, Gaussian noise. So `releases` of them cost what as many passes of a run cost.
Everything after that (where to look next, which combination, the bound) only post-processes.

With releases r_k = g_k + b_k + e_k + xi_k (g_k the smoothed gradient, b_k the bias of clipping, e_k
the error of random directions, xi_k the noise) and any weights w, chosen after the fact or not,

    |sum w_k g_k| <= |sum w_k r_k| + max_k |b_k| + max_k |e_k| + |w| |(xi_1 .. xi_m)|

and each term on the right is known or bounded with confidence (`concentration`).
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.drivers import fingerprints, gradients
from blindstep.drivers.evaluators import Evaluator
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.drivers.storage import LEDGER
from blindstep.errors import InvalidArgument
from blindstep.insight.certificate import concentration
from blindstep.insight.certificate.hull import shortest_in_hull
from blindstep.optimize.theory import clip_bias, frame_moments
from blindstep.trusted import accounting, sealed_json
from blindstep.trusted.account import RunIdentity
from blindstep.trusted.bounds import Bounds, Clip
from blindstep.trusted.estimators import Estimator, Kind
from blindstep.trusted.frames import Structured
from blindstep.trusted.ledger import Ledger, data_id, noise_key_id, people_of
from blindstep.trusted.oracle import Oracle
from blindstep.trusted.prefix import Independent
from blindstep.trusted.privacy import Privacy, Statement, statement
from blindstep.trusted.randomness import fresh_keys, public_stream
from blindstep.trusted.schedule import Schedule

_RELEASES = 12
# Clip norm in units of the slope: the clipped part is then below 2e-4 of the slope.
_CLIP = 4.0
_REACH = (1.0, 0.5, 1.0, 0.25)


@dataclass(frozen=True)
class Account:
    """Who is charged.

    Attributes:
        privacy: what the certificate may spend.
        ledger: the file it is written to first; a run directory stands for its own ledger.
        budget: what all runs in the ledger together may spend; None: what the ledger says.
    """

    privacy: Privacy
    ledger: str | os.PathLike[str]
    budget: Privacy | None

    def open(self) -> Ledger:
        """The ledger, with the name it gives its people; a new one names them after its file."""
        path = os.path.abspath(self.ledger)
        if os.path.isdir(path):
            path = os.path.join(path, LEDGER)
        budget = None if self.budget is None else self.budget.rho
        name = people_of(path) or os.path.basename(path)
        return Ledger.open(path, records=name, budget=budget)


@dataclass(frozen=True)
class Measured:
    """A norm with what has to be added to it, and what it cost."""

    norm: float
    error: float
    points: int
    statement: Statement


def measure(
    evaluator: Evaluator,
    space: ParameterSpace,
    centre: Float[np.ndarray, " dim"],
    data: PyTree,
    radius: float,
    smoothing: float,
    bounds: Bounds,
    account: Account,
    failure: float,
    seed: int | None,
) -> Measured:
    """Release noisy gradients within the radius, each charged first, and combine them."""
    oracle, error = _oracle(centre.size, evaluator.records, smoothing, bounds, account, failure)
    keys = fresh_keys(seed)
    identity = _identity(oracle, data, centre, radius, np.asarray(keys.noise))
    random = np.random.default_rng(np.asarray(jax.random.key_data(keys.public)))
    spread = concentration.gaussian_combination(
        1.0, float(oracle.noise_std), centre.size, _RELEASES, failure / 2.0
    )
    released = np.zeros((0, centre.size))
    with account.open() as ledger:
        ledger.register(identity)
        for step in range(_RELEASES):
            point = _next_point(released, centre, radius - smoothing, spread, random)
            key = jax.random.fold_in(public_stream(keys.public, "directions"), step)
            moved = gradients.increment_at(oracle.estimator, evaluator, space, data, point, key)
            ledger.begin(identity.run, step)
            noisy = gradients.release(oracle, moved, step, keys.noise)
            released = np.vstack([released, noisy])
    # The bound is |sum w r| + spread |w|; the solver minimises the sum of their squares.
    hull = shortest_in_hull(released, ridge=spread)
    return Measured(
        norm=float(np.linalg.norm(hull.shortest)),
        error=error + spread * float(np.linalg.norm(hull.weights)),
        points=int(np.sum(hull.weights > 0)),
        statement=replace(
            statement(oracle, account.privacy.delta, seeded=keys.seeded),
            released="every noisy gradient that the certificate is made of, so the certificate",
        ),
    )


def _oracle(
    dim: int, records: int, smoothing: float, bounds: Bounds, account: Account, failure: float
) -> tuple[Oracle, float]:
    """The oracle of all releases, and the bound on bias and direction error of any of them."""
    moments = frame_moments(dim, dim)
    known = bounds.lipschitz < math.inf
    if known:
        bounds = bounds & Clip(_CLIP * bounds.lipschitz)
    elif bounds.first_clip < math.inf:
        raise InvalidArgument(
            "a clip alone does not say how much it clips away, so it bounds nothing: add "
            "Lipschitz(...), as in Lipschitz(1.0) & Clip(2.0)."
        )
    estimator = Estimator(dim, dim, Structured(), smoothing, smoothing, bounds)
    bound = estimator.record_bound(Kind.GRAD)
    unclipped = replace(bounds, first_clip=math.inf)
    longest = replace(estimator, bounds=unclipped).record_bound(Kind.GRAD)
    bias, second_moment = 0.0, bound**2
    if known:
        slope = bounds.lipschitz
        second_moment = min(second_moment, moments.grad * slope**2)
        bias = 0.0 if longest <= bound else slope * clip_bias(moments, bound / slope)
    noise_std = accounting.noise_std_for(
        account.privacy.rho, estimator.sensitivity(Kind.GRAD, records) * math.sqrt(_RELEASES)
    )
    oracle = Oracle(
        estimator=estimator,
        mechanism=Independent(1),
        schedule=Schedule(records, records, 1, 1, _RELEASES),
        noise_std=noise_std,
    )
    # |e - E e| <= 2 bound for each record, whose directions are its own.
    error = concentration.bernstein(
        second_moment / records, 2.0 * bound / records, failure / (2.0 * _RELEASES)
    )
    return oracle, error + bias


def _identity(
    oracle: Oracle, data: PyTree, centre: np.ndarray, radius: float, noise_key: np.ndarray
) -> RunIdentity:
    plan = {"certificate": centre.tolist(), "radius": radius, "releases": _RELEASES}
    plan |= {"smoothing": oracle.estimator.smoothing, "noise_std": float(oracle.noise_std)}
    plan["bounds"] = {k: v for k, v in asdict(oracle.estimator.bounds).items() if v != math.inf}
    return RunIdentity(
        run=f"certificate-{os.urandom(6).hex()}",
        plan=sealed_json.fingerprint(plan),
        data=data_id(noise_key, fingerprints.of_data(data)),
        noise_key=noise_key_id(noise_key),
        mu_per_pass=oracle.mu_per_pass(),
        steps_per_pass=1,
        passes=_RELEASES,
    )


def _next_point(
    released: Float[np.ndarray, "done dim"],
    centre: Float[np.ndarray, " dim"],
    reach: float,
    spread: float,
    random: np.random.Generator,
) -> Float[np.ndarray, " dim"]:
    """First the point itself; then across from the shortest combination so far, now and then aside."""
    done = len(released)
    if done == 0:
        return centre
    direction = -shortest_in_hull(released, ridge=spread).shortest
    if done % 4 == 3:
        direction = random.standard_normal(centre.size)
    direction = direction / max(float(np.linalg.norm(direction)), 1e-300)
    return centre + (1 - 1e-9) * reach * _REACH[done % 4] * direction
