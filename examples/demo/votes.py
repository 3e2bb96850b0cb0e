"""Votes: the 20 weights of a recommender, tuned from two votes of each user.

Nobody can differentiate a person. What there is, is a vote, up or down, on what the ranking showed.
Each user gets two rankings, on either side of the weights that are tried, and votes on each: two
votes in a lifetime, and nobody learns from the weights how anyone voted.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from blindstep.ledger.budget import Privacy
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan
from blindstep.planning.questions import Questions
from blindstep.run.ask_tell import Optimizer
from blindstep.run.progress import RunProgress
from blindstep.run.result import Result

from .story import NO_PRIVACY, Row, Say, Story, rows_of

WEIGHTS, ITEMS = 20, 10
USERS = 200_000
EPSILONS = (0.3, 1.0)
_DELTA = 1e-7  # below 0.1 / users


class Crowd:
    """Simulated users with a common hidden taste.

    Each sees the best of 10 random items, as ranked by the weights they were given, and votes up
    with probability sigmoid(2 utility), where utility is the item's product with the taste.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = np.random.default_rng(seed)
        taste = self._chance.normal(size=WEIGHTS)
        self.taste = taste / np.linalg.norm(taste)

    def votes_down(
        self, weights: Float[np.ndarray, "n dim"], users: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """What is minimised: 1 for a vote down, 0 for a vote up, by these users on these weights."""
        assert len(users) == len(weights)
        approval = self._approval(weights, self._chance)
        return (self._chance.random(len(weights)) > approval).astype(float)

    def satisfaction(self, weights: Float[np.ndarray, " dim"], people: int = 50_000) -> float:
        """Mean approval among other simulated people, the same ones each time: it costs nothing."""
        others = np.random.default_rng([self._seed, people])
        return float(np.mean(self._approval(np.tile(weights, (people, 1)), others)))

    def _approval(
        self, weights: Float[np.ndarray, "n dim"], chance: np.random.Generator
    ) -> Float[np.ndarray, " n"]:
        """The probability of a vote up, for one user at each row of weights, on fresh items."""
        items = chance.normal(size=(len(weights), ITEMS, WEIGHTS))
        shown = np.argmax(np.einsum("nkd,nd->nk", items, weights), axis=1)
        utility = items[np.arange(len(weights)), shown] @ self.taste
        return 1.0 / (1.0 + np.exp(-2.0 * utility))


def start() -> Float[np.ndarray, " dim"]:
    """Weights that know nothing of the taste."""
    return 0.5 * np.random.default_rng(1).normal(size=WEIGHTS)


def plan_votes(users: int, privacy: Privacy) -> Plan:
    """Two votes of each user, each of them 0 or 1: the planner chooses everything else."""
    return plan(Questions(questions=2), records=users, dim=WEIGHTS, privacy=privacy)


def ask_everybody(plan: Plan, crowd: Crowd, progress: bool) -> Result:
    """The whole run through ask and tell: weights go out, votes come back."""
    opt = Optimizer(plan, start())
    with RunProgress(plan, show=progress) as bar:
        opt.shown_by(bar)
        while not opt.done:
            query = opt.ask()
            opt.tell(query, crowd.votes_down(query.points, query.record))
    return opt.result()


def tell(say: Say | None = None, users: int | None = None) -> Story:
    """Run the story: before, each epsilon, without privacy, and the best there is."""
    users = USERS if users is None else users
    crowd = Crowd(seed=0)

    def tuned(privacy: Privacy) -> tuple[float, Result]:
        result = ask_everybody(plan_votes(users, privacy), crowd, progress=say is not None)
        return crowd.satisfaction(result.params), result

    budgets = (Privacy(epsilon=epsilon, delta=_DELTA) for epsilon in (*EPSILONS, NO_PRIVACY))
    rows = [Row("before", crowd.satisfaction(start())), *rows_of("Votes", say, budgets, tuned)]
    rows.append(Row("best possible", crowd.satisfaction(crowd.taste)))
    return Story(
        f"Votes: {WEIGHTS} weights of a recommender, from two votes of each of {users:,} users",
        "satisfaction",
        "Satisfaction: share of votes up among 50,000 other simulated people. No privacy: the same "
        f"run with little noise (epsilon {NO_PRIVACY:g}). Best possible: the hidden taste itself.",
        tuple(rows),
    )
