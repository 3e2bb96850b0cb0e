"""What a user asks a plan for, checked: unset choices are None and left to the preset."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from blindstep.errors import InvalidArgument, count, positive
from blindstep.optimize.plan import MECHANISMS, SAMPLERS
from blindstep.optimize.theory import Problem
from blindstep.trusted.bounds import Bounds
from blindstep.trusted.estimators import Sharing
from blindstep.trusted.privacy import Privacy

ORACLES = ("variance-reduced", "naive")
_COUNTS = (
    "horizon",
    "period",
    "epochs",
    "passes",
    "first_batch",
    "diff_batch",
    "directions",
    "evaluations",
)


def _moderate(name: str, value: object) -> None:
    """Raise unless the amount is one whose powers and products are numbers too."""
    if not 1e-30 <= positive(name, value) <= 1e30:
        raise InvalidArgument(
            f"{name} must lie between 1e-30 and 1e30, got {value!r}: change the unit that it is in."
        )


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        dim: number of parameters.
        privacy: the budget.
        radius: Goldstein radius of the answer.
        bounds: what is enforced on each record, the Lipschitz bound included.
        lipschitz: L, if known.
        gap: F*, if known.
        oracle: "variance-reduced" or "naive", if fixed.
        horizon: T, if fixed.
        period: releases from one GRAD to the next, if fixed.
        epochs: K, if fixed.
        passes: times the records may be gone through, if fixed.
        first_batch: B1, if fixed.
        diff_batch: B2, if fixed.
        directions: q, if fixed.
        evaluations: the most loss evaluations the run may make, if limited.
        mechanism: the prefix noise, if fixed.
        sampler: the directions, if fixed.
        sharing: who shares directions, if fixed.
        smoothing: h, if fixed.
        reach: D, if fixed.
        secure: whether sums and noise are to be exact on a lattice.
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
    epochs: int | None = None
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
    secure: bool = False

    def __post_init__(self) -> None:
        count("dim", self.dim)
        _moderate("radius", self.radius)
        for name in ("lipschitz", "gap", "smoothing", "reach"):
            if getattr(self, name) is not None:
                _moderate(name, getattr(self, name))
        for field in fields(self.bounds):
            if getattr(self.bounds, field.name) < math.inf:
                _moderate(field.name, getattr(self.bounds, field.name))
        for name in _COUNTS:
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        kinds = {
            "oracle": ORACLES,
            "mechanism": tuple(MECHANISMS),
            "sampler": tuple(SAMPLERS),
            "sharing": tuple(kind.value for kind in Sharing),
        }
        for name, known in kinds.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InvalidArgument(f"{name} must be one of {', '.join(known)}, got {value!r}.")
        if not isinstance(self.secure, bool):
            raise InvalidArgument(f"secure must be True or False, got {self.secure!r}.")
        if self.secure and self.mechanism is not None and not MECHANISMS[self.mechanism].integer:
            exact = ", ".join(name for name, cls in MECHANISMS.items() if cls.integer)
            raise InvalidArgument(
                f"{self.mechanism} noise is not made of whole numbers, so it cannot be secure: take "
                f"one of {exact}, or leave out secure."
            )
        needs_diff = self.oracle != "naive" and self.period != 1 and self.horizon != 1
        self.bounds.require_finite(needs_diff=needs_diff and self.lipschitz is not None)

    def refuse(self, preset: str, *names: str) -> None:
        """Raise if the user fixed a choice that this preset does not leave open."""
        for name in names:
            if getattr(self, name) is not None:
                raise InvalidArgument(
                    f"preset {preset} ties {name}, got {name}={getattr(self, name)!r}: "
                    "leave it out, or use preset tight."
                )

    def problem(self, records: int) -> Problem:
        """The problem as preset `paper` sees it: smoothing radius / 2 (erratum 5)."""
        return Problem(
            dim=self.dim,
            records=records,
            lipschitz=self.lipschitz or 0.0,
            gap=self.gap or 0.0,
            smoothing=self.radius / 2,
            rho=self.privacy.rho,
        )

    @property
    def certifiable(self) -> bool:
        """Whether a bound on stationarity can be stated: L and F* are known."""
        return self.lipschitz is not None and self.gap is not None

    @property
    def slope(self) -> float:
        """L, or infinity where it is not known."""
        return math.inf if self.lipschitz is None else self.lipschitz
