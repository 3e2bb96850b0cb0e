"""Parts of a plan: what a record's vector is made of, and how a run finds the scales of a problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from blindstep.errors import InvalidArgument, count, finite
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.comparison import RELEASES, ComparisonQuery
from blindstep.estimate.directions import SAMPLERS, Signs
from blindstep.estimate.estimators import Sharing, ValueEstimator
from blindstep.estimate.frames import Structured
from blindstep.estimate.gradients import GradientEstimator
from blindstep.estimate.scales import ScaleFinder
from blindstep.planning.checks import moderate, one_of, plain_count

SHARINGS = tuple(each.value for each in Sharing)


@dataclass(frozen=True)
class Values:
    """A record's vector is made of values of its loss, along random directions.

    Attributes:
        directions: q, directions for each record.
        smoothing: h, how far from a point the loss is evaluated (the paper's delta).
        sampler: the name of the directions' sampler.
        sharing: whether each "record" has its own directions, or a "block" shares one frame.
        sides: of a point on which a GRAD evaluates along a direction: 2, or 1 along signs.
        breadth: dimension of the random subspace that a step looks in; 0: all of them.
    """

    kind: ClassVar[str] = "values"
    directions: int
    smoothing: float
    sampler: str = Structured.name
    sharing: str = "record"
    sides: int = 2
    breadth: int = 0

    def __post_init__(self) -> None:
        plain_count(self, "directions")
        object.__setattr__(self, "smoothing", moderate("smoothing", self.smoothing, 1e60))
        one_of("sharing", self.sharing, SHARINGS)
        SAMPLERS.find(self.sampler)
        if self.sides != 2 and (self.sides != 1 or self.sampler != Signs.name):
            raise InvalidArgument(f"sides must be 2, or 1 along signs, got {self.sides!r}.")
        if count("breadth", self.breadth, 0) and self.sharing != "record":
            raise InvalidArgument("breadth is for directions of each record's own: leave it out.")

    def estimator(self, dim: int, reach: float, bounds: Bounds, curve: float) -> ValueEstimator:
        """How a record's vector is made."""
        return ValueEstimator(
            dim=dim,
            directions=self.directions,
            sampler=SAMPLERS.find(self.sampler)(),
            smoothing=self.smoothing,
            reach=reach,
            bounds=bounds,
            sharing=Sharing(self.sharing),
            curve=curve,
            sides=self.sides,
            breadth=self.breadth if self.breadth < dim else 0,
        )


@dataclass(frozen=True)
class Gradients:
    """A record's vector is the gradient of its loss. No directions are drawn; nothing is certified."""

    kind: ClassVar[str] = "gradient"

    def estimator(self, dim: int, reach: float, bounds: Bounds, curve: float) -> GradientEstimator:
        """How a record's vector is made: of its gradient, whatever the reach."""
        return GradientEstimator(dim, bounds, curve=curve)


Estimate = Values | Gradients
ESTIMATES: dict[str, type[Values] | type[Gradients]] = {
    each.kind: each for each in (Values, Gradients)
}


@dataclass(frozen=True)
class Calibration:
    """Releases before the first step, from which a run finds the scales of its problem.

    Attributes:
        leaves: the number of parameters in each part that a calibration tells from the others.
        directions: directions in each of these parts.
        batch: records of a calibration.
        share: the share of mu^2 that all calibrations spend together.
        number: how many calibrations there are.
        signs: whether directions are signs, as for a model in `blindstep.torch`.
    """

    leaves: tuple[int, ...]
    directions: int
    batch: int
    share: float
    number: int = ScaleFinder.calibrations
    signs: bool = False

    def __post_init__(self) -> None:
        for name in ("directions", "batch", "number"):
            plain_count(self, name)
        for leaf in self.leaves:
            count("leaves", leaf)
        if not 0.0 < finite("share", self.share) < 1.0:
            raise InvalidArgument(f"share {self.share:g}: a share of mu^2 between 0 and 1.")

    def query(self) -> CalibrationQuery:
        """What one calibration asks of a record."""
        return CalibrationQuery(self.leaves, self.directions, self.signs)


@dataclass(frozen=True)
class Watch:
    """What a window of a study shows beside the gradient, in the same release, and who is asked for it.

    Attributes:
        control: share of the people who see the start and where the study stands, instead of two
            points beside that.
        weight: of how content people are, and of how many came, against the gradient: each makes the
            noise sqrt(1 + weight^2) times as large.
        final: whether everybody in the last window sees the start and what was found.
    """

    control: float
    weight: float
    final: bool

    def __post_init__(self) -> None:
        for name in ("control", "weight"):
            if not 0.0 <= finite(name, getattr(self, name)) <= 1.0:
                raise InvalidArgument(f"{name} {getattr(self, name):g}: give a number from 0 to 1.")

    @property
    def longer(self) -> float:
        """How much longer a person's vector is for it."""
        return math.sqrt(1.0 + 2.0 * self.weight**2)


@dataclass(frozen=True)
class StartComparison:
    """Releases after the last step, which compare what was found with the start.

    Attributes:
        batch: records of a comparison.
        share: the share of mu^2 that all of them spend together.
        number: how many releases there are.
    """

    batch: int
    share: float
    number: int = RELEASES

    def __post_init__(self) -> None:
        for name in ("batch", "number"):
            plain_count(self, name)
        if not 0.0 < finite("share", self.share) < 1.0:
            raise InvalidArgument(f"share {self.share:g}: a share of mu^2 between 0 and 1.")

    def query(self, candidates: int) -> ComparisonQuery:
        """What one comparison asks of a record."""
        return ComparisonQuery(candidates)
