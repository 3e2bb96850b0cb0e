"""The plan of a run. Its fields are choices; every other number follows from them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.estimate import gradients
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.comparison import ComparisonQuery
from blindstep.estimate.directions import Signs
from blindstep.estimate.estimators import Sharing, ValueEstimator, record_bound
from blindstep.estimate.vectors import Estimator
from blindstep.optimize.learners import AdaptiveStep, ConstantStep, Falling, Heeding, Learner, Pace
from blindstep.optimize.machine import Machine
from blindstep.optimize.prefix import prefix_of
from blindstep.planning import bound, checks, serialisation
from blindstep.planning.choices import AUTO_SAMPLERS, GRADIENT, VALUES
from blindstep.planning.theory import BoundParts, Moments
from blindstep.private import accounting
from blindstep.private.accounting import RECORD
from blindstep.private.mechanisms import Independent
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.statement import Privacy, Statement, compose_statements, statement
from blindstep.private.terms import Terms, calibrated


class PastTheMost(InvalidArgument):
    """More releases than this package numbers and accounts for; records are not what is missing."""


@dataclass(frozen=True)
class Plan:
    """Everything that determines a run, except the loss, the data and the keys.

    Make one with `blindstep.plan`. Nobody hands in a noise level: it follows from the budget.

    What is promised of the answer is `tolerance`, for the F that `certifies` names. It assumes that
    every record's loss has Lipschitz constant `lipschitz` and keeps to what `bounds` declare of it,
    that F(start) - inf F <= `gap`, and that the start was chosen without looking at the records.

    Attributes:
        preset: whose parameters these are: "auto", "tight", "paper" or "klt".
        mechanism: the noise of a block: "independent", "tree", "sqrt" or "blt".
        sampler: the probing directions: "sphere", "haar", "structured", "signs"; "none" if none.
        sharing: whether each "record" has its own directions, or a "block" shares one frame.
        records: number of records the plan is made for.
        dim: number of parameters.
        horizon: T, steps in a round.
        period: releases from one GRAD to the next, which is one block.
        rounds: K, restarts of the learner, over all passes.
        first_batch: B1, records of a GRAD.
        diff_batch: B2, records of a DIFF.
        directions: q, directions for each record; 0 for gradients.
        smoothing: h, the paper's delta; 0 for gradients.
        radius: the Goldstein radius that is certified, 2 x smoothing in preset `paper`.
        reach: D, the longest step.
        bounds: what is enforced on each record.
        lipschitz: L as declared; None if unknown.
        gap: F* as declared; None if unknown.
        privacy: the budget.
        notes: what a reader should know, one sentence each.
        looks: releases before the first step, from which the run finds its scales; 0: none. Amounts
            above are then in natural units (`estimate.scales`).
        look_leaves: the number of parameters in each part that a look tells from the others.
        look_directions: m, directions of a look in each of them.
        look_batch: records of a look.
        look_share: the share of mu^2 that the looks spend together.
        curve: weight of the loss in each release, whose mean is then part of the history; 0: none.
        sides: of a point on which a GRAD evaluates along a direction, 2 or 1 (`blindstep.torch`).
        estimate: what a record's vector is made of: "values" of its loss, or its "gradient".
        comparisons: releases after the last step, which compare what was found with the start; 0: none.
        comparison_batch: records of each of them.
        comparison_share: the share of mu^2 that they spend together.
    """

    preset: str
    mechanism: str
    sampler: str
    sharing: str
    records: int
    dim: int
    horizon: int
    period: int
    rounds: int
    first_batch: int
    diff_batch: int
    directions: int
    smoothing: float
    radius: float
    reach: float
    bounds: Bounds
    lipschitz: float | None
    gap: float | None
    privacy: Privacy
    notes: tuple[str, ...] = ()
    calibrations: int = 0
    calibration_leaves: tuple[int, ...] = ()
    calibration_directions: int = 0
    calibration_batch: int = 0
    calibration_share: float = 0.0
    curve: float = 0.0
    sides: int = 2
    estimate: str = VALUES
    comparisons: int = 0
    comparison_batch: int = 0
    comparison_share: float = 0.0

    def __post_init__(self) -> None:
        checks.check(self)

    # -- what the run does ------------------------------------------------------------------------

    @property
    def oracle(self) -> str:
        """ "naive" if every release is a GRAD, else "variance-reduced"."""
        return "naive" if self.period == 1 else "variance-reduced"

    @cached_property
    def schedule(self) -> Schedule:
        """Who answers when."""
        batches = (self.first_batch, self.diff_batch, self.period)
        try:
            return Schedule(self.records, *batches, self.rounds * (self.horizon // self.period))
        except InvalidArgument as error:
            if self.first_batch + self.diff_batch * (self.period - 1) > self.records:
                raise
            raise PastTheMost(str(error)) from None

    @cached_property
    def estimator(self) -> Estimator:
        """How a record's vector is made."""
        if self.estimate == GRADIENT:
            return gradients.GradientEstimator(self.dim, self.bounds, curve=self.curve)
        return ValueEstimator(
            dim=self.dim,
            directions=self.directions,
            sampler=AUTO_SAMPLERS[self.sampler](),
            smoothing=self.smoothing,
            reach=self.reach,
            bounds=self.bounds,
            sharing=Sharing(self.sharing),
            curve=self.curve,
            sides=self.sides,
        )

    @property
    def passes(self) -> int:
        """Times the run goes through the records."""
        return self.schedule.passes

    @property
    def size(self) -> int:
        """Coordinates of a release: d, or q where a block shares a frame, and one for the loss."""
        return (self.directions if self.sharing == "block" else self.dim) + (self.curve > 0)

    def build(self, *, jumps: bool = False) -> Machine:
        """The state machine that turns releases into steps. It sees nothing that is not released.

        Where the loss `jumps`, a run that finds its scales probes farther out.
        """
        step, auto = self.step, self.preset == "auto"
        if self.heeds:
            learner: Learner = Heeding()
        elif auto:
            # Numbers of 16 bits would swallow closer probes of a network.
            learner = Falling(1.0 if self.sampler == Signs.name else 0.1)
        else:
            learner = AdaptiveStep() if step is None else ConstantStep()
        widening = 4.0 if auto and jumps else 1.0
        return Machine(
            estimator=self.estimator,
            prefix=prefix_of(self.terms.mechanism),
            learner=learner,
            pace=Pace(
                float(self.reach),
                self.schedule.releases,
                step,
                widening,
                *self._noise_of_gradient(),
            ),
            horizon=self.horizon,
        )

    @property
    def heeds(self) -> bool:
        """Whether the length of steps heeds what was released.

        Not along a few directions of a network, where two gradients have nothing in common, nor where
        each person answers once.
        """
        return self.preset == "auto" and self.calibrations > 0 and self.sampler != Signs.name

    def _noise_of_gradient(self) -> tuple[float, float]:
        """The standard deviation of the noise on a gradient along one direction, and the blur.

        Along q directions of d, drawn anew for each step, a gradient shows q / d of what noise there
        is; and what it shows along one direction varies by sqrt((1 - q/d) / d) of its own length.
        """
        if self.sharing != "block":
            return self.release_std_mean, 0.0
        shown = self.directions / self.dim
        return self.release_std_mean * math.sqrt(shown), (1.0 - shown) / self.dim

    # -- what it costs ----------------------------------------------------------------------------

    @cached_property
    def terms(self) -> Terms:
        """The terms of the gate, with the least noise that spends at most the budget.

        Preset `paper` takes the noise of its Corollary cor:privacy, with the exact node count.
        """
        mechanism = bound.mechanism_of(self.mechanism, self.period)
        return Terms(self.schedule, mechanism, self.size, *self.clips, self._noise_level())

    def _noise_level(self) -> float:
        return bound.noise_level(
            *(self.mechanism, self.first_batch, self.diff_batch, self.period, self.passes),
            *(self.size, *self.clips, self.steps_mu, self.preset == "paper"),
        )

    @property
    def clips(self) -> tuple[float, float]:
        """The longest that a record's vector counts in a GRAD and in a DIFF."""
        if self.estimate == GRADIENT:
            first, diff = (gradients.record_bound(kind, self.bounds) for kind in Kind)
        else:
            gain = bound.gain_of(self.sampler, self.sharing, self.directions, self.dim)
            first, diff = (
                record_bound(kind, gain, self.smoothing, self.reach, self.bounds) for kind in Kind
            )
        first *= math.sqrt(1.0 + self.curve**2)
        return first, diff if self.period > 1 else first  # without DIFFs nothing need bound them

    @property
    def steps_mu(self) -> float:
        """The budget of the steps: looks and the comparison have their shares of mu^2."""
        return self.privacy.mu * math.sqrt(1.0 - self.calibration_share - self.comparison_share)

    @property
    def calibration(self) -> CalibrationQuery:
        """What a look asks of a record."""
        return CalibrationQuery(
            self.calibration_leaves, self.calibration_directions, self.sampler == Signs.name
        )

    @cached_property
    def calibration_terms(self) -> Terms | None:
        """The terms of the looks; None without any."""
        if not self.calibrations:
            return None
        batch, calibration = self.calibration_batch, self.calibration
        schedule = Schedule(self.records, batch, batch, 1, self.calibrations)
        mu = self.privacy.mu * math.sqrt(self.calibration_share)
        return calibrated(
            schedule, Independent(1), calibration.size, calibration.clip, calibration.clip, mu
        )

    @property
    def compared(self) -> tuple[int, ...]:
        """The rounds whose means are compared with the start, the one to be taken first."""
        return tuple(dict.fromkeys((self.rounds - 1, (self.rounds - 1) // 2)))

    @property
    def comparison(self) -> ComparisonQuery:
        """What a release of the comparison asks of a record."""
        return ComparisonQuery(len(self.compared))

    @cached_property
    def comparison_terms(self) -> Terms | None:
        """The terms of the comparison; None without one."""
        if not self.comparisons:
            return None
        batch, query = self.comparison_batch, self.comparison
        schedule = Schedule(self.records, batch, batch, 1, self.comparisons)
        mu = self.privacy.mu * math.sqrt(self.comparison_share)
        return calibrated(schedule, Independent(1), query.size, query.clip, query.clip, mu)

    @property
    def all_terms(self) -> tuple[Terms, ...]:
        """The terms of all that a run releases: looks, steps and the comparison."""
        every = (self.calibration_terms, self.terms, self.comparison_terms)
        return tuple(terms for terms in every if terms is not None)

    def statement(self, *, seeded: bool, unit: str = RECORD) -> Statement:
        """What a whole run guarantees: its looks, its steps and its comparison, if it has them."""
        each = (statement(terms, self.delta, seeded=seeded, unit=unit) for terms in self.all_terms)
        return compose_statements(list(each))

    @property
    def evaluations(self) -> int:
        """Evaluations of the loss in the whole run; a gradient counts as `gradients.COST` of them."""
        grad, diff = (self.estimator.evaluations(kind) for kind in Kind)
        block = grad * self.first_batch + diff * self.diff_batch * (self.period - 1)
        calibrations = (
            self.calibrations * self.calibration_batch * self.calibration.evaluations
            if self.calibrations
            else 0
        )
        compared = self.comparisons * self.comparison_batch * self.comparison.evaluations
        return block * self.rounds * (self.horizon // self.period) + calibrations + compared

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on one coordinate of a release."""
        return float(self.terms.noise_std)

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves the most sensitive increment of a block."""
        return float(np.max(self.terms.sensitivities()))

    @property
    def epsilon(self) -> float:
        """Epsilon of (epsilon, delta)-DP at the budget."""
        return self.privacy.epsilon

    @property
    def delta(self) -> float:
        """Where epsilon is quoted."""
        return self.privacy.delta

    @cached_property
    def mu(self) -> float:
        """What the run spends of its budget: the Gaussian-DP parameter of all its releases."""
        return accounting.compose(terms.mu() for terms in self.all_terms)

    # -- what it promises -------------------------------------------------------------------------

    def release_std(self) -> bound.PerGradient:
        """Standard deviation of the noise on each gradient of a block, per coordinate: |row of B|."""
        return self._noise_level() * bound.row_norms(self.mechanism, self.period)

    @property
    def release_std_max(self) -> float:
        """The largest of `release_std`."""
        return float(np.max(self.release_std()))

    @property
    def release_std_mean(self) -> float:
        """The root mean square of `release_std`."""
        return float(np.sqrt(np.mean(self.release_std() ** 2)))

    @property
    def moments(self) -> Moments:
        """Moments of the estimates along these directions."""
        return bound.moments_of(self.sampler, self.directions, self.dim)

    @cached_property
    def bound(self) -> BoundParts | None:
        """The explicit bound, by formula; None without L. An unknown gap counts as 0.

        It guides the planner. Whether it is a promise, and about what, `certifies` says.
        """
        return None if self.lipschitz is None else bound.bound_of(self, self.lipschitz)

    @property
    def step(self) -> float | None:
        """eta = D / (sqrt(T) x root mean square of a gradient); None means an adaptive step."""
        if self.bound is None:
            return None
        return self.reach / (math.sqrt(self.horizon) * self.bound.gradient_rms)

    @property
    def certifies(self) -> str | None:
        """Whose mean loss F `tolerance` is about; None where nothing is certified.

        "the population": one pass, so that no record answers twice. F is the mean over the population
        of which the records are independent draws.
        "the mean over the records": every step takes all of them (`first_batch` = `records`, period
        1), so that given the past only directions and noise are random. F is the mean over these
        records, wherever they come from.
        None: L or the gap is unknown, a round may leave the radius, or later passes take batches of
        some records, whose errors are not mean-zero given the past. Proofs: docs/certificates.md.
        """
        if bound.obstacle(self) is not None:
            return None
        return "the mean over the records" if self.takes_all else "the population"

    @property
    def takes_all(self) -> bool:
        """Whether every step takes all records."""
        return self.period == 1 and self.first_batch == self.records

    @property
    def tolerance(self) -> float | None:
        """Bound on the expected Goldstein norm at `radius`, for the F that `certifies` names, or None.

        The norm is that of a random round's mean: a bound on its mean over the run's own randomness
        and, for the population, over the draw of the records.
        """
        return None if self.bound is None or self.certifies is None else self.bound.total

    @property
    def vacuous(self) -> bool:
        """Whether `tolerance` is no better than `lipschitz`, so that it promises nothing."""
        tolerance, lipschitz = self.tolerance, self.lipschitz
        return tolerance is not None and lipschitz is not None and not tolerance < lipschitz

    # -- for people and files ---------------------------------------------------------------------

    def rows(self) -> list[tuple[str, str, str]]:
        """The plan as (name, value, meaning): what a table shows."""
        return serialisation.rows(self)

    def explain(self) -> str:
        """Which theorem, which constants, what matters most: one line for each note."""
        return "\n".join(self.notes)

    def __str__(self) -> str:
        lines = [f"{name:<12} {value:>22}   {meaning}" for name, value, meaning in self.rows()]
        return "\n".join([*lines, "", self.explain()])

    def to_dict(self) -> dict[str, object]:
        """All choices, then all numbers that follow from them, ready for JSON."""
        return serialisation.choices_of(self) | serialisation.numbers_of(self)

    def to_json(self) -> str:
        """The plan as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote; refused if a number in it does not follow from its choices."""
        return serialisation.read(text, cls)


def finished(plan: Plan, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Plan:
    """The plan with its notes, refused where its privacy could not be stated."""
    accounting.epsilon(plan.mu, plan.delta, plan.terms.slack())
    return replace(plan, notes=(*before, *serialisation.verdict(plan), *after))
