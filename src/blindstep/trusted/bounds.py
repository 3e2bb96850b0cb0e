"""Promises about the loss that are enforced, never believed.

Each bound limits what one record can contribute, whatever the loss really does: a loss that breaks
its promise costs bias, never privacy (erratum 7). Bounds combine with `&`; the smallest holds.

- `Lipschitz(L)`: differences are clamped to 2 smoothing L (GRAD) and to L |x - y| (DIFF);
- `Range(low, high)`: differences are clamped to high - low (votes, 0/1 loss);
- `Clip(first, diff)`: the record's averaged estimate is scaled to at most that norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from blindstep.errors import InvalidArgument, finite, positive


@dataclass(frozen=True)
class Bounds:
    """Enforced limits on one record. `inf` means that this kind of limit is not in force.

    Attributes:
        lipschitz: bound on |f(x) - f(y)| / |x - y|.
        width: bound on |f(x) - f(y)| for any two points.
        first_clip: bound on the norm of a record's GRAD estimate.
        diff_clip: bound on the norm of a record's DIFF estimate.
    """

    lipschitz: float = math.inf
    width: float = math.inf
    first_clip: float = math.inf
    diff_clip: float = math.inf

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value != math.inf:
                object.__setattr__(self, field.name, positive(field.name, value))

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(*(min(getattr(self, f.name), getattr(other, f.name)) for f in fields(Bounds)))

    def describe(self) -> list[str]:
        """What is enforced, one sentence for each bound in force."""
        said = []
        if self.lipschitz < math.inf:
            said.append(
                f"function differences of one record are clamped to a slope of {self.lipschitz:g}"
            )
        if self.width < math.inf:
            said.append(f"function differences of one record are clamped to {self.width:g}")
        if self.first_clip < math.inf:
            said.append(f"a record's gradient estimate is clipped to norm {self.first_clip:g}")
        if self.diff_clip < math.inf:
            said.append(f"a record's difference estimate is clipped to norm {self.diff_clip:g}")
        return said

    def require_finite(self, needs_diff: bool) -> None:
        """Raise unless every kind of increment that the run makes is bounded."""
        coefficients = min(self.lipschitz, self.width) < math.inf
        if not coefficients and self.first_clip == math.inf:
            raise InvalidArgument(
                "nothing bounds a record's gradient estimate: give bounds such as Lipschitz(1.0), "
                "Range(0, 1) or Clip(1.0, 0.1)."
            )
        if needs_diff and not coefficients and self.diff_clip == math.inf:
            raise InvalidArgument(
                "nothing bounds a record's difference estimate: add Clip(..., diff=...), "
                "Lipschitz(...) or Range(...)."
            )


def Lipschitz(constant: float) -> Bounds:
    """The loss changes by at most `constant` per unit of distance; enforced by clamping."""
    return Bounds(
        lipschitz=positive("lipschitz", constant, "give a bound on the slope of the loss")
    )


def Range(low: float, high: float) -> Bounds:
    """The loss lies in [low, high]; enforced by clamping differences to high - low."""
    low, high = finite("low", low), finite("high", high)
    if high <= low:
        raise InvalidArgument(f"Range needs low < high, got low={low!r}, high={high!r}.")
    return Bounds(width=high - low)


def Clip(first: float, diff: float | None = None) -> Bounds:
    """Clip a record's averaged estimate: to norm `first` for GRAD, `diff` for DIFF."""
    return Bounds(
        first_clip=positive("first clip", first),
        diff_clip=math.inf if diff is None else positive("diff clip", diff),
    )
