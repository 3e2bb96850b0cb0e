"""The choices of a plan: its fields, and what each of them says by itself.

What follows from several of them together (noise, costs, promises) is in `planning.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindstep.display import Displayed
from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.comparison import ComparisonQuery
from blindstep.ledger.budget import Privacy
from blindstep.optimize.learners import Heeding, Learner
from blindstep.optimize.surveying import Surveying
from blindstep.planning.estimates import (
    Calibration,
    Estimate,
    Gradients,
    StartComparison,
    Values,
    Watch,
)


@dataclass(frozen=True)
class Choices(Displayed):
    """Everything that somebody may choose about a run, and what can be read off a choice at once.

    Attributes:
        method: the name of the method that made it.
        estimate: what a record's vector is made of: `Values` of its loss, or `Gradients`.
        mechanism: the name of the noise of a block.
        records: number of records the plan is made for.
        dim: number of parameters.
        horizon: T, steps in a round.
        period: releases from one GRAD to the next, which is one block.
        rounds: K, restarts of the learner, over all passes.
        first_batch: B1, records of a GRAD.
        diff_batch: B2, records of a DIFF.
        radius: the Goldstein radius that is certified, 2 x smoothing in method `paper`.
        reach: D, the longest step.
        bounds: what is enforced on each record.
        lipschitz: L as declared; None if unknown.
        gap: F* as declared; None if unknown.
        privacy: the budget.
        notes: what a reader should know, one sentence each.
        natural_units: whether amounts are in units of the problem (`estimate.scales`), not of the
            parameters.
        by_corollary: whether noise is what Corollary cor:privacy gives, or the least that is enough.
        calibration: how the run finds the scales of the problem; None if it does not.
        curve: weight of the loss in each release, whose mean is then part of the history; 0: none.
        comparison: how the run compares what it found with its start; None if it does not.
        secret: whether nobody outside knows which records answer in which step: the same privacy with
            less noise, where a step does not take all records.
        windows: whether whoever comes answers in a step, and `first_batch` are expected: a study of
            `blindstep.serve`. Who took part is then as private as what they said.
        watch: what a window shows of how content people are; None: nothing.
        learner: what turns releases into moves; None: the theorem's step where there is one, else an
            adaptive one.
    """

    method: str
    estimate: Estimate
    mechanism: str
    records: int
    dim: int
    horizon: int
    period: int
    rounds: int
    first_batch: int
    diff_batch: int
    radius: float
    reach: float
    bounds: Bounds
    lipschitz: float | None
    gap: float | None
    privacy: Privacy
    notes: tuple[str, ...] = ()
    natural_units: bool = False
    by_corollary: bool = False
    calibration: Calibration | None = None
    curve: float = 0.0
    learner: Learner | None = None
    comparison: StartComparison | None = None
    secret: bool = False
    windows: bool = False
    watch: Watch | None = None

    @property
    def oracle(self) -> str:
        """ "naive" if every release is a GRAD, else "variance-reduced"."""
        return "naive" if self.period == 1 else "variance-reduced"

    @property
    def differentiates(self) -> bool:
        """Whether a record's vector is its gradient."""
        return isinstance(self.estimate, Gradients)

    @property
    def network(self) -> bool:
        """Whether it is for a model in `blindstep.torch`."""
        return self.calibration is not None and self.calibration.signs

    @property
    def directions(self) -> int:
        """q, directions for each record; 0 for gradients."""
        return self.estimate.directions if isinstance(self.estimate, Values) else 0

    @property
    def smoothing(self) -> float:
        """h, how far from a point the loss is evaluated; 0 for gradients."""
        return self.estimate.smoothing if isinstance(self.estimate, Values) else 0.0

    @property
    def sampler(self) -> str | None:
        """The name of the directions' sampler; None for gradients."""
        return self.estimate.sampler if isinstance(self.estimate, Values) else None

    @property
    def sharing(self) -> str | None:
        """Who has the same directions, "record" or "block"; None for gradients."""
        return self.estimate.sharing if isinstance(self.estimate, Values) else None

    @property
    def breadth(self) -> int:
        """Dimension of the random subspace that a step looks in; 0: all dimensions."""
        wanted = self.estimate.breadth if isinstance(self.estimate, Values) else 0
        return wanted if wanted < self.dim else 0

    @property
    def sides(self) -> int:
        """Sides of a point on which a GRAD evaluates along a direction."""
        return self.estimate.sides if isinstance(self.estimate, Values) else 2

    @property
    def heeds(self) -> bool:
        """Whether the length of steps heeds what was released."""
        return self.surveys or isinstance(self.learner, Heeding)

    @property
    def surveys(self) -> bool:
        """Whether steps are made of all releases so far together."""
        return isinstance(self.learner, Surveying)

    @property
    def epsilon(self) -> float:
        """Epsilon of (epsilon, delta)-DP at the budget."""
        return self.privacy.epsilon

    @property
    def delta(self) -> float:
        """Where epsilon is quoted."""
        return self.privacy.delta

    @property
    def calibrations(self) -> int:
        """Releases before the first step."""
        return 0 if self.calibration is None else self.calibration.number

    @property
    def calibration_query(self) -> CalibrationQuery:
        """What a calibration asks of a record."""
        if self.calibration is None:
            raise InvalidArgument("this plan has no calibration: it knows its units.")
        return self.calibration.query()

    @property
    def comparisons(self) -> int:
        """Releases after the last step."""
        return 0 if self.comparison is None else self.comparison.number

    @property
    def compared(self) -> tuple[int, ...]:
        """The rounds whose means are compared with the start: the last one."""
        return (self.rounds - 1,)

    @property
    def comparison_query(self) -> ComparisonQuery:
        """What a comparison asks of a record."""
        return ComparisonQuery(len(self.compared))
