"""Method `questions`: a run that asks people: a few questions to each, through `blindstep.Optimizer`.

Answers are scarce, and noisy even without privacy: somebody who sees the same thing twice may answer
differently. So nobody is asked merely to find scales: amounts are in units of the parameters (four
times the root mean square of the start, unless `Optimizer` is given others), and answers lie in a known
range. Each person is asked along a direction of their own, at a + h u and a - h u, so that a batch
shows the whole gradient.

- steps T: 16, or as many as batches of a given size make; everybody is in one of them. Everybody is
  asked once, so the noise on the mean of a step is in proportion to T, and on the sum of all steps to
  T^(3/2): few steps of many people.
- smoothing h: sqrt(d), each parameter moved by about one unit, but at most 2: two answers differ the
  more, the farther apart the questions are, until both are so far off that nobody likes either. The
  distance falls to a tenth as the run goes on.
- breadth q: each step looks in a random subspace of q dimensions, the next ones of a random frame. The
  noise has the same size along every dimension that is looked at, and what people say is spread over
  them: so where noise is large, few at a time. q = 0.6 sqrt(people of a step x mu), at least 2.
- reach: 0.13 sqrt(d) 16/T (d/q)^(1/4), falling to 0: all steps together are as long for any T.

`python -m benchmarks.utility --only votes` measures how good it is.
"""

from __future__ import annotations

import math
from typing import ClassVar

from blindstep.errors import InvalidArgument, typed_record
from blindstep.estimate.bounds import Bounds
from blindstep.optimize.learners import Falling, Learner
from blindstep.planning.estimates import Values
from blindstep.planning.method import Method, Problem
from blindstep.planning.plan import Plan, finished

_STEPS, _REACH, _FARTHEST = 16, 0.13, 2.0
# How many dimensions a step looks in, for one person whose answer is heard without noise.
_BREADTH, _LEAST_BREADTH = 0.6, 2


@typed_record
class Questions(Method):
    """A run that asks people, through `blindstep.Optimizer`: a few questions to each of them, once.

        plan = bs.plan(bs.Questions(), dim=4, records=1000, privacy=bs.Privacy(epsilon=1))

    Attributes:
        questions: how many questions each person answers: 2, or another even number.
        range: the smallest and the largest answer.
        first_batch: people of a step. Default: a sixteenth of them.
        breadth: dimensions that a step looks in. Default: as many as the noise lets one hear.
        learner: what turns released gradients into moves. Default: steps whose length falls to 0.
    """

    name: ClassVar[str] = "questions"
    questions: int = 2
    range: tuple[float, float] = (0.0, 1.0)
    first_batch: int | None = None
    breadth: int | None = None
    learner: Learner = Falling(nearest=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.questions % 2:
            raise InvalidArgument(
                f"questions {self.questions}: they come in pairs, one on either side. Give an even "
                "number."
            )
        object.__setattr__(self, "range", Bounds(range=self.range).range)

    def plan(self, problem: Problem) -> Plan:
        """The plan for `records` people who answer the same number of questions each."""
        dim, records, directions = problem.dim, problem.records, self.questions // 2
        if directions > dim:
            raise InvalidArgument(
                f"questions {self.questions}: more than two for each of {dim} parameters tell nothing "
                "more."
            )
        batch = self.first_batch or max(1, records // _STEPS)
        if batch > records:
            raise InvalidArgument(f"first_batch {batch}: there are only {records} people.")
        steps = records // batch if self.first_batch else min(_STEPS, records)
        smoothing, breadth = min(math.sqrt(dim), _FARTHEST), self.breadth
        if breadth is None:
            breadth = max(_LEAST_BREADTH, round(_BREADTH * math.sqrt(batch * problem.privacy.mu)))
        breadth = 0 if breadth >= dim or directions > 1 else breadth
        reach = _REACH * math.sqrt(dim) * _STEPS / steps * (dim / (breadth or dim)) ** 0.25
        asked = Bounds(range=self.range)
        # d/q (f+ - f-) / 2h along q directions, of answers that differ by all they can.
        longest = dim / math.sqrt(directions) * asked.width / (2.0 * smoothing)
        sampler = "sphere" if directions == 1 else "structured"
        made = Plan(
            method=self.name,
            estimate=Values(directions, smoothing, sampler, "record", breadth=breadth),
            mechanism="independent",
            records=records,
            dim=dim,
            horizon=1,
            period=1,
            rounds=steps,
            first_batch=batch,
            diff_batch=batch,
            radius=smoothing + reach,
            reach=reach,
            bounds=asked & Bounds(clip=longest),
            lipschitz=None,
            gap=None,
            privacy=problem.privacy,
            natural_units=True,
            learner=self.learner,
        )
        return finished(
            made,
            after=(
                f"Each person answers {self.questions} questions, once, in one of {steps} steps. "
                "Lengths are in units of four times the root mean square of the start (1 at a start "
                "of 0).",
            ),
        )
