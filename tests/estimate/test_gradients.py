"""First order: a record's vector is its gradient, and nobody else's."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.estimate import estimators
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.gradients import COST, GradientEstimator, vectors_of_loss
from blindstep.estimate.vectors import LARGEST, Query
from blindstep.private.schedule import Kind

DIM, RECORDS = 5, 7
POINT, BEFORE = np.random.default_rng(0).normal(size=(2, DIM))
DATA = np.random.default_rng(1).normal(size=(RECORDS, DIM))
every_kind = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)


def cubes(x, z):
    return jnp.sum(z * x**3)


def slopes_of_cubes(x, z):
    return 3.0 * z * x**2


def vectors(estimate, loss, data, kind=Kind.GRAD):
    """The vectors of all records, asked for as the gate asks."""
    query = Query(jnp.asarray(POINT), jnp.asarray(BEFORE), jax.random.key(3), kind)
    made = vectors_of_loss(estimate, loss, jnp.asarray(data)).contributions(query, len(data))
    rows = [
        np.arange(len(data))[i : i + made.batch_size] for i in range(0, len(data), made.batch_size)
    ]
    return np.concatenate([np.asarray(made.of(jnp.asarray(r), jnp.asarray(r))) for r in rows])


@every_kind
@pytest.mark.parametrize("together", [1, 3, RECORDS])
def test_vectors_are_gradients_or_their_differences(kind, together, monkeypatch):
    monkeypatch.setattr(estimators, "gradients_together", lambda *_: together)
    expected = slopes_of_cubes(POINT, DATA)
    if kind is Kind.DIFF:
        expected = expected - slopes_of_cubes(BEFORE, DATA)
    found = vectors(GradientEstimator(DIM, Bounds(clip=1.0, diff_clip=1.0)), cubes, DATA, kind)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@every_kind
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_record_that_is_not_finite_is_nan_and_changes_no_other(kind, bad):
    hostile = DATA.copy()
    hostile[2] = bad
    estimate = GradientEstimator(DIM, Bounds(clip=1.0, diff_clip=1.0), curve=0.2)
    found, clean = (vectors(estimate, cubes, data, kind) for data in (hostile, DATA))
    assert np.isnan(found[2]).any()  # one NaN, and the gate counts all of it 0
    others = np.arange(RECORDS) != 2
    np.testing.assert_array_equal(found[others], clean[others])


def test_a_value_that_is_not_finite_voids_a_finite_gradient():
    def loss(x, z):
        return jnp.where(z[0] > 0, jnp.inf, 0.0) + jnp.sum(x)

    found = vectors(GradientEstimator(DIM, Bounds(clip=1.0)), loss, DATA)
    np.testing.assert_array_equal(np.isnan(found).all(axis=1), DATA[:, 0] > 0)
    assert 0 < np.sum(DATA[:, 0] > 0) < RECORDS


def test_the_loss_rides_along_in_a_coordinate_of_its_own():
    plain, both = (
        GradientEstimator(DIM, Bounds(clip=1.5)),
        GradientEstimator(DIM, Bounds(clip=1.5), curve=0.2),
    )
    found, slopes = vectors(both, cubes, DATA), vectors(plain, cubes, DATA)
    values = np.asarray([cubes(POINT, z) for z in DATA])
    lengths = np.linalg.norm(slopes, axis=1)
    assert np.min(lengths) < 1.5 < np.max(lengths)
    clipped = slopes * np.minimum(1.0, 1.5 / lengths)[:, None]
    np.testing.assert_allclose(found[:, :-1], clipped, rtol=1e-12)
    shown = np.clip(values, -LARGEST, LARGEST)
    np.testing.assert_allclose(
        [both.value_of(jnp.asarray(each)) for each in found], shown, rtol=1e-12
    )
    assert both.record_bound(Kind.GRAD) == pytest.approx(1.5 * math.sqrt(1.04))
    assert (both.size, plain.size) == (DIM + 1, DIM)


def test_float32_parameters_are_differentiated_in_float32():
    seen = []

    def loss(x, z):
        seen.append(x.dtype)
        return jnp.sum(z * x)

    estimate = GradientEstimator(DIM, Bounds(clip=1.0)).working_in(np.float32)
    found = vectors(estimate, loss, DATA.astype(np.float32))
    assert (set(seen), found.dtype) == ({np.dtype("float32")}, np.float64)


@pytest.mark.parametrize(
    ("bounds", "first", "diff"),
    [
        (Bounds(lipschitz=2.0), 2.0, 4.0),
        (Bounds(clip=3.0, diff_clip=0.5), 3.0, 0.5),
        (Bounds(lipschitz=2.0) & Bounds(clip=3.0, diff_clip=0.5), 2.0, 0.5),
        (Bounds(lipschitz=2.0) & Bounds(clip=1.0, diff_clip=9.0), 1.0, 4.0),
    ],
)
def test_the_clip_norms_are_those_of_the_equation(bounds, first, diff):
    estimate = GradientEstimator(DIM, bounds)
    assert [estimate.record_bound(kind) for kind in Kind] == [first, diff]
    # A worst case reaches them: the slope turns round between the points.
    steep = replace(estimate, bounds=Bounds(lipschitz=bounds.lipschitz, clip=99.0))
    if bounds.lipschitz < math.inf:
        for kind, reached in zip(Kind, (1.0, 2.0), strict=True):
            found = vectors(steep, lambda x, z: 2.0 * jnp.abs(x[0] - z[0]), MIDDLE, kind)
            assert np.linalg.norm(found) == pytest.approx(reached * bounds.lipschitz)


MIDDLE = (POINT + BEFORE)[None] / 2


def test_a_range_of_values_bounds_no_gradient():
    with pytest.raises(InvalidArgument, match=r"gradient: give bounds=Bounds"):
        GradientEstimator(DIM, Bounds(range=(0, 1)))


def test_a_gradient_costs_as_much_whatever_the_dimension():
    assert GradientEstimator(DIM, Bounds(clip=1.0)).evaluations(Kind.GRAD) == COST
    assert GradientEstimator(10**6, Bounds(clip=1.0)).evaluations(Kind.DIFF) == 2 * COST
