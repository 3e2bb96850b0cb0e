"""The clip: no input makes a record count more than its bound, in exact arithmetic."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blindstep.errors import InvalidArgument
from blindstep.private.clip import check_fits, clip, unit_of
from hostile import tables

SIZE = 6
BOUNDS = [1.0, 1 / 3, 1e-199, 1e-160, 1e-150, 1e150, 1e199, float(np.nextafter(1.0, 2.0))]
BATCHES = [1, 2, 3, 4096, 4097, 10**9]
_clip = jax.jit(clip, static_argnums=2)


def units_in(bound, batch):
    """2^p, the number of units in the bound."""
    return round(bound / float(unit_of(bound, batch)))


def exactly_within(clipped, bound, batch):
    """The largest norm as a share of the bound; norms are compared as whole numbers."""
    assert np.all(clipped == np.rint(clipped))
    squares = [sum(int(k) ** 2 for k in row) for row in clipped]
    most = units_in(bound, batch) ** 2
    assert max(squares) <= most
    return math.sqrt(max(squares) / most)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=SIZE, max_size=SIZE),
    st.sampled_from(BOUNDS),
    st.sampled_from([1, 4097]),
)
@example([1.7e308] * SIZE, 1.0, 1)
@example([1e154, 1e154, -1e154, 0.0, 0.0, 5e-324], 1.0, 1)
@example([5e-324] * SIZE, 1e-150, 1)
@example([1e-155] * SIZE, 1e-160, 1)  # whose squares underflow
@example([1 / 3] * SIZE, 1 / 3, 1)
def test_no_input_counts_more_than_the_bound(values, bound, batch):
    clipped = np.asarray(_clip(jnp.asarray([values]), bound, batch))
    exactly_within(clipped, bound, batch)
    if not np.all(np.isfinite(values)):
        assert not clipped.any()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(BOUNDS), st.sampled_from(BATCHES))
def test_hostile_tables_stay_within_the_bound(seed, bound, batch):
    vectors = tables(np.random.default_rng(seed), (200, SIZE), bound)
    clipped = np.asarray(_clip(jnp.asarray(vectors), bound, batch))
    exactly_within(clipped, bound, batch)
    # A row is a function of that row: the others may be anything.
    alone = np.asarray(_clip(jnp.asarray(np.where(np.arange(200)[:, None] < 100, vectors, np.nan)),
                             bound, batch))  # fmt: skip
    np.testing.assert_array_equal(alone[:100], clipped[:100])
    assert not alone[100:].any()


@pytest.mark.parametrize("size", [1, 2, 17, 1000])
def test_long_vectors_reach_the_bound_and_short_ones_are_kept(size):
    rng = np.random.default_rng(size)
    vectors = rng.normal(size=(500, size)) * 10.0 ** rng.uniform(-3, 3, (500, 1))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    for batch in (1, 10**9):
        clipped = np.asarray(_clip(jnp.asarray(vectors), 0.7, batch))
        assert exactly_within(clipped, 0.7, batch) > 0.99
        expected = vectors * np.minimum(1, 0.7 / norms)
        unit = float(unit_of(0.7, batch))
        # A unit for the rounding, and what long vectors give up so that no rounding carries them over.
        np.testing.assert_allclose(unit * clipped, expected, rtol=0, atol=unit * (1 + size**0.5))


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 2**12, 2**12 + 1, 2**20, 2**25 + 1])
def test_a_batch_of_the_longest_vectors_is_added_exactly(batch):
    """No partial sum of any order is beyond 2^52 units, so float64 holds each of them."""
    assert batch * units_in(1.0, batch) <= 2**52
    assert units_in(1.0, batch) <= 2**40
    # And none of the 53 bits is wasted where the batch is large.
    assert batch * units_in(1.0, batch) > 2**50 or units_in(1.0, batch) == 2**40
    longest = np.asarray(_clip(jnp.full((1, 1), 9.0), 1.0, batch))[0, 0]
    assert (batch - 1) * int(longest) + int(longest) == int(float(batch * int(longest)))


def test_sums_are_the_same_in_every_order():
    rng = np.random.default_rng(0)
    clipped = np.asarray(_clip(jnp.asarray(rng.normal(size=(3000, 5))), 1.0, 3000))
    exact = [sum(int(k) for k in column) for column in clipped.T]
    for _ in range(5):
        one_by_one = np.cumsum(clipped[rng.permutation(3000)], axis=0)[-1]
        assert [int(total) for total in one_by_one] == exact
    # Without whole numbers the order shows.
    raw = rng.normal(size=3000)
    assert len({float(np.cumsum(raw[rng.permutation(3000)])[-1]) for _ in range(5)}) > 1


def test_what_cannot_be_added_exactly_is_refused():
    check_fits(10**6, 2**20)
    for size, batch in ((10**6, 2**45), (10**16, 1)):
        with pytest.raises(InvalidArgument, match="cannot be added exactly"):
            check_fits(size, batch)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_vectors_of_any_precision_are_clipped_in_double(dtype):
    vectors = jnp.asarray(np.arange(-3, 3).reshape(1, 6), dtype)
    clipped = clip(vectors, 0.1, 2)
    assert clipped.dtype == jnp.float64
    expected = np.arange(-3, 3) * 0.1 / math.sqrt(19)
    np.testing.assert_allclose(float(unit_of(0.1, 2)) * clipped[0], expected, atol=1e-12)
