"""Losses with randomness of their own: a record's draws are the same at every evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.losses.people import People, by_person, by_person_on_host
from blindstep.losses.streams import with_streams

CENTRE = np.array([1.0, -0.5])
DATA = CENTRE + 0.3 * np.random.default_rng(0).standard_normal((400, 2))
BUDGET = bs.Privacy(epsilon=16, delta=1e-5)
SHORT = bs.Auto(evaluations=2**16)


def noisy(params, record, key):
    """A simulator whose own noise is far larger than what parameters change."""
    return jnp.sum((params - record) ** 2) + 100.0 * jax.random.normal(key)


def on_host(params, record, seed):
    own = np.random.default_rng(seed).normal()
    return float(np.sum((params - record) ** 2) + 100.0 * own)


def never_the_same(params, record):
    return float(np.sum((params - record) ** 2) + 100.0 * np.random.default_rng().normal())


def distance(result):
    return float(np.linalg.norm(np.asarray(result.params) - DATA.mean(axis=0)))


def test_both_points_of_a_pair_see_the_same_draws():
    found = bs.minimize(noisy, jnp.zeros(2), DATA, BUDGET, method=SHORT)
    assert distance(found) < 0.2
    assert found.best_round is not None


def test_a_host_loss_gets_a_seed_for_each_record():
    given = {"method": bs.Auto(evaluations=2**14), "evaluate": bs.Host()}
    assert distance(bs.minimize(on_host, np.zeros(2), DATA, BUDGET, **given)) < 0.2
    # The twin: draws of each evaluation's own hide all that parameters change.
    lost = bs.minimize(never_the_same, np.zeros(2), DATA, BUDGET, **given)
    assert distance(lost) > 0.2


def test_a_host_loss_of_many_records_gets_their_seeds():
    def many(params, records, seeds):
        assert len(seeds) == len(records)
        return np.asarray(seeds, float)

    loss, data = with_streams(
        lambda params, record, seed: many(params, record, seed), DATA, host=True
    )
    np.testing.assert_array_equal(loss(None, data), np.arange(400.0))


@pytest.mark.parametrize("host", [False, True])
def test_streams_of_a_person_do_not_depend_on_the_rows_of_others(host):
    def loss(params, row, seed):
        return seed

    def seeds(rows_of_first):
        whose = np.repeat([0, 1, 2], [rows_of_first, 2, 3])
        rows, people = np.zeros(len(whose)), People(whose, rows=4)
        if host:
            _, (slots, _), _ = by_person_on_host(loss, rows, people, vectorized=False)
            return np.stack([numbers for _, numbers in slots], axis=1)
        _, ((_, numbers), _), _ = by_person(loss, np.zeros(1), rows, people)
        return np.asarray(numbers)

    one, other = seeds(1), seeds(4)
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one)) == one.size


def test_a_value_of_such_a_loss_is_at_the_same_draws():
    budget = bs.Privacy(epsilon=8, delta=1e-5)

    def coin(params, record, key):
        return jax.random.uniform(key) < 0.25

    value = bs.value(coin, jnp.zeros(2), DATA, budget, largest=1.0)
    assert value.mean == pytest.approx(0.25, abs=0.12)


def test_other_third_arguments_are_no_keys():
    def loss(params, record, weight=2.0):
        return weight

    assert with_streams(loss, DATA) == (loss, DATA)
    assert with_streams(max, DATA) == (max, DATA)
