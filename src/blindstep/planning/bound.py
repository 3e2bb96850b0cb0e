"""What a plan promises of its answer: the explicit bound, and whether anything proves it.

The proofs, and the simulations that could refute them: docs/proofs.md.

Numbers that a search for a plan asks for again and again, worked out once.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from blindstep.estimate import estimators
from blindstep.estimate.directions import SAMPLERS, Moments
from blindstep.estimate.estimators import Sharing
from blindstep.optimize.prefix import prefix_of
from blindstep.planning.noise import with_least_noise
from blindstep.planning.theory import (
    BoundParts,
    clip_bias,
    diff_clip_bias,
    explicit_bound,
    oracle_errors,
)
from blindstep.private.mechanisms import MECHANISMS, Mechanism
from blindstep.private.noise import STD
from blindstep.private.schedule import Schedule
from blindstep.private.terms import Terms

if TYPE_CHECKING:
    from blindstep.planning.plan import Plan


# One number for each gradient of a block.
PerGradient = Float[np.ndarray, " period"]
_NONE = np.zeros(1)


def obstacle(plan: Plan) -> str | None:
    """Why nothing is certified about the answer, in a sentence; None if something is."""
    farthest = plan.smoothing + plan.reach * plan.horizon
    if plan.differentiates:
        why = "Nothing is certified about stationarity: the proofs are about estimates from values"
    elif plan.lipschitz is None:
        why = "Without a Lipschitz bound nothing is certified about stationarity"
    elif plan.gap is None:
        why = "Without a bound on the gap nothing is certified about stationarity"
    elif plan.moments is None:
        why = (
            "Nothing is certified about stationarity: nothing is proved along "
            f"{plan.sampler} directions"
        )
    elif farthest > plan.radius * (1 + 1e-9):
        why = (
            f"Nothing is certified about stationarity at radius {plan.radius:g}: smoothing + reach x "
            f"horizon is {farthest:.4g}"
        )
    elif plan.passes > 1 and not plan.takes_all:
        why = (
            f"Nothing is certified about stationarity: in {plan.passes} passes, batches of some of the "
            "records have errors that are not mean-zero given the passes before. One pass is "
            "certified, and so is every step on all records (first_batch = records, period 1)"
        )
    else:
        return None
    return f"{why}; privacy is."


def bound_of(plan: Plan, lipschitz: float, moments: Moments) -> BoundParts:
    """The explicit bound of a plan's choices if L is this; an unknown gap counts as 0."""
    noise = math.sqrt(plan.size) * plan.release_std()
    bias = _bias(plan, lipschitz, moments) + _rounding(plan, noise, moments)
    return _bound(plan, lipschitz, estimation_error(plan, lipschitz, moments), noise, bias)


def least_tolerance(plan: Plan) -> float:
    """What the bound is at least, whatever the noise and the errors; 0 without L."""
    if (slope := plan.lipschitz) is None or (moments := plan.moments) is None:
        return 0.0
    return _bound(plan, slope, _NONE, _NONE, _first_bias(plan, slope, moments)).total


def estimation_error(plan: Plan, lipschitz: float, moments: Moments) -> PerGradient:
    """Root mean square error of each gradient of a block, before noise, if L is this."""
    return oracle_errors(
        moments,
        lipschitz=lipschitz,
        smoothing=plan.smoothing,
        reach=plan.reach,
        period=plan.period,
        first_batch=plan.first_batch,
        diff_batch=plan.diff_batch,
        shared=plan.sharing == "block",
    )


def _bound(
    plan: Plan, lipschitz: float, error: PerGradient, noise: PerGradient, bias: Any
) -> BoundParts:
    return explicit_bound(
        lipschitz=lipschitz,
        gap=plan.gap or 0.0,
        smoothing=plan.smoothing,
        reach=plan.reach,
        horizon=plan.horizon,
        rounds=plan.rounds,
        error=error,
        noise=noise,
        bias=bias,
        # Later points of a block depend on its shared directions: no error has mean zero then.
        fresh=plan.period == 1 or plan.sharing == "record",
    )


def _first_bias(plan: Plan, lipschitz: float, moments: Moments) -> float:
    """Bound on what clipping takes off the mean of a GRAD; none is longer than gain x L."""
    clip = plan.bounds.clip / lipschitz
    gain = gain_of(plan.sampler or "", plan.sharing or "", plan.directions, plan.dim)
    return 0.0 if clip >= gain * (1 - 1e-9) else lipschitz * clip_bias(moments, clip)


def _bias(plan: Plan, lipschitz: float, moments: Moments) -> float | PerGradient:
    """Bound on what clipping takes off the mean of each gradient of a block."""
    bias = _first_bias(plan, lipschitz, moments)
    if plan.period == 1 or plan.clips[1] < plan.bounds.diff_clip:
        return bias
    slope = lipschitz * plan.reach / plan.smoothing
    each = diff_clip_bias(moments, slope, plan.bounds.diff_clip)
    return bias + np.arange(plan.period) * each


def _rounding(plan: Plan, noise: PerGradient, moments: Moments) -> PerGradient:
    """Bound on what snapping to the lattice, by half a width a coordinate, adds to each gradient.

    B times the i + 1 roundings so far: at most |row i of B| sqrt(size (i + 1)) half widths.
    """
    skew = plan.sharing == "block" and not moments.orthonormal  # lifting may lengthen
    worst = (math.sqrt(plan.size) if skew else 1.0) / (2.0 * STD)
    return worst * noise * np.sqrt(np.arange(1, plan.period + 1))


@lru_cache(maxsize=64)
def mechanism_of(name: str, steps: int) -> Mechanism:
    """The mechanism of this name for a block."""
    made: Any = MECHANISMS.find(name)
    return made(steps)


@lru_cache(maxsize=64)
def row_norms(name: str, steps: int) -> Float[np.ndarray, " steps"]:
    """Norms of the rows of B: the noise on a prefix sum, in units of noise_std."""
    return prefix_of(mechanism_of(name, steps)).row_norms()


@lru_cache(maxsize=4096)
def gain_of(sampler: str, sharing: str, directions: int, dim: int) -> float:
    """The longest that a record's vector can be for coefficients of at most 1."""
    return estimators.gain_of(SAMPLERS.find(sampler)(), Sharing(sharing), directions, dim)


@lru_cache(maxsize=4096)
def moments_of(sampler: str, directions: int, dim: int) -> Moments | None:
    """Second moments of a record's estimate along these directions: the sampler's own."""
    return SAMPLERS.find(sampler)().moments(directions, dim)


@lru_cache(maxsize=2**16)
def noise_level(
    mechanism: str,
    first_batch: int,
    diff_batch: int,
    period: int,
    passes: int,
    size: int,
    first_clip: float,
    diff_clip: float,
    mu: float,
    by_corollary: bool,
    neighbours: str,
    windows: bool = False,
) -> float:
    """What `with_least_noise` says for any number of records: passes and batches decide, not records.

    `by_corollary` gives more than that, as the paper's Corollary cor:privacy does: the largest
    sensitivity times the largest column norm, wherever the two are.
    """
    block_size = first_batch + diff_batch * (period - 1)
    schedule = Schedule(block_size, first_batch, diff_batch, period, passes, windows=windows)
    block = mechanism_of(mechanism, period)
    chosen = (schedule, block, size, first_clip, diff_clip)
    terms = with_least_noise(Terms(*chosen, first_clip + diff_clip, neighbours), mu)
    each, columns = terms.sensitivities(), block.column_norms()
    more = each.max() * columns.max() / np.max(each * columns) if by_corollary else 1.0
    return float(terms.noise_std * more)
