"""How a run went, from releases alone: it costs nothing to say."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from blindstep.estimate.comparison import Comparison
from blindstep.planning.plan import Plan

if TYPE_CHECKING:
    from blindstep.run.result import History

# Standard deviations of the noise beyond which a difference is no chance.
_SURE = 3.0
# A path whose ends are this much of its length apart goes one way.
_STRAIGHT = 0.9
# Of the longest way between two rounds; a second half shorter than that has arrived.
_HARDLY = 0.02
# A run that hears nothing goes half of its way, and one that hears so much all of it: signal to noise,
# in squares, added up over its steps; unless its comparison is so noisy, on a place of its histogram.
# Fitted to runs on `benchmarks.utility`.
_HALF, _CLEAR = 0.5, 30.0
_SHARP, _BLUNT = 0.03, 0.04


class Kind(enum.Enum):
    """What became of a run."""

    SETTLED = "settled"
    TRAVELLING = "still travelling"
    LOST = "lost in noise"
    NOTHING_BETTER = "nothing better than the start"


class Outcome(str):
    """How a run went and what would help, in a sentence or two.

    Attributes:
        kind: the same in a word, for programs.
    """

    kind: Kind

    def __new__(cls, kind: Kind, sentence: str) -> Outcome:
        """A sentence of this kind."""
        made = super().__new__(cls, sentence)
        made.kind = kind
        return made

    def __reduce__(self) -> tuple[type[Outcome], tuple[Kind, str]]:
        """What copies and pickles are made from."""
        return type(self), (self.kind, str(self))


def outcome_of(
    plan: Plan,
    history: History,
    means: Float[np.ndarray, "rounds dim"] | None,
    comparison: Comparison | None = None,
) -> Outcome:
    """Nothing better than the start, lost in noise, still travelling or settled; and what would help.

    `means` are those of the rounds, in the units of the plan; None where they are too large to keep.
    """
    heard, doubt = _heard(plan, history)
    if comparison is not None and comparison.best is None:
        return _nothing_better(comparison, heard, doubt)
    lost = heard < doubt and not _fell(history)
    if lost and comparison is None:
        return Outcome(
            Kind.LOST,
            "Lost in noise: the releases show nothing beyond it. More records, a larger epsilon or "
            "fewer parameters would help.",
        )
    if not plan.natural_units:
        moves = history.move_norm.ravel()
        if np.mean(moves[len(moves) // 2 :]) > 0.9 * plan.reach:
            return Outcome(
                Kind.TRAVELLING,
                "Still travelling: nearly every step was as long as it may be. More steps (passes) or "
                "a longer reach would help.",
            )
        return Outcome(Kind.SETTLED, "Settled: steps became shorter than they may be.")
    if means is None and _fell(history, since=0.5):
        return Outcome(
            Kind.TRAVELLING,
            "Still falling: the loss went down until the end. More evaluations would help, or going on "
            "from here with more budget.",
        )
    if means is not None and _goes_on(means):
        return Outcome(
            Kind.TRAVELLING,
            "Still travelling: the path was straight until the end. A start nearer to the answer "
            "would help, or going on from here with more budget.",
        )
    clear = (
        "the gradient stood out from the noise" if heard > 1.0 else "noise was most of each step"
    )
    more = "" if heard > 1.0 else " More records or a larger epsilon would help."
    settled = "the loss fell no more" if means is None else "the path turned round"
    return Outcome(Kind.SETTLED, f"Settled: {settled} before the end, and {clear}.{more}")


def is_coherent(history: History, means: Float[np.ndarray, "rounds dim"]) -> bool:
    """Whether the path goes one way, more than steps along noise would.

    Steps of lengths r_t in random directions of d dimensions lead a square distance away that is about
    sum r_t^2 / d times a chi-square of d degrees. Steps that agree lead farther than three standard
    deviations of that, by the formula of Wilson and Hilferty. `means` are those of the rounds, in the
    units of the plan.
    """
    rounds, dim = means.shape
    # From the middle of the first round to that of the last one.
    lengths = history.move_norm.ravel()[: (rounds - 1) * history.move_norm.shape[1]]
    square = float(np.sum(lengths**2))
    away = float(np.sum((means[-1] - means[0]) ** 2))
    varies = 2.0 / (9.0 * dim)
    return away > square * (1.0 - varies + _SURE * math.sqrt(varies)) ** 3 > 0.0


def share_of_the_way(plan: Plan, history: History, natural: Float[np.ndarray, " dim"]) -> float:
    """How much of the way from the start to where a run ended is worth going.

    Where noise is nearly all that a run hears, most of its way is noise as well. Then a part of the way
    has most of the gain and little of the loss: what a penalty on the distance from the start would do.
    What was heard is taken for a standard deviation more than it seems. And where the comparison with
    the start is so noisy that it sees large gains alone, half of the way shows more of them.

    At any rate it is worth going as much as is no walk along noise, whose length is known: where that
    would lead half as far, in squares, as the run went, three quarters of the way. `natural` is the
    end of the way in natural units.
    """
    heard, doubt = _heard(plan, history)
    clear = history.gradient_norm.size * (heard + doubt / _SURE) / _CLEAR
    terms = plan.comparison_terms
    noise = _SHARP if terms is None else float(terms.noise_std)
    sharp = (_BLUNT - noise) / (_BLUNT - _SHARP)
    known = _HALF + (1.0 - _HALF) * min(max(min(clear, sharp), 0.0), 1.0)
    return max(known, 1.0 - 0.5 * _walked(plan, history, natural))


def _walked(plan: Plan, history: History, natural: Float[np.ndarray, " dim"]) -> float:
    """The square of the walk that noise alone makes, as a share of the square of the way; at most 1."""
    noise, _ = plan.noise_of_gradient()
    squares = np.maximum(history.gradient_norm**2, np.finfo(float).tiny)
    share = np.minimum(plan.dim * noise**2 / squares, 1.0)
    walk = float(np.sum(share * history.move_norm**2))
    return min(walk / max(float(np.sum(natural**2)), np.finfo(float).tiny), 1.0)


def _heard(plan: Plan, history: History) -> tuple[float, float]:
    """Signal to noise, in squares, while there was most to see; and what could be chance of it."""
    steps = history.gradient_norm.ravel()
    noise = math.sqrt(plan.heard) * plan.release_std_mean
    early = steps[: max(2, len(steps) // 16)]
    doubt = _SURE * math.sqrt(2.0 / (plan.heard * len(early)))
    return float(np.mean(early**2)) / noise**2 - 1.0, doubt


def _nothing_better(comparison: Comparison, heard: float, doubt: float) -> Outcome:
    """The start was returned: why."""
    first = "Nothing better than the start was found, and `params` is the start: "
    worse = comparison.difference > _SURE * comparison.std
    if not np.any(comparison.seen | (np.abs(comparison.difference) > _SURE * comparison.std)):
        why = (
            "no record's loss was seen to change. Either noise hides it all (more records or a larger "
            "epsilon would help), or the loss is flat around the start: start elsewhere."
        )
    elif np.all(worse):
        why = (
            "following the slopes of the records, each counted with at most the same length, raised "
            "their mean loss. Either the start is already good, or a few records with large losses "
            "decide the mean: a loss with bounded slopes, or scaled columns, would help."
        )
    elif heard < doubt:
        why = (
            "the slopes did not stand out from the noise. The start is as good as can be told with so "
            "many records and this epsilon, or the loss is flat there."
        )
    else:
        why = (
            "the slopes stood out, but what they led to is not better beyond the noise. The start is "
            "already good, or more records or a larger epsilon would help."
        )
    return Outcome(Kind.NOTHING_BETTER, first + why)


def _goes_on(points: Float[np.ndarray, "rounds dim"]) -> bool:
    """Whether the second half of the path goes straight on, and is worth speaking of."""
    last = points[-max(3, len(points) // 2) :]
    if len(last) < 3:
        return False
    whole = float(np.max(np.linalg.norm(points - points[-1], axis=1)))
    ends = float(np.linalg.norm(last[-1] - last[0]))
    length = float(np.sum(np.linalg.norm(np.diff(last, axis=0), axis=1)))
    return length > 0 and ends > _STRAIGHT * length and ends > _HARDLY * whole


def _fell(history: History, since: float = 0.0) -> bool:
    """Whether the loss fell between the halves of the run, beyond doubt and by over 1%.

    Of the part of the run that begins at the share `since` of it.
    """
    if history.loss is None or history.loss_std is None:
        return False
    values = history.loss.ravel()
    values = values[int(since * len(values)) :]
    half = len(values) // 2
    if half == 0:
        return False
    before, after = float(np.mean(values[:half])), float(np.mean(values[half:]))
    doubt = _SURE * history.loss_std * math.sqrt(2.0 / half)
    return before - after > max(doubt, 0.01 * abs(float(values[0])))
