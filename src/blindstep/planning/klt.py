"""Method `klt`: the parameters of Kornowski, Liu & Talwar (arXiv 2410.05880), the paper's successor.

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
from typing import ClassVar

import numpy as np

from blindstep.errors import InvalidArgument, typed_record
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.frames import Structured
from blindstep.optimize.learners import ConstantStep, Learner
from blindstep.planning.bound import estimation_error, moments_of
from blindstep.planning.estimates import Values
from blindstep.planning.method import Method, Problem, SamplerName, check_tolerance, given
from blindstep.planning.plan import Plan, finished
from blindstep.private.schedule import MOST_RELEASES, MOST_RELEASES_IN_A_BLOCK


@typed_record
class Klt(Method):
    """The parameters of the paper's successor (Kornowski, Liu & Talwar), by their bound.

        bs.Klt(radius=0.1, lipschitz=1.0, gap=1.0)

    Attributes:
        radius: Goldstein radius of the answer: how far around it gradients are averaged.
        lipschitz: Lipschitz bound of the loss. It is enforced by clamping: privacy does not rest on it.
        gap: bound on F(start) - inf F.
        bounds: further bounds to enforce.
        learner: what turns released gradients into moves. Default: descent with the theorem's step.
        passes: the most passes over the records.
        sampler: the directions: independent ("sphere"), or orthonormal.
    """

    name: ClassVar[str] = "klt"
    radius: float
    lipschitz: float
    gap: float
    bounds: Bounds = Bounds()
    learner: Learner = ConstantStep()
    passes: int | None = None
    sampler: SamplerName = Structured.name

    def require_tolerance(self, tolerance: float) -> None:
        """Raise where every point meets the tolerance."""
        check_tolerance(tolerance, self.lipschitz, self.gap)

    def plan(self, problem: Problem) -> Plan:
        """The successor's plan for a number of records."""
        if moments_of(self.sampler, problem.dim, problem.dim) is None:
            raise InvalidArgument(
                f"nothing is proved along {self.sampler} directions, and method klt chooses "
                "everything from what is: give another sampler, or use method Tight."
            )
        records = problem.records
        candidates: list[tuple[float, Plan]] = []
        refusal = InvalidArgument(f"{records} records do not hold one round: bring more.")
        for passes in _ladder(self.passes or 1):
            for horizon in _ladder(records if passes == 1 else passes):
                try:
                    if (made := self._plan(problem, horizon, passes)) is not None:
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

    def _plan(self, problem: Problem, horizon: int, passes: int) -> Plan | None:
        """Their plan at an averaging length; None if the records or a block do not hold it."""
        dim, records = problem.dim, problem.records
        ratio = 4 * horizon  # radius / D
        wanted = (ratio / problem.privacy.mu) ** (2 / 3) + ratio / math.sqrt(dim)
        period = max(1, min(horizon, round(wanted))) if passes == 1 else 1
        horizon = max(1, round(horizon / period)) * period
        first_batch = period if passes == 1 else records
        steps = records // (first_batch + period - 1) * period * passes
        rounds = min(steps, MOST_RELEASES) // horizon
        moments = moments_of(self.sampler, dim, dim)
        if rounds < 1 or period > MOST_RELEASES_IN_A_BLOCK or moments is None:
            return None
        known = given(self, problem)
        # Four times the root mean square of a record's GRAD estimate, where that is below the gain.
        clip = min(math.sqrt(dim), 4 * math.sqrt(moments.grad))
        known["bounds"] = known["bounds"] & Bounds(clip=self.lipschitz * clip)
        return Plan(
            estimate=Values(dim, self.radius / 2, self.sampler, "record"),
            mechanism="tree" if passes == 1 else "independent",
            horizon=horizon,
            period=period,
            rounds=rounds,
            first_batch=first_batch,
            diff_batch=1,
            reach=self.radius / (4 * horizon),
            **known,
        )


def _ladder(most: int) -> list[int]:
    """Whole numbers from 1 to `most`, each about 2^(1/4) times the one before."""
    steps = np.append(2.0 ** np.arange(0, math.log2(most), 0.25), most)
    return [int(step) for step in np.unique(np.round(steps))]


def _their_bound(made: Plan) -> float:
    """gap / (D S) + 3 G1 / (2 sqrt N) + G0, with exact errors and noise."""
    assert made.lipschitz is not None
    assert made.gap is not None
    assert made.moments is not None
    noise = math.sqrt(made.size) * made.release_std()
    off = float(
        np.sqrt(np.max(estimation_error(made, made.lipschitz, made.moments) ** 2 + noise**2))
    )
    size = math.hypot(made.lipschitz, off)
    steps = made.rounds * made.horizon
    return made.gap / (made.reach * steps) + 1.5 * size / math.sqrt(made.horizon) + off
