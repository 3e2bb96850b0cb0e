"""What a user asks a plan for: one checked record. What is None is left to the preset."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blindstep.errors import InvalidArgument, count, positive
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Directions, Signs, Sphere
from blindstep.estimate.estimators import Sharing
from blindstep.estimate.frames import Haar, Structured
from blindstep.optimize.prefix import MECHANISMS
from blindstep.planning.theory import Problem
from blindstep.private.statement import Privacy

PRESETS = ("auto", "tight", "paper", "klt")
ORACLES = ("variance-reduced", "naive")
SAMPLERS: dict[str, type[Directions]] = {each.name: each for each in (Sphere, Haar, Structured)}
# Signs are for networks (`optimize.networks`): plans in natural units, which certify nothing.
AUTO_SAMPLERS = SAMPLERS | {Signs.name: Signs}
SHARINGS = tuple(each.value for each in Sharing)
# What a record's vector is made of: values of its loss, or its gradient. The latter has no directions.
VALUES, GRADIENT = ESTIMATES = ("values", "gradient")
NO_DIRECTIONS = "none"

_AMOUNTS = ("radius", "lipschitz", "gap", "smoothing", "reach")
_COUNTS = (
    *("dim", "horizon", "period", "rounds", "passes", "first_batch", "diff_batch"),
    *("directions", "evaluations"),
)


@dataclass(frozen=True)
class Choices:
    """What the user asked for, checked; messages name the arguments of the function that was called.

    Attributes: as the arguments of `blindstep.plan`; `bounds` include the Lipschitz bound.
    """

    dim: int
    privacy: Privacy
    radius: float
    bounds: Bounds
    lipschitz: float | None = None
    gap: float | None = None
    oracle: str | None = None
    horizon: int | None = None
    period: int | None = None
    rounds: int | None = None
    passes: int | None = None
    first_batch: int | None = None
    diff_batch: int | None = None
    directions: int | None = None
    evaluations: int | None = None
    mechanism: str | None = None
    sampler: str | None = None
    sharing: str | None = None
    smoothing: float | None = None
    reach: float | None = None
    estimate: str = VALUES

    def __post_init__(self) -> None:
        if not isinstance(self.privacy, Privacy):
            raise InvalidArgument(
                f"privacy must be a budget such as Privacy(epsilon=4, delta=1e-5), got "
                f"{self.privacy!r}."
            )
        plain_numbers(self, _COUNTS, _AMOUNTS)
        moderate_bounds(self.bounds)
        kinds = {
            "oracle": ORACLES,
            "mechanism": MECHANISMS,
            "sampler": SAMPLERS,
            "sharing": SHARINGS,
            "estimate": ESTIMATES,
        }
        for name in self._given(kinds):
            one_of(name, getattr(self, name), kinds[name])
        clash = self.oracle is not None and (self.period == 1) != (self.oracle == "naive")
        if self.period is not None and clash:
            raise InvalidArgument(
                f"the {self.oracle} oracle cannot have period {self.period}: the naive one has "
                "period 1, the variance-reduced one a longer period. Fix one of the two."
            )
        if self.differentiates:
            self._refuse_beside_gradients()
        needs_diff = self.oracle != "naive" and self.period != 1 and self.horizon != 1
        needs_diff = needs_diff and self.lipschitz is not None
        self.bounds.require_finite(needs_diff=needs_diff, by_slope=self.differentiates)

    def _given(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def refuse(self, preset: str, *names: str) -> None:
        """Raise if the user fixed a choice that this preset does not leave open."""
        for name in self._given(names):
            raise InvalidArgument(
                f"preset {preset} ties {name}, got {name}={getattr(self, name)!r}: "
                "leave it out, or use preset tight."
            )

    def _refuse_beside_gradients(self) -> None:
        """Raise if the user fixed what gradients leave no choice of."""
        for name in self._given(("directions", "sampler", "sharing", "smoothing")):
            raise InvalidArgument(
                f"{name} is for estimates from values, got {name}={getattr(self, name)!r} beside "
                "estimate='gradient', which draws no directions: leave out one of the two."
            )
        for name in self._given(("lipschitz", "gap")):
            raise InvalidArgument(
                f"{name} asks for a certificate, which is proved for estimates from values alone: "
                f"leave out {name}, or estimate='gradient'. Clip(1.0) and Lipschitz(1.0) bound a "
                "gradient."
            )

    def problem(self, records: int) -> Problem:
        """The problem as preset `paper` sees it: smoothing radius / 2 (erratum 5)."""
        return Problem(
            dim=self.dim,
            records=records,
            lipschitz=self.lipschitz or 0.0,
            gap=self.gap or 0.0,
            smoothing=self.radius / 2,
            mu=self.privacy.mu,
        )

    def known(self, records: int) -> dict[str, Any]:
        """The fields of a plan that no preset chooses."""
        names = ("dim", "radius", "bounds", "lipschitz", "gap", "privacy", "estimate")
        return {"records": records} | {name: getattr(self, name) for name in names}

    @property
    def differentiates(self) -> bool:
        """Whether a record's vector is its gradient."""
        return self.estimate == GRADIENT

    @property
    def certifiable(self) -> bool:
        """Whether a bound on stationarity can be stated: L and F* are known."""
        return self.lipschitz is not None and self.gap is not None


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise unless the value is one of the known names."""
    if value not in tuple(known):
        raise InvalidArgument(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def plain_numbers(
    record: object, counts: Iterable[str], amounts: Iterable[str], most: float = 1e30
) -> None:
    """Check the numbers of a frozen record and make them Python's own; those not given stay None."""
    for name in counts:
        value = getattr(record, name)
        if value is not None and type(value) is not int:
            object.__setattr__(record, name, count(name, value))
        elif value is not None and not 0 < value < 2**63:
            count(name, value)
    for name in amounts:
        if (value := getattr(record, name)) is not None:
            object.__setattr__(record, name, moderate(name, value, most))


def moderate(name: str, value: object, most: float = 1e30) -> float:
    """The amount as a float; raises unless its powers and products are numbers too."""
    number = value if type(value) is float and value > 0 else positive(name, value)
    if not 1 / most <= number <= most:
        raise InvalidArgument(
            f"{name} must lie between {1 / most:g} and {most:g}, got {value!r}: change the unit that "
            "it is in."
        )
    return number


def moderate_bounds(bounds: object, most: float = 1e30) -> None:
    """Raise unless these are bounds, and those in force are moderate."""
    if not isinstance(bounds, Bounds):
        raise InvalidArgument(
            f"bounds must be made of Clip, Lipschitz and Range, such as bounds=Clip(1.0), got "
            f"{bounds!r}."
        )
    for name, value in vars(bounds).items():
        if value < math.inf:
            moderate(name, value, most)
