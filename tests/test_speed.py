"""What makes a run fast, pinned without a clock: traces, evaluations, precision, and what is held."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blindstep as bs
from blindstep.drivers import compiled, evaluation
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.trusted.estimators import Estimator, Kind, Query, Sharing
from blindstep.trusted.frames import Haar, Structured
from blindstep.trusted.increments import Chunk, evenly, increment
from blindstep.trusted.randomness import fresh_keys
from losses import capped_distance

DIM = 5
PLANS = {
    "record": {"sharing": "record", "oracle": "variance-reduced", "period": 4, "first_batch": 3},
    "batch": {"sharing": "batch", "oracle": "naive", "period": 1, "first_batch": 4},
    "block": {"sharing": "block", "oracle": "variance-reduced", "period": 2, "first_batch": 3},
}


def plan_for(name, **choices):
    return bs.plan(
        records=40,
        dim=DIM,
        privacy=bs.Privacy(rho=1.0),
        radius=1.0,
        bounds=bs.Clip(1.0, 0.5),
        **{"horizon": 4, "diff_batch": 2, "directions": 3, "sampler": "haar"}
        | {"epochs": 2, **PLANS[name], **choices},
    )


def expected_evaluations(plan):
    """2 q for every record of every step, over the whole run."""
    blocks = plan.epochs * plan.horizon // plan.period
    records = blocks * (plan.first_batch + (plan.period - 1) * plan.diff_batch)
    return 2 * plan.directions * records


@pytest.mark.parametrize("name", PLANS)
def test_the_loss_is_evaluated_as_often_as_it_must_and_no_more(name):
    evaluated = []

    def host(point, record):
        evaluated.append(1)
        return np.float32(np.minimum(np.abs(point - record).sum(), 1.0))

    def loss(x, z):
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(host, shape, x, z, vmap_method="sequential")

    plan = plan_for(name)
    data = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)
    bs.minimize(loss, np.zeros(DIM, np.float32), data, plan=plan, seed=1)
    assert len(evaluated) == expected_evaluations(plan)


@pytest.mark.parametrize("name", PLANS)
def test_traces_do_not_depend_on_epochs_and_a_second_call_has_none(name):
    traces = []

    def loss(x, z):
        traces.append(1)
        return capped_distance(x, z)

    data = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)
    run = functools.partial(bs.minimize, loss, np.zeros(DIM, np.float32), data)
    run(plan=plan_for(name, epochs=1), seed=1)
    # One to check the loss, one for each kind of step: a fresh gradient, a difference.
    assert len(traces) <= (2 if PLANS[name]["period"] == 1 else 3)
    del traces[:]
    run(plan=plan_for(name, epochs=1), seed=2)
    assert len(traces) <= 1  # the check of shapes; nothing is compiled


def test_an_epoch_is_one_compiled_program_used_again():
    plan = plan_for("record", epochs=2)
    machine, keys = plan.build(), fresh_keys(1)
    space = ParameterSpace.of(np.zeros(DIM, np.float32))
    state = machine.begin(jnp.zeros(DIM))
    data = jnp.asarray(np.random.default_rng(0).normal(size=(40, DIM)), jnp.float32)
    traces = []

    def loss(x, z):
        traces.append(x.dtype)
        return capped_distance(x, z)

    for first, diffs in compiled.epochs_of_rows(machine, keys.public, 0):
        state, *_ = compiled.run_epoch(
            compiled.prepare(machine, space), loss, space, state, data, first, diffs, keys.public,
            keys.noise,
        )  # fmt: skip
    assert traces == [jnp.float32] * 2


# --- precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_single_and_double_precision_are_the_same_run_up_to_rounding(name):
    data = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)
    means = [
        bs.minimize(capped_distance, np.zeros(DIM, dtype), data, plan=plan_for(name), seed=1).means
        for dtype in (np.float32, np.float64)
    ]
    assert 0 < np.abs(means[0] - means[1]).max() < 1e-4


def test_directions_follow_the_precision_of_the_parameters():
    estimator = Estimator(9, 4, Haar(), 0.25, 0.1, bs.Clip(1.0, 1.0), Sharing.BATCH)
    key = jax.random.key(0)
    single, double = (estimator.working_in(d).directions(key) for d in (jnp.float32, jnp.float64))
    assert (single.dtype, double.dtype) == (jnp.float32, jnp.float64)
    np.testing.assert_allclose(single, double, atol=1e-6)
    assert estimator.working_in(jnp.bfloat16).precision == "float32"


SIZES = [(1, 1), (13, 13), (123, 123), (64, 700), (5, 5003)]


@pytest.mark.parametrize("sampler", [Haar(), Structured()], ids=lambda s: s.name)
@pytest.mark.parametrize(("number", "dim"), SIZES)
def test_rounding_stretches_a_frame_less_than_its_slack(sampler, number, dim):
    for dtype in (jnp.float32, jnp.float64):
        draw = jax.jit(lambda key: sampler.sample(key, None, number, dim, dtype))  # noqa: B023
        frame = np.asarray(draw(jax.random.key(1)), np.float64)
        stretch = np.linalg.norm(frame, 2) - 1.0
        assert stretch <= sampler.slack(number, dim, dtype)
    assert sampler.slack(number, dim, jnp.float32) < 2e-3


def test_a_frame_that_could_stretch_too_far_stays_in_double_precision():
    large = Estimator(40_001, 40_001, Structured(), 0.25, 0.1, bs.Clip(1.0, 1.0), Sharing.BATCH)
    assert large.working_in(jnp.float32).precision == "float64"
    assert 1.0 < large.stretch < 1.0 + 1e-6
    own = Estimator(40_001, 40_001, Structured(), 0.25, 0.1, bs.Clip(1.0, 1.0))
    assert own.working_in(jnp.float32).precision == "float32"
    assert own.stretch == 1.0


@functools.partial(jax.jit, static_argnums=(0, 1))
def answered(estimator, kind, answers):
    point = jnp.asarray(np.random.default_rng(0).normal(size=estimator.dim))
    query = Query(point, point + 0.05, jax.random.key(3), kind)
    chunk = Chunk(answers.shape[0], estimator.number)
    return increment(estimator, query, lambda _, values: values, answers, chunk)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=6, max_size=6),
    st.sampled_from([Kind.GRAD, Kind.DIFF]),
    st.sampled_from([Sharing.RECORD, Sharing.BATCH]),
    st.sampled_from([bs.Lipschitz(1.0), bs.Clip(0.7, 0.3)]),
)
def test_sensitivity_holds_with_directions_in_single_precision(values, kind, sharing, bounds):
    estimator = Estimator(DIM, 3, Haar(), 0.25, 0.1, bounds, sharing).working_in(jnp.float32)
    assert estimator.precision == "float32"
    answers = np.random.default_rng(5).normal(size=(4, 2, 3))
    neighbour = answers.copy()
    neighbour[2] = np.reshape(values, (2, 3))
    moved = answered(estimator, kind, answers) - answered(estimator, kind, neighbour)
    assert moved.dtype == jnp.float64
    assert np.linalg.norm(moved) <= estimator.sensitivity(kind, 4)


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_worst_case_still_reaches_the_bound_in_single_precision(sharing):
    estimator = Estimator(DIM, 3, Structured(), 0.25, 0.1, bs.Lipschitz(1.0), sharing)
    estimator = estimator.working_in(jnp.float32)
    up = np.stack([np.full(3, 1e6), np.full(3, -1e6)])[None]
    moved = answered(estimator, Kind.GRAD, up) - answered(estimator, Kind.GRAD, -up)
    bound = estimator.sensitivity(Kind.GRAD, 1)
    assert 0.99 * bound <= np.linalg.norm(moved) <= bound


def test_a_large_batch_is_added_up_in_double_precision():
    """One record of 100,000 moves the mean by less than a float32 ulp of it, and still shows."""
    estimator = Estimator(DIM, 3, Structured(), 0.25, 0.1, bs.Clip(1.0, 1.0), Sharing.BATCH)
    estimator = estimator.working_in(jnp.float32)
    answers = np.tile(np.asarray([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]), (100_000, 1, 1))
    neighbour = answers.copy()
    neighbour[7, 0, 0] += 1e-3
    moved = np.asarray(
        answered(estimator, Kind.GRAD, answers) - answered(estimator, Kind.GRAD, neighbour)
    )
    assert 0 < np.linalg.norm(moved) < 1e-7


# --- sizes ------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(0, 6000))
def test_equal_parts_hold_everything_and_waste_little(total, most):
    size = evenly(total, most)
    parts = -(-total // size)
    assert 1 <= size <= max(1, most)
    assert parts * size - total < size
    assert parts * size - total < max(parts, 1)


@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize(("dim", "number"), [(7, 7), (826, 256), (100_180, 64), (10**6, 3)])
def test_a_chunk_is_bounded_whatever_the_batch(sharing, dim, number):
    estimator = Estimator(dim, number, Structured(), 0.25, 0.1, bs.Clip(1.0, 1.0), sharing)
    for batch in (1, 100, 10**6):
        records = jax.ShapeDtypeStruct((batch, 40), jnp.float32)
        chunk = evaluation.chunk_of(estimator, records)
        sets = chunk.records if sharing is Sharing.RECORD else 1
        assert sets * chunk.directions * 3 * dim <= max(2**21, 3 * dim)
        assert chunk.records * (2 * number + 40) <= max(2**21, 2 * number + 40) or sets > 1
