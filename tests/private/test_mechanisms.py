"""Every mechanism through one contract: what C is, what its columns cost, and that B C = A."""

import math
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.optimize.prefix import prefix_of
from blindstep.private import mechanisms
from blindstep.private.mechanisms import (
    BLT,
    MECHANISMS,
    TABLE,
    BinaryTree,
    Independent,
    Mechanism,
    SquareRoot,
    check_mechanism,
    matrix_of,
)
from blindstep.private.schedule import Schedule
from blindstep.private.terms import Terms
from matrices import OURS, dense, exact_coefficients

HORIZONS = [1, 2, 3, 4, 7, 8, 64]
every_mechanism = pytest.mark.parametrize("name", OURS)
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
    slots = {name: make(1000).init(5).shape for name, make in OURS.items()}
    assert slots == {"independent": (0, 5), "tree": (10, 5), "sqrt": (1000, 5), "blt": (3, 5)}


# -- what may be relied on, and what is refused ----------------------------------------------------


@every_horizon
@every_mechanism
def test_what_may_be_relied_on_is_what_is_declared_and_what_is_measured(name, steps):
    """For our own, measuring finds what the definitions say; a stranger's copy gets the same."""
    mechanism = MECHANISMS[name](steps)
    relied = check_mechanism(mechanism)
    np.testing.assert_array_equal(relied.norms, mechanism.column_norms())
    np.testing.assert_array_equal(relied.counts, mechanism.column_counts())
    assert np.all(relied.norms >= np.linalg.norm(dense(name, steps), axis=0) * (1 - 1e-15))
    measured = mechanisms._measured(mechanism)
    assert np.all(measured.norms >= relied.norms)
    np.testing.assert_allclose(measured.norms, relied.norms, rtol=4e-13)
    np.testing.assert_array_equal(measured.counts, relied.counts)
    copy = type("Copy", (MECHANISMS[name],), {})(steps)  # a subclass may change anything
    np.testing.assert_array_equal(check_mechanism(copy).norms, measured.norms)


@pytest.mark.parametrize("steps", [5, 100, 999, 30_000, 10**6])
@pytest.mark.parametrize("make", [SquareRoot, BLT])
def test_our_own_columns_are_computed_again_for_every_length(make, steps):
    steps = min(steps, 10**5) if make is SquareRoot else steps
    np.testing.assert_array_equal(check_mechanism(make(steps)).norms, np.ones(steps))


class Window(Mechanism):
    """Half of the sum of the last two increments: what somebody might write."""

    name = "window of a test"
    steps: int = eqx.field(static=True)

    def init(self, size):
        return jnp.zeros((1, size))

    def next(self, state, increment, place):
        return increment[None], 0.5 * (state[0] + increment)

    def column_norms(self):
        return np.sqrt(np.append(np.full(self.steps - 1, 0.5), 0.25))

    def column_counts(self):
        return np.append(np.full(self.steps - 1, 2.0), 1.0)


def changed(**methods):
    return type("Changed", (Window,), methods)(4)


def test_a_mechanism_from_elsewhere_is_measured():
    assert MECHANISMS.find("window of a test") is Window
    relied, own = check_mechanism(Window(6)), Window(6)
    np.testing.assert_allclose(relied.norms, own.column_norms(), rtol=1e-13)
    assert np.all(relied.norms >= own.column_norms())
    np.testing.assert_array_equal(relied.counts, own.column_counts())
    # What it claims too much is its own affair.
    long = changed(column_norms=lambda self: np.ones(4), column_counts=lambda self: np.full(4, 4.0))
    np.testing.assert_array_equal(check_mechanism(long).norms, np.ones(4))
    np.testing.assert_array_equal(check_mechanism(long).counts, np.full(4, 4.0))
    terms = Terms(Schedule(4, 1, 1, 4, 1), Window(4), 3, 1.0, 1.0, 1.0)
    assert terms.mu_per_pass() == pytest.approx(2 * math.sqrt(0.5), rel=1e-4)


BAD = {
    "not as long as it says": {"column_norms": lambda self: np.full(4, 0.5)},
    "not as full as it says": {"column_counts": lambda self: np.ones(4)},
    "columns that are not as long": {"column_norms": lambda self: np.ones(3)},
    "entries between 0 and 1": {"next": lambda self, state, m, place: (state, 1.5 * m)},
    "no lower-triangular": {"next": lambda self, state, m, place: (state, -m)},
    "lower-triangular C": {"next": lambda self, state, m, place: (state, m + 0.1 * m[::-1])},
    "entries between": {"next": lambda self, state, m, place: (state, m / 0.0)},
    "not linear": {"next": lambda self, state, m, place: (state, 0.5 * jnp.sqrt(jnp.abs(m)))},
    "rounds more": {"next": lambda self, state, m, place: (state, 1.0 * m.astype("float32"))},
}


@pytest.mark.parametrize("words", BAD)
def test_a_mechanism_that_would_void_the_guarantee_is_refused(words):
    """The contract for anyone: and terms cannot be made with such a mechanism."""
    bad = changed(**BAD[words])
    with pytest.raises(InvalidArgument, match=words):
        check_mechanism(bad)
    with pytest.raises(InvalidArgument, match=words):
        Terms(Schedule(4, 1, 1, 4, 1), bad, 3, 1.0, 1.0, 1.0)


def test_our_own_columns_are_not_taken_on_trust(monkeypatch):
    """Power twins: scaling that is too small by little more than rounding, coefficients below 0."""
    for make in (SquareRoot, BLT):
        real = make.scaling
        for steps in (1, 9, 1000):
            with monkeypatch.context() as patch:
                patch.setattr(make, "scaling", lambda self, real=real: real(self) * (1 - 2e-12))
                mechanisms._checked.cache_clear()
                with pytest.raises(InvalidArgument, match="columns longer than 1"):
                    check_mechanism(make(steps))
        with monkeypatch.context() as patch:
            patch.setattr(make, "coefficients", lambda self: -np.ones(self.steps))
            mechanisms._checked.cache_clear()
            with pytest.raises(InvalidArgument, match="coefficient that is not between 0 and 1"):
                check_mechanism(make(5))
    mechanisms._checked.cache_clear()


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(InvalidArgument, match="1025 releases in a block, and at most 1024"):
        check_mechanism(Window(1025))

    class Heavy(Window):
        weight: float = 1.0

    with pytest.raises(InvalidArgument, match="field that is not static"):
        check_mechanism(Heavy(4))


def test_a_mechanism_has_its_name_alone():
    assert [MECHANISMS.find(name) for name in MECHANISMS] == list(MECHANISMS.values())
    assert MECHANISMS.find("tree") is BinaryTree
    with pytest.raises(InvalidArgument, match="no mechanism 'fir': there are independent, tree"):
        MECHANISMS.find("fir")
    with pytest.raises(InvalidArgument, match="there is a mechanism 'tree' already"):
        type("Impostor", (Independent,), {"name": "tree"})
    assert MECHANISMS.find("tree") is BinaryTree
    written = {"name": Window.name, "__module__": __name__, "__qualname__": "Window"}
    again = type("Window", (Window,), written)
    assert MECHANISMS.find(Window.name) is again  # a cell of a notebook that is run again
    mechanisms.MECHANISMS[Window.name] = Window


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
        times, scales = np.split(row[1:], 2)
        assert np.all(times > 1)
        assert np.all(scales > 0)
        assert np.sum(scales) <= 1
    last = int(TABLE[-1][-1, 0])
    assert BLT(3 * last).decays == BLT(last).decays  # past the table only accuracy fades
    for steps in (3, 90, 1500, 10**6):  # between rows
        assert all(0 < theta < 1 for theta in BLT(steps).decays)
        assert 0 < sum(BLT(steps).scales) <= 1


# -- figures ---------------------------------------------------------------------------------------


def test_variances_of_running_sums_at_1024():
    """Of the noise on each running sum at mu = 1, increments of sensitivity 1: max and mean."""
    found = {}
    for name, make in OURS.items():
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
