"""What is known of the loss, and how long a record's vector may be.

Differences of values beyond what is known are *clamped*: this decides accuracy. The gate's *clip norm*
follows from the bounds (`record_bound`), and it alone bounds a record. So a loss that breaks its bounds
costs bias, never privacy (erratum 7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from blindstep.errors import InvalidArgument, finite, positive
from blindstep.private.schedule import Kind

_AMOUNTS = ("clip", "diff_clip", "lipschitz")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What is known of the loss of every record, and how long a record's vector counts.

        bs.Bounds(clip=1.0)                     # private for any loss
        bs.Bounds(range=(0, 1))                 # a vote, or a 0/1 loss
        bs.Bounds(lipschitz=1.0, clip=0.5)      # several at once: the smallest limit holds

    Privacy rests on the clip norm alone, which follows from these. A loss that breaks a bound is
    estimated with a bias, and is as private as any other.

    Attributes:
        clip: the longest that a record's vector counts in an estimate of a gradient (GRAD). The gate
            scales longer ones down. A smaller norm needs less noise and biases more records.
        diff_clip: the same in an estimate of how a gradient changed (DIFF).
        lipschitz: bound on |f(x) - f(y)| / |x - y|. Differences that exceed it are clamped.
        range: the smallest and the largest value of the loss. Differences that exceed it are clamped.
    """

    clip: float = math.inf
    diff_clip: float = math.inf
    lipschitz: float = math.inf
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in _AMOUNTS:
            value = getattr(self, name)
            if value != math.inf:
                object.__setattr__(self, name, positive(name, value))
        if self.range is not None:
            object.__setattr__(self, "range", _range(self.range))

    def __and__(self, other: Bounds) -> Bounds:
        """Both at once: of two limits of one kind the smaller one holds."""
        smallest = {name: min(getattr(self, name), getattr(other, name)) for name in _AMOUNTS}
        return Bounds(range=(other if other.width < self.width else self).range, **smallest)

    @property
    def width(self) -> float:
        """The bound on |f(x) - f(y)| for any two points; `inf` if there is none."""
        return math.inf if self.range is None else self.range[1] - self.range[0]

    @property
    def in_force(self) -> dict[str, float]:
        """The amounts that are limited, by name."""
        amounts = {name: getattr(self, name) for name in (*_AMOUNTS, "width")}
        return {name: amount for name, amount in amounts.items() if amount < math.inf}

    def require_finite(self, needs_diff: bool, by_slope: bool = False) -> None:
        """Raise unless a clip norm follows for GRAD and, if `needs_diff`, for DIFF.

        `by_slope` is for gradients: a range of values does not bound them.
        """
        clamped = min(self.lipschitz, math.inf if by_slope else self.width) < math.inf
        if not clamped and self.clip == math.inf:
            known = "lipschitz=1.0" if by_slope else "lipschitz=1.0, range=(0, 1)"
            raise InvalidArgument(
                f"nothing bounds a record's gradient{'' if by_slope else ' estimate'}: give "
                f"bounds=Bounds(clip=1.0, diff_clip=0.1), or one of {known}."
            )
        if needs_diff and not clamped and self.diff_clip == math.inf:
            raise InvalidArgument(
                "nothing bounds a record's difference estimate: give bounds=Bounds(diff_clip=...) as "
                "well, or one of lipschitz=..., range=(..., ...)."
            )


class Differences(NamedTuple):
    """How differences of values become a record's vector."""

    gain: float  # the longest that the vector can be for coefficients of at most 1
    smoothing: float  # h
    reach: float  # D


def record_bound(
    kind: Kind, bounds: Bounds, made_of: Differences | None = None, curve: float = 0.0
) -> float:
    """The clip norm for the gate: the longest vector that the clamps leave, or the clip if less.

    From values (`made_of`):  GRAD min(gain min(2 h L, width) / (2 h), clip)
                              DIFF min(gain min(2 D L, width) / h, diff_clip)
    From gradients (None):    GRAD min(L, clip)
                              DIFF min(2 L, diff_clip)

    A loss of weight `curve` beside the vector takes sqrt(1 + curve^2) times as much.
    """
    slope = bounds.lipschitz
    if made_of is None:
        longest = slope if kind is Kind.GRAD else 2.0 * slope
    elif kind is Kind.GRAD:
        twice = 2.0 * made_of.smoothing
        longest = made_of.gain * min(twice * slope, bounds.width) / twice
    else:
        most = min(2.0 * made_of.reach * slope, bounds.width)
        longest = made_of.gain * most / made_of.smoothing
    clip = bounds.clip if kind is Kind.GRAD else bounds.diff_clip
    return min(longest, clip) * math.sqrt(1.0 + curve**2)


def _range(given: object) -> tuple[float, float]:
    """The range as two numbers."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidArgument(f"range must be two numbers such as range=(0, 1), got {given!r}.")
    low, high = finite("range", given[0]), finite("range", given[1])
    if high <= low:
        raise InvalidArgument(f"range needs low < high, got {given!r}.")
    return low, high
