"""GRAD and DIFF: against the twin, their lemmas, and sensitivity under hostile losses."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from blindstep import Bounds, Clip, InvalidArgument, Lipschitz, Range
from blindstep.trusted.directions import Sphere
from blindstep.trusted.estimators import Estimator, Kind, Query
from blindstep.trusted.increments import Chunk, chunk_for, increment
from losses import capped_distance, capped_distance_numpy, numpy_estimate

KINDS = [Kind.GRAD, Kind.DIFF]


def make(dim=3, number=3, bounds=None, smoothing=0.25, reach=0.1):
    return Estimator(dim, number, Sphere(), smoothing, reach, bounds or Lipschitz(1.0))


def query_at(kind, dim=3, seed=0, distance=0.15):
    rng = np.random.default_rng(seed)
    point = rng.normal(size=dim)
    step = rng.normal(size=dim)
    reference = point - distance * step / np.linalg.norm(step)
    return Query(jnp.asarray(point), jnp.asarray(reference), jax.random.key(seed), kind)


def directions_of(estimator, query, batch):
    which = jnp.arange(estimator.number)
    return np.stack(
        [
            estimator.sampler.sample(
                jax.random.fold_in(query.key, i), which, estimator.number, estimator.dim
            )
            for i in range(batch)
        ]
    )


def evaluate_with(loss):
    def evaluate(points, record):
        return jax.vmap(jax.vmap(lambda p: loss(p, record)))(points)

    return evaluate


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _jitted(loss, query, records, estimator, chunk):
    return increment(estimator, query, evaluate_with(loss), records, chunk)


def compute(estimator, query, loss, records, chunk=None):
    records = jnp.asarray(records)
    chunk = chunk or chunk_for(len(records), estimator.number, estimator.dim)
    return np.asarray(_jitted(loss, query, records, estimator, chunk))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _answered(estimator, query, chunk, answers):
    return increment(estimator, query, lambda points, a: a.reshape(2, -1), answers, chunk)


def compute_answers(estimator, query, answers):
    return np.asarray(_answered(estimator, query, Chunk(1, estimator.number), jnp.asarray(answers)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_equals_the_twin_on_the_same_directions(kind, dim):
    estimator, query = make(dim, dim, reach=1.0), query_at(kind, dim)
    batch = np.random.default_rng(1).normal(size=(7, dim))
    expected = numpy_estimate(
        kind.value, capped_distance_numpy, query, batch, directions_of(estimator, query, 7), 0.25
    )
    ours = compute(estimator, query, capped_distance, batch)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_clamp_and_clip_equal_the_twin_on_a_steep_loss(kind):
    estimator = make(4, 6, Lipschitz(1.0) & Clip(0.9, 0.2), reach=0.05)
    query = query_at(kind, 4, distance=0.1)
    batch = np.random.default_rng(2).normal(size=(5, 4))
    clamp = 2 * 0.25 if kind is Kind.GRAD else 0.1
    rules = {"clamp": clamp, "clip": 0.9 if kind is Kind.GRAD else 0.2}
    expected = numpy_estimate(
        kind.value,
        lambda x, z: 100 * capped_distance_numpy(x, z),
        query,
        batch,
        directions_of(estimator, query, 5),
        0.25,
        **rules,
    )
    ours = compute(estimator, query, lambda x, z: 100 * capped_distance(x, z), batch)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chunk", [Chunk(1, 1), Chunk(2, 5), Chunk(3, 2), Chunk(11, 4), Chunk(4, 3)]
)
def test_chunks_change_nothing(kind, chunk):
    estimator, query = make(4, 5), query_at(kind, 4)
    batch = np.random.default_rng(3).normal(size=(11, 4))
    whole = compute(estimator, query, capped_distance, batch, Chunk(11, 5))
    np.testing.assert_allclose(
        compute(estimator, query, capped_distance, batch, chunk), whole, rtol=0, atol=1e-14
    )


@given(st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 5000))
def test_chunks_fit_the_budget(batch, number, dim):
    chunk = chunk_for(batch, number, dim)
    assert 1 <= chunk.records <= batch
    assert 1 <= chunk.directions <= number
    held = chunk.records * chunk.directions * dim * 3
    assert held <= 2**21 or (chunk.records == 1 and chunk.directions == 1)


def quadratic(x, z):
    return 0.5 * jnp.sum((x - z) ** 2)


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (2.0, False), (1 / 3, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_unbiased_for_the_smoothed_gradient(kind, wrong, passes):
    # The smoothing of a quadratic has the quadratic's own gradient: x - z, and x - y for DIFF.
    estimator = make(3, 2, Lipschitz(100.0), reach=10.0)
    query = query_at(kind)
    records = jnp.zeros((40_000, 3))
    keys = jax.random.split(jax.random.key(7), 64)
    run = jax.jit(
        jax.vmap(
            lambda k: increment(
                estimator,
                Query(query.point, query.reference, k, kind),
                evaluate_with(quadratic),
                records[:600],
                Chunk(600, 2),
            )
        )
    )
    estimates = np.asarray(run(keys)) * wrong
    truth = query.point if kind is Kind.GRAD else query.point - query.reference
    error = estimates - np.asarray(truth)
    t = error.mean(0) / (error.std(0, ddof=1) / math.sqrt(len(error)))
    p = 2 * stats.t.sf(np.abs(t).max(), len(error) - 1) * 3
    assert bool(p > 1e-6) is passes


@pytest.mark.parametrize("kind", KINDS)
def test_variance_is_below_the_lemmas(kind):
    dim, smoothing, distance, batch = 6, 0.25, 0.15, 4
    estimator, query = make(dim, dim, reach=1.0), query_at(kind, dim, distance=distance)
    data = np.random.default_rng(5).normal(size=(512, batch, dim))
    run = jax.jit(
        jax.vmap(
            lambda k, z: increment(
                estimator,
                Query(query.point, query.reference, k, kind),
                evaluate_with(capped_distance),
                z,
                Chunk(batch, dim),
            )
        )
    )
    sample = np.asarray(run(jax.random.split(jax.random.key(1), 512), jnp.asarray(data)))
    variance = sample.var(axis=0, ddof=1).sum()
    printed = 16 * dim / batch * (1.0 if kind is Kind.GRAD else (distance / smoothing) ** 2)
    from blindstep.optimize.theory import sphere_moments

    moments = sphere_moments(dim, dim)
    ours = moments.grad if kind is Kind.GRAD else moments.diff * (distance / smoothing) ** 2
    ours /= batch
    assert variance < ours < printed


HOSTILE = {
    "nan": lambda x, z: jnp.nan * jnp.sum(x),
    "inf": lambda x, z: jnp.inf + jnp.sum(x),
    "minus inf": lambda x, z: -jnp.inf + jnp.sum(x),
    "huge": lambda x, z: 1e300 * jnp.sum(x * z),
    "sign": lambda x, z: 1e9 * jnp.sign(jnp.sum(x) - z[0]),
    "steep": lambda x, z: 100.0 * jnp.linalg.norm(x - z),
    "wild": lambda x, z: jnp.sin(1e12 * jnp.sum(x)) / jnp.abs(z[0]),
    "sometimes nan": lambda x, z: jnp.where(jnp.sum(x) > z[0], jnp.nan, jnp.sum(x)),
}
ALL_BOUNDS = [
    Lipschitz(1.0),
    Range(0.0, 1.0),
    Clip(0.7, 0.3),
    Lipschitz(2.0) & Range(-1.0, 1.0) & Clip(1.0, 0.5),
]


def hostile(x, record):
    """The hostile loss whose number is in front of the record: one program for all of them."""
    branches = [lambda a, f=f: f(x, a) for f in HOSTILE.values()]
    return jax.lax.switch(record[0].astype(int), branches, record[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", ALL_BOUNDS)
def test_sensitivity_holds_for_hostile_losses_and_neighbours(kind, bounds):
    estimator, query = make(3, 4, bounds), query_at(kind)
    rng = np.random.default_rng(11)
    bound = estimator.sensitivity(kind, 6)
    for number in range(len(HOSTILE)):
        data = np.column_stack([np.full(6, number), rng.normal(size=(6, 3))])
        base = compute(estimator, query, hostile, data)
        assert np.all(np.isfinite(base))
        for _ in range(10):
            neighbour = data.copy()
            neighbour[rng.integers(6), 1:] = rng.normal(size=3) * 10.0 ** rng.integers(-3, 4)
            moved = np.linalg.norm(compute(estimator, query, hostile, neighbour) - base)
            assert moved <= bound


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=8, max_size=8),
    st.sampled_from(KINDS),
    st.sampled_from(ALL_BOUNDS),
)
def test_any_values_at_all_stay_within_the_record_bound(values, kind, bounds):
    estimator, query = make(3, 4, bounds), query_at(kind)
    one = compute_answers(estimator, query, np.asarray([values]))
    assert np.linalg.norm(one) <= estimator.record_bound(kind)
    if not np.all(np.isfinite(values)):
        np.testing.assert_array_equal(one, np.zeros(3))


@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_record_counts_zero_and_the_others_count(kind):
    estimator, query = make(3, 3), query_at(kind)
    batch = np.asarray(query.point) + 0.5 * np.random.default_rng(4).normal(size=(5, 3))
    bad = batch.copy()
    bad[2] = np.nan
    directions = directions_of(estimator, query, 5)
    expected = numpy_estimate(kind.value, capped_distance_numpy, query, bad, directions, 0.25)
    good = compute(estimator, query, capped_distance, batch)
    ours = compute(estimator, query, capped_distance, bad)
    np.testing.assert_allclose(ours, expected, atol=1e-8)
    assert np.linalg.norm(ours - good) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bounds", "dim", "number"),
    [(Lipschitz(1.0), 3, 1), (Range(0, 1), 3, 1), (Clip(0.7, 0.3), 3, 4), (Lipschitz(1.0), 1, 4)],
)
def test_a_worst_case_reaches_the_bound(kind, bounds, dim, number):
    # Two records that pull as far as they may in opposite directions, alone in their batch.
    estimator, query = make(dim, number, bounds, reach=0.075), query_at(kind, dim)
    up = np.repeat([[1e6], [-1e6]], number, axis=1).reshape(1, -1)
    if dim == 1:  # directions are +1 or -1: answer so that every coefficient pulls upwards
        signs = directions_of(estimator, query, 1)[0, :, 0]
        up = np.concatenate([1e6 * signs, -1e6 * signs])[None]
    moved = compute_answers(estimator, query, up) - compute_answers(estimator, query, -up)
    bound = estimator.sensitivity(kind, 1)
    assert 0.99 * bound <= np.linalg.norm(moved) <= bound


@pytest.mark.parametrize("kind", KINDS)
def test_the_distance_is_clamped_too(kind):
    # A learner that broke its promise |x - y| <= 2 reach cannot raise the sensitivity.
    estimator, query = make(3, 3, reach=0.01), query_at(kind, distance=50.0)
    up = np.asarray([[1e6] * 3 + [-1e6] * 3])
    moved = compute_answers(estimator, query, up) - compute_answers(estimator, query, -up)
    assert np.linalg.norm(moved) <= estimator.sensitivity(kind, 1)


def test_sensitivities_are_those_of_the_lemmas():
    dim, smoothing, horizon, slope = 7, 0.3, 5, 2.0
    estimator = make(dim, dim, Lipschitz(slope), smoothing, smoothing / horizon)
    assert estimator.sensitivity(Kind.GRAD, 11) == pytest.approx(2 * dim * slope / 11)
    assert estimator.sensitivity(Kind.DIFF, 3) == pytest.approx(4 * dim * slope / (3 * horizon))


def test_bounds_combine_to_the_smallest():
    both = Lipschitz(2.0) & Range(0, 3) & Lipschitz(1.0) & Clip(5.0)
    assert both == Bounds(lipschitz=1.0, width=3.0, first_clip=5.0)
    assert len(both.describe()) == 3


@pytest.mark.parametrize(
    ("make_bad", "says"),
    [
        (lambda: Lipschitz(0.0), "lipschitz"),
        (lambda: Lipschitz(math.nan), "lipschitz"),
        (lambda: Range(1.0, 1.0), "low < high"),
        (lambda: Range(0.0, math.inf), "high"),
        (lambda: Clip(-1.0), "first clip"),
        (lambda: Clip(1.0, 0.0), "diff clip"),
        (lambda: Bounds().require_finite(needs_diff=False), "nothing bounds"),
        (lambda: Clip(1.0).require_finite(needs_diff=True), "difference"),
    ],
)
def test_bad_bounds_say_what_is_wrong(make_bad, says):
    with pytest.raises(InvalidArgument, match=says):
        make_bad()
