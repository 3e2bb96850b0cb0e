"""The votes of `benchmarks.utility`: 20 weights of a recommender, 200,000 people, two votes each.

The people are those of the demo (`examples/demo/votes.py`). A score is 100 times the satisfaction
of 50,000 others. A trial asks a crowd of another taste than the runs that count.

Nobody can differentiate a person, but the recommender is ours. First order is therefore the *policy
gradient*: the item is drawn with probability softmax(<w, items>), and

    v_i = mean over the two votes of (vote down - 1/2) (item shown - sum_k p_k item_k)

is an unbiased estimate of the gradient of the chance of a vote down. DP-AggZO needs two votes for each
of its K directions: with two votes in all it is DPZero, and is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from examples.demo import votes
from jaxtyping import Float

import blindstep as bs
from benchmarks.baselines import clipped_sum, disjoint_noise
from benchmarks.utility_methods import (
    BLINDSTEP,
    FIRST_ORDER,
    FREE,
    ONE_DIRECTION,
    Contest,
    Entrant,
    Path,
    Scored,
    places,
)
from benchmarks.utility_problems import Units

NAME = "votes"
DELTA = 1e-7
_VOTES = 2


@dataclass(frozen=True)
class VoteSetting:
    """Hyper-parameters of a baseline on votes.

    Attributes:
        batches: everybody is in one of them: one pass.
        rate: initial step size; it falls linearly to 0.
        clip: C; infinite without privacy.
        smoothing: h, in units of a direction of length sqrt(d); 0 for the policy gradient.
    """

    batches: int
    rate: float
    clip: float
    smoothing: float = 0.0


def policy_gradients(
    weights: Float[np.ndarray, " dim"],
    taste: Float[np.ndarray, " dim"],
    people: int,
    chance: np.random.Generator,
) -> Float[np.ndarray, "people dim"]:
    """v_i of so many people, each of whom votes twice."""
    shape = (people * _VOTES, votes.ITEMS, votes.WEIGHTS)
    items = chance.standard_normal(shape, np.float32)
    scores = items @ weights.astype(np.float32)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    # The largest score plus Gumbel noise is a draw from the softmax.
    shown = np.argmax(scores + chance.gumbel(size=scores.shape), axis=1)
    item = items[np.arange(len(items)), shown]
    approval = 1.0 / (1.0 + np.exp(-2.0 * item @ taste))
    down = chance.random(len(items)) > approval
    slopes = (down - 0.5)[:, None] * (item - np.einsum("nk,nkd->nd", shares, items))
    return slopes.reshape(people, _VOTES, -1).mean(axis=1)


def noisy_mean(
    values: Float[np.ndarray, "people k"],
    setting: VoteSetting,
    mu: float,
    chance: np.random.Generator,
) -> Float[np.ndarray, " k"]:
    """(sum_i clip_C(v_i) + N(0, sigma^2 I)) / people, for one pass at mu; mu infinite is no noise."""
    people, width = values.shape
    total = np.asarray(clipped_sum(jnp.asarray(values), setting.clip))
    sigma = 0.0 if mu == math.inf else disjoint_noise(mu, setting.clip, passes=1)
    return (total + sigma * chance.standard_normal(width)) / people


def descend(
    setting: VoteSetting, users: int, mu: float, crowd: votes.Crowd, seed: int
) -> Float[np.ndarray, "batches dim"]:
    """Weights after each batch, by policy gradient or, with smoothing, by DPZero."""
    chance = np.random.default_rng([seed, 2])
    weights, size, path = votes.start(), users // setting.batches, []
    for step in range(setting.batches):
        if setting.smoothing:
            direction = chance.standard_normal(len(weights))
            direction *= math.sqrt(len(weights)) / np.linalg.norm(direction)
            who = np.arange(step * size, (step + 1) * size)
            sides = [weights + sign * setting.smoothing * direction for sign in (1.0, -1.0)]
            plus, minus = (crowd.votes_down(np.tile(side, (size, 1)), who) for side in sides)
            values = (plus - minus)[:, None] / (2.0 * setting.smoothing)
            gradient = noisy_mean(values, setting, mu, chance) * direction
        else:
            values = policy_gradients(weights, crowd.taste, size, chance)
            gradient = noisy_mean(values, setting, mu, chance)
        weights = weights - setting.rate * (1.0 - step / setting.batches) * gradient
        path.append(weights)
    return np.stack(path)


def first_order_settings() -> list[VoteSetting]:
    """Few batches or many, two clips, three rates."""
    choices = itertools.product((25, 100), (1.0, 3.0), (3.0, 10.0, 30.0))
    return [VoteSetting(batches, rate, clip) for batches, clip, rate in choices]


def one_direction_settings() -> list[VoteSetting]:
    """A difference is -1, 0 or 1: it is clipped at what it can be."""
    choices = itertools.product((200, 800), (0.25, 1.0), (0.1, 0.5, 2.0))
    return [VoteSetting(batches, rate, 0.5 / h, h) for batches, h, rate in choices]


def free_settings() -> list[VoteSetting]:
    """The policy gradient without clip and noise."""
    choices = itertools.product((25, 100, 400), (1.0, 3.0, 10.0, 30.0))
    return [VoteSetting(batches, rate, math.inf) for batches, rate in choices]


def ask_everybody(
    plan: bs.Plan, crowd: votes.Crowd, parameters: float = 1.0
) -> Float[np.ndarray, "rounds dim"]:
    """Means of the rounds of a run through ask and tell, the answer last, in other units."""
    opt = bs.Optimizer(plan, votes.start() / parameters)
    while not opt.done:
        query = opt.ask()
        opt.tell(query, crowd.votes_down(parameters * np.asarray(query.points), query.record))
    result = opt.result()
    return parameters * np.stack([*result.means[:-1], np.asarray(result.params)])


Walk = Callable[[Any, bs.Privacy | None, int, votes.Crowd], Float[np.ndarray, "points dim"]]


def contest(users: int = votes.USERS, units: Units | None = None) -> Contest:
    """All methods on the votes.

    Of other units only those of the parameters apply: a vote is 0 or 1, and a person has no features.
    """
    parameters = (units or Units()).parameters

    def entrant(settings: Sequence[Any], walk: Walk, private: bool = True) -> Entrant:
        def points(setting: Any, privacy: bs.Privacy | None, seed: int, trial: bool) -> Scored:
            crowd = votes.Crowd(seed)
            found = walk(setting, privacy, seed, crowd)[-1]
            return Scored(100.0 * crowd.satisfaction(found), _VOTES)

        def path(setting: Any, privacy: bs.Privacy | None, seed: int) -> Path:
            crowd = votes.Crowd(seed)
            found = walk(setting, privacy, seed, crowd)
            at = places(len(found))
            asked = [0.0, *(_VOTES * (k + 1) / len(found) for k in at)]
            seen = [votes.start(), *(found[k] for k in at)]
            return asked, [100.0 * crowd.satisfaction(weights) for weights in seen]

        return Entrant(settings, points, path, private)

    def asked(_: Any, privacy: bs.Privacy | None, seed: int, crowd: votes.Crowd) -> Any:
        assert privacy is not None
        return ask_everybody(votes.plan_votes(users, privacy), crowd, parameters)

    def descent(
        setting: VoteSetting, privacy: bs.Privacy | None, seed: int, crowd: votes.Crowd
    ) -> Any:
        mu = math.inf if privacy is None else privacy.mu
        return descend(setting, users, mu, crowd, seed)

    entrants = {
        BLINDSTEP: entrant([None], asked),
        ONE_DIRECTION: entrant(one_direction_settings(), descent),
        FIRST_ORDER: entrant(first_order_settings(), descent),
        FREE: entrant(free_settings(), descent, private=False),
    }
    return Contest(NAME, users, votes.WEIGHTS, DELTA, _VOTES, entrants)
