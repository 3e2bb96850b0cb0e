"""The plan of a run on a network: few directions of very many parameters, in natural units.

A step sees the part of the gradient g that lies along q random directions of d. That part is about
sqrt(q/d) |g| long. Moving along it by a length r changes the loss by

    - r sqrt(q/d) |g|  +  r^2 k / 2,      k = (q/d) k_g + (1 - q/d) k_mean,

where k_g is the curvature along the gradient, and k_mean the mean curvature over all directions. The
best r is sqrt(q/d) |g| / k, and what it gains depends on the product of q and the number of steps T
alone. Networks have few directions of large curvature: with k_mean = RANK k_g / d,

    reach = R sqrt(d q) / (q + RANK (1 - q/d)),

with R = 1.5; and in noise less, by the cosine between what records agree on and what is released: a
step along noise only spoils what the network knew. What is left to choose:

- one side: where there are at least four times as many parameters as directions, records are evaluated
  on one side of the point, which gives twice the directions for the same evaluations.
- q T: as many as the evaluations allow with all records in every step. With few evaluations for many
  records, some of the records in each step. In noise, no more than keep the noise on a step at most 0.8
  clips long: it is 2 sqrt(q T) / (n mu).
- q: 16, and more once there are 160 steps.
- looks: along 4 random directions in each leaf, at the distance of the steps' own probes.

Everything else is as in `scaled`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from blindstep.errors import count
from blindstep.estimate.bounds import Clip
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.directions import Signs
from blindstep.planning import auto
from blindstep.planning.plan import Plan
from blindstep.private.statement import Privacy

# How many directions of the gradient's curvature a network's curvature adds up to.
_RANK = 64.0
_REACH = 1.5
# How much of their slopes records have in common, in clips, once the first steps are made.
_AGREE = 0.3
# Probes lie at this share of the reach, unless rounding asks for more (`Course.widening`).
_PROBE = 0.25
# Of a record's slopes at the start. With half of it losses end higher (`benchmarks.networks`).
_CLIP = 0.5
_DIRECTIONS, _MOST_STEPS, _FEWEST_STEPS, _DROWNED = 16, 160, 20, 0.8
# One side of a point will do where directions are at most one in so many.
_FEW_OF = 4
# Directions of all steps together that are worth more than having every record in each step.
_ENOUGH = 960
_CALIBRATION_DIRECTIONS = (4, 1)
EVALUATIONS = 2**20


def plan_network(
    *,
    dim: int,
    records: int,
    privacy: Privacy,
    leaves: tuple[int, ...],
    evaluations: int | None = None,
    passes: int | None = None,
    directions: int | None = None,
) -> Plan:
    """The plan for `records` records and a network of `dim` parameters.

    Args:
        dim: number of parameters that are tuned.
        records: number of records.
        privacy: the budget of everything.
        leaves: the sizes of the tensors that the parameters are made of, in their order.
        evaluations: the most evaluations of the loss, each of one record; 2^20 if left out.
        passes: the most times that the steps go through the records.
        directions: directions in each step.
    """
    dim, records = count("dim", dim), count("records", records)
    most = count("evaluations", EVALUATIONS if evaluations is None else evaluations)
    calibration, calibration_batch = _calibration_query(dim, records, most, privacy.mu, leaves)
    share = auto.calibration_share(calibration, calibration_batch, privacy.mu)
    left = most - auto.ScaleFinder.calibrations * calibration_batch * calibration.evaluations
    mu = privacy.mu * math.sqrt(1 - share)
    wanted = None if directions is None else count("directions", directions)
    q, steps, batch, sides = _sizes(dim, records, left, mu, wanted)
    if passes is not None:
        steps = max(1, min(steps, count("passes", passes) * (records // batch)))
    horizon = max(1, steps // auto.ROUNDS)
    rounds = max(1, steps // horizon)
    noise = 2 * math.sqrt(q * steps / (records * batch)) / mu  # on a step, in clips
    heard = _AGREE / math.hypot(_AGREE, noise)
    reach = heard * _REACH * math.sqrt(dim * q) / (q + _RANK * (1 - q / dim))
    bounds = Clip(_CLIP * math.sqrt(dim / q))
    return auto.in_natural_units(
        *(dim, records, privacy, calibration, calibration_batch, share),
        *(rounds, horizon, batch, 0, q, reach, _PROBE * reach, bounds, Signs.name, sides),
    )


class _Sizes(NamedTuple):
    directions: int
    steps: int
    batch: int
    sides: int


def _sizes(dim: int, records: int, evaluations: int, mu: float, wanted: int | None) -> _Sizes:
    """Directions, steps, records in a step, and sides of a point on which they are evaluated."""
    # q T such that noise is at most `_DROWNED` clips long with all records in every step.
    quiet = max((0.5 * _DROWNED * records * mu) ** 2, _FEWEST_STEPS)
    sides = 1 if dim >= _FEW_OF * max(wanted or 0, _DIRECTIONS) else 2
    together = min(evaluations / (sides * records), quiet)
    batch = records
    if together < min(_ENOUGH, quiet):
        together = min(_ENOUGH, quiet)
        batch = max(1, min(records, int(evaluations // (sides * together))))
    most = dim if sides == 2 else dim // _FEW_OF
    q = wanted or min(most, max(_DIRECTIONS, round(together / _MOST_STEPS)))
    if not wanted and together < q * _FEWEST_STEPS:
        q = max(3 - sides, int(together // _FEWEST_STEPS))
    # More steps along as many directions as there are show nothing new.
    return _Sizes(q, max(1, min(int(together // q), _MOST_STEPS)), batch, sides)


def _calibration_query(
    dim: int, records: int, evaluations: int, mu: float, leaves: tuple[int, ...]
) -> tuple[CalibrationQuery, int]:
    """A look and how many records it asks: each leaf on its own, if noise lets it be read."""
    room = auto.CALIBRATION_EVALUATIONS * evaluations / auto.ScaleFinder.calibrations
    apart = [CalibrationQuery(leaves, few, signs=True) for few in _CALIBRATION_DIRECTIONS]
    kinds = [
        calibration
        for calibration in apart
        if auto.calibration_noise(calibration, records, mu) <= auto.LEAF_NOISE
    ]
    kinds += [CalibrationQuery((dim,), few, signs=True) for few in _CALIBRATION_DIRECTIONS]
    for calibration in kinds:
        if records * calibration.evaluations <= room:
            return calibration, records
    return kinds[-1], max(1, min(records, int(room // kinds[-1].evaluations)))
