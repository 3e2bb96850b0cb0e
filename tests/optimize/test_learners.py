"""Online learners: their regret, their reach, and the twin's."""

import jax.numpy as jnp
import numpy as np
import pytest

import reference
from blindstep.optimize.learners import AdaptiveStep, ConstantStep


def regret(learner, gradients):
    state, move, total = learner.init(), jnp.zeros(gradients.shape[1]), 0.0
    for g in gradients:
        total += float(g @ move)
        state, move, *_ = learner.update(state, move, jnp.asarray(g))
    best = -learner.reach * np.linalg.norm(gradients.sum(0))
    return total - best


@pytest.mark.parametrize("seed", range(3))
def test_learners_meet_their_regret_bounds(seed):
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(50, 4)) + rng.normal(size=4)
    root = np.sqrt(np.sum(gradients**2))
    reach = 0.3
    assert regret(ConstantStep(reach, reach / root), gradients) <= reach * root
    assert regret(AdaptiveStep(reach), gradients) <= 2 * np.sqrt(2) * reach * root


@pytest.mark.parametrize("reach", [0.5, 50.0])
def test_constant_step_is_the_twins(reach):
    rng = np.random.default_rng(1)
    move, gradient = rng.normal(size=4), rng.normal(size=4)
    ours = ConstantStep(reach, 0.2).update(jnp.zeros(()), jnp.asarray(move), jnp.asarray(gradient))
    np.testing.assert_allclose(ours.move, reference.osd(move, gradient, 0.2, reach), atol=1e-15)
    np.testing.assert_allclose(ours.move_norm, np.linalg.norm(ours.move), rtol=1e-15)
    np.testing.assert_allclose(ours.gradient_norm, np.linalg.norm(gradient), rtol=1e-15)


@pytest.mark.parametrize("learner", [ConstantStep(0.5, 0.2), AdaptiveStep(0.5)])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
def test_moves_reach_no_further_than_they_may(learner, scale):
    state, move = learner.init(), jnp.zeros(7)
    for gradient in scale * np.random.default_rng(2).normal(size=(20, 7)):
        state, move, move_norm, _ = learner.update(state, move, jnp.asarray(gradient))
        norm = np.linalg.norm(move)
        assert norm <= learner.reach * (1 + 1e-14)
        np.testing.assert_allclose(move_norm, norm, rtol=0, atol=1e-14)


def test_a_step_that_takes_back_the_move_ends_at_0():
    move = np.random.default_rng(3).normal(size=9)
    move *= 0.4 / np.linalg.norm(move)
    step = ConstantStep(0.5, 0.2).update(jnp.zeros(()), jnp.asarray(move), jnp.asarray(move / 0.2))
    np.testing.assert_allclose(step.move, 0.0, atol=1e-15)
    np.testing.assert_allclose(step.move_norm, 0.0, atol=1e-15)
