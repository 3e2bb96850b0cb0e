"""Methods `paper` and `klt`: the parameters of the paper, and of its successor.

`paper` is Theorem thm:convergence and Corollary cor:privacy, with the errata. `klt` is Kornowski, Liu &
Talwar (arXiv 2410.05880): a GRAD batch of B1 = period records every `period` steps, DIFF batches of one
record between, averaging length N = radius / (4 D), period = (radius / (mu D))^(2/3) + radius /
(D sqrt d), with D minimising their bound

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

from blindstep.errors import InvalidArgument, VacuousPlan, typed_record
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.frames import Structured
from blindstep.optimize.learners import ConstantStep, Learner
from blindstep.planning.bound import estimation_error, moments_of
from blindstep.planning.estimates import Values
from blindstep.planning.method import Method, Oracle, Problem, SamplerName, check_tolerance, given
from blindstep.planning.plan import Plan, finished
from blindstep.planning.theory import Theorem, naive_batch
from blindstep.private.schedule import MOST_RELEASES, MOST_RELEASES_IN_A_BLOCK


@typed_record
class Paper(Method):
    """The paper's algorithm, with the parameters of its theorem.

        bs.Paper(radius=0.1, lipschitz=1.0, gap=1.0)                        # certifies a tolerance
        bs.Paper(radius=0.1, bounds=bs.Bounds(range=(0, 1)), horizon=8)    # private; certifies nothing

    The run has smoothing radius / 2: a run at delta certifies 2 delta (erratum 5). The theorem chooses
    the horizon from L and the gap; where one of them is not known, fix horizon or rounds.

    Attributes:
        radius: Goldstein radius of the answer: how far around it gradients are averaged.
        lipschitz: Lipschitz bound of the loss. It is enforced by clamping: privacy does not rest on it.
        gap: bound on F(start) - inf F.
        bounds: further bounds to enforce; needed where there is no Lipschitz bound.
        learner: what turns released gradients into moves. Default: the theorem's step, if L is known.
        oracle: the paper's own, "variance-reduced", or the "naive" one of its appendix.
        horizon: steps in a round (T); the theorem's if left out.
        rounds: restarts of the learner (K).
        first_batch: records of a gradient (B1).
        diff_batch: records of a difference (B2).
    """

    name: ClassVar[str] = "paper"
    radius: float
    lipschitz: float | None = None
    gap: float | None = None
    bounds: Bounds = Bounds()
    learner: Learner | None = None
    oracle: Oracle = "variance-reduced"
    horizon: int | None = None
    rounds: int | None = None
    first_batch: int | None = None
    diff_batch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lipschitz is None:
            self.bounds.require_finite(needs_diff=False)

    def require_tolerance(self, tolerance: float) -> None:
        """Raise unless the theorem chooses horizon and rounds."""
        check_tolerance(tolerance, self.lipschitz, self.gap)
        if self.rounds is not None or self.horizon is not None:
            raise InvalidArgument(
                "a tolerance leaves horizon and rounds to the planner: do not fix them."
            )

    def plan(self, problem: Problem) -> Plan:
        """The paper's plan; refused where the theorem promises nothing."""
        made, theorem = self.trial(problem), self._theorem(problem)
        fixed = self.horizon is not None or self.rounds is not None
        if theorem is None or fixed or not made.vacuous:
            return made
        batch = made.first_batch if self._naive else made.diff_batch
        order = theorem.order_bound(made.horizon, batch, naive=self._naive)
        if order > theorem.lipschitz:
            raise VacuousPlan(
                f"the theorem promises nothing here: with {problem.records} records in dimension "
                f"{problem.dim} at mu = {problem.privacy.mu:g} its bound is {order:.3g} with every "
                f"constant set to 1, and {made.tolerance:.3g} with its real constants, where L = "
                f"{theorem.lipschitz:g} is known beforehand. Bring more records, a larger radius or a "
                "larger budget (plan with a tolerance to see how many records it takes), or fix "
                "horizon to run all the same: the privacy guarantee does not depend on the bound."
            )
        return made

    def trial(self, problem: Problem) -> Plan:
        """Theorem thm:convergence: B1 = T + 1, B2 = 1, D = delta / T, T the larger balancing value.

        Batches that are fixed enter the balance. The naive oracle gets the batch that its rate needs.
        """
        records, naive = problem.records, self._naive
        first, diff_batch = self.first_batch, self.diff_batch or 1
        if naive and first is None:
            fits = records // ((self.horizon or 1) * (self.rounds or 1))
            first = max(1, min(naive_batch(problem.dim, problem.privacy.mu), fits))
        horizon = self.horizon or self._horizon(problem, first, diff_batch)
        # cor:privacy asks for B1 >= T B2 / 2; the theorem's T + 1 is this at B2 = 1.
        first_batch = first or horizon * diff_batch + 1
        round_size = first_batch * horizon if naive else first_batch + diff_batch * (horizon - 1)
        if round_size > records:
            raise InvalidArgument(
                f"one round of horizon {horizon} needs {round_size} records (first_batch {first_batch}"
                + (")" if naive else f", diff_batch {diff_batch})")
                + f", got {records}: use a shorter horizon, smaller batches or more records."
            )
        rounds = self.rounds or max(1, min(records // round_size, MOST_RELEASES // horizon))
        if rounds * round_size > records:
            raise InvalidArgument(
                f"{rounds} rounds of {round_size} records need {rounds * round_size} records, got "
                f"{records}: method paper goes through them once. Use fewer rounds, a shorter "
                "horizon, smaller batches or more records."
            )
        made = Plan(
            estimate=Values(1 if naive else problem.dim, self.radius / 2, "sphere", "record"),
            mechanism="independent" if naive else "tree",
            horizon=horizon,
            period=1 if naive else horizon,
            rounds=rounds,
            first_batch=first_batch,
            diff_batch=diff_batch,
            reach=self.radius / 2 / horizon,
            by_corollary=True,
            **given(self, problem),
        )
        return finished(made, self._notes(problem))

    @property
    def _naive(self) -> bool:
        return self.oracle == "naive"

    def _theorem(self, problem: Problem) -> Theorem | None:
        """The problem as the theorem sees it, with smoothing radius / 2; None without L or the gap."""
        if self.lipschitz is None or self.gap is None:
            return None
        sizes = (problem.dim, problem.records)
        return Theorem(*sizes, self.lipschitz, self.gap, self.radius / 2, problem.privacy.mu)

    def _horizon(self, problem: Problem, first: int | None, diff_batch: int) -> int:
        """The larger of the balancing horizons (erratum 2), as far as one round fits the records."""
        size = problem.records // (self.rounds or 1)
        if self._naive:
            longest = size // (first or 1)
        elif first is None:  # it is the theorem's T B2 + 1
            longest = (size - 1 + diff_batch) // (2 * diff_batch)
        else:
            longest = 1 + (size - first) // diff_batch
        if self.rounds is not None:
            return max(1, longest)
        batch = (first or 1) if self._naive else diff_batch
        theorem = self._theorem(problem)
        if theorem is None:
            raise InvalidArgument(
                "the theorem chooses the horizon from lipschitz and gap: give both, or fix horizon."
            )
        wanted = max(theorem.balancing_horizons(batch, naive=self._naive))
        if first is not None and not self._naive:  # cor:privacy: what B1 costs falls no more
            wanted = min(wanted, 2 * first / diff_batch)
        return max(1, min(math.ceil(wanted), longest))

    def _notes(self, problem: Problem) -> tuple[str, ...]:
        """What the theorem says beside the numbers."""
        notes = (
            f"Runs with smoothing {self.radius / 2:g} and certifies radius {self.radius:g}: "
            "a run at delta certifies 2 delta.",
        )
        theorem = self._theorem(problem)
        if theorem is None or self._naive:
            return notes
        free = theorem.free_mu()
        verb = "is" if problem.privacy.mu >= free else "would be"
        return (
            *notes,
            f"Privacy {verb} free, to the order of the theorem, from mu >= {free:.4g}.",
        )


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
