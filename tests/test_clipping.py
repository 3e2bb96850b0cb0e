"""Clips hold in exact arithmetic; the share of clipped records, on data declared public."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import blindstep as bs
from blindstep.trusted.directions import Sphere
from blindstep.trusted.estimators import Estimator, Kind, Query
from blindstep.trusted.frames import Haar, Structured
from blindstep.trusted.increments import Chunk, increment

BOUNDS = [1.0, 1 / 3, 1e-150, 1e150, float(np.nextafter(1.0, 2.0))]
_enforce = jax.jit(
    lambda e, kind, valid, value: e.enforce(kind, value, valid), static_argnums=(0, 1)
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=6, max_size=6),
    st.sampled_from(BOUNDS),
)
@example([1.7e308] * 6, 1.0)
@example([1e154, 1e154, -1e154, 0.0, 0.0, 5e-324], 1.0)
@example([5e-324] * 6, 1e-150)
@example([1 / 3] * 6, 1 / 3)
def test_a_clip_holds_in_exact_arithmetic(values, clip):
    # Not "to rounding": the norm of the clipped floats, as rational numbers, is within the bound.
    estimator = Estimator(6, 6, Haar(), 0.5, 0.5, bs.Clip(clip, clip))
    for kind in Kind:
        clipped = np.asarray(_enforce(estimator, kind, jnp.asarray(True), jnp.asarray(values)))
        assert np.all(np.isfinite(clipped))
        square = sum(Fraction(float(x)) ** 2 for x in clipped)
        assert square <= Fraction(estimator.record_bound(kind)) ** 2
        zero = np.asarray(_enforce(estimator, kind, jnp.asarray(False), jnp.asarray(values)))
        np.testing.assert_array_equal(zero, np.zeros(6))


def slope(params, record):
    return record * jnp.sum(params)


@pytest.mark.parametrize("sampler", ["haar", "structured"])
def test_fraction_clipped_is_counted_on_public_records(sampler):
    # A linear loss with a full frame: a record's estimate is its gradient, of norm |record| sqrt(4).
    data = np.asarray([0.1, 0.2, 0.4, 0.6, 2.0])
    plan = bs.plan(
        records=5,
        dim=4,
        privacy=bs.Privacy(rho=1.0),
        radius=1.0,
        bounds=bs.Clip(1.0),
        horizon=1,
        first_batch=5,
        directions=4,
        sampler=sampler,
    )
    assert bs.fraction_clipped(slope, jnp.zeros(4), data, plan) == pytest.approx(2 / 5)


@pytest.mark.parametrize("slope", [10.0, 1e25, 1e40, 1e300])
@pytest.mark.parametrize("sampler", [Structured(), Sphere()])
def test_no_slope_is_too_steep_for_float32(sampler, slope):
    """An overflow on the way would make the record count 0."""
    whole = Estimator(5, 5, sampler, 0.5, 0.5, bs.Clip(1.0, 1.0)).working_in("float32")
    query = Query(jnp.zeros(5), jnp.zeros(5), jax.random.key(0), Kind.GRAD)
    evaluate = lambda points, record: slope * points[..., 0].astype(float) * record  # noqa: E731
    for chunk in (Chunk(1, 5), Chunk(1, 2)):
        moved = np.asarray(increment(whole, query, evaluate, jnp.ones(1), chunk))
        assert 1.0 - 1e-6 < np.linalg.norm(moved) <= 1.0
        assert moved[0] > 0
