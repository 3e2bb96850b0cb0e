"""The plan of a run. Its fields are choices; every other number follows from them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Differences, record_bound
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.comparison import ComparisonQuery
from blindstep.estimate.directions import Moments
from blindstep.estimate.vectors import LARGEST, Estimator
from blindstep.estimate.watching import WATCHED
from blindstep.optimize.learners import AdaptiveStep, ConstantStep, Learner, Pace
from blindstep.optimize.machine import Machine
from blindstep.optimize.prefix import prefix_of
from blindstep.planning import bound, checks, serialisation
from blindstep.planning.choices import Choices
from blindstep.planning.estimates import Calibration, Gradients, StartComparison, Values
from blindstep.planning.noise import asking_terms, secret_noise, secret_schedule
from blindstep.planning.statement import Statement, compose_statements, statement
from blindstep.planning.theory import BoundParts
from blindstep.private import accounting
from blindstep.private.accounting import RECORD
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms

# What a note begins with that advises another plan.
ADVICE = "Advice: "


class PastTheMost(InvalidArgument):
    """More releases than this package numbers and accounts for; records are not what is missing."""


@dataclass(frozen=True)
class Plan(Choices):
    """Everything that determines a run, except the loss, the data and the keys.

        plan = bs.plan(bs.Auto(), dim=3, records=len(data), privacy=privacy)
        print(plan.noise_std, plan.evaluations)
        again = bs.Plan.from_json(plan.to_json())

    Make one with `blindstep.plan`. Its fields are its choices; nobody hands in a noise level, which
    follows from the budget.

    What is promised of the answer is `tolerance`, for the F that `certifies` names. It assumes that
    every record's loss has Lipschitz constant `lipschitz` and keeps to what `bounds` declare of it,
    that F(start) - inf F <= `gap`, and that the start was chosen without looking at the records.
    """

    def __post_init__(self) -> None:
        checks.check(self)

    # -- what the run does ------------------------------------------------------------------------

    @cached_property
    def schedule(self) -> Schedule:
        """Who answers when."""
        batches = (self.first_batch, self.diff_batch, self.period)
        try:
            blocks = self.rounds * (self.horizon // self.period)
            made = Schedule(self.records, *batches, blocks, windows=self.windows)
            return secret_schedule(made, self.steps_mu, self.privacy) if self.secret else made
        except InvalidArgument as error:
            if self.first_batch + self.diff_batch * (self.period - 1) > self.records:
                raise
            raise PastTheMost(str(error)) from None

    @cached_property
    def estimator(self) -> Estimator:
        """How a record's vector is made."""
        return self.estimate.estimator(self.dim, self.reach, self.bounds, self.curve)

    @property
    def passes(self) -> int:
        """Times the run goes through the records."""
        return self.schedule.passes

    @property
    def size(self) -> int:
        """Coordinates of a release: d, or q where a block shares a frame, and one for the loss."""
        beside = (self.curve > 0) + (WATCHED if self.watch is not None else 0)
        return (self.directions if self.sharing == "block" else self.dim) + beside

    @property
    def heard(self) -> int:
        """Coordinates of a gradient, along the directions that there are, in which there is noise."""
        return self.breadth or (self.directions if self.sharing == "block" else self.dim)

    def build(self, *, jumps: bool = False) -> Machine:
        """The state machine that turns releases into steps. It sees nothing that is not released.

        Where the loss `jumps`, a run that finds its scales probes farther out.
        """
        widening = 4.0 if self.natural_units and jumps else 1.0
        return Machine(
            estimator=self.estimator,
            prefix=prefix_of(self.terms.mechanism),
            learner=self.chosen_learner,
            pace=Pace(
                *(float(self.reach), self.schedule.releases, self.step, widening),
                *self.noise_of_gradient(),
                self._noise_of_value(),
            ),
            horizon=self.horizon,
        )

    def noise_of_gradient(self) -> tuple[float, float]:
        """The standard deviation of the noise on a gradient along one direction, and the blur.

        Along q directions of d, drawn anew for each step, a gradient shows q / d of what noise there
        is; and what it shows along one direction varies by sqrt((1 - q/d) / d) of its own length.
        """
        noise = self.release_std_mean
        if self.natural_units and self.first_batch < self.records:
            # A record's slopes are about 1 long: what choosing the records by chance adds.
            noise = math.hypot(noise, 1.0 / math.sqrt(self.dim * self.first_batch))
        if self.differentiates or self.sharing != "block":
            return noise, 0.0
        shown = self.directions / self.dim
        return noise * math.sqrt(shown), (1.0 - shown) / self.dim

    def _noise_of_value(self) -> float:
        """The standard deviation of the mean loss that a step shows, in natural units.

        Losses are about 1 at the start: a batch of m records has 1 / sqrt(m) of its own.
        """
        if not (self.curve and self.natural_units):
            return math.inf
        noise = LARGEST * self.noise_std / (self.curve * self.bounds.clip)
        chosen = self.first_batch < self.records
        return math.hypot(noise, chosen / math.sqrt(self.first_batch))

    @property
    def chosen_learner(self) -> Learner:
        """The learner; if none was chosen, the theorem's step if there is one, else an adaptive one."""
        if self.learner is not None:
            return self.learner
        return AdaptiveStep() if self.step is None else ConstantStep()

    # -- what it costs ----------------------------------------------------------------------------

    @cached_property
    def terms(self) -> Terms:
        """The terms of the gate, with the least noise that spends at most the budget.

        With `by_corollary` it is that of Corollary cor:privacy, with the exact node count.
        """
        mechanism = bound.mechanism_of(self.mechanism, self.period)
        given = (self.schedule, mechanism, self.size, *self.clips)
        made = Terms(*given, self._noise_level(), self.privacy.neighbours)
        return made.within(self.steps_mu)

    def _noise_level(self) -> float:
        mu, neighbours = self.steps_mu, self.privacy.neighbours
        if self.schedule.secret:
            return secret_noise(self.schedule, self.size, self.clips[0], mu, neighbours)
        return bound.noise_level(
            *(self.mechanism, self.first_batch, self.diff_batch, self.period, self.passes),
            *(self.size, *self.clips, mu, self.by_corollary, neighbours, self.windows),
        )

    @property
    def clips(self) -> tuple[float, float]:
        """The longest that a record's vector counts in a GRAD and in a DIFF."""
        made_of, differences = self.estimate, None
        if isinstance(made_of, Values):
            gain = bound.gain_of(made_of.sampler, made_of.sharing, made_of.directions, self.dim)
            differences = Differences(gain, made_of.smoothing, self.reach)
        first = record_bound(Kind.GRAD, self.bounds, differences, self.curve)
        if self.watch is not None:
            first *= self.watch.longer
        if self.period == 1:
            return first, first  # without DIFFs nothing need bound them
        return first, record_bound(Kind.DIFF, self.bounds, differences, self.curve)

    @property
    def steps_mu(self) -> float:
        """The budget of the steps: calibrations and the comparison have their shares of mu^2."""
        parts = (part.share for part in (self.calibration, self.comparison) if part is not None)
        return self._to_spend * math.sqrt(1.0 - sum(parts))

    @property
    def _to_spend(self) -> float:
        """The budget; beside what secret batches cost, where there are any."""
        return self.privacy.mu_beside_room if self.secret else self.privacy.mu

    @cached_property
    def calibration_terms(self) -> Terms | None:
        """The terms of the calibrations; None without any."""
        if self.calibration is None:
            return None
        return self._asking(self.calibration, self.calibration_query)

    @cached_property
    def comparison_terms(self) -> Terms | None:
        """The terms of the comparison; None without one."""
        if self.comparison is None:
            return None
        return self._asking(self.comparison, self.comparison_query)

    def _asking(
        self, part: Calibration | StartComparison, query: CalibrationQuery | ComparisonQuery
    ) -> Terms:
        mu = self._to_spend * math.sqrt(part.share)
        asked = Schedule(self.records, part.batch, part.batch, 1, part.number)
        return asking_terms(asked, query.size, query.clip, mu, self.privacy, secret=self.secret)

    @property
    def all_terms(self) -> tuple[Terms, ...]:
        """The terms of all that a run releases: calibrations, steps and the comparison."""
        every = (self.calibration_terms, self.terms, self.comparison_terms)
        return tuple(terms for terms in every if terms is not None)

    def statement(self, *, seeded: bool, unit: str = RECORD) -> Statement:
        """What a whole run guarantees: its calibrations, its steps and its comparison."""
        each = (statement(terms, self.delta, seeded=seeded, unit=unit) for terms in self.all_terms)
        return compose_statements(list(each))

    @property
    def evaluations(self) -> int:
        """Evaluations of the loss in the whole run; a gradient counts as `gradients.COST` of them."""
        grad, diff = (self.estimator.evaluations(kind) for kind in Kind)
        each = self.schedule.divisor_of(Kind.GRAD)
        block = grad * each + diff * self.diff_batch * (self.period - 1)
        steps = math.ceil(block * self.rounds * (self.horizon // self.period))
        if self.calibration is not None:
            asked = self.calibration.number * self.calibration.batch
            steps += asked * self.calibration_query.evaluations
        if self.comparison is not None:
            asked = self.comparison.number * self.comparison.batch
            steps += asked * self.comparison_query.evaluations
        return steps

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on one coordinate of a release."""
        return float(self.terms.noise_std)

    @property
    def sensitivity(self) -> float:
        """How far a record moves the most sensitive increment of a block, as `Terms.sensitivities`."""
        return float(np.max(self.terms.sensitivities()))

    @cached_property
    def mu(self) -> float:
        """What the run spends of its budget: the Gaussian-DP parameter of all its releases."""
        return accounting.compose(terms.mu() for terms in self.all_terms)

    @cached_property
    def secrecy(self) -> float:
        """What secret batches cost beside mu: secrecies of all parts add up."""
        return sum(terms.secrecy() for terms in self.all_terms)

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

    @cached_property
    def moments(self) -> Moments | None:
        """Moments of the estimates along these directions; None where nothing is proved of them."""
        made_of = self.estimate
        if isinstance(made_of, Gradients) or self.breadth:
            return None
        return bound.moments_of(made_of.sampler, made_of.directions, self.dim)

    @cached_property
    def bound(self) -> BoundParts | None:
        """The explicit bound, by formula; None without L or moments. An unknown gap counts as 0.

        It guides the planner. Whether it is a promise, and about what, `certifies` says.
        """
        if self.lipschitz is None or self.moments is None:
            return None
        return bound.bound_of(self, self.lipschitz, self.moments)

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
        None: L, the gap or moments are unknown, a round may leave the radius, or later passes take
        batches of some records, whose errors are not mean-zero given the past. Proofs: docs/proofs.md.
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
    accounting.epsilon(plan.mu, plan.delta, plan.terms.slack(), plan.secrecy)
    said = (*before, *serialisation.verdict(plan), *after)
    return replace(plan, notes=said, learner=plan.chosen_learner)
