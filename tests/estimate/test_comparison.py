"""Comparisons: a record's vector is short, and the start is left only for what is better."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.estimate.comparison import Comparison, ComparisonQuery, read

QUERY = ComparisonQuery(2)
NONE = jnp.zeros(2)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def compared(values, noise=0.0, seed=0, expected=1.0):
    """What a comparison reads from the values of all records, with this much noise."""
    chance, values = np.random.default_rng(seed), jnp.asarray(values)

    def release(limits):
        mean = np.asarray(QUERY.vector(values, jnp.asarray(limits))).mean(axis=0)
        return mean + noise * chance.standard_normal(QUERY.size)

    first = release(np.zeros(2))
    limits, seen = QUERY.limits(first, max(noise, 1e-6), np.full(2, expected))
    releases = np.stack([first, release(limits), release(limits)])
    return read(QUERY, releases, limits, max(noise, 1e-6), (15, 7), seen)


@pytest.mark.parametrize("limits", [NONE, jnp.asarray([0.5, 2.0]), jnp.asarray([0.0, 2.0])])
@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0, 0.0],
        [1e308, -1e308, 1e308],
        [5e-324, 1e-320, 0.0],
        [1.0, np.nan, 2.0],
        [np.inf, 1.0, np.inf],
        [np.nan, np.nan, np.nan],
        [1.0, -np.inf, np.inf],
    ],
)
def test_a_records_vector_is_never_longer_than_the_clip(values, limits):
    vector = np.asarray(QUERY.vector(jnp.asarray(values), limits))
    assert vector.shape == (QUERY.size,)
    assert np.all(np.isfinite(vector))
    assert np.linalg.norm(vector) <= QUERY.clip * (1 + 1e-12)


def test_a_loss_that_breaks_counts_as_the_largest_rise():
    limits = jnp.asarray([0.5, 2.0])
    vector = QUERY.vector(jnp.asarray([1.0, np.nan, -np.inf]), limits)
    np.testing.assert_array_equal(QUERY.differences(np.asarray(vector)), [3.0, 3.0])
    healed = QUERY.vector(jnp.asarray([np.inf, 1.0, np.inf]), limits)
    np.testing.assert_array_equal(QUERY.differences(np.asarray(healed)), [-1.0, 0.0])


def test_differences_are_found_in_any_units():
    start = np.random.default_rng(1).normal(size=(500, 1))
    change = np.random.default_rng(2).normal(-1.0, 1.0, size=(500, 2))
    for unit in (1e-6, 1.0, 1e6):
        found = compared(unit * np.concatenate([start, start + change], axis=1), expected=unit)
        wanted = change.mean(axis=0)
        np.testing.assert_allclose(found.difference / unit, wanted, atol=0.1)
        assert found.better.all()
        assert found.best is not None


def test_few_large_rises_that_noise_hides_are_no_gain():
    # Noise hides the rises of one record in 20: only limits of the size that slopes led to expect them.
    change = np.where(np.arange(1000) % 20 == 0, 4.0, -0.1)[:, None] * np.ones(2)
    values = np.concatenate([np.zeros((1000, 1)), change], axis=1)
    assert compared(values, noise=0.02, expected=0.01).best == 15
    assert compared(values, noise=0.02, expected=10.0).best is None


@pytest.mark.parametrize("seed", range(5))
def test_few_large_rises_of_many_sizes_are_seen_together(seed):
    # As insurance claims are: no place of the histogram holds more of them than noise may.
    claims = np.random.default_rng(seed).gamma(0.8, 1000.0, 750)
    change = np.concatenate([np.full(4250, -2.7), claims])[:, None] * np.ones(2)
    values = np.concatenate([np.zeros((5000, 1)), change], axis=1)
    found = compared(values, noise=40 / 5000, seed=seed, expected=3.0)
    assert found.seen.all()
    assert found.best is None


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_far_below_what_was_expected_is_found_where_noise_allows(seed):
    values = np.concatenate([np.zeros((1000, 1)), np.full((1000, 2), -0.1)], axis=1)
    found = compared(values, noise=0.02, seed=seed, expected=1.0)
    np.testing.assert_allclose(found.limit, 0.5)
    assert found.best is not None


def test_a_level_loss_is_no_gain_however_large_it_is():
    values = np.full((500, 3), -1000.0)
    assert compared(values).best is None
    assert not compared(values, noise=0.02).seen.any()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_no_better_beyond_noise_leaves_the_start(seed):
    chance = np.random.default_rng(seed)
    change = 0.2 + chance.normal(size=(500, 2))
    values = np.concatenate([np.zeros((500, 1)), change], axis=1)
    found = compared(values, noise=0.02, seed=seed)
    assert found.seen.all()
    assert found.best is None


def test_an_earlier_round_is_taken_only_if_it_is_better_beyond_noise():
    def of(*difference):
        seen = np.full(2, True)
        return Comparison((15, 7), np.array(difference), np.full(2, 0.1), np.ones(2), seen).best

    assert of(-1.0, -1.1) == 15
    assert of(-1.0, -2.0) == 7
    assert of(-0.1, -0.5) == 7
    assert of(-0.1, 0.5) is None


def test_noise_beside_large_differences_does_not_widen_the_limits():
    # One in 8 changes by 4 times as much as the others. A wide sum holds these again, and where most of
    # what it holds ends would be noise: limits were up to 2^7 times as large in one of 25 releases.
    change = np.where(np.arange(800) % 8 == 0, -8.0, -2.0)[:, None] * np.ones(2)
    values = np.concatenate([np.zeros((800, 1)), change], axis=1)
    chance, noise, limits = np.random.default_rng(0), 0.019, []
    mean = np.asarray(QUERY.vector(jnp.asarray(values), NONE)).mean(axis=0)
    for _ in range(1000):
        release = mean + noise * chance.standard_normal(QUERY.size)
        limits += list(QUERY.limits(release, noise, np.full(2, 2.0))[0])
    assert np.mean(np.array(limits) > 16.0) < 0.01


def test_noise_far_from_all_differences_does_not_widen_the_limits():
    # Noise alone is taken for larger differences in fewer than one limit in 400.
    chance = np.random.default_rng(0)
    change = chance.normal(-1.0, 1.0, size=(2000, 2))
    values = np.concatenate([np.zeros((2000, 1)), change], axis=1)
    noise, limits = 0.018, []
    mean = np.asarray(QUERY.vector(jnp.asarray(values), NONE)).mean(axis=0)
    for _ in range(2000):
        release = mean + noise * chance.standard_normal(QUERY.size)
        limits.append(QUERY.limits(release, noise, np.full(2, 0.1))[0])
    assert np.min(limits) >= 1.0
    assert np.mean(np.asarray(limits) > 8.0) <= 2.5e-3
