"""Who answers when: by brute force, no record answers twice in a pass."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindstep.errors import InvalidArgument
from blindstep.private.noise import fresh_keys
from blindstep.private.schedule import MOST_RELEASES_IN_A_BLOCK, Kind, Schedule

sizes = st.integers(1, 12)
SECRET = fresh_keys(1).noise


@pytest.fixture(scope="module")
def public():
    return fresh_keys(3).public


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 6), st.integers(0, 30), st.integers(1, 20))
def test_no_record_answers_twice_in_a_pass(public, first, diff, period, fit, spare, blocks):
    records = fit * (first + diff * (period - 1)) + spare
    schedule = Schedule(records, first, diff, period, blocks)
    orders = [np.random.default_rng(p).permutation(records) for p in range(schedule.passes)]
    taken = np.zeros((schedule.passes, records), int)
    for release in range(schedule.releases):
        turn = release // schedule.releases_per_pass
        rows, kind = schedule.rows(orders[turn], release), schedule.kind_of(release)
        assert kind is (Kind.DIFF if release % period else Kind.GRAD)
        assert len(rows) == schedule.batch_of(kind) == (diff if release % period else first)
        np.add.at(taken[turn], rows, 1)
    assert taken.max() == 1
    assert schedule.releases == blocks * period
    # As many blocks in a pass as fit, and no pass that is not needed.
    block = first + diff * (period - 1)
    full = [min(blocks - turn * (records // block), records // block) * block
            for turn in range(schedule.passes)]  # fmt: skip
    assert taken.sum(axis=1).tolist() == full
    assert min(full) > 0


def test_an_order_is_a_permutation_and_a_function_of_public_key_and_pass_alone(public):
    schedule = Schedule(50, 5, 1, 2, 30)
    orders = [schedule.order(public, SECRET, turn) for turn in range(3)]
    for order in orders:
        assert sorted(order) == list(range(50))
    assert len({tuple(order) for order in orders}) == 3
    for other in (Schedule(50, 1, 1, 1, 1), Schedule(50, 5, 1, 2, 30)):
        np.testing.assert_array_equal(other.order(public, SECRET, 1), orders[1])
    again = jax.random.wrap_key_data(jax.random.key_data(public))
    np.testing.assert_array_equal(schedule.order(again, SECRET, 2), orders[2])
    assert np.any(schedule.order(fresh_keys(4).public, SECRET, 0) != orders[0])


def test_an_order_is_uniform(public):
    """Each record is as likely in each place: 20 records, 400 passes."""
    schedule = Schedule(20, 1, 1, 1, 1)
    orders = np.stack([schedule.order(public, SECRET, turn) for turn in range(400)])
    seen = np.stack([np.bincount(column, minlength=20) for column in orders.T])
    statistic = np.sum((seen - 20.0) ** 2 / 20.0)
    assert 200 < statistic < 560  # chi-square of 361 degrees of freedom: beyond at 1e-7


def test_a_run_may_end_in_the_middle_of_a_pass():
    schedule = Schedule(18, 3, 2, 4, 3)
    assert (schedule.blocks_per_pass, schedule.passes, schedule.releases) == (2, 2, 12)
    for release in (-1, 12):
        with pytest.raises(InvalidArgument, match=f"release {release} is not one of the run's 12"):
            schedule.rows(np.arange(18), release)


def test_what_does_not_fit_is_an_error_with_numbers():
    with pytest.raises(InvalidArgument, match=r"block of 9 records .* does not fit into 8 records"):
        Schedule(8, 3, 2, 4, 1)
    with pytest.raises(InvalidArgument, match="a shorter period"):
        Schedule(2**62, 1, 1, MOST_RELEASES_IN_A_BLOCK + 1, 1)
    Schedule(2**62, 1, 1, 1, 2**31 - 1)
    with pytest.raises(InvalidArgument, match="cannot be numbered"):
        Schedule(2**62, 1, 1, 1, 2**31)


@pytest.mark.parametrize("name", ["records", "first_batch", "diff_batch", "period", "blocks"])
@pytest.mark.parametrize("bad", [0, -1, True])
def test_numbers_that_count_nothing_are_refused(name, bad):
    good = {"records": 10, "first_batch": 1, "diff_batch": 1, "period": 1, "blocks": 1}
    with pytest.raises(InvalidArgument, match=name):
        Schedule(**good | {name: bad})
