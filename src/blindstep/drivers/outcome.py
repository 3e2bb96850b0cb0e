"""How a run went, from releases alone: it costs nothing to say."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from blindstep.drivers.history import History
from blindstep.optimize.plan import Plan

# Standard deviations of the noise beyond which a difference is no chance.
_SURE = 3.0
# A path whose ends are this much of its length apart goes one way.
_STRAIGHT = 0.9


def best_round(history: History) -> int:
    """The round to take: the last, unless an earlier one has a lower loss beyond doubt.

    Steps get shorter, so later rounds are better but for chance. An earlier round wins only by more
    than three standard deviations of the difference of the two means.
    """
    rounds, horizon = history.gradient_norm.shape
    if history.loss is None or history.loss_std is None:
        return rounds - 1
    means = np.mean(history.loss, axis=1)
    lowest = int(np.argmin(means))
    doubt = _SURE * math.sqrt(2.0 / horizon) * history.loss_std
    return lowest if means[lowest] < means[-1] - doubt else rounds - 1


def sentence(plan: Plan, history: History, means: Float[np.ndarray, "rounds dim"] | None) -> str:
    """Lost in noise, still travelling or settled, and what would help.

    `means` are those of the rounds, in the units of the plan; None where they are too large to keep.
    """
    steps = history.gradient_norm.ravel()
    noise = math.sqrt(plan.size) * plan.release_std_mean
    # Signal to noise, in squares, while there was most to see.
    early = steps[: max(2, len(steps) // 16)]
    heard = float(np.mean(early**2)) / noise**2 - 1.0
    doubt = _SURE * math.sqrt(2.0 / (plan.size * len(early)))
    if heard < doubt and not _fell(history):
        return (
            "Lost in noise: the releases show nothing beyond it. More records, a larger epsilon or "
            "fewer parameters would help."
        )
    if plan.preset != "scaled":
        moves = history.move_norm.ravel()
        if np.mean(moves[len(moves) // 2 :]) > 0.9 * plan.reach:
            return (
                "Still travelling: nearly every step was as long as it may be. More steps (passes) or "
                "a longer reach would help."
            )
        return "Settled: steps became shorter than they may be."
    if means is None and _fell(history, since=0.5):
        return (
            "Still falling: the loss went down until the end. More evaluations would help, or going on "
            "from here with more budget."
        )
    if means is not None and _straight(means[len(means) // 2 :]) > _STRAIGHT:
        return (
            "Still travelling: the path was straight until the end. A start nearer to the answer "
            "would help, or going on from here with more budget."
        )
    clear = (
        "the gradient stood out from the noise" if heard > 1.0 else "noise was most of each step"
    )
    more = "" if heard > 1.0 else " More records or a larger epsilon would help."
    settled = "the loss fell no more" if means is None else "the path turned round"
    return f"Settled: {settled} before the end, and {clear}.{more}"


def _straight(points: Float[np.ndarray, "some dim"]) -> float:
    """How straight a path is: the distance of its ends over its length."""
    length = float(np.sum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
    return float(np.linalg.norm(points[-1] - points[0])) / length if length > 0 else 0.0


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
