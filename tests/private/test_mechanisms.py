"""Every mechanism through one contract: what C is, what its columns cost, and that B C = A."""

import math
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.optimize.prefix import matrix_of, prefix_of
from blindstep.private.blt_table import TABLE
from blindstep.private.mechanisms import BLT, MECHANISMS, SquareRoot
from matrices import dense, exact_coefficients

HORIZONS = [1, 2, 3, 4, 7, 8, 64]
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
every_horizon = pytest.mark.parametrize("steps", HORIZONS)


@eqx.filter_jit
def stream(mechanism, increments):
    places, start = jnp.arange(mechanism.steps), mechanism.init(increments.shape[1])
    step = lambda state, each: mechanism.next(state, *each)  # noqa: E731
    return jax.lax.scan(step, start, (increments, places))[1]


# -- the contract ----------------------------------------------------------------------------------


@every_horizon
@every_mechanism
def test_the_matrix_its_columns_and_its_prefix_sums(name, steps):
    mechanism, expected = MECHANISMS[name](steps), dense(name, steps)
    matrix = matrix_of(mechanism)
    np.testing.assert_allclose(matrix, expected, rtol=0, atol=3e-12)
    assert np.all(matrix >= 0)
    assert np.all(matrix <= 1)
    np.testing.assert_array_equal(matrix, np.tril(matrix))
    norms, declared = np.linalg.norm(expected, axis=0), mechanism.column_norms()
    assert np.all(declared >= norms * (1 - 1e-15))
    assert np.all(declared <= norms * (1 + 1e-14))
    np.testing.assert_array_equal(mechanism.column_counts(), np.count_nonzero(expected, axis=0))
    running = prefix_of(mechanism).matrix() @ matrix
    np.testing.assert_allclose(running, np.tri(steps), rtol=0, atol=1e-12)


@every_mechanism
def test_streaming_is_the_matrix_compiled_or_not(name):
    mechanism = MECHANISMS[name](7)
    increments = np.random.default_rng(0).normal(size=(7, 3))
    compiled = stream(mechanism, jnp.asarray(increments))
    assert compiled.dtype == jnp.float64
    np.testing.assert_allclose(compiled, dense(name, 7) @ increments, rtol=0, atol=1e-11)
    state, eager = mechanism.init(3), []
    for place, increment in enumerate(jnp.asarray(increments)):
        state, total = mechanism.next(state, increment, jnp.asarray(place))
        assert state.shape == mechanism.init(3).shape
        eager.append(total)
    np.testing.assert_allclose(np.stack(eager), compiled, rtol=0, atol=1e-15)


@every_mechanism
def test_streaming_rounds_no_more_than_it_says(name):
    """Against C m in fractions, for the very floats that are multiplied: r roundings of 2^-53."""
    mechanism = MECHANISMS[name](64)
    increments = (
        np.random.default_rng(1).normal(size=(64, 2)) * 10.0 ** np.linspace(0, -12, 64)[:, None]
    )
    streamed = np.asarray(stream(mechanism, jnp.asarray(increments)))
    if name in ("independent", "tree"):
        matrix = [[Fraction(int(entry)) for entry in row] for row in dense(name, 64)]
    else:
        used = scaling_in_use(mechanism)
        floats = [Fraction(float(c)) for c in mechanism.coefficients()]
        coefficients = floats if name == "sqrt" else exact_coefficients(mechanism)
        matrix = [[coefficients[t - i] / used[i] if i <= t else Fraction(0) for i in range(64)]
                  for t in range(64)]  # fmt: skip
    terms = [[Fraction(float(value)) for value in row] for row in increments]
    for t, row in enumerate(matrix):
        for j in (0, 1):
            parts = [entry * term[j] for entry, term in zip(row, terms, strict=True)]
            off = abs(Fraction(float(streamed[t, j])) - sum(parts))
            assert off <= mechanism.roundings * Fraction(1, 2**53) * sum(map(abs, parts))


@every_mechanism
def test_equal_mechanisms_share_a_program(name):
    make, traces = MECHANISMS[name], []

    @eqx.filter_jit
    def one(mechanism, state, increment, place):
        traces.append(mechanism.steps)
        return mechanism.next(state, increment, place)

    state = make(7).init(2)
    for place in range(7):
        state, _ = one(make(7), state, jnp.ones(2), jnp.asarray(place))
    one(make(8), make(8).init(2), jnp.ones(2), jnp.asarray(1))
    assert traces == [7, 8]
    assert make(40) == make(40) != make(41)
    assert hash(make(40)) == hash(make(40))
    assert jax.tree.leaves(make(40)) == []


@every_mechanism
@pytest.mark.parametrize("steps", [0, -1, True])
def test_a_block_has_at_least_one_release(name, steps):
    with pytest.raises(InvalidArgument, match="steps"):
        MECHANISMS[name](steps)


def test_memory_of_a_block():
    slots = {name: make(1000).init(5).shape for name, make in MECHANISMS.items()}
    assert slots == {"independent": (0, 5), "tree": (10, 5), "sqrt": (1000, 5), "blt": (3, 5)}


# -- columns of norm 1, in exact rational arithmetic on the floats in use --------------------------


def scaling_in_use(mechanism):
    """The n_i that a compiled program divides by, as fractions."""
    places = jnp.arange(mechanism.steps)
    if isinstance(mechanism, BLT):
        found = jax.jit(jax.vmap(mechanism.norm_of_column))(places)
    else:
        found = mechanism.scaling()
    return [Fraction(float(n)) for n in found]


@pytest.mark.parametrize("name", ["sqrt", "blt"])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 70])
def test_no_column_is_longer_than_one(name, steps):
    mechanism = MECHANISMS[name](steps)
    np.testing.assert_array_equal(mechanism.column_norms(), np.ones(steps))
    squares = np.cumsum([c * c for c in exact_coefficients(mechanism)])[::-1]
    if name == "sqrt":  # the floats in use, not the formula
        floats = [Fraction(float(c)) for c in mechanism.coefficients()]
        squares = np.maximum(squares, np.cumsum([c * c for c in floats])[::-1])
    for scaling in (mechanism.scaling(), scaling_in_use(mechanism)):
        for n, square in zip(scaling, squares, strict=True):
            column = square / Fraction(n) ** 2
            assert 1 - Fraction(3e-12) <= column <= 1


@pytest.mark.parametrize("steps", [1000, 10**5, 10**6])
def test_no_column_of_a_long_block_is_longer_than_one(steps):
    mechanism = BLT(steps)
    squares = mechanism.coefficients() ** 2  # each good to a few 1e-16; fsum adds no error
    scaling = mechanism.scaling()
    for place in (0, 1, steps // 2, steps - 100, steps - 2, steps - 1):
        true = math.sqrt(math.fsum(squares[: steps - place]))
        for n in (float(mechanism.norm_of_column(jnp.asarray(place))), scaling[place]):
            assert 0.9e-12 < n / true - 1 < 1.1e-12


def test_no_column_of_a_long_square_root_is_longer_than_one():
    steps = 10**5
    scaling = SquareRoot(steps).scaling()
    k = np.arange(steps - 1, dtype=np.longdouble)
    exact = np.cumprod(np.append(np.longdouble(1), (2 * k + 1) / (2 * k + 2)))
    for place in (0, 1, steps // 2, steps - 2, steps - 1):
        true = math.sqrt(math.fsum(exact[: steps - place].astype(np.float64) ** 2))
        assert 0 < scaling[place] / true - 1 < 2e-10


def test_the_table_of_blt_makes_columns_that_fade():
    """0 < theta < 1 and 0 < omega with sum at most 1: entries of C are in [0, 1] at any horizon."""
    for row in (row for group in TABLE for row in group):
        assert all(time > 1 for time in row.times)
        assert all(omega > 0 for omega in row.scales)
        assert sum(row.scales) <= 1
    last = TABLE[-1][-1].steps
    assert BLT(3 * last).decays == BLT(last).decays  # past the table only accuracy fades
    for steps in (3, 90, 1500, 10**6):  # between rows
        assert all(0 < theta < 1 for theta in BLT(steps).decays)
        assert 0 < sum(BLT(steps).scales) <= 1


# -- figures ---------------------------------------------------------------------------------------


def test_variances_of_running_sums_at_1024():
    """Of the noise on each running sum at mu = 1, increments of sensitivity 1: max and mean."""
    found = {}
    for name, make in MECHANISMS.items():
        norm = make(1024).column_norms().max()
        variances = (norm * prefix_of(make(1024)).row_norms()) ** 2
        found[name] = (round(variances.max(), 2), round(variances.mean(), 2))
    assert found["independent"] == (1024, 512.5)
    assert found["tree"][0] == 110
    assert found["tree"][1] == pytest.approx(55, abs=0.1)
    assert found["sqrt"] == (9.49, 8.95)
    # The design page has 9.51 / 8.97 for three buffers; these three are a little better at both.
    assert len(BLT(1024).decays) == 3
    assert found["blt"] == (9.49, 8.96)
