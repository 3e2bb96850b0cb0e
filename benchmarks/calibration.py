"""Noise of the baselines, at the same exact privacy as blindstep's own runs.

Every private baseline releases, at each step, sum_i clip_C(v_i) + N(0, sigma^2 I) over a batch. Two
neighbouring relations occur, and a row of results always says which one its epsilon is for:

- REPLACE: one record is replaced by any other; the number of records is public. This is
  blindstep's relation. The sum moves by at most 2 C.
- ADD_REMOVE: one record is added or left out. The sum moves by at most C. This is how first-order
  DP training is usually quoted; at the same epsilon it is a *weaker* promise (a replacement is a
  removal and an addition), so such a row is not comparable with the others.
"""

from __future__ import annotations

import functools
import math

from blindstep.errors import InvalidArgument, count, positive, probability

REPLACE = "replace one"
ADD_REMOVE = "add or remove one"


def disjoint_noise(mu: float, clip: float, passes: int) -> float:
    """Sigma on the sum for `passes` passes over disjoint batches: 2 C sqrt(passes) / mu.

    Within a pass a record is in one batch only, so one pass is (2 C / sigma)-Gaussian-DP however
    many batches it has, and passes compose as the root of the sum of squares (private.accounting).
    Relation REPLACE; exact.
    """
    per_pass = positive("mu", mu) / math.sqrt(count("passes", passes))
    return 2.0 * positive("clip", clip) / per_pass


def poisson_noise(
    epsilon: float, delta: float, clip: float, rate: float, steps: int, relation: str
) -> float:
    """Sigma on the sum for `steps` batches that each take every record with probability `rate`.

    The smallest multiple of C, to 0.1%, whose composed privacy loss distribution (dp-accounting,
    rounded pessimistically) is (epsilon, delta). The pairs composed, with noise sigma:

    - REPLACE: (1-q) N(0) + q N(C) against (1-q) N(0) + q N(-C). dp-accounting's REPLACE_ONE makes
      this pair from sensitivity C: its own doubling is the 2 C, and none is added here;
    - ADD_REMOVE: (1-q) N(0) + q N(C) against N(0), and the other way round; the worse of the two.
    """
    return positive("clip", clip) * _poisson_multiplier(epsilon, delta, rate, steps, relation)


@functools.lru_cache(maxsize=256)
def _poisson_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, relation: str
) -> float:
    positive("epsilon", epsilon)

    def enough(log_multiplier: float) -> bool:
        multiplier = math.exp(log_multiplier)
        return poisson_epsilon(multiplier, delta, rate, steps, relation, epsilon) <= epsilon

    # Bracket from above, because privacy loss distributions of little noise are slow to compose;
    # 0.1% of the multiplier is 0.001 of its logarithm.
    high = 1.0
    while not enough(high):
        high += 1.0
    low = high - 0.5
    while enough(low):
        low, high = low - 0.5, low
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return math.exp(high)


def poisson_epsilon(
    multiplier: float, delta: float, rate: float, steps: int, relation: str, scale: float = 1.0
) -> float:
    """Epsilon at `delta` of `steps` Poisson batches with sigma = multiplier C.

    `scale` is about how large an epsilon is expected: the loss is discretized to its thousandth.
    """
    try:
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise InvalidArgument(
            "accounting for Poisson-sampled batches needs the Python package dp-accounting, which "
            "is not installed: pip install dp-accounting."
        ) from error
    # A multiplier that is not a number would be accounted as perfectly private.
    positive("multiplier", multiplier)
    probability("delta", delta)
    count("steps", steps)
    if not 0 < rate <= 1:
        raise InvalidArgument(f"rate must be in (0, 1], got {rate!r}: it is a probability.")
    relations = {
        REPLACE: NeighboringRelation.REPLACE_ONE,
        ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    }
    if relation not in relations:
        raise InvalidArgument(f"relation must be one of {', '.join(relations)}, got {relation!r}.")
    one = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        neighboring_relation=relations[relation],
        value_discretization_interval=min(1e-3, 1e-3 * scale),
    )
    return one.self_compose(steps).get_epsilon_for_delta(delta)
