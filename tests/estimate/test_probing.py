"""Probing: a record's vector is the twin's, and no matter of speed changes it.

(That it depends on its own record alone is in test_hostile_losses.py.)
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from blindstep.estimate import draws, estimators
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Sphere, join
from blindstep.estimate.estimators import Chunk, Query, Sharing, ValueEstimator
from blindstep.estimate.frames import Haar, Structured
from blindstep.estimate.probing import probe_points, probing_of_answers, probing_of_loss
from blindstep.private.schedule import Kind
from losses import capped_distance, capped_distance_numpy

DIM, NUMBER, BATCH = 5, 3, 6
POINT = np.random.default_rng(0).normal(size=DIM)
DATA = POINT + 0.4 * np.random.default_rng(1).normal(size=(20, DIM))
ROWS = jnp.asarray([3, 11, 0, 7, 19, 4])
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
every_sharing = pytest.mark.parametrize("sharing", list(Sharing), ids=lambda s: s.value)
every_kind = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)


@functools.cache
def make(sharing, dim=DIM, number=NUMBER, sampler=None, precision="float64", bounds=None):
    sampler = sampler or (Haar() if sharing is Sharing.BLOCK else Sphere())
    bounds = bounds or Bounds(lipschitz=1.0)
    return ValueEstimator(dim, number, sampler, 0.25, 0.1, bounds, sharing, precision)


def query_at(kind, point=POINT):
    return Query(jnp.asarray(point), jnp.asarray(point + 0.05), jax.random.key(3), kind)


def asked(probing, query, batch=BATCH):
    """The vectors of a batch, asked for as the gate asks."""
    contributions = probing.contributions(query, batch)

    def some(start):
        places = jnp.minimum(start + jnp.arange(contributions.batch_size), batch - 1)
        return contributions.of(ROWS[places], places)

    starts = jnp.arange(0, batch, contributions.batch_size)
    return jax.lax.map(some, starts).reshape(-1, probing.estimator.size)[:batch]


def of_loss(estimator, loss, data, chunk=None):
    probing = probing_of_loss(estimator, loss, data)
    return probing if chunk is None else replace(probing, chunk=lambda _: chunk)


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def vectors(estimator, loss, query, data, chunk=None):
    return asked(of_loss(estimator, loss, data, chunk), query)


# --- which vectors -----------------------------------------------------------------------------------


@every_kind
@every_sharing
def test_vectors_are_the_twins_estimates(kind, sharing):
    estimator, query = make(sharing), query_at(kind)
    found = np.asarray(vectors(estimator, capped_distance, query, DATA))
    keys = draws.fold_in(query.key, jnp.arange(BATCH))
    keys = jnp.broadcast_to(query.key, BATCH) if estimator.shared else keys
    rows = jax.vmap(lambda own: join(estimator.rows(own)))
    directions = np.asarray(jax.jit(lambda keys: rows(estimator.prepare(keys)))(keys))
    x, y = np.asarray(query.point), np.asarray(query.reference)
    for vector, row, own in zip(found, np.asarray(ROWS), directions, strict=True):
        rest = ([DATA[row]], own[None], 0.25)
        if kind is Kind.GRAD:
            expected = reference.grad(capped_distance_numpy, x, *rest)
        else:
            expected = reference.diff(capped_distance_numpy, x, y, *rest)
        lifted = vector @ own if estimator.shared else vector
        np.testing.assert_allclose(lifted, expected, rtol=0, atol=1e-8)


@every_sharing
def test_a_record_is_evaluated_as_often_whatever_its_values(sharing):
    evaluated = []

    def host(point, record):
        evaluated.append(1)
        return np.float64(np.nan if record[0] > 0 else point[0])

    def loss(x, z):
        shape = jax.ShapeDtypeStruct((), np.float64)
        return jax.pure_callback(host, shape, x, z, vmap_method="sequential")

    found = np.asarray(vectors(make(sharing), loss, query_at(Kind.GRAD), DATA))
    assert len(evaluated) == 2 * NUMBER * BATCH
    np.testing.assert_array_equal(np.isnan(found).all(axis=1), DATA[ROWS, 0] > 0)


def rise(x, z):
    return z[0] * x[0].astype(float)


@pytest.mark.parametrize("slope", [10.0, 1e25, 1e40, 1e300])
@pytest.mark.parametrize("chunk", [Chunk(6, NUMBER, 6), Chunk(2, 2, 4)])
def test_no_slope_is_too_steep_for_single_precision(slope, chunk):
    """A vector whose norm overflows would count 0; one that is finite is clipped and counts."""
    estimator = make(
        Sharing.RECORD,
        sampler=Sphere(),
        precision="float32",
        bounds=Bounds(clip=1.0, diff_clip=1.0),
    )
    found = np.asarray(vectors(estimator, rise, query_at(Kind.GRAD), slope + 0 * DATA, chunk))
    assert found.dtype == np.float64
    norms = np.linalg.norm(found, axis=1)
    assert ((norms > 0) & (norms < np.inf)).all()
    assert (found[:, 0] > 0).all()


# --- speed changes no vector -------------------------------------------------------------------------


@every_sharing
@pytest.mark.parametrize("chunk", [Chunk(2, 2, 6), Chunk(4, 1, 4)])
def test_vectors_do_not_depend_on_chunks(sharing, chunk):
    chunk = chunk._replace(drawn=chunk.records) if sharing is Sharing.BLOCK else chunk
    estimator, query = make(sharing), query_at(Kind.DIFF)
    whole = vectors(estimator, capped_distance, query, DATA)
    some = vectors(estimator, capped_distance, query, DATA, chunk)
    np.testing.assert_allclose(some, whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dim", "number", "some"), [(7, 3, 2), slow(70, 24, 7), slow(70, 24, 23)])
def test_chunks_of_a_shared_frame_in_several_parts_give_the_same_vectors(dim, number, some):
    estimator = make(Sharing.BLOCK, dim, number, Structured())
    query, data = query_at(Kind.DIFF, np.zeros(dim)), np.full((20, dim), 0.1)
    assert len(jax.eval_shape(lambda: estimator.rows(estimator.prepare_one(query.key)))) == 2
    whole = vectors(estimator, capped_distance, query, data)
    cut = vectors(estimator, capped_distance, query, data, Chunk(3, some, 3))
    np.testing.assert_allclose(cut, whole, rtol=0, atol=1e-13)
    assert np.abs(whole).min() > 0


@pytest.mark.parametrize(
    ("sharing", "chunk"),
    [
        (Sharing.RECORD, Chunk(3, NUMBER, 3)),
        (Sharing.RECORD, Chunk(4, NUMBER, 4)),
        (Sharing.BLOCK, Chunk(6, NUMBER, 6)),
    ],
)
def test_directions_drawn_ahead_are_those_of_each_step(sharing, chunk):
    estimator, keys = make(sharing), jax.random.split(jax.random.key(9), 2)

    @jax.jit
    def run(query, keys):
        probing = of_loss(estimator, capped_distance, jnp.asarray(DATA), chunk)
        ahead = probing.ahead(keys, BATCH)
        return jax.lax.map(lambda step: asked(ahead(step), query), jnp.arange(2))

    query = query_at(Kind.GRAD)
    found = run(query, keys)
    for step in range(2):
        now = replace(query, key=keys[step])
        expected = vectors(estimator, capped_distance, now, DATA, chunk)
        np.testing.assert_allclose(found[step], expected, rtol=0, atol=1e-13)


def test_a_shared_frame_is_made_once_and_handed_on():
    own, shared = (of_loss(make(sharing), capped_distance, DATA) for sharing in Sharing)

    def calibration(key):
        assert shared.frame is None
        ready = shared.ready(key)
        assert ready.ready(key) is ready
        assert ready.ahead(key[None], BATCH)(jnp.asarray(0)) is ready
        assert own.ready(key) is own
        assert own.frame is None
        return ready.frame

    assert jax.eval_shape(calibration, jax.random.key(0)).shape == (NUMBER, DIM)


@every_sharing
def test_vectors_in_single_precision_are_those_in_double_precision_rounded(sharing):
    query = query_at(Kind.GRAD)
    single, double = (
        vectors(make(sharing, precision=precision), capped_distance, query, DATA)
        for precision in ("float32", "float64")
    )
    assert single.dtype == double.dtype == np.float64
    assert 0 < np.abs(single - double).max() < 1e-5


@every_kind
@every_sharing
def test_answers_from_outside_give_the_vectors_of_evaluation(kind, sharing):
    estimator, query = make(sharing), query_at(kind)
    sets = np.asarray(jax.jit(lambda q: probe_points(estimator, q, jnp.arange(BATCH)))(query))
    assert sets.shape == (1 if estimator.shared else BATCH, 2, NUMBER, DIM)
    sets = np.broadcast_to(sets, (BATCH, *sets.shape[1:]))
    answers = np.stack(
        [
            np.apply_along_axis(capped_distance_numpy, 2, points, DATA[row])
            for points, row in zip(sets, np.asarray(ROWS), strict=True)
        ]
    )
    found = jax.jit(lambda q, a: asked(probing_of_answers(estimator, a), q))(query, answers)
    expected = vectors(estimator, capped_distance, query, DATA)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@every_sharing
def test_the_program_for_an_accelerator_gives_the_same_vectors(sharing, monkeypatch):
    estimator, query = make(sharing), query_at(Kind.DIFF)
    here = vectors(estimator, capped_distance, query, DATA)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    run = jax.jit(lambda q: asked(of_loss(estimator, capped_distance, jnp.asarray(DATA)), q))
    np.testing.assert_allclose(run(query), here, rtol=0, atol=1e-13)


# --- sizes -------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(0, 6000))
def test_equal_parts_hold_everything_and_waste_little(total, most):
    size = estimators.even_part(total, most)
    parts = -(-total // size)
    assert 1 <= size <= max(1, most)
    assert parts * size - total < min(size, parts)


@every_sharing
@pytest.mark.parametrize(("dim", "number"), [(7, 7), (826, 256), (100_180, 64), (10**6, 3)])
def test_a_chunk_is_bounded_whatever_the_batch(sharing, dim, number):
    estimator, most = make(sharing, dim, number), estimators.limits().memory
    for batch in (1, 100, 10**6):
        chunk = estimators.chunk_for(estimator, batch, 40)
        assert chunk.drawn % chunk.records == 0
        sets = 1 if estimator.shared else chunk.records
        assert sets * chunk.directions * 3 * dim <= max(most, 3 * dim)
        assert not estimator.shared or chunk.records * (2 * number + 40) <= most
        drawn = chunk.drawn * number * dim
        assert estimator.shared or drawn <= max(most, chunk.records * number * dim)


def test_steps_draw_for_themselves_where_records_are_spread_over_devices():
    probing = of_loss(make(Sharing.RECORD), capped_distance, DATA)
    assert probing.steps_ahead(100, BATCH) == 100
    assert replace(probing, sharded=True).steps_ahead(100, BATCH) == 1
