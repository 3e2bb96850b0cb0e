"""Exact Gaussian-DP against brute force, against dp-accounting, and in the direction of safety."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

import reference
from blindstep import InvalidArgument, Privacy, errors
from blindstep.trusted import accounting
from blindstep.trusted.prefix import BinaryTree

MUS = st.floats(1e-3, 30.0)
DELTAS = st.floats(1e-12, 0.2)


@pytest.mark.parametrize(("rho", "epsilon"), [(1.0, 4.3772), (8.0, 65.32)])
def test_known_values(rho, epsilon):
    assert accounting.epsilon(rho, 1e-5) == pytest.approx(epsilon, abs=1e-2 if rho > 1 else 1e-4)


@given(MUS, DELTAS)
def test_epsilon_is_enough_and_hardly_more(mu, delta):
    epsilon = accounting.epsilon(mu, delta)
    assert reference.gaussian_delta(mu, epsilon) <= delta * (1 + 1e-12)
    if epsilon > 1e-6:
        assert reference.gaussian_delta(mu, epsilon * (1 - 1e-6)) > delta * (1 - 1e-9)


@given(MUS, st.floats(0.0, 50.0))
def test_delta_is_never_below_the_truth(mu, epsilon):
    truth = reference.gaussian_delta(mu, epsilon)
    assert truth <= accounting.delta(mu, epsilon) <= truth * (1 + 1e-8) + 1e-300


@given(st.floats(1e-3, 100.0), DELTAS)
def test_calibration_never_overshoots_and_hardly_undershoots(epsilon, delta):
    mu = accounting.mu_for_epsilon(epsilon, delta)
    assert accounting.epsilon(mu, delta) <= epsilon * (1 + 2e-9)
    assert reference.gaussian_delta(mu, epsilon) <= delta
    assert reference.gaussian_delta(mu * (1 + 1e-6), epsilon) > delta


@given(MUS, DELTAS)
def test_there_and_back(mu, delta):
    epsilon = accounting.epsilon(mu, delta)
    if epsilon > 1e-6:
        assert accounting.mu_for_epsilon(epsilon, delta) == pytest.approx(mu, rel=1e-6)


@given(st.floats(1e-3, 50.0), st.floats(1e-6, 1e6), st.floats(1.0, 5.0))
def test_noise_never_falls_short(mu, sensitivity, column):
    sigma = accounting.noise_std_for(mu, sensitivity * column)
    spent = accounting.block_mu([sensitivity], np.asarray([column]), sigma)
    assert mu * (1 - 1e-14) <= spent <= mu


def test_against_dp_accounting():
    # PLD doubles a Gaussian's sensitivity under REPLACE_ONE, so compare on the pair itself.
    for mu in (0.3, 1.0, 4.0):
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            1 / mu, value_discretization_interval=1e-4
        )
        theirs = pld.get_epsilon_for_delta(1e-5)
        assert accounting.epsilon(mu, 1e-5) == pytest.approx(theirs, rel=2e-3)
        accountant = RdpAccountant(orders=[2.0, 5.0, 20.0])
        accountant.compose(dp_event.GaussianDpEvent(1 / mu))
        for order, rdp in zip(accountant._orders, accountant._rdp, strict=True):
            assert accounting.rdp(mu, order) == pytest.approx(rdp)


@pytest.mark.parametrize("steps", range(1, 65))
def test_block_mu_is_the_brute_force_one(steps):
    rng = np.random.default_rng(steps)
    sensitivities = rng.uniform(0.1, 2.0, steps)
    _, strategy = reference.tree_matrices(steps)
    ours = accounting.block_mu(list(sensitivities), BinaryTree(steps).column_norms(), 0.7)
    assert ours == pytest.approx(reference.block_mu(sensitivities, strategy, 0.7), rel=1e-13)


def test_composition():
    assert accounting.compose([3.0, 4.0]) == 5.0
    assert accounting.compose([]) == 0.0
    assert accounting.zcdp(2.0) == 2.0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True])
def test_bad_budgets_are_refused_with_the_value(bad):
    with pytest.raises(InvalidArgument):
        Privacy(rho=bad)
    with pytest.raises(InvalidArgument):
        Privacy(epsilon=bad, delta=1e-5)
    with pytest.raises(InvalidArgument, match="delta"):
        Privacy(epsilon=1.0, delta=bad)


@pytest.mark.parametrize("bad", ["1", None, 1j, [1.0], np.nan])
def test_numbers_of_the_wrong_kind_are_refused_with_the_value(bad):
    with pytest.raises(InvalidArgument, match="rho must be"):
        errors.positive("rho", bad)
    with pytest.raises(InvalidArgument, match="dim must be"):
        errors.count("dim", bad)


@pytest.mark.parametrize("delta", [1.0, 1.5])
def test_delta_must_be_below_one(delta):
    with pytest.raises(InvalidArgument, match="below 1"):
        Privacy(rho=1.0, delta=delta)


def test_a_budget_is_one_of_the_two():
    with pytest.raises(InvalidArgument, match="either"):
        Privacy()
    with pytest.raises(InvalidArgument, match="either"):
        Privacy(epsilon=1.0, rho=1.0)
    with pytest.raises(InvalidArgument):
        accounting.block_mu([1.0], np.ones(2), 1.0)
    with pytest.raises(InvalidArgument):
        accounting.block_mu([1.0], np.ones(1), 0.0)
    with pytest.raises(InvalidArgument):
        accounting.delta(1.0, -1.0)
