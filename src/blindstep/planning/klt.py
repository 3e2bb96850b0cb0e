"""Preset `klt`: the parameters of Kornowski, Liu & Talwar (arXiv 2410.05880), the paper's successor.

A GRAD batch of B1 = period records every `period` steps, DIFF batches of one record between, averaging
length N = radius / (4 D), period = (radius / (mu D))^(2/3) + radius / (D sqrt d), with D minimising
their bound

    gap / (D S) + 3 G1 / (2 sqrt N) + G0,    E|g~ - grad|^2 <= G0^2,  E|g~|^2 <= G1^2,  S steps.

Two differences, both said in the plan: their number of directions (up to 1e9) buys a sensitivity
that holds with high probability; here frames and enforced clipping buy it for certain, at q = d. And
the learner restarts every N steps, as in the conversion this package runs.

With several passes their multi-pass variant competes: every step a GRAD of all records, with
independent noise. It is about the mean over the records; S is at most the number of passes, and D and
S minimise the same bound. (Their further step from the records to the population is not taken here.)
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Clip
from blindstep.planning.bound import estimation_error
from blindstep.planning.choices import Choices
from blindstep.planning.plan import Plan, finished
from blindstep.private.schedule import MOST_RELEASES, MOST_RELEASES_IN_A_BLOCK


def plan_klt(choices: Choices, records: int) -> Plan:
    """The successor's plan for a number of records."""
    choices.refuse(
        "klt",
        *("oracle", "horizon", "period", "rounds", "first_batch", "diff_batch"),
        *("directions", "evaluations", "mechanism", "sharing", "smoothing", "reach"),
    )
    if not choices.certifiable:
        raise InvalidArgument("preset klt chooses everything from lipschitz and gap: give both.")
    candidates: list[tuple[float, Plan]] = []
    refusal = InvalidArgument(f"{records} records do not hold one round: bring more.")
    for passes in _ladder(choices.passes or 1):
        for horizon in _ladder(records if passes == 1 else passes):
            try:
                if (made := _plan(choices, records, horizon, passes)) is not None:
                    candidates.append((_their_bound(made), made))
            except InvalidArgument as error:
                refusal = error
    if not candidates:
        raise refusal
    bound, made = min(candidates, key=lambda pair: pair[0])
    notes = (
        f"Parameters of Kornowski, Liu & Talwar; their own bound for them is {bound:.4g}.",
        "Enforced clipping and orthonormal frames stand in for their number of directions; the "
        "learner restarts every horizon.",
    )
    return finished(made, notes)


def _ladder(most: int) -> list[int]:
    """Whole numbers from 1 to `most`, each about 2^(1/4) times the one before."""
    steps = np.append(2.0 ** np.arange(0, math.log2(most), 0.25), most)
    return [int(step) for step in np.unique(np.round(steps))]


def _plan(choices: Choices, records: int, horizon: int, passes: int) -> Plan | None:
    """Their plan at an averaging length; None if the records or the longest block do not hold it."""
    ratio = 4 * horizon  # radius / D
    wanted = (ratio / choices.privacy.mu) ** (2 / 3) + ratio / math.sqrt(choices.dim)
    period = max(1, min(horizon, round(wanted))) if passes == 1 else 1
    horizon = max(1, round(horizon / period)) * period
    first_batch = period if passes == 1 else records
    steps = records // (first_batch + period - 1) * period * passes
    rounds = min(steps, MOST_RELEASES) // horizon
    if rounds < 1 or period > MOST_RELEASES_IN_A_BLOCK:
        return None
    made = Plan(
        preset="klt",
        mechanism="tree" if passes == 1 else "independent",
        sampler=choices.sampler or "structured",
        sharing="record",
        horizon=horizon,
        period=period,
        rounds=rounds,
        first_batch=first_batch,
        diff_batch=1,
        directions=choices.dim,
        smoothing=choices.radius / 2,
        reach=choices.radius / (4 * horizon),
        **choices.known(records),
    )
    # Four times the root mean square of a record's GRAD estimate, where that is below the gain.
    clip = min(math.sqrt(made.dim), 4 * math.sqrt(made.moments.grad))
    return replace(made, bounds=made.bounds & Clip((choices.lipschitz or 0.0) * clip))


def _their_bound(made: Plan) -> float:
    """gap / (D S) + 3 G1 / (2 sqrt N) + G0, with exact errors and noise."""
    assert made.lipschitz is not None
    assert made.gap is not None
    noise = math.sqrt(made.size) * made.release_std()
    off = float(np.sqrt(np.max(estimation_error(made, made.lipschitz) ** 2 + noise**2)))
    size = math.hypot(made.lipschitz, off)
    steps = made.rounds * made.horizon
    return made.gap / (made.reach * steps) + 1.5 * size / math.sqrt(made.horizon) + off
