"""Directions shared by a batch or a block: same estimate, same sensitivity, fewer dimensions."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blindstep as bs
from blindstep.drivers.compiled import minimize
from blindstep.trusted.directions import Sphere
from blindstep.trusted.estimators import Estimator, Kind, Query, Sharing
from blindstep.trusted.frames import Haar, Structured
from blindstep.trusted.increments import Chunk, chunk_for, increment
from losses import capped_distance, capped_distance_numpy, numpy_estimate

KINDS = [Kind.GRAD, Kind.DIFF]
SHARED = [Sharing.BATCH, Sharing.BLOCK]
DIM, NUMBER, BATCH = 5, 3, 7


def make(sharing, sampler=None, bounds=None):
    bounds = bounds or bs.Lipschitz(1.0)
    return Estimator(DIM, NUMBER, sampler or Structured(), 0.25, 0.1, bounds, sharing)


def query(kind):
    rng = np.random.default_rng(0)
    point = rng.normal(size=DIM)
    return Query(jnp.asarray(point), jnp.asarray(point + 0.05), jax.random.key(3), kind)


def evaluate(points, record):
    return jax.vmap(jax.vmap(lambda p: capped_distance(p, record)))(points)


take = eqx.filter_jit(increment)
directions = eqx.filter_jit(Estimator.directions)


@eqx.filter_jit
def _answered(estimator, asked, answers):
    return increment(estimator, asked, lambda p, a: a, answers, Chunk(len(answers), NUMBER))


def answered(estimator, asked, answers):
    return _answered(estimator, asked, jnp.asarray(answers))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("sampler", [Haar(), Structured()])
def test_shared_frames_give_the_twins_estimate(kind, sharing, sampler):
    estimator, asked = make(sharing, sampler), query(kind)
    batch = np.random.default_rng(1).normal(size=(BATCH, DIM))
    frame = np.asarray(directions(estimator, asked.key))
    expected = numpy_estimate(
        kind.value,
        capped_distance_numpy,
        asked,
        batch,
        np.broadcast_to(frame, (BATCH, NUMBER, DIM)),
        0.25,
    )
    ours = take(estimator, asked, evaluate, jnp.asarray(batch), chunk_for(BATCH, NUMBER, DIM))
    assert ours.shape == ((NUMBER,) if sharing is Sharing.BLOCK else (DIM,))
    lifted = eqx.filter_jit(estimator.lift)(ours, asked.key)
    np.testing.assert_allclose(lifted, expected, atol=1e-8)


@pytest.mark.parametrize("sharing", SHARED)
def test_chunks_of_many_directions_change_nothing_for_shared_frames(sharing):
    """24 directions in 70 dimensions come in two parts, which are written into one set of points."""
    estimator = Estimator(70, 24, Structured(), 0.25, 0.1, bs.Lipschitz(1.0), sharing)
    point = jnp.asarray(np.random.default_rng(0).normal(size=70))
    asked = Query(point, point + 0.05, jax.random.key(3), Kind.DIFF)
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, 70)))
    whole = take(estimator, asked, evaluate, batch, Chunk(BATCH, 24))
    assert len(jax.eval_shape(lambda: estimator.rows(estimator.prepare_one(asked.key)))) == 2
    for some in (7, 23):
        chunk = Chunk(3, some)
        np.testing.assert_allclose(
            take(estimator, asked, evaluate, batch, chunk), whole, atol=1e-13
        )


@pytest.mark.parametrize("sharing", SHARED)
def test_chunks_change_nothing_for_shared_frames(sharing):
    estimator, asked = make(sharing), query(Kind.GRAD)
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, DIM)))
    whole = take(estimator, asked, evaluate, batch, Chunk(BATCH, NUMBER))
    for chunk in (Chunk(1, 1), Chunk(3, 2), Chunk(4, 3)):
        np.testing.assert_allclose(
            take(estimator, asked, evaluate, batch, chunk), whole, rtol=0, atol=1e-14
        )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True), min_size=2 * NUMBER, max_size=2 * NUMBER
    ),
    st.sampled_from(KINDS),
    st.sampled_from(SHARED),
    st.sampled_from([bs.Lipschitz(1.0), bs.Range(0, 1), bs.Clip(0.7, 0.3)]),
)
def test_sensitivity_of_shared_frames(values, kind, sharing, bounds):
    estimator, asked = make(sharing, bounds=bounds), query(kind)
    rng = np.random.default_rng(5)
    answers = rng.normal(size=(4, 2, NUMBER))
    neighbour = answers.copy()
    neighbour[2] = np.reshape(values, (2, NUMBER))
    moved = answered(estimator, asked, answers) - answered(estimator, asked, neighbour)
    assert np.linalg.norm(moved) <= estimator.sensitivity(kind, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharing", SHARED)
def test_a_worst_case_reaches_the_frames_bound(kind, sharing):
    estimator = dataclasses.replace(make(sharing), reach=0.5 * float(jnp.sqrt(DIM * 0.05**2)))
    asked = query(kind)
    up = np.stack([np.full(NUMBER, 1e6), np.full(NUMBER, -1e6)])[None]
    moved = answered(estimator, asked, up) - answered(estimator, asked, -up)
    bound = estimator.sensitivity(kind, 1)
    assert 0.99 * bound <= np.linalg.norm(moved) <= bound
    slope = 1.0 if kind is Kind.GRAD else 2 * estimator.reach / 0.25
    assert bound == pytest.approx(2 * DIM / np.sqrt(NUMBER) * slope)


def test_independent_directions_cannot_be_shared():
    with pytest.raises(bs.InvalidArgument, match="cannot be shared"):
        make(Sharing.BATCH, Sphere())


def plan_with(**choices):
    return bs.plan(
        records=40,
        dim=DIM,
        privacy=bs.Privacy(rho=1.0),
        radius=1.0,
        bounds=bs.Clip(1.0, 0.5),
        **{"horizon": 4, "first_batch": 3, "diff_batch": 2, "directions": NUMBER, **choices},
    )


@pytest.mark.parametrize("sharing", ["record", "batch", "block"])
@pytest.mark.parametrize("period", [1, 2, 4])
def test_runs_with_every_sharing_and_period(sharing, period):
    plan = plan_with(sharing=sharing, period=period, passes=2)
    data = np.random.default_rng(0).normal(size=(40, DIM))
    result = minimize(capped_distance, jnp.zeros(DIM), data, plan=plan, seed=1)
    assert np.all(np.isfinite(result.means))
    assert result.privacy.mu == pytest.approx(1.0)
    machine = plan.build()
    assert machine.oracle.init().running.shape == ((NUMBER,) if sharing == "block" else (DIM,))
    assert plan.passes <= 2


def test_a_block_stays_in_the_span_of_its_frame():
    plan = plan_with(sharing="block", period=4)
    machine = plan.build()
    from blindstep.trusted.randomness import fresh_keys

    keys = fresh_keys(0)
    state = machine.begin(jnp.zeros(DIM))
    asked = machine.ask(state, Kind.GRAD, keys.public)
    frame, tell = directions(machine.oracle.estimator, asked.key), eqx.filter_jit(machine.tell)
    for _ in range(4):
        again = machine.ask(state, Kind.DIFF, keys.public)
        np.testing.assert_array_equal(directions(machine.oracle.estimator, again.key), frame)
        state, _ = tell(state, jnp.ones(NUMBER), keys.public, keys.noise)
    inside = state.position @ frame.T @ frame
    np.testing.assert_allclose(inside, state.position, atol=1e-12)


def test_an_epoch_may_take_several_passes():
    plan = plan_with(sharing="block", period=1, first_batch=40, horizon=6, passes=6)
    assert plan.passes == 6
    assert plan.epochs == 1
    assert plan.mu == pytest.approx(1.0)
    one_pass = plan_with(sharing="block", period=1, first_batch=3, horizon=6)
    assert plan.noise_std * 40 / 3 == pytest.approx(one_pass.noise_std * np.sqrt(6))
