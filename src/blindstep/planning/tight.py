"""Preset `tight`: the plan of least explicit bound, or good defaults where L is unknown.

Frames instead of independent directions, BLT noise instead of a tree, exact calibration, clipping,
the period decoupled from the horizon: same guarantee, far less noise. With exact constants the
variance-reduced oracle does not always win, so the search decides: period 1 is the naive oracle.
With several passes it decides between one pass of smaller batches and steps that each take all
records; nothing else is certified (docs/certificates.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Clip
from blindstep.estimate.gradients import COST
from blindstep.planning.bound import least_tolerance, moments_of
from blindstep.planning.choices import NO_DIRECTIONS, Choices
from blindstep.planning.plan import Plan, finished
from blindstep.private.schedule import MOST_RELEASES
from blindstep.private.statement import Privacy

_SAMPLER = "structured"
# Of the radius: a smaller smoothing gains nothing any more, and loses digits.
_LEAST_SMOOTHING = 1e-3
# Clip norms to try, in units of the root mean square of a record's |estimate|; first of all none.
_CLIPS = (math.inf, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0)
# Factors, as logarithms to base 2, by which the search moves: coarsely from everywhere, then finely.
_COARSE, _FINE = (4.0, 2.0, 1.0), (0.5, 0.25, 0.1, 0.03)
# Batches to start from, as logarithms: from small ones alone, the search can end where a strong clip
# hides a better one.
_STARTS = (0.0, 3.0, 7.0)
# Longer blocks than 2^12 never won in benchmarks/auto_grid.py; a user can still fix one.
_LONGEST_PERIOD = 12
# Without L and the gap.
_CLIP_HORIZON = 10
_CLIP_DIRECTIONS = 256


def plan_tight(choices: Choices, records: int, *, explained: bool = True) -> Plan:
    """The plan of least bound, or by clip norm and radius where L or the gap is not known.

    `explained` adds a note on what more records, directions or budget would buy: three more descents.
    """
    if not choices.certifiable:
        return finished(_by_clip_norm(choices, records))
    repeats = choices.passes is not None and choices.passes > 1
    batches = (choices.first_batch or records, choices.diff_batch or records)
    search = Search(choices, records, certified=not (repeats and batches != (records, records)))
    point = search.best()
    if point is None and search.certified:  # rather a plan that certifies nothing, and says so
        search = Search(choices, records, certified=False)
        point = search.best()
    made = None if point is None else search.plan_at(point)
    if point is None or made is None:
        raise search.refusal or InvalidArgument(
            f"{records} records do not hold one round of what was fixed (horizon "
            f"{choices.horizon}, period {choices.period}, first_batch {choices.first_batch}, "
            f"diff_batch {choices.diff_batch}): fix less, or bring more records."
        )
    notes: tuple[str, ...] = ()
    if made.tolerance is not None:
        moved = made.reach * made.horizon
        notes = (
            f"Certifies radius {made.smoothing + moved:.4g} = smoothing {made.smoothing:.4g} + reach "
            f"x horizon {moved:.4g}, in expectation.",
        )
    if repeats and made.passes == 1:
        notes += (f"One of {choices.passes} passes: the others would certify less, or nothing.",)
    return finished(made, notes, _marginal(search, made, point) if explained else ())


def _marginal(search: Search, made: Plan, point: Point) -> tuple[str, ...]:
    """What a little more of each resource would buy, by searching again from where we are."""
    choices = search.choices
    if made.tolerance is None:
        return ()
    more = max(1, made.records // 10)
    privacy = Privacy(made.epsilon + 1.0, made.delta)
    asked = [("record", choices, made.records + more, more)]
    if choices.directions is None and made.directions < made.dim:
        another = replace(choices, directions=made.directions + 1, evaluations=None)
        asked.append(("direction", another, made.records, 1))
    asked.append(("unit of epsilon", replace(choices, privacy=privacy), made.records, 1))
    parts = []
    for name, richer, records, number in asked:
        again = Search(richer, records)
        found = again.descend(point, _FINE)
        if found is not None:
            gained = max(made.tolerance - again.bound(found), 0.0) / number
            parts.append(f"one more {name} {gained:.2g}")
    return ("The tolerance would fall by: " + "; ".join(parts) + ".",) if parts else ()


# -- search -----------------------------------------------------------------------------------


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
        choices: what the user asked for.
        certified: whether only plans that certify something count, else all passes of any batches.
        refusal: why the latest plan that was tried cannot be; None if all could.
    """

    def __init__(self, choices: Choices, records: int, certified: bool = True) -> None:
        self.choices, self._records, self.certified = choices, records, certified
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
        rough = [found for start in starts if (found := self.descend(start, _COARSE)) is not None]
        rough.sort(key=self.bound)
        fine = (self.descend(point, _FINE) for point in rough[:3])
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
        choices, batches = self.choices, point.passes is None
        free = {
            "blocks_per_round": choices.horizon is None,
            "diff_batch": choices.diff_batch is None and batches,
            "first_ratio": choices.first_batch is None and point.period > 0,
            "passes": not batches,
            "directions": choices.directions is None,
            "smoothing": choices.smoothing is None,
        }
        for name in (name for name, open_ in free.items() if open_):
            for sign in (size, -size):
                yield replace(point, **{name: getattr(point, name) + sign})
        # All clips: those above the gain change nothing, and a step of one could not cross them.
        for clip in range(len(_CLIPS)):
            yield replace(point, clip=clip)

    def _periods(self) -> list[float]:
        """Logarithms of the periods to try."""
        choices = self.choices
        if choices.period is not None:
            return [math.log2(choices.period)]
        if choices.oracle == "naive":
            return [0.0]
        longest = min(_LONGEST_PERIOD, int(math.log2(self._records)))
        periods = [float(k) for k in range(longest + 1)]
        if choices.horizon is not None:
            periods = [p for p in periods if choices.horizon % round(2**p) == 0]
            periods.append(math.log2(choices.horizon))
        return periods[1:] if choices.oracle == "variance-reduced" else periods

    def _sharings(self, period: float) -> list[str]:
        choices = self.choices
        if choices.sharing is not None:
            return [choices.sharing]
        # Shared directions do not average over records: only where errors are divided by sqrt(T).
        if period == 0.0 and choices.directions != choices.dim:
            return ["record", "block"]
        return ["record"]

    def _sizes(self, period: float) -> list[tuple[float, float | None]]:
        """Batches to start from, and numbers of steps on all records, as logarithms."""
        batches: list[tuple[float, float | None]] = [(batch, None) for batch in _STARTS]
        most = math.log2(self.choices.passes or 1)
        if not self.certified or period or most == 0:
            return batches
        return [*batches, (0.0, most), (0.0, most / 2)]

    def plan_at(self, point: Point) -> Plan | None:
        """The plan at a point of the search, in whole numbers; None if it does not fit."""
        choices, records = self.choices, self._records
        period = max(1, round(2**point.period))
        if choices.horizon is not None:
            horizon = choices.horizon
            if horizon % period:
                return None
        else:
            horizon = period * max(1, round(2 ** min(point.blocks_per_round, 40.0)))
        diff_batch = choices.diff_batch or max(1, round(2 ** min(point.diff_batch, 50.0)))
        first_batch = choices.first_batch or max(
            1, round(diff_batch * period * 2 ** min(point.first_ratio, 30.0))
        )
        passes = 1 if self.certified else choices.passes or 1
        if point.passes is not None:
            first_batch = records
            passes = min(choices.passes or 1, max(1, round(2 ** min(point.passes, 62.0))))
        if period == 1:
            diff_batch = 1  # there are no DIFFs
        directions = choices.directions or min(
            choices.dim, max(1, round(choices.dim * 2 ** min(point.directions, 0.0)))
        )
        size = first_batch + diff_batch * (period - 1)
        blocks = _blocks(choices, records, size, 2 * directions, passes)
        rounds = choices.rounds or min(blocks * period, MOST_RELEASES) // horizon
        if rounds < 1 or rounds * horizon // period > blocks:
            return None
        smoothing = choices.smoothing or choices.radius * min(
            0.9, max(_LEAST_SMOOTHING, 2**point.smoothing)
        )
        reach = choices.reach or (choices.radius - smoothing) / horizon
        if reach <= 0:
            return None
        sampler = choices.sampler or _SAMPLER
        known = choices.known(records)
        if choices.lipschitz is not None and point.clip > 0:
            rms = choices.lipschitz * math.sqrt(moments_of(sampler, directions, choices.dim).grad)
            known["bounds"] = choices.bounds & Clip(_CLIPS[point.clip] * rms)
        return _plan(
            choices,
            period,
            known,
            sharing=point.sharing,
            horizon=horizon,
            rounds=rounds,
            first_batch=first_batch,
            diff_batch=diff_batch,
            directions=directions,
            smoothing=smoothing,
            reach=reach,
        )


def _blocks(choices: Choices, records: int, size: int, each: int, passes: int) -> int:
    """Blocks of `size` records, of `each` evaluations, that passes and the evaluations allow."""
    blocks = records // size * passes
    if choices.evaluations is not None:
        blocks = min(blocks, choices.evaluations // (each * size))
    return blocks


def _plan(
    choices: Choices, period: int, known: dict[str, Any], sampler: str = _SAMPLER, **chosen: Any
) -> Plan:
    """The plan, with the most accurate noise that needs little memory unless another is fixed."""
    return Plan(
        preset="tight",
        mechanism=choices.mechanism or ("independent" if period == 1 else "blt"),
        sampler=choices.sampler or sampler,
        period=period,
        **known,
        **chosen,
    )


# -- without a Lipschitz bound ----------------------------------------------------------------


def _by_clip_norm(choices: Choices, records: int) -> Plan:
    """Defaults for who knows a clip norm and a radius, but not L or the gap.

    The naive oracle with one shared frame for each step, or with gradients; adaptive steps, batches as
    large as the number of passes allows; measured in benchmarks/ on digits and on a9a.
    """
    exact = choices.differentiates
    horizon = choices.horizon or _CLIP_HORIZON
    period = choices.period or 1
    directions = 0 if exact else min(choices.dim, choices.directions or _CLIP_DIRECTIONS)
    passes = choices.passes or 1
    if choices.oracle == "variance-reduced" and period == 1:
        raise InvalidArgument(
            "without lipschitz and gap, the variance-reduced oracle needs a period: fix period, "
            "first_batch and diff_batch."
        )
    if period > 1 and choices.first_batch is None and choices.diff_batch is None:
        raise InvalidArgument(
            "without lipschitz and gap, a period above 1 needs batches: fix first_batch and "
            "diff_batch."
        )
    diff_batch = choices.diff_batch or 1
    steps = horizon * (choices.rounds or max(1, round(math.sqrt(passes * 20) / horizon * 4)))
    first_batch = choices.first_batch or max(1, min(records, passes * records // steps))
    size = first_batch + diff_batch * (period - 1)
    if size > records:
        raise InvalidArgument(
            f"a block of {size} records does not fit into {records}: use smaller batches."
        )
    each = COST * min(period, 2) if exact else 2 * directions  # a DIFF takes two gradients
    steps = _blocks(choices, records, size, each, passes) * period
    rounds = choices.rounds or steps // horizon
    if rounds < 1 or rounds * horizon > steps:
        raise InvalidArgument(
            f"{records} records in {passes} pass(es) hold {steps} steps with batches of "
            f"{first_batch}, not {rounds or 1} round(s) of {horizon}: use a smaller first_batch, a "
            "shorter horizon or more passes."
        )
    smoothing = 0.0 if exact else choices.smoothing or _LEAST_SMOOTHING * choices.radius
    return _plan(
        choices,
        period,
        choices.known(records),
        sampler=NO_DIRECTIONS if exact else _SAMPLER,
        sharing="record" if exact else choices.sharing or "block",
        horizon=horizon,
        rounds=rounds,
        first_batch=first_batch,
        diff_batch=diff_batch,
        directions=directions,
        smoothing=smoothing,
        reach=choices.reach or (choices.radius - smoothing) / horizon,
    )
