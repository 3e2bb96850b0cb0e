"""The map of slopes: it learns how they change, and steps heed it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.optimize.learners import Heeding, Pace
from blindstep.optimize.machine import FlatSpace
from blindstep.optimize.surveying import Surveying

SPACE = FlatSpace()


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def walked(learner, slope, start, noise=0.0, value=None, steps=64, reach=1.6, seed=0):
    """The points of a run on these slopes, with noise on each."""
    dim, chance = len(start), np.random.default_rng(seed)
    pace = Pace(reach, steps, noise=noise, value_noise=1e-3 if value else np.inf)
    path, state, points = SPACE.begin(jnp.asarray(start, float)), learner.begin(dim, pace), []

    @jax.jit
    def tell(path, state, gradient, seen_value):
        state, turned = learner.turn(state, gradient, seen_value, pace)
        seen = SPACE.see(path, turned)
        seen.value = seen_value
        choice = learner.update(state, seen, pace)
        return SPACE.advance(path, turned, choice, 1.0), choice.state

    for _ in range(steps):
        point = np.asarray(path.point)
        points.append(point)
        gradient = np.asarray(slope(point)) + noise * chance.standard_normal(dim)
        worth = jnp.asarray(value(point) if value else np.nan)
        path, state = tell(path, state, jnp.asarray(gradient), worth)
    return np.array(points)


STEEP = np.geomspace(1.0, 1e-3, 4)
TURN = np.linalg.qr(np.random.default_rng(3).standard_normal((4, 4)))[0]
BEND = TURN @ np.diag(STEEP) @ TURN.T
PLACE = np.array([1.0, -2.0, 0.5, 1.5])


def loss_left(points):
    """Of the loss at the first point, the share that is left at the last."""
    away = points[[0, -1]] - PLACE
    first, last = np.einsum("ij,jk,ik->i", away, BEND, away)
    return last / first


def test_a_narrow_valley_is_followed_to_its_end():
    start = PLACE + TURN @ np.array([1.0, 3.0, 10.0, 30.0])
    left = loss_left(walked(Surveying(), lambda x: BEND @ (x - PLACE), start))
    assert left < 1e-9
    plain = loss_left(walked(Heeding(), lambda x: BEND @ (x - PLACE), start))
    assert plain > 0.1  # steps against the gradient do not get that far


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_averaged_near_the_answer(seed):
    def slope(x):
        return 0.5 * (x - PLACE)

    noise = 0.1
    points = walked(Surveying(), slope, PLACE + 1.0, noise=noise, seed=seed)
    # A step on one gradient alone would end 0.2 away along each of four axes.
    assert np.linalg.norm(np.mean(points[-4:], axis=0) - PLACE) < 0.25


def test_the_answer_may_be_a_thousand_steps_away():
    points = walked(Surveying(), lambda x: np.tanh(x - 1000.0), np.zeros(1))
    assert abs(points[-1, 0] - 1000.0) < 1.0


def test_a_step_up_is_taken_back():
    # Steep at the start, and beyond a ridge a slope that leads back twice as steeply.
    def slope(x):
        return np.where(x < 0.2, -1.0, 4.0) * np.ones(1)

    points = walked(Surveying(caution=0.0), slope, np.zeros(1))
    assert points[1, 0] > 0.2
    assert 0.0 < points[2, 0] < points[1, 0]
    assert abs(points[-1, 0] - 0.2) < 0.05


def test_a_plateau_is_left_the_way_it_was_entered():
    def value(x):
        return float(np.where(x[0] > 0.9, 1.0, -0.5 * x[0]))

    def slope(x):
        return np.where(x[0] > 0.9, 0.0, -0.5) * np.ones(1)

    points = walked(Surveying(caution=0.0), slope, np.zeros(1), noise=1e-4, value=value)
    assert points[1, 0] > 0.9
    assert points[2, 0] < 0.9
    assert 0.5 < points[-1, 0] < 1.0


def test_first_steps_are_the_shorter_the_clearer_the_slope():
    def first(noise):
        points = walked(Surveying(), lambda x: np.ones(2), np.zeros(2), noise=noise, steps=2)
        return np.linalg.norm(points[1])

    assert first(1e-6) < 0.12
    assert first(1e-6) < 0.5 * first(0.3)


def test_two_drivers_that_see_the_same_releases_stand_at_the_same_point():
    chance = np.random.default_rng(0)
    gradients, learner, pace = chance.standard_normal((6, 3)), Surveying(), Pace(1.0, 6, noise=0.1)
    steps = []
    for tell in (learner.turn, jax.jit(learner.turn, static_argnums=3)):
        state, ways = learner.begin(3, pace), []
        for gradient in gradients:
            state, way = tell(state, jnp.asarray(gradient), jnp.asarray(1.0), pace)
            ways.append(np.asarray(way))
        steps.append(np.array(ways))
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-9, atol=1e-12)
