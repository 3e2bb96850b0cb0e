"""Numbers that a search for a plan asks for again and again, worked out once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Float

from blindstep.estimate import estimators
from blindstep.estimate.estimators import Sharing
from blindstep.optimize.choices import NATURAL_SAMPLERS
from blindstep.optimize.prefix import MECHANISMS, prefix_of
from blindstep.optimize.theory import Moments, frame_moments, sphere_moments
from blindstep.private.mechanisms import Mechanism
from blindstep.private.schedule import Schedule
from blindstep.private.terms import calibrated


@lru_cache(maxsize=64)
def mechanism_of(name: str, steps: int) -> Mechanism:
    """The mechanism of this name for a block."""
    return MECHANISMS[name](steps)


@lru_cache(maxsize=64)
def row_norms(name: str, steps: int) -> Float[np.ndarray, " steps"]:
    """Norms of the rows of B: the noise on a prefix sum, in units of noise_std."""
    return prefix_of(mechanism_of(name, steps)).row_norms()


@lru_cache(maxsize=4096)
def gain_of(sampler: str, sharing: str, directions: int, dim: int) -> float:
    """The longest that a record's vector can be for coefficients of at most 1."""
    return estimators.gain_of(NATURAL_SAMPLERS[sampler](), Sharing(sharing), directions, dim)


@lru_cache(maxsize=4096)
def moments_of(sampler: str, directions: int, dim: int) -> Moments:
    """Second moments of a record's estimate along these directions."""
    return (frame_moments if NATURAL_SAMPLERS[sampler].orthonormal else sphere_moments)(
        dim, directions
    )


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
    rho: float,
    by_corollary: bool,
) -> float:
    """What `calibrated` says for any number of records: passes and batches decide, not records.

    `by_corollary` gives more than that, as the paper's Corollary cor:privacy does: the largest
    sensitivity times the largest column norm, wherever the two are.
    """
    block_size = first_batch + diff_batch * (period - 1)
    schedule = Schedule(block_size, first_batch, diff_batch, period, blocks=passes)
    block = mechanism_of(mechanism, period)
    terms = calibrated(schedule, block, size, first_clip, diff_clip, rho)
    each, columns = terms.sensitivities(), block.column_norms()
    more = each.max() * columns.max() / np.max(each * columns) if by_corollary else 1.0
    return float(terms.noise_std * more)
