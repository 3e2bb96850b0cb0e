"""The search of method `tight`: coordinate descent on the explicit bound.

With exact constants the variance-reduced oracle does not always win, so the search decides: period 1 is
the naive oracle. With several passes it decides between one pass of smaller batches and steps that each
take all records; nothing else is certified (docs/certificates.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blindstep.errors import InvalidArgument
from blindstep.estimate.frames import Structured
from blindstep.planning.bound import least_tolerance, moments_of
from blindstep.planning.estimates import Values
from blindstep.planning.method import Problem
from blindstep.planning.plan import Plan
from blindstep.private.schedule import MOST_RELEASES

if TYPE_CHECKING:
    from blindstep.planning.tight import Tight

# Of the radius: a smaller smoothing gains nothing any more, and loses digits.
LEAST_SMOOTHING = 1e-3
# Clip norms to try, in units of the root mean square of a record's |estimate|; first of all none.
_CLIPS = (math.inf, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0)
# Factors, as logarithms to base 2, by which the search moves: coarsely from everywhere, then finely.
COARSE, FINE = (4.0, 2.0, 1.0), (0.5, 0.25, 0.1, 0.03)
# Batches to start from, as logarithms: from small ones alone, the search can end where a strong clip
# hides a better one.
_STARTS = (0.0, 3.0, 7.0)
# Longer blocks than 2^12 never won in benchmarks/auto_grid.py; a user can still fix one.
_LONGEST_PERIOD = 12


@dataclass(frozen=True)
class Point:
    """A point of the search: logarithms to base 2, so that a step is a factor; `clip` is a place.

    With `passes`, each step takes all records; without, one pass of batches.
    """

    period: float
    blocks_per_round: float
    diff_batch: float
    first_ratio: float
    directions: float
    smoothing: float
    sharing: str
    clip: int
    passes: float | None = None


class Search:
    """Coordinate descent on the explicit bound, which is worked out once for each point.

    Attributes:
        method: what the user chose.
        certified: whether only plans that certify something count, else all passes of any batches.
        refusal: why the latest plan that was tried cannot be; None if all could.
    """

    def __init__(self, method: Tight, problem: Problem, certified: bool = True) -> None:
        self.method, self.problem, self.certified = method, problem, certified
        self._bounds: dict[Point, float] = {}
        self.refusal: InvalidArgument | None = None

    def best(self) -> Point | None:
        """The point of least bound: coarsely from all starts, finely from the best three."""
        starts = [
            Point(period, 3.0, batch, 0.0, 0.0, -1.0, sharing, 0, passes)
            for period in self._periods()
            for sharing in self._sharings(period)
            for batch, passes in self._sizes(period)
        ]
        rough = [found for start in starts if (found := self.descend(start, COARSE)) is not None]
        rough.sort(key=self.bound)
        fine = (self.descend(point, FINE) for point in rough[:3])
        return min((f for f in fine if f is not None), key=self.bound, default=None)

    def bound(self, point: Point, below: float = math.inf) -> float:
        """The explicit bound of the plan at a point, if it is `below`; else, or without one, inf."""
        if point not in self._bounds:
            found = math.inf
            try:
                made = self.plan_at(point)
                if made is not None and least_tolerance(made) >= below:
                    return math.inf
                if made is not None and (made.certifies is not None or not self.certified):
                    found = math.inf if made.bound is None else made.bound.total
            except InvalidArgument as error:
                self.refusal = error
            self._bounds[point] = found
        return self._bounds[point]

    def descend(self, point: Point, sizes: tuple[float, ...]) -> Point | None:
        """The lowest bound near a point, moving one coordinate at a time by ever smaller factors."""
        # Nothing may fit at first: shrink until something does.
        tries = [
            replace(point, blocks_per_round=b, first_ratio=-f) for b in (0, 3) for f in (0, 4, 9)
        ]
        best = next((p for p in (point, *tries) if self.bound(p) < math.inf), None)
        if best is None:
            return None
        for size in sizes:
            improved = True
            while improved:
                improved = False
                for trial in self._neighbours(best, size):
                    least = self.bound(best) * (1 - 1e-5)
                    if self.bound(trial, least) < least:
                        best, improved = trial, True
        return best

    def _neighbours(self, point: Point, size: float) -> Iterator[Point]:
        """Points one step away in each coordinate that the user left open and that matters."""
        method, batches = self.method, point.passes is None
        free = {
            "blocks_per_round": method.horizon is None,
            "diff_batch": method.diff_batch is None and batches,
            "first_ratio": method.first_batch is None and point.period > 0,
            "passes": not batches,
            "directions": method.directions is None,
            "smoothing": method.smoothing is None,
        }
        for name in (name for name, open_ in free.items() if open_):
            for sign in (size, -size):
                yield replace(point, **{name: getattr(point, name) + sign})
        # All clips: those above the gain change nothing, and a step of one could not cross them.
        for clip in range(len(_CLIPS)):
            yield replace(point, clip=clip)

    def _periods(self) -> list[float]:
        """Logarithms of the periods to try."""
        method = self.method
        if method.period is not None:
            return [math.log2(method.period)]
        if method.oracle == "naive":
            return [0.0]
        longest = min(_LONGEST_PERIOD, int(math.log2(self.problem.records)))
        periods = [float(k) for k in range(longest + 1)]
        if method.horizon is not None:
            periods = [p for p in periods if method.horizon % round(2**p) == 0]
            periods.append(math.log2(method.horizon))
        return periods[1:] if method.oracle == "variance-reduced" else periods

    def _sharings(self, period: float) -> list[str]:
        method = self.method
        if method.sharing is not None:
            return [method.sharing]
        # Shared directions do not average over records: only where errors are divided by sqrt(T).
        if period == 0.0 and method.directions != self.problem.dim:
            return ["record", "block"]
        return ["record"]

    def _sizes(self, period: float) -> list[tuple[float, float | None]]:
        """Batches to start from, and numbers of steps on all records, as logarithms."""
        batches: list[tuple[float, float | None]] = [(batch, None) for batch in _STARTS]
        most = math.log2(self.method.passes or 1)
        if not self.certified or period or most == 0:
            return batches
        return [*batches, (0.0, most), (0.0, most / 2)]

    def plan_at(self, point: Point) -> Plan | None:
        """The plan at a point of the search, in whole numbers; None if it does not fit."""
        method, problem, records = self.method, self.problem, self.problem.records
        period = max(1, round(2**point.period))
        if method.horizon is not None:
            horizon = method.horizon
            if horizon % period:
                return None
        else:
            horizon = period * max(1, round(2 ** min(point.blocks_per_round, 40.0)))
        diff_batch = method.diff_batch or max(1, round(2 ** min(point.diff_batch, 50.0)))
        first_batch = method.first_batch or max(
            1, round(diff_batch * period * 2 ** min(point.first_ratio, 30.0))
        )
        passes = 1 if self.certified else method.passes or 1
        if point.passes is not None:
            first_batch = records
            passes = min(method.passes or 1, max(1, round(2 ** min(point.passes, 62.0))))
        if period == 1:
            diff_batch = 1  # there are no DIFFs
        directions = method.directions or min(
            problem.dim, max(1, round(problem.dim * 2 ** min(point.directions, 0.0)))
        )
        size = first_batch + diff_batch * (period - 1)
        blocks = method.blocks(problem, size, 2 * directions, passes)
        rounds = method.rounds or min(blocks * period, MOST_RELEASES) // horizon
        if rounds < 1 or rounds * horizon // period > blocks:
            return None
        smoothing = method.smoothing or method.radius * min(
            0.9, max(LEAST_SMOOTHING, 2**point.smoothing)
        )
        reach = method.reach or (method.radius - smoothing) / horizon
        if reach <= 0:
            return None
        sampler = method.sampler or Structured.name
        clip = math.inf
        moments = moments_of(sampler, directions, problem.dim)
        if method.lipschitz is not None and moments is not None and point.clip > 0:
            clip = _CLIPS[point.clip] * (method.lipschitz * math.sqrt(moments.grad))
        return method.settled(
            problem,
            Values(directions, smoothing, sampler, point.sharing),
            clip=clip,
            period=period,
            horizon=horizon,
            rounds=rounds,
            first_batch=first_batch,
            diff_batch=diff_batch,
            reach=reach,
        )
