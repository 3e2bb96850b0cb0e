"""The oracle: schedule of disjoint records, exact privacy, noise as the twin's."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from blindstep import HorizonExceeded, InvalidArgument, Lipschitz
from blindstep.trusted import accounting
from blindstep.trusted.arithmetic import Lattice
from blindstep.trusted.directions import Sphere
from blindstep.trusted.estimators import Estimator
from blindstep.trusted.oracle import Oracle
from blindstep.trusted.prefix import BinaryTree, Independent
from blindstep.trusted.randomness import fresh_keys
from blindstep.trusted.schedule import Schedule


def make(period=4, dim=1, noise_std=None, rho=1.0, first=3, diff=2, passes=1, mechanism=None):
    smoothing = 0.5
    estimator = Estimator(dim, dim, Sphere(), smoothing, smoothing / period, Lipschitz(1.0))
    per_pass = 1000 // (first + diff * (period - 1))
    schedule = Schedule(1000, first, diff, period, blocks=passes * per_pass)
    oracle = Oracle(estimator, mechanism or BinaryTree(period), schedule, 1.0)
    if noise_std is None:
        worst = np.max(np.asarray(oracle.sensitivities()) * oracle.mechanism.column_norms())
        noise_std = accounting.noise_std_for(rho, float(worst) * np.sqrt(passes))
    return eqx.tree_at(lambda o: o.noise_std, oracle, float(noise_std))


sizes = st.integers(1, 12)


@settings(max_examples=100, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 6), st.integers(0, 30), st.integers(1, 20))
def test_no_record_takes_part_twice_in_a_pass(first, diff, period, fit, spare, blocks):
    records = fit * (first + diff * (period - 1)) + spare
    schedule = Schedule(records, first, diff, period, blocks)
    orders = [schedule.order(jax.random.key(first), p) for p in range(schedule.passes)]
    taken = np.zeros((schedule.passes, records), int)
    for block in range(blocks):
        pass_index = block // schedule.blocks_per_pass
        assert sorted(orders[pass_index]) == list(range(records))
        grad, diffs = schedule.split(schedule.rows(orders[pass_index], block))
        assert grad.shape == (first,)
        assert diffs.shape == (period - 1, diff)
        np.add.at(taken[pass_index], np.concatenate([grad, diffs.ravel()]), 1)
    assert taken.max() == 1
    assert taken.sum(axis=0).max() <= schedule.passes


def test_orders_differ_between_passes_and_are_public_functions_of_the_key():
    schedule = Schedule(50, 5, 1, 2, 3)
    one, two = (schedule.order(jax.random.key(0), p) for p in (0, 1))
    assert np.any(one != two)
    np.testing.assert_array_equal(one, schedule.order(jax.random.key(0), 0))


def test_too_few_records_are_an_error_with_numbers():
    with pytest.raises(InvalidArgument, match=r"block of 9 records .* does not fit into 8 records"):
        Schedule(8, 3, 2, 4, 1)
    schedule = Schedule(18, 3, 2, 4, 3)
    assert schedule.passes == 2
    with pytest.raises(InvalidArgument, match="block 3"):
        schedule.rows(np.arange(18), 3)


@pytest.mark.parametrize("period", range(1, 65))
def test_mu_is_the_brute_force_one(period):
    oracle = make(period, noise_std=0.37)
    _, strategy = reference.tree_matrices(period)
    expected = reference.block_mu(np.asarray(oracle.sensitivities()), strategy, 0.37)
    assert oracle.mu() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("period", [1, 2, 4])
def test_small_horizons_get_noise(period):
    oracle = make(period)
    assert oracle.noise_std > 0
    assert oracle.mu() == pytest.approx(1.0)


def test_passes_compose():
    assert make(passes=4, noise_std=1.0).mu() == pytest.approx(2 * make(noise_std=1.0).mu())


def test_release_is_running_sum_plus_tree_noise():
    oracle, key = make(5, dim=2), fresh_keys(0).noise
    increments = np.random.default_rng(0).normal(size=(5, 2))
    from blindstep.trusted.randomness import gaussian

    xi = np.stack([oracle.noise_std * gaussian(key, 9, t, 2) for t in range(1, 6)])
    state = oracle.init()
    for t in range(1, 6):
        state, released = oracle.release(state, jnp.asarray(increments[t - 1]), 9, t, key)
        expected = increments[:t].sum(0) + reference.tree(t, xi)
        np.testing.assert_allclose(released, expected, atol=1e-12)


@pytest.mark.parametrize("secure", [False, True])
def test_noise_drawn_ahead_is_the_noise_of_each_release(secure):
    """Over the end of a block, with the same releases bit for bit."""
    oracle, key = make(3, dim=5), fresh_keys(0).noise
    if secure:
        oracle = dataclasses.replace(oracle, arithmetic=Lattice())
    stock = oracle.noise_ahead(jnp.asarray(7), jnp.asarray(2), 6, key)
    state, ahead, release = oracle.init(), oracle.init(), eqx.filter_jit(oracle.release)
    for block, step in jnp.asarray([(7, 2), (7, 3), (8, 1), (8, 2), (8, 3), (9, 1)]):
        state, released = release(state, jnp.ones(5), block, step, key)
        ahead, same = release(ahead, jnp.ones(5), block, step, stock)
        np.testing.assert_array_equal(released, same)
    assert len(np.unique(stock.draws)) == stock.draws.size


def test_a_stock_gives_no_draw_that_it_does_not_hold():
    oracle, key = make(3, dim=2), fresh_keys(0).noise
    stock = oracle.noise_ahead(jnp.asarray(1), jnp.asarray(2), 2, key)
    for block, step in ((1, 1), (2, 1), (0, 2), (2, 2)):
        assert np.isnan(oracle.release(oracle.init(), jnp.ones(2), block, step, stock)[1]).all()
    assert np.isfinite(oracle.release(oracle.init(), jnp.ones(2), 1, 3, stock)[1]).all()


def test_a_new_block_forgets_the_last_one():
    oracle, key = make(2, dim=2), fresh_keys(0).noise
    dirty, _ = oracle.release(oracle.init(), jnp.ones(2) * 1e9, 0, 1, key)
    clean = oracle.release(oracle.init(), jnp.ones(2), 1, 1, key)[1]
    np.testing.assert_array_equal(oracle.release(dirty, jnp.ones(2), 1, 1, key)[1], clean)


def test_past_the_horizon_is_an_error_and_a_nan_when_compiled():
    oracle, key = make(3), fresh_keys(0).noise
    for step in (0, 4):
        with pytest.raises(HorizonExceeded, match="calibrated for 3"):
            oracle.release(oracle.init(), jnp.ones(1), 0, step, key)
    compiled = jax.jit(lambda s: oracle.release(oracle.init(), jnp.ones(1), 0, s, key)[1])
    assert np.isnan(compiled(4)).all()
    assert np.isfinite(compiled(3)).all()


def test_oracle_refuses_what_is_not_private():
    oracle = make(3)
    with pytest.raises(InvalidArgument, match="noise_std"):
        Oracle(oracle.estimator, oracle.mechanism, oracle.schedule, 0.0)
    with pytest.raises(InvalidArgument, match="releases"):
        Oracle(oracle.estimator, BinaryTree(4), oracle.schedule, 1.0)
    nothing = dataclasses.replace(oracle.estimator.bounds, lipschitz=float("inf"))
    with pytest.raises(InvalidArgument, match="nothing bounds"):
        dataclasses.replace(oracle.estimator, bounds=nothing)


def test_the_naive_oracle_is_blocks_of_one():
    oracle = make(1, mechanism=Independent(1), first=5)
    assert oracle.mu() == pytest.approx(oracle.sensitivities()[0] / oracle.noise_std)
