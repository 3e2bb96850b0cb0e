"""What the releases of a study show: how far it came, how content people are, what noise did.

All of it follows from what was released, so it costs nothing to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from blindstep.estimate import watching
from blindstep.estimate.comparison import Comparison
from blindstep.estimate.watching import Mean, Reading
from blindstep.optimize.machine import StepInfo
from blindstep.private.gate import Gate
from blindstep.private.noise import Keys, fresh_keys
from blindstep.run.outcome import is_coherent
from blindstep.run.result import Result, compared_with, result_of

if TYPE_CHECKING:
    from blindstep.serve.design import Design, Outcome


def result(design: Design, outcomes: Sequence[Outcome]) -> Result:
    """The result of a finished study, as an `Optimizer` gives it, compared with its start."""
    means = [np.asarray(outcome["mean"]) for outcome in outcomes]
    told = np.asarray([[np.nan if n is None else n for n in o["told"]] for o in outcomes])
    info = StepInfo(*told.T)
    keys = Keys(fresh_keys().noise, design.public, seeded=False)  # only the public one is used
    gate = Gate(design.plan.terms, keys, _NoCharge())
    run = (design.plan, design.space, gate, means, info, design.scales)
    found = result_of(*run, protected="one person")
    compared = _comparison(design, found, outcomes[-1])
    start = design.space.unflatten(np.asarray(design.scales.origin))
    return found if compared is None else compared_with(found, start, compared)


class _NoCharge:
    """The port of a gate that releases nothing."""

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Nothing is released, so nothing is charged."""


def _comparison(design: Design, found: Result, last: Outcome) -> Comparison | None:
    """What the last window says of start and answer; None if it asked something else."""
    if not design.watch.final or "release" not in last:
        return None
    worse = _read(design, [last], 1.0).worse
    # Beside the noise, people differ: by at most 1 each, and about half of them not at all.
    std = math.hypot(worse.std, math.sqrt(0.5 / design.planned))
    trusted = is_coherent(found.history, design.scales.natural(found.means))
    which = (design.releases - 1,)
    difference, doubt = np.array([worse.value]), np.array([std])
    seen = np.ones(1, dtype=bool)
    return Comparison(which, difference, doubt, np.ones(1), seen, trusted=trusted)


def heard(design: Design, outcomes: Sequence[Outcome]) -> list[float]:
    """How long each step's noisy gradient was, in lengths that noise alone would have.

    Near 1 nothing but noise was heard: few people came, or they saw no difference.
    """
    alone = design.plan.noise_std * math.sqrt(design.plan.heard)
    return [outcome["told"][0] / alone for outcome in outcomes]


def noise_on_parameters(
    design: Design, outcomes: Sequence[Outcome]
) -> Float[np.ndarray, "steps dim"]:
    """How far noise alone moves each parameter up to each step: one standard deviation.

    A move is -(length / |g|) g of a noisy gradient g, so noise of standard deviation s on each
    coordinate that g has moves it by s length / |g|, and moves add up in squares. Of d parameters a
    step that looks in q dimensions moves each by the share sqrt(q / d) of that.
    """
    plan = design.plan
    steps = np.asarray([outcome["told"][:2] for outcome in outcomes], float).reshape(-1, 2)
    each = plan.noise_std * steps[:, 1] / np.maximum(steps[:, 0], 1e-300)
    each *= math.sqrt(plan.heard / plan.dim)
    return np.sqrt(np.cumsum(each**2))[:, None] * np.asarray(design.scales.lengths)


def _read(design: Design, outcomes: Sequence[Outcome], control: float) -> Reading:
    releases = np.array([outcome["release"] for outcome in outcomes])
    numbers = design.plan.noise_std, design.clip, design.watch.weight
    return watching.read(releases, *numbers, control, design.planned * len(releases))


def came(design: Design, outcome: Outcome) -> float | None:
    """How many answered in a step, as a share of those who were planned, with the noise on it."""
    return _read(design, [outcome], 1.0).came.value if "release" in outcome else None


def contentment(design: Design, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """For each step how content people were, with the standard deviation of the noise on it.

    As shares from 0 (worst answer) to 1 (best): `shown`, of those who were asked, with what they saw;
    `start`, of the control group in all steps so far, with the start; and `now`, of the control group
    in the last quarter of them, with where the study stood. In a comparison `now` is the share who
    preferred that to the start, and the others are not there. `came` is how many answered, as a share
    of those who were planned. None where too few came to say.
    """
    found = []
    kinds = [outcome for outcome in outcomes if "release" in outcome]
    for place in range(len(kinds)):
        whole = design.compares(place)
        one = _read(design, kinds[place : place + 1], 1.0 if whole else design.watch.control)
        if whole:
            start, now = one.start, one.now
        else:
            start = _read(design, kinds[: place + 1], design.watch.control).start
            now = _read(design, kinds[3 * place // 4 : place + 1], design.watch.control).now
        shown = None if design.spec.answer.questions == 1 else one.shown
        start = None if design.spec.answer.questions == 1 else start
        found.append(
            {
                "came": one.came._asdict(),
                **{"shown": _liked(shown), "start": _liked(start), "now": _liked(now)},
            }
        )
    return found


def _liked(loss: Mean | None) -> dict[str, float] | None:
    """The share of the best answer, from a mean loss."""
    return None if loss is None else {"value": 1.0 - loss.value, "std": loss.std}
