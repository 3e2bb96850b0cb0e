"""What a window shows beside its gradient: bounded, each person's own, and read back from a release."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.estimate import watching
from blindstep.estimate.watching import BESIDE, NOW_FIRST, START_FIRST, Watching
from blindstep.private.gate import Contributions

CLIP, WEIGHT = 3.0, 0.25


def vectors(answers, roles, slopes):
    """The vectors of these people, whose slopes are made by somebody else."""
    with jax.enable_x64(True):
        number = jnp.arange(len(answers))
        made = Watching(number, jnp.asarray(roles), CLIP, WEIGHT)
        given = Contributions(
            len(answers), lambda _, at: jnp.asarray(slopes)[at], answers=len(answers)
        )
        asked = jnp.asarray(answers, float)[:, :, None]
        return np.asarray(made.beside(given, asked).of(number, number))


def test_no_vector_is_longer_than_the_plan_says():
    chance = np.random.default_rng(0)
    answers = np.concatenate(
        [chance.random((300, 2)), np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 25)]
    )
    roles = chance.integers(0, 3, len(answers))
    found = np.linalg.norm(
        vectors(answers, roles, 50 * chance.normal(size=(len(answers), 4))), axis=1
    )
    longest = CLIP * np.sqrt(1 + 2 * WEIGHT**2)
    assert np.all(found <= longest * (1 + 1e-12))
    for role in (BESIDE, START_FIRST, NOW_FIRST):
        assert found[roles == role].max() > 0.99 * longest  # and no shorter: what is paid is used


@pytest.mark.parametrize("role", [BESIDE, START_FIRST, NOW_FIRST])
def test_an_answer_that_is_missing_makes_the_vector_none(role):
    found = vectors([[np.nan, 1.0], [0.0, np.nan], [np.nan, np.nan]], [role] * 3, np.ones((3, 2)))
    assert np.isnan(found).any(axis=1).all()


def test_what_people_said_is_read_back_from_a_release():
    """80 of 100 came; 20 of these saw start and now, in either order, and liked now more."""
    answers = [[0.0, 1.0]] * 30 + [[0.0, 0.0]] * 30  # a quarter of what is beside is disliked
    answers += [[0.2, 0.6]] * 10 + [[0.6, 0.2]] * 10
    roles = [BESIDE] * 60 + [NOW_FIRST] * 10 + [START_FIRST] * 10
    release = vectors(answers, roles, np.zeros((80, 4))).sum(axis=0) / 100
    found = watching.read(release[None], 0.01, CLIP, WEIGHT, control=0.25)
    assert found.came.value == pytest.approx(0.8)
    assert found.shown.value == pytest.approx(0.25)
    assert found.now.value == pytest.approx(0.2)
    assert found.start.value == pytest.approx(0.6)
    assert found.worse.value == pytest.approx(-0.4 * 0.2)  # for each who was planned
    few = watching.read(release[None] / 5, 0.01, CLIP, WEIGHT, control=0.25)
    assert (few.shown, few.now, few.start) == (None, None, None)


def test_noise_on_what_is_read_is_as_large_as_it_is_said_to_be():
    chance = np.random.default_rng(1)
    answers = np.tile([[0.0, 1.0], [0.4, 0.6]], (50, 1))
    roles = np.array([BESIDE, NOW_FIRST] * 50)
    truth = vectors(answers, roles, np.zeros((100, 4))).sum(axis=0) / 100
    noisy = truth + 0.02 * chance.normal(size=(2000, truth.size))
    read = [watching.read(each[None], 0.02, CLIP, WEIGHT, control=0.5) for each in noisy]
    for name in ("came", "shown", "now", "worse"):
        values = np.array([getattr(each, name) for each in read])
        told = np.sqrt(np.mean(values[:, 1] ** 2))
        assert values[:, 0].std() == pytest.approx(told, rel=0.15), name
    several = watching.read(noisy[:100], 0.02, CLIP, WEIGHT, control=0.5)
    assert several.came.std == pytest.approx(read[0].came.std / 10)
