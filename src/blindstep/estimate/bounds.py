"""What is known of the loss, and how long a record's estimate may be.

A run uses bounds twice:

- function differences beyond what is known are *clamped*: this decides accuracy;
- the gate's *clip norm* follows from them (`Estimator.record_bound`). The clip alone bounds a record.

So a loss that breaks its bounds costs bias, never privacy (erratum 7). Bounds combine with `&`: of two
limits of one kind the smaller holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from blindstep.errors import InvalidArgument, finite, positive


@dataclass(frozen=True)
class Bounds:
    """What is known of the loss f(., z) of every record. `inf` means that nothing is known.

    Attributes:
        lipschitz: bound on |f(x) - f(y)| / |x - y|.
        width: bound on |f(x) - f(y)| for any two points.
        first_clip: the longest that a record's vector counts in a GRAD; the gate clips longer ones.
        diff_clip: the same in a DIFF.
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

    def require_finite(self, needs_diff: bool, by_slope: bool = False) -> None:
        """Raise unless a clip norm follows for GRAD and, if `needs_diff`, for DIFF.

        `by_slope` is for gradients: that values lie in a range does not bound them.
        """
        clamped = min(self.lipschitz, math.inf if by_slope else self.width) < math.inf
        if not clamped and self.first_clip == math.inf:
            known = "Lipschitz(1.0)" if by_slope else "Lipschitz(1.0), Range(0, 1)"
            raise InvalidArgument(
                f"nothing bounds a record's gradient{'' if by_slope else ' estimate'}: give bounds "
                f"such as {known} or Clip(1.0, 0.1)."
            )
        if needs_diff and not clamped and self.diff_clip == math.inf:
            raise InvalidArgument(
                "nothing bounds a record's difference estimate: add Clip(..., diff=...), "
                "Lipschitz(...) or Range(...)."
            )


def Lipschitz(constant: float) -> Bounds:
    """The loss changes by at most `constant` per unit of distance: |f(x) - f(y)| <= constant |x - y|.

    Differences of values that exceed this are clamped. A loss that is steeper is estimated with a
    bias; its privacy stays the same.
    """
    return Bounds(
        lipschitz=positive("lipschitz", constant, "give a bound on the slope of the loss")
    )


def Range(low: float, high: float) -> Bounds:
    """The loss lies in [low, high], as a vote or a 0/1 loss does.

    Differences of values are clamped to high - low. A loss that leaves the range is estimated with a
    bias; its privacy stays the same.
    """
    low, high = finite("low", low), finite("high", high)
    if high <= low:
        raise InvalidArgument(f"Range needs low < high, got low={low!r}, high={high!r}.")
    return Bounds(width=high - low)


def Clip(first: float, diff: float | None = None) -> Bounds:
    """A record counts at most this much: the gate scales its vector down to this norm.

    `first` is for the estimate of a gradient (GRAD), `diff` for that of a gradient's change (DIFF).
    Smaller norms need less noise and bias more records.
    """
    return Bounds(
        first_clip=positive("first clip", first),
        diff_clip=math.inf if diff is None else positive("diff clip", diff),
    )
