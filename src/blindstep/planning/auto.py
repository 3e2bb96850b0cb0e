"""The plan of a run that finds its scales itself: one setting for all problems, in natural units.

What is left to choose follows from the sizes and the budget:

- steps T: 64 up to 144 parameters, then as sqrt(d) up to 160, and fewer where noise would drown each
  of them. With all records in every step the noise on a gradient is 2 sqrt(T d) / (n mu) clips long;
  T is such that this is at most 0.8, and at least 20.
- clip: 0.9 of a record's slopes at the start, and more where noise is short. Noise is in proportion to
  the clip; but below it the slopes of all records count as equally long, and where equally long slopes
  balance is not where the mean loss is least: with two thirds of the records in one class, a logistic
  regression overshoots until its loss is above that of the start.
- reach: 1.6 up to 144 parameters, then as sqrt(d) up to 3, and more in fewer steps, as T^-0.4. In
  noise a path of T steps gets sqrt(T) x reach far, in a random direction, of which a record feels one
  part in sqrt(d).
- directions q: as many as the evaluations allow, at most d. More directions in fewer steps always
  show more of the gradient at the same noise.
- records in a step: secret batches (`batches`), as small as costs hardly any accuracy. Calibrations and
  the comparison with the start ask some of the records, too, where that costs little.
- gradients instead of directions: what all d directions would show, at the cost of 3 evaluations. All
  else is the same, calibrations included, so that two runs differ in their estimate alone.

The reasons are in docs/decisions.md; `python -m benchmarks.utility` measures how good it is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from blindstep.errors import InvalidArgument, typed_record
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.calibration import MOST_PRODUCTS, CalibrationQuery
from blindstep.estimate.comparison import RELEASES
from blindstep.estimate.gradients import COST
from blindstep.estimate.scales import ScaleFinder
from blindstep.optimize.learners import Heeding, Learner
from blindstep.optimize.surveying import Surveying
from blindstep.planning.batches import (
    CANDIDATES,
    LITTLE,
    choose,
    comparison_batch,
    comparison_share,
    some_or_all,
)
from blindstep.planning.estimates import Calibration, Gradients, StartComparison, Values
from blindstep.planning.method import EstimateKind, Method, Problem
from blindstep.planning.natural import (
    CALIBRATION_EVALUATIONS,
    LEAF_NOISE,
    ROUNDS,
    calibration_noise,
    calibration_share,
    in_natural_units,
)
from blindstep.planning.networks import plan_gradients, plan_network
from blindstep.planning.plan import ADVICE, Plan
from blindstep.private.terms import PRESENCES, REPLACE

# All in natural units: a record's slopes are about 1 long, its loss at the start is about 1.
_STEPS, _MOST_STEPS, _FEWEST_STEPS, _DROWNED = 64, 160, 20, 0.8
_SHORTEST, _LONGEST, _SMOOTHING, _CLIP = 1.6, 3.0, 0.5, 0.9
# The clip is so large that noise is this long, up to twice the least clip. Above that noise has to be
# shorter, and beyond a clip that most slopes are shorter than, only half of what is left (of its
# logarithm) goes to the clip.
_NOISE, _SHORT_NOISE, _WIDE_CLIP, _LARGEST_CLIP = 0.16, 0.06, 2.0, 8.0
# Up to this many parameters a plan does not depend on their number.
_FEW = 144
# Up to this many a run keeps a map of how slopes change: d (d + 1) / 2 numbers, of which 64 steps show
# 64 d. And where noise is at most so many clips long, for in more of it the map shows noise.
_SURVEYED, _MAPPED = 24, 0.06
_FEWEST_DIRECTIONS = 8
_FEW_CALIBRATION_DIRECTIONS = (16, 4, 1)
# The most evaluations, where nobody has said, in times what a laptop does in a minute: `batches` mostly
# takes far fewer.
_MINUTES, _MINUTE, _MOMENT = 16, 2**24, 2**23
# How many more records it takes because looks and comparison have a part of the budget.
_BESIDE = 1.3
# Calibrations along the axes ask so many records for each axis, and where evaluations are short so few;
# others what shows a histogram. Noise is at most so much longer than with all records.
_FOR_EACH, _FEW_FOR_EACH, _FEWEST_ASKED, _LONGER = 4, 2, 400, 4.0


@typed_record
class Auto(Method):
    """The default: a run that finds the scales of its problem itself, inside its budget.

        bs.minimize(loss, params, data, privacy)                             # this method
        bs.minimize(loss, params, data, privacy, method=bs.Auto(passes=20))

    It certifies nothing about the answer, and needs to know nothing about the loss.

    Attributes:
        evaluations: the most evaluations of the loss. Default: as few as come near to what all records
            in every step would find, and at most what a laptop does in a quarter of an hour.
        passes: the most passes over the records.
        directions: random directions of a step.
        estimate: what a record's vector is made of: "values" of its loss, or its "gradient".
        secret: whether batches are secret: nobody outside knows which step asks which record, so a
            sixteenth of the records or less will do for each. Say no where others can see when a record
            is read: then steps take all records, or public batches.
        learner: what turns released gradients into moves. Default: steps whose length heeds whether
            gradients agree, and falls to 0.
    """

    name: ClassVar[str] = "auto"
    evaluations: int | None = None
    passes: int | None = None
    directions: int | None = None
    estimate: EstimateKind = "values"
    secret: bool = True
    learner: Learner | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimate == Gradients.kind and self.directions is not None:
            raise InvalidArgument(
                f"directions={self.directions!r} beside estimate='gradient', which draws none: leave "
                "out one of the two."
            )

    def plan(self, problem: Problem) -> Plan:
        """One setting for all problems, in natural units."""
        if problem.network:
            most = self.most(problem)
            if self.estimate == Gradients.kind:
                given = (self.passes, self.learner, self.secret)
                return plan_gradients(problem, self.name, most, *given)
            given = (self.passes, self.directions, self.learner, self.secret)
            return plan_network(problem, self.name, most, *given)
        most = self.evaluations or _MINUTES * (self.most(problem) or _MINUTE)
        made, enough = self._plan(problem, most), self.enough(problem)
        if 2 * problem.records >= enough:
            return made
        few = (
            f"{ADVICE}{problem.records:,} records are few for {problem.dim:,} parameters at this "
            f"budget: learning begins at about {enough // 2:,}, and from about {enough:,} on no step "
            "drowns in noise. A larger epsilon or fewer parameters take fewer."
        )
        return replace(made, notes=(*made.notes, few))

    def enough(self, problem: Problem) -> int:
        """From about how many records on no step drowns in noise; with half of them some do."""
        steps = min(round(_STEPS * max(1.0, math.sqrt(problem.dim / _FEW))), _MOST_STEPS)
        drowned = 2.0 * math.sqrt(steps * problem.dim) / _DROWNED
        return math.ceil(_BESIDE * drowned / problem.privacy.mu)

    def most(self, problem: Problem) -> int | None:
        """The most evaluations of the loss, if anybody has said."""
        if self.evaluations is None and problem.effort is not None:
            return problem.effort()
        return self.evaluations

    def made(self, plan: Plan) -> bool:
        """How many evaluations are reasonable is measured anew in each process: a run keeps its own."""
        return (
            self.evaluations is None
            and plan.method == self.name
            and plan.estimate.kind == self.estimate
            and (self.directions is None or plan.directions == self.directions)
            and (self.passes is None or plan.passes <= self.passes)
        )

    def _plan(self, problem: Problem, most: int) -> Plan:
        dim, records, privacy = problem.dim, problem.records, problem.privacy
        mu = privacy.mu_beside_room if self.secret else privacy.mu
        differentiates, short = self.estimate == Gradients.kind, self.evaluations is None
        # A map averages all releases: where evaluations are cheap, it is worth a moment of them.
        brief = min(_MOMENT, most // 32) if dim <= _SURVEYED and short else 0
        asked, asked_of = _calibration_query(problem, most, mu, self.secret, brief == _MOMENT)
        spent = ScaleFinder.calibrations * asked_of * asked.evaluations
        judged = comparison_share(problem, mu)
        compared = comparison_batch(problem, most, mu, self.secret, judged)
        spent += RELEASES * compared * (1 + CANDIDATES)
        share = calibration_share(asked, asked_of, mu)
        mu *= math.sqrt(1 - share - judged)
        # What is heard of n records: n mu, if mu is about replacing one.
        clear = records * mu * PRESENCES[REPLACE] / PRESENCES[privacy.neighbours]
        wide = max(1.0, math.sqrt(dim / _FEW))
        most_steps = min(round(_STEPS * wide), _MOST_STEPS)
        steps = _steps(dim, clear, most_steps)
        # As long as COST / 2 pairs of values, and it shows all directions.
        cost, shown = (COST / 2, 1) if differentiates else (1, dim)
        wanted = 1 if differentiates else self.directions
        left, longer = int((most - spent) / cost), 1.0
        # What choosing records by chance adds is counted for slopes of length 1, though none is longer
        # than the clip: noise counts as at half of the least clip, so that the two are in proportion.
        each = _noise(dim, clear, steps)
        noise = each * max(0.5 * _CLIP, _wide_clip(each))
        given = (records, steps, shown, noise, mu, privacy)
        about = {"evaluations": left, "wanted": wanted, "short": short, "brief": brief}
        made = choose(*given, **about) if self.secret else None
        if made is None:
            q, batch, steps = _sizes(wanted or shown, wanted is not None, records, left, steps)
        else:
            q, batch, longer = made.directions, made.batch, made.longer
        q = dim if differentiates else q
        if self.passes is not None:
            steps = max(1, min(steps, self.passes * (records // batch)))
        horizon = max(1, steps // ROUNDS)
        rounds = max(1, steps // horizon)
        fewer = (most_steps / (rounds * horizon)) ** 0.4
        sampler = "structured" if q > 1 else "sphere"
        heard = clear / longer if made else clear * math.sqrt(batch / records)
        each = _noise(dim, heard, rounds * horizon)
        clip, maps = _clip(each), dim <= _SURVEYED and each <= _MAPPED
        return in_natural_units(
            self.name,
            problem,
            Gradients() if differentiates else Values(q, fewer * _SMOOTHING, sampler, "block"),
            Calibration(asked.leaves, asked.each, asked_of, share),
            # Coefficients are (d/q) c_j: of a slope of length 1, about sqrt(d/q) long.
            bounds=Bounds(clip=clip * math.sqrt(dim / q)),
            rounds=rounds,
            horizon=horizon,
            batch=batch,
            reach=fewer * min(_SHORTEST * wide, _LONGEST),
            learner=self.learner or (Surveying() if maps else Heeding()),
            comparison=StartComparison(compared, judged),
            secret=self.secret and 2 * min(batch, asked_of, compared) <= records,
        )


def _steps(dim: int, clear: float, most: int) -> int:
    """Steps such that noise does not drown each of them, if every step takes all records."""
    drowned = 2.0 * math.sqrt(most * dim) / clear
    return round(min(max(most * (_DROWNED / drowned) ** 2, _FEWEST_STEPS), most))


def _noise(dim: int, heard: float, steps: int) -> float:
    """How long the noise on a gradient is, in clips: 2 sqrt(T d) / (n mu) with all n records."""
    return 2.0 * math.sqrt(steps * dim) / heard


def _clip(each: float) -> float:
    """The clip, where noise is `each` clips long: as large as leaves noise a small part of a step."""
    return max(min(max(_NOISE / each, _CLIP), 2.0 * _CLIP), _wide_clip(each))


def _wide_clip(each: float) -> float:
    """The largest clip that leaves noise short beside slopes of length 1."""
    wide = _SHORT_NOISE / each
    return min(wide, math.sqrt(_WIDE_CLIP * wide), _LARGEST_CLIP)


def _sizes(
    wanted: int, fixed: bool, records: int, evaluations: int, steps: int
) -> tuple[int, int, int]:
    """Directions, records in a step and steps, within the evaluations."""
    for_each = evaluations // (2 * steps)  # records x directions in a step
    if for_each < 1:
        steps, for_each = max(1, evaluations // 2), 1
    q = wanted if fixed else max(1, min(wanted, for_each // records))
    if not fixed and for_each < _FEWEST_DIRECTIONS * records:
        # Rather a part of the records than too few directions for each.
        q = min(wanted, _FEWEST_DIRECTIONS, for_each)
        q = 1 if evaluations <= 4 * records else q  # questions to people: a pair for each
    batch = max(1, min(records, for_each // q))
    return q, batch, steps


def _calibration_query(
    problem: Problem, evaluations: int, mu: float, secret: bool, cheap: bool
) -> tuple[CalibrationQuery, int]:
    """What a calibration asks, and of how many records.

    Of few parameters the axes. Of more a few directions in each leaf, if noise lets a histogram for
    each be read; else a few in all of them. It asks as few records as show these well, in secret
    batches, or else all of them if that is cheap enough.
    """
    dim, records, leaves = problem.dim, problem.records, problem.leaves or (problem.dim,)
    room = CALIBRATION_EVALUATIONS * evaluations / ScaleFinder.calibrations
    kinds = [CalibrationQuery((dim,), dim)]
    if dim > MOST_PRODUCTS and len(leaves) > 1:
        kinds = [CalibrationQuery(leaves, few) for few in _FEW_CALIBRATION_DIRECTIONS]
        kinds = [
            calibration
            for calibration in kinds
            if calibration_noise(calibration, records, mu) <= LEAF_NOISE
        ]
    kinds += [CalibrationQuery((dim,), few) for few in _FEW_CALIBRATION_DIRECTIONS if few < dim]
    for calibration in kinds:
        spends = mu * math.sqrt(calibration_share(calibration, records, mu))
        longest, least = LITTLE if cheap else _LONGER, [_FEWEST_ASKED]
        if calibration.axes:  # rather few records for each axis than no axes
            least = [max(_FEWEST_ASKED, _FOR_EACH * dim), _FEW_FOR_EACH * dim]
        else:
            longest = max(LITTLE, LEAF_NOISE / calibration_noise(calibration, records, mu))
        every = some_or_all(problem, ScaleFinder.calibrations, spends, secret, longest)
        within = [batch for batch, _ in every if batch * calibration.evaluations <= room]
        for few in least:
            if fits := [batch for batch in within if batch >= min(records, few)]:
                return calibration, fits[-1]
    calibration = CalibrationQuery((dim,), min(dim, _FEW_CALIBRATION_DIRECTIONS[1]))
    return calibration, max(1, min(records, int(room // calibration.evaluations)))
