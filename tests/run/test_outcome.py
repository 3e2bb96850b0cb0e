"""How a run went: what is said follows from releases."""

import copy
import pickle

import numpy as np
import pytest

import blindstep as bs
from blindstep.run.outcome import Kind, Outcome, is_coherent, share_of_the_way
from blindstep.run.result import History


def walked(moves):
    """The history and the means of a run with one step in each round."""
    norms = np.linalg.norm(moves, axis=1)[:, None]
    points = np.cumsum(np.concatenate([np.zeros((1, moves.shape[1])), moves[:-1]]), axis=0)
    return History(np.ones_like(norms), norms), points


@pytest.mark.parametrize("dim", [2, 60])
def test_a_path_that_goes_one_way_is_told_from_a_walk_along_noise(dim):
    chance = np.random.default_rng(0)
    drift, coherent, random = np.eye(dim)[0] * np.sqrt(dim) * 0.8, 0, 0
    for _ in range(200):
        noise = chance.normal(size=(64, dim))
        for signal in (drift, 0.0):
            steps = noise + signal
            steps /= np.linalg.norm(steps, axis=1, keepdims=True)
            found = is_coherent(*walked(steps))
            coherent, random = (
                coherent + (found and signal is drift),
                random + (found and signal is not drift),
            )
    assert coherent == 200
    assert random < 4


@pytest.mark.parametrize(
    ("epsilon", "signal", "low", "high"),
    [
        (0.1, 0.0, 0.5, 0.65),  # nothing was heard: a walk along noise
        (0.1, 3.0, 0.9, 1.0),  # all steps led one way, much farther than noise would
        (1.0, 0.0, 0.5, 0.8),
        (1.0, 0.7, 0.9, 1.0),  # clear in all steps together
    ],
)
def test_less_of_the_way_is_gone_where_less_was_heard(epsilon, signal, low, high):
    # A signal of so many standard deviations of the noise on a gradient, at every step.
    plan = bs.plan(bs.Auto(), dim=60, records=4000, privacy=bs.Privacy(epsilon, 1e-5))
    noise = plan.release_std_mean
    chance = np.random.default_rng(0)
    gradients = noise * chance.normal(size=(plan.rounds, plan.horizon, plan.heard))
    gradients[..., 0] += noise * signal * np.sqrt(plan.heard)
    norms = np.linalg.norm(gradients, axis=-1)
    end = np.sum(gradients / norms[..., None], axis=(0, 1))  # by steps of length 1
    share = share_of_the_way(plan, History(norms, np.ones_like(norms)), end)
    assert low <= share <= high


def test_an_outcome_is_its_sentence():
    outcome = Outcome(Kind.SETTLED, "Settled: so it is.")
    assert outcome == "Settled: so it is."
    assert outcome.kind is Kind.SETTLED


def test_an_outcome_can_be_copied_and_pickled():
    outcome = Outcome(Kind.LOST, "Lost in noise.")
    for other in (copy.deepcopy(outcome), pickle.loads(pickle.dumps(outcome))):
        assert (other, other.kind) == (outcome, Kind.LOST)
