"""Planning: from a problem and a privacy budget to every number of a run.

Three presets, one interface: `tight` minimises the explicit bound (docs/planning.md), `paper` takes the
parameters of the paper's theorem, `klt` those of its successor. Whatever the user fixes stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from blindstep.errors import InvalidArgument, VacuousPlan, answers_typos, count, positive
from blindstep.estimate.bounds import Bounds, Lipschitz
from blindstep.planning.auto import plan_auto
from blindstep.planning.checks import check_delta
from blindstep.planning.choices import ESTIMATES, GRADIENT, PRESETS, VALUES, Choices, one_of
from blindstep.planning.klt import plan_klt
from blindstep.planning.paper import plan_paper, theorem_plan
from blindstep.planning.plan import PastTheMost, Plan
from blindstep.planning.questions import plan_questions
from blindstep.planning.tight import plan_tight
from blindstep.private.schedule import MOST_RELEASES, MOST_RELEASES_IN_A_BLOCK
from blindstep.private.statement import Privacy

Planner = Callable[[Choices, int], Plan]
_PLANNERS: dict[str, Planner] = {"tight": plan_tight, "paper": plan_paper, "klt": plan_klt}
# While records are searched for, a vacuous plan is an answer, not an error, and needs no notes.
_SEARCHED: dict[str, Planner] = {
    "tight": partial(plan_tight, explained=False),
    "paper": theorem_plan,
    "klt": plan_klt,
}
_MOST_RECORDS = 10**15


@answers_typos
def plan(
    *,
    dim: int,
    privacy: Privacy,
    radius: float | None = None,
    records: int | None = None,
    tolerance: float | None = None,
    preset: str | None = None,
    lipschitz: float | None = None,
    gap: float | None = None,
    bounds: Bounds | None = None,
    oracle: str | None = None,
    horizon: int | None = None,
    period: int | None = None,
    rounds: int | None = None,
    passes: int | None = None,
    first_batch: int | None = None,
    diff_batch: int | None = None,
    directions: int | None = None,
    evaluations: int | None = None,
    mechanism: str | None = None,
    sampler: str | None = None,
    sharing: str | None = None,
    smoothing: float | None = None,
    reach: float | None = None,
    estimate: str | None = None,
    leaves: tuple[int, ...] | None = None,
    questions: int | None = None,
) -> Plan:
    """Plan a run: from `records` to the tolerance they buy, or from `tolerance` to records needed.

    Without a radius the plan is in natural units, for a run that finds its own scales or, with
    `questions`, asks people: give `dim`, `records` and `privacy`. With a radius give either `records`
    or `tolerance`. To have stationarity certified, give `lipschitz` and `gap` too; else `bounds`, such
    as `Clip(1.0)`: the run is as private, and nothing is certified about its answer. All other
    arguments fix a choice that is otherwise left to the preset.

    The certificate is about a mean loss F that `Plan.certifies` names. One pass: the mean over the
    population, if the records are independent draws from it. Every step on all records: the mean
    over the records. Several passes of smaller batches: nothing is certified.

    Args:
        dim: number of parameters.
        privacy: the budget, such as Privacy(epsilon=4, delta=1e-5).
        radius: Goldstein radius of the answer: how far around it gradients are averaged.
        records: number of records there are.
        tolerance: the stationarity wanted; gives the smallest number of records that certifies it.
        preset: "tight" (least bound), "paper" (its theorem) or "klt" (its successor's parameters).
        lipschitz: Lipschitz bound of the loss. It is enforced by clamping: privacy does not rest on
            it.
        gap: bound on F(start) - inf F.
        bounds: further bounds to enforce, made of Clip, Range and Lipschitz.
        oracle: "naive" (a fresh gradient at each step) or "variance-reduced" (differences between).
        horizon: steps in a round (T).
        period: steps from one gradient to the next; 1 is the naive oracle.
        rounds: restarts of the learner (K).
        passes: times the run may go through the records. Without batches of your own, the plan
            either makes one pass or takes all records in every step.
        first_batch: records of a gradient (B1).
        diff_batch: records of a difference (B2).
        directions: random directions for each record (q).
        evaluations: the most evaluations of the loss that the run may make.
        mechanism: the noise of a block: "independent", "tree", "sqrt" or "blt".
        sampler: the directions: "sphere" (independent), "haar" or "structured" (orthonormal).
        sharing: who has the same directions: each "record" its own, or one frame for a "block".
        smoothing: smoothing radius (h).
        reach: the longest step (D).
        estimate: what a record's vector is made of: "values" of its loss (default), or its "gradient",
            for `blindstep.minimize` on a loss that JAX can differentiate.
        leaves: sizes of the arrays that the parameters are made of, for a plan without a radius:
            layers of very different slopes get units of their own.
        questions: how many questions each person answers, for a plan without a radius of a run
            through `blindstep.Optimizer`; `bounds` is then the range of an answer.

    Raises:
        InvalidArgument: an argument that no run can use, records that are too few, or a budget whose
            delta is 1 / records or more. Above 0.1 / records it warns (`LargeDelta`).
        VacuousPlan: the paper's theorem was to choose the horizon, and its bound is no better
            than `lipschitz`. Fix `horizon` (or `rounds`) to run all the same: privacy does not
            depend on it. Or no number of records certifies `tolerance`.
    """
    given = dict(locals())
    preset = preset or ("auto" if radius is None else "tight")
    one_of("preset", preset, PRESETS)
    estimate = given["estimate"] = VALUES if estimate is None else estimate
    one_of("estimate", estimate, ESTIMATES)
    if estimate == GRADIENT and (questions is not None or preset not in ("auto", "tight")):
        why = f"preset {preset} is made for estimates from values"
        if questions is not None:
            why = "what people answer is a value, and has no gradient"
        raise InvalidArgument(f"{why}: leave out estimate='gradient'.")
    if preset == "auto":
        return _self_scaling({name: value for name, value in given.items() if value is not None})
    if leaves is not None or questions is not None:
        raise InvalidArgument(
            "leaves and questions are for plans without a radius: leave them out, or the radius."
        )
    if radius is None:
        raise InvalidArgument(
            f"preset {preset} needs a radius: how far around the answer gradients are averaged. "
            "Without one, leave out the preset too: the run finds its own scales."
        )
    enforced = Bounds() if bounds is None else bounds
    if lipschitz is not None and isinstance(enforced, Bounds):
        enforced = enforced & Lipschitz(lipschitz)
    given["bounds"] = enforced
    choices = Choices(**{field.name: given[field.name] for field in fields(Choices)})
    if (records is None) == (tolerance is None):
        raise InvalidArgument(
            f"give either records or tolerance, got records={records!r} and "
            f"tolerance={tolerance!r}: records are turned into a tolerance, and back."
        )
    if tolerance is not None:
        wanted = positive("tolerance", tolerance)
        records = _records_for(_SEARCHED[preset], choices, wanted)
    records = count("records", records)
    check_delta(privacy, records)
    return _PLANNERS[preset](choices, records)


def _self_scaling(given: dict[str, Any]) -> Plan:
    """The plan of a run that finds its scales, or asks people; it certifies nothing."""
    make = plan_auto
    if "questions" in given:
        make = plan_questions
        del given["estimate"]
    own = inspect.signature(make).parameters
    others = [name for name in given if name not in own and name != "preset"]
    if others:
        raise InvalidArgument(
            f"{', '.join(others)}: a run that finds its own scales takes no such choice. Give a "
            "radius as well, for a plan in your units; or leave it out."
        )
    if "records" not in given:
        raise InvalidArgument("records are missing: how many are there?")
    check_delta(given["privacy"], count("records", given["records"]))
    return make(**{name: value for name, value in given.items() if name != "preset"})


def _records_for(planner: Planner, choices: Choices, tolerance: float) -> int:
    """The smallest number of records, to 0.1%, whose plan certifies `tolerance`."""
    if choices.lipschitz is None or choices.gap is None:
        raise InvalidArgument("a tolerance needs lipschitz and gap: the bound is made of them.")
    if tolerance >= choices.lipschitz:
        raise InvalidArgument(
            f"tolerance {tolerance:g} is not below lipschitz {choices.lipschitz:g}: every point "
            "meets it. Ask for less."
        )
    if choices.rounds is not None or choices.horizon is not None:
        raise InvalidArgument(
            "a tolerance leaves horizon and rounds to the planner: do not fix them."
        )
    if (choices.passes or 1) > 1 and (choices.first_batch or choices.diff_batch):
        raise InvalidArgument(
            "several passes of batches of some records certify nothing: leave out passes or batches."
        )
    past: PastTheMost | None = None

    def certified(records: int) -> bool | None:
        """Whether so many records certify it; None past the most releases that are planned for."""
        nonlocal past
        try:
            made = planner(choices, records)
        except PastTheMost as error:
            past = error
            return None
        except InvalidArgument:  # fewer records than one round needs
            return False
        return made.tolerance is not None and made.tolerance <= tolerance

    low, high = 1, 2
    while (enough := certified(high)) is False:
        low, high = high, 2 * high
        if high > _MOST_RECORDS:
            raise VacuousPlan(
                f"no number of records up to {_MOST_RECORDS:.0e} certifies tolerance {tolerance:g} "
                f"in blocks of at most {MOST_RELEASES_IN_A_BLOCK} and runs of at most "
                f"{MOST_RELEASES} releases: ask for a larger tolerance, radius or budget."
            )
    found = enough is True
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        enough = certified(middle)
        if enough is False:
            low = middle
        else:
            high, found = middle, found or enough is True
    if not found:
        raise VacuousPlan(
            f"up to {low:.3g} records do not certify tolerance {tolerance:g}, and more cannot be "
            f"planned for. Records are not what is missing: {past} Or ask for a larger tolerance, "
            "radius or budget."
        )
    return high
