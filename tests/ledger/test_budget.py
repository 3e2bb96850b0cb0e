"""Budgets: three currencies, the room for secrecy, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindstep.errors import InvalidArgument
from blindstep.ledger.budget import DEFAULT_DELTA, Privacy
from blindstep.private import accounting


def test_a_budget_is_epsilon_and_delta_or_mu_or_zcdp():
    asked = Privacy(epsilon=4.0)
    assert asked.delta == DEFAULT_DELTA == 1e-5
    assert asked.mu == accounting.mu_for_epsilon(4.0, 1e-5)
    assert asked.spends_delta
    assert Privacy(mu=1.0).epsilon == pytest.approx(4.3772, abs=1e-4)
    assert not Privacy(mu=1.0).spends_delta
    # The census's rho = 2.63 is zCDP: epsilon is 12.8 at delta 1e-5; the same number as mu has 13.6.
    census = Privacy(zcdp=2.63, delta=1e-5)
    assert census.mu == accounting.mu_for_zcdp(2.63) == pytest.approx(math.sqrt(5.26), rel=1e-8)
    assert census.mu**2 / 2 <= 2.63
    assert not census.spends_delta
    for wrong in ({}, {"epsilon": 1.0, "mu": 1.0}, {"mu": 1.0, "zcdp": 0.5}):
        with pytest.raises(InvalidArgument, match="give one of epsilon, mu and zcdp"):
            Privacy(**wrong)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True])
def test_bad_budgets_are_refused(bad):
    with pytest.raises(InvalidArgument, match="mu"):
        Privacy(mu=bad)
    with pytest.raises(InvalidArgument, match="zcdp"):
        Privacy(zcdp=bad)
    with pytest.raises(InvalidArgument, match="epsilon"):
        Privacy(epsilon=bad)
    with pytest.raises(InvalidArgument, match="delta"):
        Privacy(epsilon=1.0, delta=bad)


@given(st.floats(0.01, 8.0), st.floats(-9.0, -2.0))
def test_a_budget_has_room_for_the_secrecy_of_its_batches(epsilon, exponent):
    asked = Privacy(epsilon, 10.0**exponent)
    assert asked.room == pytest.approx(1e-3 * asked.delta)
    assert asked.mu_beside_room < asked.mu
    assert accounting.epsilon(asked.mu_beside_room, asked.delta, 1e-50, asked.room) <= epsilon
    by_mu = Privacy(mu=asked.mu, delta=asked.delta)
    assert by_mu.mu_beside_room == by_mu.mu
