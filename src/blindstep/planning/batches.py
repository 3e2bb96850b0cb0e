"""How many secret batches there are in a pass, and how many directions: the least error.

What a run of T steps misses, with m records in a step and q of d directions, r = q / d, is about

    error = N^2 / T + 1 / (r m T) + c / (r T).

- N is how long the noise is in each step: what is left of it in the mean of T steps. With all n
  records N is 2 sqrt(T d) / (n mu) clips. In t secret batches it is longer by how much amplification
  falls short of its ideal: by a few percent where a pass costs little, by more where it costs much.
- Choosing m of the records by chance adds 1 / m to the square of a step, for a record's slopes are
  about 1 long. So of the evaluations that all steps take together, 2 q m T, it does not matter what
  they are spent on.
- r T is how often all directions are seen: a run that sees too few of them does not get there.

Fewer records in a step leave room for more directions, at longer noise. The choice is the one with the
least error for the evaluations that there are. Where nobody says how many these may be, it is the one
with the fewest whose error is not much more than that of all records in every step, which is limited by
noise, by steps, and by the chance, 1 / n, with which the records themselves were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from blindstep.errors import InvalidArgument
from blindstep.estimate.comparison import RELEASES
from blindstep.ledger.budget import Privacy
from blindstep.planning.method import Problem
from blindstep.planning.noise import longest, secret_schedule
from blindstep.private.schedule import Schedule
from blindstep.private.terms import PRESENCES

# What one record's slope differs from the mean of all, in squares of the mean.
SAMPLING = 8.0
# Fewer records in a batch are not worth a step.
_FEWEST_RECORDS = 8
_MOST_BATCHES, _MOST_LONGER = 1024, 8.0
# c: what is missed where all directions are seen once. Fitted to runs on the problems of
# `benchmarks.utility`; any value from a third of it to three times it chooses alike.
_UNSEEN = 0.01
# How much more may be missed than with all records in every step, where nobody says how many
# evaluations, and what may be missed at any rate; and a difference that is not worth any evaluation.
_NEARLY, _LITTLE, _LEVEL = 0.3, 2.5e-4, 0.03
# Of the gain of all records: as much will do; and how much noise and chance may be above the least.
_NEARLY_ALL, _NEAR = 0.97, 1.5
# The share of mu^2 that the comparison with the start spends, at least and at most, the noise on a
# place of its histogram above which it spends more, and the evaluations that it may take.
COMPARISON_SHARE, _MOST_COMPARISON_SHARE, _COMPARISON_NOISE = 0.1, 0.25, 0.03
_COMPARISON_EVALUATIONS = 0.1
CANDIDATES = 1
# It asks so few records that noise is hardly longer than with all of them.
LITTLE, _FEWEST_COMPARED = 1.2, 512


@dataclass(frozen=True)
class Batches:
    """A choice: records in a step, directions, how much longer noise is than with all records."""

    batch: int
    directions: int
    longer: float
    error: float
    blur: float = 0.0  # what of the error is noise and chance


def choices(
    records: int, releases: int, mu: float, privacy: Privacy, most: float = _MOST_LONGER
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
    needed = several / longest(presence, several, schedule.secrecy, schedule.blocks_made)
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
    brief: int = 0,
) -> Batches | None:
    """The batches and directions with the least error for the evaluations; None if none fit.

    Args:
        records: n.
        steps: T.
        dim: d.
        noise: N, with all records in every step.
        mu: what all steps spend.
        privacy: the budget.
        evaluations: the most that all steps may take together.
        wanted: q, if somebody has said; else at most d.
        short: whether fewer evaluations will do, if hardly more is missed.
        brief: so many evaluations take a moment, and are worth it if they bring noise and chance down.
    """
    tried: list[Batches] = []
    for batch, more in [(records, 1.0), *choices(records, steps, mu, privacy)]:
        fit = evaluations // (2 * steps * batch)
        several = [min(dim, fit)] * (fit > 0) if brief else _directions(dim, fit)
        for q in several if wanted is None else [wanted] * (wanted <= fit):
            seen = q / dim * steps
            chance = (batch < records) / (seen * batch)
            blur = (more * noise) ** 2 / steps + chance
            tried.append(Batches(batch, q, more, blur + _UNSEEN / seen, blur))
    if not tried:
        return None
    enough = (1 + _LEVEL) * min(each.error for each in tried)
    if short:
        whole = (noise**2 + _UNSEEN) / steps + 1 / records
        enough = max(enough, (1 + _NEARLY) * whole, _LITTLE)
    found = [each for each in tried if each.error <= enough]
    if short and brief:
        moment = [e for e in found if 2 * steps * e.batch * e.directions <= brief]
        least = min((each.blur for each in moment), default=math.inf)
        found = [each for each in moment if each.blur <= _NEAR * least] or found
    return min(found, key=lambda each: each.batch * each.directions)


def fewest(
    records: int,
    steps: int,
    noise: float,
    mu: float,
    privacy: Privacy,
    evaluations: int,
    most: float,
) -> Batches | None:
    """Of steps that show all of a gradient, the fewest records that gain nearly as much as any number.

    A step gains in proportion to 1 / (1 + N^2 + S^2): S^2 = SAMPLING / m is what choosing m records
    adds. Noise may be `most` times as long as with all records. None if none fit the evaluations.
    """
    gains: dict[Batches, float] = {}
    for batch, more in [(records, 1.0), *choices(records, steps, mu, privacy, most)]:
        if 2 * steps * batch <= evaluations:
            square = (more * noise) ** 2 + SAMPLING * (batch < records) / batch
            gains[Batches(batch, 1, more, square)] = 1 / (1 + square)
    enough = [each for each, gain in gains.items() if gain >= _NEARLY_ALL * max(gains.values())]
    return min(enough, key=lambda each: each.batch, default=None)


def _directions(dim: int, fit: int) -> Iterator[int]:
    """Numbers of directions to choose from: as many as fit, and halves of that."""
    q = min(dim, fit)
    while q:
        yield q
        q //= 2


def comparison_share(problem: Problem, mu: float) -> float:
    """The share of mu^2 that the comparison with the start spends.

    More where noise would hide most gains: an answer that is not seen to be better is not taken.
    """
    often = PRESENCES[problem.privacy.neighbours]
    noise = often * math.sqrt(RELEASES / COMPARISON_SHARE) / (problem.records * mu)
    wanted = COMPARISON_SHARE * (noise / _COMPARISON_NOISE) ** 2
    return min(max(wanted, COMPARISON_SHARE), _MOST_COMPARISON_SHARE)


def comparison_batch(
    problem: Problem, evaluations: int, mu: float, secret: bool, share: float = COMPARISON_SHARE
) -> int:
    """Records that compare what was found with the start: all, if that is cheap enough."""
    room = _COMPARISON_EVALUATIONS * evaluations / (RELEASES * (1 + CANDIDATES))
    mu *= math.sqrt(share)
    for batch, _ in some_or_all(problem, RELEASES, mu, secret, LITTLE):
        if batch <= _FEWEST_COMPARED or 2 * batch > problem.records:
            continue
        if batch <= room:
            return batch
    return max(1, min(problem.records, int(room)))


def some_or_all(
    problem: Problem, releases: int, mu: float, secret: bool, most: float
) -> list[tuple[int, float]]:
    """Batches of releases beside the steps, and how much longer noise is in them; all records first."""
    found = choices(problem.records, releases, mu, problem.privacy, most) if secret else ()
    return [(problem.records, 1.0), *found]
