"""The precision attack: whose last bits give a record away, in plain float64 and on the lattice."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep import Clip
from blindstep.trusted.arithmetic import Float64, Lattice
from blindstep.trusted.directions import Sphere
from blindstep.trusted.discrete_gaussian import LARGEST, STD
from blindstep.trusted.estimators import Estimator
from blindstep.trusted.oracle import Oracle
from blindstep.trusted.prefix import BinaryTree, Independent
from blindstep.trusted.randomness import fresh_keys
from blindstep.trusted.schedule import Schedule

DIM, BLOCKS = 500, 60


def make(arithmetic, period=1, noise_std=1.0):
    estimator = Estimator(DIM, 1, Sphere(), 0.5, 0.5 / period, Clip(10.0, 5.0))
    mechanism = Independent(1) if period == 1 else BinaryTree(period)
    return Oracle(estimator, mechanism, Schedule(10**6, 4, 2, period, 10), noise_std, arithmetic)


@eqx.filter_jit
def _releases(oracle, increments, key):
    def one(block):
        state, released = oracle.init(), None
        for step in range(1, oracle.schedule.period + 1):
            moved = jnp.broadcast_to(increments[step - 1], (DIM,))
            state, released = oracle.release(state, moved, block, step, key)
        return released

    return jax.vmap(one)(jnp.arange(BLOCKS))


def releases(oracle, increments):
    """The last release of many blocks with these increments."""
    return np.asarray(_releases(oracle, jnp.asarray(increments), fresh_keys(0).noise))


def reachable_in_float64(y, x):
    """Whether any float z has x + z = y: it would be one of the few next to y - x."""
    z = y - x
    for _ in range(3):
        z = np.nextafter(z, -np.inf)
    found = np.zeros(y.shape, bool)
    for _ in range(7):
        found |= x + z == y
        z = np.nextafter(z, np.inf)
    return found


def test_plain_float64_gives_a_quarter_of_all_draws_away():
    y = releases(make(Float64()), [0.0])
    # 1 + z is a multiple of 2^-53 for every float z, rounded or not: anything else came from 0.
    certain = np.mean(np.mod(y * 2.0**53, 1) != 0)
    assert certain == pytest.approx(0.258, abs=0.01)
    # With all floats tried, more: and a release made from 1 is never accused.
    assert np.mean(~reachable_in_float64(y, 1.0)) > 0.4
    assert reachable_in_float64(releases(make(Float64()), [1.0]), 1.0).all()


HOSTILE = [0.0, 1.0, -1.0, 1e-17, 5e-324, 1 / 3, 0.9999999999, -(2.0**-40)]


@pytest.mark.parametrize("period", [1, 3])
def test_on_the_lattice_nothing_is_certain(period):
    oracle = make(Lattice(), period, noise_std=0.7)
    gamma = 0.7 / STD
    for value in HOSTILE:
        y = releases(oracle, [value, value / 2, -value / 4][:period])
        steps = np.rint(y / gamma)
        # Every release is a function of its whole number, and of nothing else ...
        np.testing.assert_array_equal(y, steps * gamma)
        # ... which every other record could have given: the noise reaches 16 standard deviations.
        for other in HOSTILE:
            reach = sum(abs(part) for part in (other, other / 2, other / 4)[:period]) / gamma
            assert np.abs(steps).max() + reach < LARGEST


def test_the_last_bits_of_the_data_do_not_show():
    # Increments that snap to the same whole number give the same release, bit for bit.
    oracle = make(Lattice())
    gamma = 1.0 / STD
    y = [releases(oracle, [x]) for x in (0.0, 0.4 * gamma, -0.4 * gamma, 5e-324)]
    for other in y[1:]:
        np.testing.assert_array_equal(other, y[0])
    assert np.all(releases(oracle, [0.6 * gamma]) != y[0])


def test_sums_are_exact_in_any_order():
    # In float64 (0.1 + 0.2) + 0.3 != 0.1 + (0.2 + 0.3); snapped terms add up to the same number.
    oracle = make(Lattice(), 3)
    one = releases(oracle, [0.1, 0.2, 0.3])
    two = releases(oracle, [0.3, 0.2, 0.1])
    np.testing.assert_array_equal(one, two)
    plain = [releases(make(Float64(), 3), terms) for terms in ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1])]
    assert np.any(plain[0] != plain[1])
