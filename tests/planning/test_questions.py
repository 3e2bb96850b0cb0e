"""Plans for questions to people: nothing to choose but how many people, parameters and questions."""

import numpy as np
import pytest

import blindstep as bs
from plans import plan_of

BUDGET = bs.Privacy(epsilon=1, delta=1e-6)


def test_everybody_is_asked_once_along_a_direction_of_their_own():
    plan = bs.plan(bs.Questions(questions=2), dim=6, records=1_000, privacy=BUDGET)
    assert (plan.sharing, plan.directions, plan.passes, plan.calibrations) == ("record", 1, 1, 0)
    assert plan.evaluations <= 2 * 1_000
    assert plan.mu == pytest.approx(BUDGET.mu)
    assert bs.Plan.from_json(plan.to_json()) == plan


def test_the_range_of_an_answer_changes_its_unit_and_nothing_else():
    votes = bs.plan(bs.Questions(questions=2), dim=6, records=1_000, privacy=BUDGET)
    stars = bs.plan(bs.Questions(questions=2, range=(1, 5)), dim=6, records=1_000, privacy=BUDGET)
    assert stars.noise_std == pytest.approx(4.0 * votes.noise_std)
    assert (stars.reach, stars.smoothing) == (votes.reach, votes.smoothing)


def test_steps_of_a_given_size_reach_as_far_in_all():
    usual = bs.plan(bs.Questions(questions=2), dim=6, records=1_000, privacy=BUDGET)
    small = bs.plan(bs.Questions(questions=2, first_batch=30), dim=6, records=1_000, privacy=BUDGET)
    assert (small.first_batch, small.rounds, usual.rounds) == (30, 33, 16)
    assert small.reach * small.rounds == pytest.approx(usual.reach * usual.rounds)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"questions": 3}, "pairs"),
        ({"questions": 14}, "nothing more"),
        ({"questions": 2, "range": (1.0, 1.0)}, "range needs low < high"),
        ({"questions": 2, "horizon": 3}, "has no argument 'horizon'"),
        ({"questions": 2, "first_batch": 1_001}, "only 1000 people"),
    ],
)
def test_what_cannot_be_asked_is_refused(given, word):
    with pytest.raises(bs.errors.InvalidArgument, match=word):
        plan_of(method="questions", dim=6, records=1_000, privacy=BUDGET, **given)


def test_votes_find_a_taste():
    random = np.random.default_rng(0)
    taste = random.normal(size=4)
    taste /= np.linalg.norm(taste)
    plan = bs.plan(bs.Questions(questions=2), dim=4, records=16_000, privacy=BUDGET)
    opt = bs.Optimizer(plan, np.zeros(4), seed=1)
    while not opt.done:
        query = opt.ask()
        likes = 1.0 / (1.0 + np.exp(-2.0 * np.asarray(query.points) @ taste))
        opt.tell(query, (random.random(likes.shape) > likes).astype(float))
    found = np.asarray(opt.result().params)
    assert found @ taste / np.linalg.norm(found) > 0.9  # at chance: 0.9 once in 400 tries
