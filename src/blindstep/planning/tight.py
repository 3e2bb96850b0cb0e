"""Method `tight`: the plan of least explicit bound, or good defaults where L is unknown.

Frames instead of independent directions, BLT noise instead of a tree, exact calibration, clipping,
the period decoupled from the horizon: same guarantee, far less noise. The search is in
`planning.search`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

from blindstep.errors import InvalidArgument, typed_record
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.frames import Structured
from blindstep.estimate.gradients import COST
from blindstep.ledger.budget import Privacy
from blindstep.optimize.learners import Learner
from blindstep.planning.bound import moments_of
from blindstep.planning.estimates import Estimate, Gradients, Values
from blindstep.planning.method import (
    EstimateKind,
    MechanismName,
    Method,
    Oracle,
    Problem,
    SamplerName,
    check_tolerance,
    given,
)
from blindstep.planning.plan import Plan, finished
from blindstep.planning.search import FINE, LEAST_SMOOTHING, Point, Search

# Without L and the gap.
_CLIP_HORIZON = 10
_CLIP_DIRECTIONS = 256


@typed_record
class Tight(Method):
    """A plan in units of the parameters: the one of least explicit bound, if L and the gap are known.

        bs.Tight(radius=0.1, lipschitz=1.0, gap=1.0)      # certifies a tolerance
        bs.Tight(radius=0.1, bounds=bs.Bounds(clip=1.0))  # as private for any loss; certifies nothing

    Whatever is fixed stays as it is. With several passes and no batches of your own, the plan either
    makes one pass or takes all records in every step.

    Attributes:
        radius: Goldstein radius of the answer: how far around it gradients are averaged.
        bounds: bounds to enforce on each record.
        lipschitz: Lipschitz bound of the loss. It is enforced by clamping: privacy does not rest on it.
        gap: bound on F(start) - inf F.
        oracle: a fresh gradient at each step ("naive"), or differences between gradients.
        horizon: steps in a round (T).
        period: steps from one gradient to the next; 1 is the naive oracle.
        rounds: restarts of the learner (K).
        passes: the most passes over the records.
        first_batch: records of a gradient (B1).
        diff_batch: records of a difference (B2).
        directions: random directions for each record (q).
        evaluations: the most evaluations of the loss.
        mechanism: the noise of a block.
        sampler: the directions: independent ("sphere"), or orthonormal.
        sharing: directions of its own for each "record", or one frame for a "block".
        smoothing: how far from a point the loss is evaluated (h).
        reach: the longest step (D).
        estimate: what a record's vector is made of: "values" of its loss, or its "gradient".
        learner: what turns released gradients into moves. Default: the theorem's step, if L is known.
    """

    name: ClassVar[str] = "tight"
    radius: float
    bounds: Bounds | None = None
    lipschitz: float | None = None
    gap: float | None = None
    oracle: Oracle | None = None
    horizon: int | None = None
    period: int | None = None
    rounds: int | None = None
    passes: int | None = None
    first_batch: int | None = None
    diff_batch: int | None = None
    directions: int | None = None
    evaluations: int | None = None
    mechanism: MechanismName | None = None
    sampler: SamplerName | None = None
    sharing: Literal["record", "block"] | None = None
    smoothing: float | None = None
    reach: float | None = None
    estimate: EstimateKind = "values"
    learner: Learner | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        clash = self.oracle is not None and (self.period == 1) != (self.oracle == "naive")
        if self.period is not None and clash:
            raise InvalidArgument(
                f"the {self.oracle} oracle cannot have period {self.period}: the naive one has "
                "period 1, the variance-reduced one a longer period. Fix one of the two."
            )
        if self.differentiates:
            self._refuse_beside_gradients()
        bounds = self.bounds or Bounds()
        if self.lipschitz is None:
            bounds.require_finite(needs_diff=False, by_slope=self.differentiates)

    @property
    def differentiates(self) -> bool:
        """Whether a record's vector is its gradient."""
        return self.estimate == Gradients.kind

    def plan(self, problem: Problem) -> Plan:
        """The plan of least bound, or by clip norm and radius where L or the gap is not known."""
        return self._plan(problem, explained=True)

    def trial(self, problem: Problem) -> Plan:
        """The same without notes, which take three more descents."""
        return self._plan(problem, explained=False)

    def require_tolerance(self, tolerance: float) -> None:
        """Raise unless L and the gap are known and the planner has its way."""
        check_tolerance(tolerance, self.lipschitz, self.gap)
        if self.rounds is not None or self.horizon is not None:
            raise InvalidArgument(
                "a tolerance leaves horizon and rounds to the planner: do not fix them."
            )
        if (self.passes or 1) > 1 and (self.first_batch or self.diff_batch):
            raise InvalidArgument(
                "several passes of batches of some records certify nothing: leave out passes or "
                "batches."
            )

    def settled(
        self,
        problem: Problem,
        estimate: Estimate,
        *,
        period: int,
        clip: float = math.inf,
        **chosen: Any,
    ) -> Plan:
        """A plan, with the most accurate noise that needs little memory unless another is fixed."""
        known = given(self, problem)
        if clip < math.inf:
            known["bounds"] = known["bounds"] & Bounds(clip=clip)
        return Plan(
            estimate=estimate,
            mechanism=self.mechanism or ("independent" if period == 1 else "blt"),
            period=period,
            **known,
            **chosen,
        )

    def blocks(self, problem: Problem, size: int, each: int, passes: int) -> int:
        """Blocks of `size` records, of `each` evaluations, that passes and the evaluations allow."""
        blocks = problem.records // size * passes
        if self.evaluations is not None:
            blocks = min(blocks, self.evaluations // (each * size))
        return blocks

    def _refuse_beside_gradients(self) -> None:
        """Raise if the user fixed what gradients leave no choice of."""
        for name in ("directions", "sampler", "sharing", "smoothing"):
            if getattr(self, name) is not None:
                raise InvalidArgument(
                    f"{name} is for estimates from values, got {name}={getattr(self, name)!r} beside "
                    "estimate='gradient', which draws no directions: leave out one of the two."
                )
        for name in ("lipschitz", "gap"):
            if getattr(self, name) is not None:
                raise InvalidArgument(
                    f"{name} asks for a certificate, which is proved for estimates from values alone: "
                    f"leave out {name}, or estimate='gradient'. Bounds(clip=1.0) or "
                    "Bounds(lipschitz=1.0) bound a gradient."
                )

    def _certifiable(self, problem: Problem) -> bool:
        """Whether a bound on stationarity can be stated: L and F* are known, and moments proved."""
        known = self.lipschitz is not None and self.gap is not None
        return known and moments_of(self.sampler or Structured.name, 1, problem.dim) is not None

    def _plan(self, problem: Problem, *, explained: bool) -> Plan:
        if not self._certifiable(problem):
            return finished(self._by_clip_norm(problem))
        records = problem.records
        repeats = self.passes is not None and self.passes > 1
        batches = (self.first_batch or records, self.diff_batch or records)
        search = Search(self, problem, certified=not (repeats and batches != (records, records)))
        point = search.best()
        if point is None and search.certified:  # rather a plan that certifies nothing, and says so
            search = Search(self, problem, certified=False)
            point = search.best()
        made = None if point is None else search.plan_at(point)
        if point is None or made is None:
            raise search.refusal or InvalidArgument(
                f"{records} records do not hold one round of what was fixed (horizon "
                f"{self.horizon}, period {self.period}, first_batch {self.first_batch}, "
                f"diff_batch {self.diff_batch}): fix less, or bring more records."
            )
        notes: tuple[str, ...] = ()
        if made.tolerance is not None:
            moved = made.reach * made.horizon
            notes = (
                f"Certifies radius {made.smoothing + moved:.4g} = smoothing {made.smoothing:.4g} + "
                f"reach x horizon {moved:.4g}, in expectation.",
            )
        if repeats and made.passes == 1:
            notes += (f"One of {self.passes} passes: the others would certify less, or nothing.",)
        return finished(made, notes, _marginal(search, made, point) if explained else ())

    def _by_clip_norm(self, problem: Problem) -> Plan:
        """Defaults when a clip norm and a radius are known, but L, the gap or moments are not.

        The naive oracle with one shared frame for each step, or with gradients; adaptive steps,
        batches as large as the number of passes allows; measured in benchmarks/ on digits and a9a.
        """
        exact, records = self.differentiates, problem.records
        horizon = self.horizon or _CLIP_HORIZON
        period = self.period or 1
        directions = 0 if exact else min(problem.dim, self.directions or _CLIP_DIRECTIONS)
        passes = self.passes or 1
        if self.oracle == "variance-reduced" and period == 1:
            raise InvalidArgument(
                "without lipschitz and gap, the variance-reduced oracle needs a period: fix period, "
                "first_batch and diff_batch."
            )
        if period > 1 and self.first_batch is None and self.diff_batch is None:
            raise InvalidArgument(
                "without lipschitz and gap, a period above 1 needs batches: fix first_batch and "
                "diff_batch."
            )
        diff_batch = self.diff_batch or 1
        steps = horizon * (self.rounds or max(1, round(math.sqrt(passes * 20) / horizon * 4)))
        first_batch = self.first_batch or max(1, min(records, passes * records // steps))
        size = first_batch + diff_batch * (period - 1)
        if size > records:
            raise InvalidArgument(
                f"a block of {size} records does not fit into {records}: use smaller batches."
            )
        each = COST * min(period, 2) if exact else 2 * directions  # a DIFF takes two gradients
        steps = self.blocks(problem, size, each, passes) * period
        rounds = self.rounds or steps // horizon
        if rounds < 1 or rounds * horizon > steps:
            raise InvalidArgument(
                f"{records} records in {passes} pass(es) hold {steps} steps with batches of "
                f"{first_batch}, not {rounds or 1} round(s) of {horizon}: use a smaller first_batch, "
                "a shorter horizon or more passes."
            )
        smoothing = 0.0 if exact else self.smoothing or LEAST_SMOOTHING * self.radius
        sampler, sharing = self.sampler or Structured.name, self.sharing or "block"
        return self.settled(
            problem,
            Gradients() if exact else Values(directions, smoothing, sampler, sharing),
            period=period,
            horizon=horizon,
            rounds=rounds,
            first_batch=first_batch,
            diff_batch=diff_batch,
            reach=self.reach or (self.radius - smoothing) / horizon,
        )


def _marginal(search: Search, made: Plan, point: Point) -> tuple[str, ...]:
    """What a little more of each resource would buy, by searching again from where we are."""
    method, problem = search.method, search.problem
    if made.tolerance is None:
        return ()
    more = max(1, made.records // 10)
    privacy = Privacy(made.epsilon + 1.0, made.delta)
    asked = [("record", method, replace(problem, records=made.records + more), more)]
    if method.directions is None and made.directions < made.dim:
        another = replace(method, directions=made.directions + 1, evaluations=None)
        asked.append(("direction", another, problem, 1))
    asked.append(("unit of epsilon", method, replace(problem, privacy=privacy), 1))
    parts = []
    for name, richer, larger, number in asked:
        again = Search(richer, larger)
        found = again.descend(point, FINE)
        if found is not None:
            gained = max(made.tolerance - again.bound(found), 0.0) / number
            parts.append(f"one more {name} {gained:.2g}")
    return ("The tolerance would fall by: " + "; ".join(parts) + ".",) if parts else ()
