"""GRAD and DIFF: probe points, clamps and coefficients against the twin; bounds; lemmas."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reference
from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Sphere, join
from blindstep.estimate.estimators import Query, Sharing, ValueEstimator
from blindstep.estimate.frames import Haar
from blindstep.private.schedule import Kind

SIGNIFICANCE = 1e-6
DIM, NUMBER, SMOOTHING, DISTANCE = 4, 3, 0.25, 0.15
ALL_BOUNDS = [
    Bounds(clip=0.7, diff_clip=0.3),
    Bounds(lipschitz=1.0),
    Bounds(range=(0.0, 0.1)),
    Bounds(lipschitz=2.0) & Bounds(range=(-1.0, 1.0)) & Bounds(clip=1.0, diff_clip=0.5),
]
# Of a point and a record, in NumPy.
LOSSES = {
    "honest": lambda x, z: np.minimum(np.linalg.norm(x - z), 1.5),
    "steep": lambda x, z: 100.0 * np.linalg.norm(x - z),
    "huge": lambda x, z: 1e300 * x @ z,
    "step": lambda x, z: 1e9 * np.sign(x.sum() - z[0]),
    "wild": lambda x, z: np.sin(1e12 * x.sum()) / abs(z[0]),
    "nan": lambda x, z: np.nan,
    "infinite": lambda x, z: -np.inf,
    "sometimes nan": lambda x, z: np.nan if x[0] > z[0] else x[0],
}
every_kind = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)


def make(bounds=Bounds(lipschitz=1.0), dim=DIM, number=NUMBER, sampler=None, reach=1.0, **more):  # noqa: B008
    return ValueEstimator(dim, number, sampler or Sphere(), SMOOTHING, reach, bounds, **more)


def query_at(kind, dim=DIM, distance=DISTANCE, seed=0):
    rng = np.random.default_rng(seed)
    point, step = rng.normal(size=(2, dim))
    reference = point - distance * step / np.linalg.norm(step)
    return Query(jnp.asarray(point), jnp.asarray(reference), jax.random.key(seed), kind)


def directions_of(estimator):
    return _directions(estimator.sampler, estimator.directions, estimator.dim)


@functools.cache
def _directions(sampler, number, dim):
    draw = jax.jit(lambda key: sampler.sample(key, None, number, dim))
    return np.asarray(draw(jax.random.key(0)))


def twin(estimator, query, loss, record, clamp):
    x, y = np.asarray(query.point), np.asarray(query.reference)
    rest = ([record], directions_of(estimator)[None], SMOOTHING)
    if query.kind is Kind.GRAD:
        return reference.grad(loss, x, *rest, clamp=clamp)
    return reference.diff(loss, x, y, *rest, clamp=clamp)


def clamp_of(kind, bounds, reach):
    if kind is Kind.GRAD:
        return min(2 * SMOOTHING * bounds.lipschitz, bounds.width)
    return min(min(DISTANCE, 2 * reach) * bounds.lipschitz, bounds.width)


@every_kind
@pytest.mark.parametrize("bounds", ALL_BOUNDS)
@pytest.mark.parametrize("reach", [1.0, 0.05])
def test_equals_the_twin_on_the_same_directions_for_every_loss(kind, bounds, reach):
    estimator, query = make(bounds, reach=reach), query_at(kind)
    directions = directions_of(estimator)
    points = np.asarray(estimator.probes(query, (jnp.asarray(directions),)))
    for loss in LOSSES.values():
        for record in np.random.default_rng(1).normal(size=(3, DIM)):
            values = np.apply_along_axis(loss, 2, points, record)
            ours = np.asarray(estimator.coefficients(query, jnp.asarray(values))) @ directions
            ours = ours if np.all(np.isfinite(ours)) else np.zeros(DIM)  # as the gate does
            expected = twin(estimator, query, loss, record, clamp_of(kind, bounds, reach))
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-8)


finite = st.floats(allow_nan=False, allow_infinity=False)
anything = st.floats(allow_nan=True, allow_infinity=True)


@every_kind
@settings(max_examples=100, deadline=None)
@given(
    st.one_of(*(st.lists(kind, min_size=6, max_size=6) for kind in (finite, anything))),
    st.sampled_from([Sphere(), Haar()]),
    st.sampled_from([Bounds(lipschitz=1.0), Bounds(range=(0.0, 0.1))]),
)
def test_values_that_are_not_finite_give_nan_and_all_others_stay_within_the_record_bound(
    kind, values, sampler, bounds
):
    values = np.reshape(values, (2, NUMBER))
    for sharing in Sharing:
        estimator, query = make(bounds, sampler=sampler, sharing=sharing), query_at(kind)
        found = np.asarray(estimator.coefficients(query, jnp.asarray(values)))
        np.testing.assert_array_equal(np.isnan(found), ~np.all(np.isfinite(values), axis=0))
        vector = found if sharing is Sharing.BLOCK else found @ directions_of(estimator)
        if np.all(np.isfinite(values)):
            bound = estimator.record_bound(kind)
            assert np.linalg.norm(vector) <= bound * (1 + 1e-12)


@every_kind
@pytest.mark.parametrize("bounds", ALL_BOUNDS)
@pytest.mark.parametrize(
    ("sampler", "sharing", "dim"),
    [(Sphere(), "record", 1), (Haar(), "record", DIM), (Haar(), "block", DIM)],
)
def test_a_worst_case_reaches_the_record_bound(kind, bounds, sampler, sharing, dim):
    """Values as far apart as can be, with the signs that let all directions pull the same way."""
    number = min(dim, NUMBER)
    estimator = make(bounds, dim, number, sampler, DISTANCE / 2, sharing=Sharing(sharing))
    query = query_at(kind, dim)
    values = np.stack([np.full(number, 1e6), np.full(number, -1e6)])
    found = np.asarray(estimator.coefficients(query, jnp.asarray(values)))
    vector = found if estimator.shared else found @ directions_of(estimator)
    clip = bounds.clip if kind is Kind.GRAD else bounds.diff_clip
    length = min(np.linalg.norm(vector), clip)
    assert length == pytest.approx(estimator.record_bound(kind), rel=1e-12)


def test_record_bounds_are_those_of_the_lemmas():
    # Replacing one record of b moves the mean by 2 record_bound / b: 2dL/b, and 4dL/(bT) at D = h/T.
    paper = make(Bounds(lipschitz=2.0), 7, 7, reach=SMOOTHING / 5)
    assert paper.record_bound(Kind.GRAD) == pytest.approx(7 * 2.0)
    assert paper.record_bound(Kind.DIFF) == pytest.approx(2 * 7 * 2.0 / 5)
    frame = make(Bounds(lipschitz=2.0), 7, 3, Haar(), reach=SMOOTHING / 5)
    assert frame.record_bound(Kind.GRAD) == pytest.approx(7 * 2.0 / math.sqrt(3))


def test_a_learner_that_jumps_too_far_makes_no_coefficient_larger():
    estimator, query = make(reach=0.01), query_at(Kind.DIFF, distance=50.0)
    found = estimator.coefficients(query, jnp.asarray([[1e6] * NUMBER, [-1e6] * NUMBER]))
    np.testing.assert_allclose(found, DIM / NUMBER * 2 * 0.01 / SMOOTHING, rtol=1e-12)


@every_kind
def test_points_are_the_same_however_directions_are_cut_and_where_they_are_written(kind):
    estimator, query = make(), query_at(kind)
    directions = jnp.asarray(directions_of(estimator))
    x, u = np.asarray(query.point), np.asarray(directions)
    other = x - SMOOTHING * u if kind is Kind.GRAD else query.reference + SMOOTHING * u
    points = np.asarray(estimator.probes(query, (directions,)))
    np.testing.assert_allclose(points, np.stack([x + SMOOTHING * u, other]), rtol=0, atol=1e-15)
    parts = (directions[:, :1], directions[:, 1:])
    np.testing.assert_array_equal(estimator.probes(query, parts), points)
    room = jnp.full(points.shape, jnp.nan)
    np.testing.assert_array_equal(estimator.probes(query, parts, room), points)
    one = tuple(part[1:2] for part in parts)
    written = np.asarray(estimator.write_probes(query, one, room, 2))
    np.testing.assert_array_equal(written[:, 2], points[:, 1])
    assert np.isnan(written[:, :2]).all()


def test_directions_and_points_follow_the_precision_of_the_parameters():
    estimator, query = make(), query_at(Kind.GRAD)
    for given_, dtype in [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")]:
        working = estimator.working_in(jnp.dtype(given_))
        rows = jax.eval_shape(lambda w=working: w.rows(w.prepare_one(query.key)))
        points = jax.eval_shape(functools.partial(working.probes, query), rows)
        assert [rows[0].dtype, points.dtype] == [dtype, dtype]
        assert working.coefficients(query, jnp.zeros((2, NUMBER), dtype)).dtype == jnp.float64


# --- lemmas ------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=(0, 1))
def estimates(estimator, loss, query, keys, records):
    """Many estimates, each of one record along its own directions."""

    def one(own, record):
        directions = join(estimator.rows(own))
        values = jax.vmap(jax.vmap(lambda point: loss(point, record)))(
            estimator.probes(query, (directions,))
        )
        return estimator.coefficients(query, values) @ directions

    return jax.vmap(one)(estimator.prepare(keys), records)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("sampler", [Sphere(), Haar()], ids=lambda s: s.name)
def test_unbiased_for_the_smoothed_gradient(kind, sampler):
    # The smoothing of a quadratic has the gradient of the quadratic: x - z.
    estimator, query = make(Bounds(lipschitz=100.0), 3, 2, sampler, reach=10.0), query_at(kind, 3)
    keys = jax.random.split(jax.random.key(7), 20_000)
    loss = lambda x, z: 0.5 * jnp.sum((x - z) ** 2)  # noqa: E731
    found = np.asarray(estimates(estimator, loss, query, keys, jnp.zeros((20_000, 3))))
    truth = query.point if kind is Kind.GRAD else query.point - query.reference
    for wrong in (1.0, 1.2, 2 / 3, 2.0):  # right; a little off; d/q forgotten; a factor 2 missing
        error = wrong * found - np.asarray(truth)
        t = error.mean(0) / (error.std(0, ddof=1) / math.sqrt(len(error)))
        p = 3 * 2 * stats.t.sf(np.abs(t).max(), len(error) - 1)
        assert (p > SIGNIFICANCE) == (wrong == 1.0)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("sampler", [Sphere(), Haar()], ids=lambda s: s.name)
def test_second_moments_are_below_the_planners_bounds_and_these_below_the_paper(kind, sampler):
    dim, slope = 6, DISTANCE / SMOOTHING
    estimator, query = make(Bounds(lipschitz=10.0), dim, dim, sampler), query_at(kind, dim)
    records = query.point + 0.5 * jax.random.normal(jax.random.key(5), (4000, dim))
    keys = jax.random.split(jax.random.key(1), 4000)
    loss = lambda x, z: jnp.linalg.norm(x - z)  # noqa: E731
    moment = np.square(estimates(estimator, loss, query, keys, records)).sum(1).mean()
    moments = sampler.moments(dim, dim)
    bound = moments.grad if kind is Kind.GRAD else moments.diff * slope**2
    printed = {
        Kind.GRAD: reference.grad_variance_bound(dim, 1.0, 1),
        Kind.DIFF: reference.diff_variance_bound(dim, 1.0, 1, SMOOTHING, DISTANCE),
    }
    assert moment < bound < printed[kind]
    if kind is Kind.GRAD:  # a loss that is 1.5 times as steep would be noticed
        assert 1.5**2 * moment > bound


# --- bounds ------------------------------------------------------------------------------------------


def test_bounds_combine_to_the_smallest():
    both = Bounds(lipschitz=2.0) & Bounds(range=(0, 3)) & Bounds(lipschitz=1.0) & Bounds(clip=5.0)
    assert both == Bounds(lipschitz=1.0, range=(0.0, 3.0), clip=5.0)


@pytest.mark.parametrize(
    ("make_bad", "says"),
    [
        (lambda: Bounds(lipschitz=0.0), "lipschitz"),
        (lambda: Bounds(lipschitz=math.nan), "lipschitz"),
        (lambda: Bounds(range=(1.0, 1.0)), "low < high"),
        (lambda: Bounds(range=(0.0, math.inf)), "range"),
        (lambda: Bounds(clip=-1.0), "clip"),
        (lambda: Bounds(clip=1.0, diff_clip=0.0), "diff_clip"),
        (lambda: make(Bounds()), "nothing bounds"),
        (lambda: Bounds(clip=1.0).require_finite(needs_diff=True), "difference"),
        (lambda: make(number=5, sampler=Haar()), "at most dim = 4"),
    ],
)
def test_bad_bounds_and_sizes_say_what_is_wrong(make_bad, says):
    with pytest.raises(InvalidArgument, match=says):
        make_bad()
