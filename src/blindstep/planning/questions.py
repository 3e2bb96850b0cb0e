"""The plan of a run that asks people: a few questions to each, through `blindstep.Optimizer`.

Answers are scarce, and noisy even without privacy: somebody who sees the same thing twice may answer
differently. So nobody is asked merely to find scales: amounts are in units of the parameters (four
times the root mean square of the start, unless `Optimizer` is given others), and answers lie in a known
range. Each person is asked along a direction of their own, at a + h u and a - h u, so that a batch
shows the whole gradient.

- steps T: 16, or as many as batches of a given size make; everybody is in one of them. Everybody is
  asked once, so the noise on the mean of a step is in proportion to T, and on the sum of all steps to
  T^(3/2): few steps of many people.
- smoothing h: sqrt(d), each parameter moved by about one unit. Two answers differ the more, the
  farther apart the questions are; the distance falls to a tenth as the run goes on.
- reach: 0.13 sqrt(d) 16/T, falling to 0: all steps together are as long for any T.

`python -m benchmarks.utility --only votes` measures how good it is.
"""

from __future__ import annotations

import math

from blindstep.errors import InvalidArgument, count
from blindstep.estimate.bounds import Bounds, Clip, Range
from blindstep.planning.plan import Plan, finished
from blindstep.private.statement import Privacy

_STEPS, _REACH = 16, 0.13


def plan_questions(
    *,
    dim: int,
    records: int,
    privacy: Privacy,
    questions: int,
    bounds: Bounds | None = None,
    first_batch: int | None = None,
) -> Plan:
    """The plan for `records` people who answer so many questions each.

    Args:
        dim: number of parameters.
        records: number of people.
        privacy: the budget.
        questions: how many each person answers: 2, or another even number.
        bounds: the range of an answer, such as Range(1, 5); Range(0, 1) if left out.
        first_batch: people of a step; a sixteenth of them if left out.
    """
    dim, records = count("dim", dim), count("records", records)
    directions = count("questions", questions) // 2
    if questions % 2:
        raise InvalidArgument(
            f"questions {questions}: they come in pairs, one on either side. Give an even number."
        )
    if directions > dim:
        raise InvalidArgument(
            f"questions {questions}: more than two for each of {dim} parameters tell nothing more."
        )
    asked = bounds or Range(0, 1)
    if not math.isfinite(asked.width):
        raise InvalidArgument("bounds without a range: say between what answers lie, Range(1, 5).")
    batch = count("first_batch", first_batch or max(1, records // _STEPS))
    if batch > records:
        raise InvalidArgument(f"first_batch {batch}: there are only {records} people.")
    steps = records // batch if first_batch else min(_STEPS, records)
    smoothing, reach = math.sqrt(dim), _REACH * math.sqrt(dim) * _STEPS / steps
    # d/q (f+ - f-) / 2h along q directions, of answers that differ by all they can.
    longest = math.sqrt(dim / directions) * asked.width / 2.0
    made = Plan(
        preset="auto",
        mechanism="independent",
        sampler="sphere" if directions == 1 else "structured",
        sharing="record",
        records=records,
        dim=dim,
        horizon=1,
        period=1,
        rounds=steps,
        first_batch=batch,
        diff_batch=batch,
        directions=directions,
        smoothing=smoothing,
        radius=smoothing + reach,
        reach=reach,
        bounds=asked & Clip(longest),
        lipschitz=None,
        gap=None,
        privacy=privacy,
    )
    return finished(
        made,
        after=(
            f"Each person answers {questions} questions, once, in one of {steps} steps. Lengths are in "
            "units of four times the root mean square of the start (1 at a start of 0).",
        ),
    )
