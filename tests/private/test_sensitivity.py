"""How far one record moves a block, what that costs, and the noise that pays for it."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blindstep.errors import InvalidArgument
from blindstep.planning.noise import calibrated
from blindstep.private.mechanisms import MECHANISMS
from blindstep.private.noise import STD
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms
from gates import batches_of, block_of, lattice, make_gate, make_terms
from hostile import tables
from matrices import OURS, dense

GRAD, DIFF = Kind.GRAD, Kind.DIFF
every_mechanism = pytest.mark.parametrize("name", OURS)
ROWS = 9  # of one block of the default terms
CASES = 300  # always so many, so that they share a program


# -- how far one record moves it -------------------------------------------------------------------


def moved(gate, data, neighbours):
    """How far a block of each case is from its neighbour under the same noise, and where."""
    released = [lattice(gate.terms, block_of(fresh(gate), each)) for each in (data, neighbours)]
    off = (released[1] - released[0]).astype(np.longdouble) * (gate.terms.noise_std / STD)
    return np.sqrt(np.sum(off**2, axis=(1, 2))), np.abs(off).max(axis=2)


def fresh(gate):
    return make_gate(gate.terms)


def budgets(terms):
    """The declared bound on the change of a block, for each batch that may hold the record."""
    first, second = terms.costs()
    return first + second * terms.noise_std


def places_of(gate):
    """For each record, the release of the first block in which it answers."""
    places = np.full(gate.terms.schedule.records, -1)
    for place, rows in enumerate(batches_of(gate)):
        places[rows] = place
    return places


@every_mechanism
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_hostile_neighbours_move_a_block_by_its_cost_at_most(name, seed):
    rng = np.random.default_rng(seed)
    gate = make_gate(make_terms(name, 4, clips=(1.0, 0.3), blocks=1))
    data = tables(rng, (CASES, ROWS, 3), 1.0)
    replaced = rng.integers(0, ROWS, CASES)
    neighbours = data.copy()
    neighbours[np.arange(CASES), replaced] = tables(rng, (CASES, 3), 1.0)
    distance, by_release = moved(gate, data, neighbours)
    places = places_of(gate)[replaced]
    assert np.all(distance <= budgets(gate.terms)[places])
    # Nothing moves before the release that holds the record, nor where C has a zero.
    entered = dense(name, 4).T[places] > 0
    assert np.all(by_release[~entered] == 0)


@every_mechanism
def test_a_worst_case_reaches_the_cost_of_every_batch(name):
    gate = make_gate(make_terms(name, 4, clips=(1.0, 0.3), blocks=1))
    data, records = np.zeros((CASES, ROWS, 3)), np.arange(CASES) % ROWS
    data[np.arange(CASES), records, 0] = 1e6
    distance, _ = moved(gate, data, -data)
    bound = budgets(gate.terms)[places_of(gate)[records]]
    assert np.all(distance <= bound)
    assert np.all(distance >= 0.99 * bound)


def test_snapping_costs_what_it_is_said_to_cost():
    """A thousand records whose mean lies on a tie of every coordinate: one more tips all of them."""
    size, batch = 16, 1000
    width = 2.0 / math.sqrt(size) * 0.999
    terms = make_terms("independent", 1, size, batches=(batch, 1), blocks=1, noise_std=width * STD)
    data = np.full((2, batch, size), width / 2)
    data[:, 0] += np.asarray([1e-6, -1e-6])[:, None]
    distance, _ = moved(make_gate(terms), data[:1], data[1:])
    (bound,) = budgets(terms)
    assert 0.99 * bound <= distance[0] <= bound
    assert distance[0] > 100 * terms.sensitivities()[0]  # the clip alone would not allow it


def brute_force_mu(terms):
    """mu of a block from the dense C alone: sensitivity, snapping and rounding of every column."""
    schedule = terms.schedule
    matrix = dense(terms.mechanism.name, schedule.period)
    width = terms.noise_std / STD
    sigma = width * math.sqrt(STD**2 - 16)
    worst = 0.0
    for i in range(schedule.period):
        kind = DIFF if i else GRAD
        clip, batch = terms.clip_of(kind), schedule.batch_of(kind)
        column = matrix[:, i]
        entered = np.count_nonzero(column)
        change = 2 * clip / batch * np.linalg.norm(column) + width * math.sqrt(terms.size * entered)
        worst = max(worst, change / sigma)
    return worst


@every_mechanism
@pytest.mark.parametrize("period", [1, 2, 3, 4, 7, 8, 64])
def test_mu_is_the_brute_force_one(name, period):
    """Small horizons too: the paper's constant is wrong at 1, 2 and 4, and no noise at 1."""
    terms = make_terms(name, period, batches=(5, 2), clips=(1.0, 0.3))
    truth = brute_force_mu(terms)
    assert truth <= terms.mu_per_pass() <= truth * (1 + 1e-9)


def test_passes_compose_in_squares_and_a_begun_pass_counts_whole():
    for blocks, passes in ((1, 1), (3, 1), (4, 2), (9, 3), (10, 4)):
        terms = make_terms(records=3 * ROWS + 1, blocks=blocks)
        assert terms.mu() == pytest.approx(terms.mu_per_pass() * math.sqrt(passes), rel=1e-15)
        assert terms.slack() == blocks * 4 * 3 * 2.0**-175


def test_what_one_record_says_does_not_change_how_others_count():
    """One that is not finite counts 0: bit for bit as if its vector were 0."""
    gate = make_gate(make_terms("sqrt", 4, blocks=1))
    data = np.stack([np.random.default_rng(0).normal(size=(ROWS, 3))] * CASES)
    for case, bad in enumerate((np.nan, np.inf, -np.inf, 1e300)):
        data[case, 4, case % 3] = bad
    data[4, 4] = 0.0
    released = block_of(gate, data)
    assert np.all(np.isfinite(released))
    for case in range(4):
        np.testing.assert_array_equal(released[case], released[4])


# -- calibration -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(OURS)),
    st.floats(0.05, 50.0),
    st.integers(1, 40),
    st.integers(1, 10**5),
    st.integers(1, 50),
    st.floats(-150, 150),
)
def test_calibration_never_overshoots_and_wastes_nothing(name, mu, period, size, passes, power):
    schedule = Schedule(100, 1, 1, period, passes * (100 // period))
    mechanism, clip = MECHANISMS[name](period), 10.0**power
    assume(math.sqrt(size * mechanism.column_counts().max() * schedule.passes) < 0.49 * mu * STD)
    terms = calibrated(schedule, mechanism, size, clip, 3 * clip, mu)
    assert mu * (1 - 1e-9) <= terms.mu() <= mu


def test_terms_that_cost_more_than_was_asked_for_are_refused():
    """Whoever worked out the noise: a search that errs cannot overspend."""
    terms = make_terms()
    assert terms.within(terms.mu()) is terms
    with pytest.raises(InvalidArgument, match="were made for"):
        terms.within(terms.mu() * (1 - 1e-12))


def test_what_cannot_be_exact_is_refused():
    with pytest.raises(InvalidArgument, match="more than double the noise"):
        calibrated(Schedule(1, 1, 1, 1, 10**4), MECHANISMS["tree"](1), 10**8, 1.0, 1.0, 1.0)
    with pytest.raises(InvalidArgument, match="lattice steps are not exact"):
        make_terms(noise_std=1e-12)
    with pytest.raises(InvalidArgument, match="cannot be added exactly"):
        make_terms("independent", 1, 10**6, batches=(2**46, 1))
    with pytest.raises(InvalidArgument, match="mechanism is for 4 releases, a block has 3"):
        Terms(make_terms("tree", 3).schedule, MECHANISMS["tree"](4), 3, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", ["first_clip", "diff_clip", "noise_std"])
def test_terms_are_finite_numbers_far_from_the_ends_of_float64(name):
    """Whole numbers too: noise_std = -1 once passed for one that had been looked at."""
    good = make_terms()
    for bad in (0.0, -1.0, math.nan, math.inf, 0, -1, 1e-201, 1e201):
        values = {"first_clip": 1.0, "diff_clip": 1.0, "noise_std": 1.0} | {name: bad}
        with pytest.raises(InvalidArgument, match=name):
            Terms(good.schedule, good.mechanism, 3, **values)


# -- long ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("size", "period"), [(1, 1), (3, 8), (17, 5)])
@every_mechanism
def test_many_hostile_neighbours_of_optimised_programs(optimised, name, size, period):
    """20,000 pairs for each mechanism and shape, on the sensitivity and on one device's chunks."""
    terms = make_terms(name, period, size, batches=(5, 3), clips=(1.0, 0.3), blocks=1)
    gate, records = make_gate(terms), terms.schedule.records
    places, bound = places_of(gate), budgets(terms)
    for seed in range(10):
        rng = np.random.default_rng([seed, size])
        data = tables(rng, (2000, records, size), rng.choice([1e-3, 0.3, 1.0, 1e3]))
        replaced = rng.integers(0, records, 2000)
        neighbours = data.copy()
        neighbours[np.arange(2000), replaced] = tables(rng, (2000, size), 1.0)
        distance, _ = moved(gate, data, neighbours)
        assert np.all(distance <= bound[places[replaced]])
    whole = block_of(fresh(gate), data, together=5)
    np.testing.assert_array_equal(block_of(fresh(gate), data, together=2), whole)
