"""How many secret batches there are in a pass, and how many directions: the most for the evaluations.

With secret batches the noise on a step hardly depends on how many records it takes, so what is saved on
records buys directions. A step along q of d directions, with noise N as long as the gradient where all
are seen, gains in proportion to

    gain = r / (1 + r N^2 + S^2),      r = q / d,

where S^2 = SAMPLING / m is what choosing m records by chance adds. N is 2 sqrt(T d) / (n mu) clips with
all n records in each of T steps. In t secret batches it is longer by how much amplification falls short
of its ideal, sqrt(t): by a few percent while mu of a pass is small, by sqrt(t / T) if a pass is longer
than the run, and by more where a pass costs much. So t is what gains most for the evaluations; and
where nobody says how many these may be, the fewest evaluations that gain nearly as much as any number.

Near the answer the gradient is no longer long, and what counts is the sum of the squares of the noise
and of what choosing m records adds to a gradient, 1 / m. Where noise is small, a choice that brings
this down is worth evaluations that take a moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from blindstep.errors import InvalidArgument
from blindstep.planning.parts import secret_schedule
from blindstep.private.schedule import Schedule
from blindstep.private.secret_batches import longest
from blindstep.private.statement import Privacy
from blindstep.private.terms import PRESENCES

# What one record's slope differs from the mean of all, in squares of the mean.
_SAMPLING = 8.0
# Fewer records in a batch are not worth a step.
_FEWEST_RECORDS = 8
# Of the gain of all records in every step: as much will do, where nobody says how many evaluations.
_NEARLY = 0.97
_MOST_BATCHES = 1024
# How much larger than it could be the square of noise and chance may be near the answer, if as many
# evaluations as take a moment can help it.
_NEAR, _MOMENT = 1.5, 2**23


@dataclass(frozen=True)
class Batches:
    """A choice: records in a step, directions, how much longer noise is than with all records.

    Attributes:
        gain: of a step far from the answer.
        error: the square of noise and chance near it.
    """

    batch: int
    directions: int
    longer: float
    gain: float
    error: float


def choices(
    records: int, releases: int, mu: float, privacy: Privacy, most: float = 4.0
) -> Iterator[tuple[int, float]]:
    """Secret batches to choose from, the largest first, and how much longer noise is in them.

    No more where noise is longer than `most` times.
    """
    several = 2
    while several <= _MOST_BATCHES and records // several >= _FEWEST_RECORDS:
        batch = records // several
        try:
            more = longer(records, batch, releases, mu, privacy)
        except InvalidArgument:  # no secrecy is small enough for so much mu
            return
        if more > most:
            return
        yield batch, more
        several *= 2


@lru_cache(maxsize=4096)
def longer(records: int, batch: int, releases: int, mu: float, privacy: Privacy) -> float:
    """How much longer the noise of all these releases is than if each took all records, at that mu."""
    schedule = secret_schedule(Schedule(records, batch, batch, 1, releases), mu, privacy)
    if not schedule.secret:
        return 1.0
    often, several = PRESENCES[privacy.neighbours], schedule.blocks_per_pass
    presence = mu / often / math.sqrt(schedule.passes)
    # A vector of length 1 moves the mean by several / records, and may do so by `longest` deviations.
    needed = several / longest(presence, several, schedule.secrecy)
    return needed / (often * math.sqrt(releases) / mu)


def choose(
    records: int,
    steps: int,
    dim: int,
    noise: float,
    mu: float,
    privacy: Privacy,
    *,
    evaluations: int,
    wanted: int | None,
    short: bool,
) -> Batches | None:
    """The batches and directions with the largest gain for the evaluations; None if none fit.

    Args:
        records: n.
        steps: T.
        dim: d.
        noise: N, with all records in every step.
        mu: what all steps spend.
        privacy: the budget.
        evaluations: the most that all steps may take together.
        wanted: q, if somebody has said; else at most d.
        short: whether fewer evaluations will do, if they gain nearly as much.
    """
    tried: list[Batches] = []
    for batch, more in [(records, 1.0), *choices(records, steps, mu, privacy)]:
        fit = evaluations // (2 * steps * batch)
        if fit < (wanted or 1):
            continue
        q = wanted or min(dim, fit)
        share, chance = q / dim, (batch < records) / batch
        square = (more * noise) ** 2
        gain = share / (1 + share * square + _SAMPLING * chance)
        tried.append(Batches(batch, q, more, gain, square + chance))
    if not tried:
        return None
    best = max(tried, key=lambda each: each.gain)
    if short:
        enough = [each for each in tried if each.gain >= _NEARLY * best.gain]
        best = min(enough, key=lambda each: each.batch * each.directions)
        moment = [each for each in enough if 2 * steps * each.batch * each.directions <= _MOMENT]
        least = min((each.error for each in moment), default=best.error)
        near = [each for each in moment if each.error <= _NEAR * least]
        if near and best.error > _NEAR * least:
            best = min(near, key=lambda each: each.batch * each.directions)
    return best
