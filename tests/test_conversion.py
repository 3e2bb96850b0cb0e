"""The whole algorithm against the NumPy twin, on the same random inputs, step by step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
import reference
from blindstep.drivers.compiled import minimize
from blindstep.optimize.conversion import Conversion
from blindstep.optimize.learners import AdaptiveStep, ConstantStep
from blindstep.trusted import draws
from blindstep.trusted.randomness import fresh_keys, gaussian, public_stream
from losses import capped_distance, capped_distance_numpy

DIM = 3


def make_plan(records, **choices):
    choices = {"horizon": 5, "epochs": 3, **choices}
    return bs.plan(
        records=records,
        preset="paper",
        dim=DIM,
        privacy=bs.Privacy(rho=2.0),
        radius=0.8,
        lipschitz=1.0,
        gap=1.0,
        **choices,
    )


def twin_inputs(machine, data, keys):
    """The directions, path fractions, noise draws and batches that the run with `keys` uses."""
    estimator, schedule = machine.oracle.estimator, machine.oracle.schedule
    epochs, horizon = machine.epochs, machine.horizon
    order = schedule.order(keys.public, 0)
    number = estimator.number
    sample = jax.jit(lambda key: estimator.sampler.sample(key, jnp.arange(number), number, DIM))
    draw = jax.jit(lambda block, step: gaussian(keys.noise, block, step, DIM))
    batches, directions, fractions, noise = [], [], [], []
    for k in range(epochs):
        rows = []
        for block in range(k * machine.blocks_per_epoch, (k + 1) * machine.blocks_per_epoch):
            grad, diffs = schedule.split(schedule.rows(order, block))
            rows += [grad, *diffs]
        batches.append([data[r] for r in rows])
        stream = public_stream(keys.public, "directions")
        step_keys = [draws.fold_in(stream, t, k) for t in range(horizon)]
        directions.append(
            [
                np.stack([sample(jax.random.fold_in(key, i)) for i in range(len(rows[t]))])
                for t, key in enumerate(step_keys)
            ]
        )
        stream = public_stream(keys.public, "path")
        path = [draws.uniform(stream, t, k) for t in range(horizon)]
        fractions.append(np.asarray(path))
        drawn = []
        for t in range(horizon):
            block = k * machine.blocks_per_epoch + t // machine.period
            drawn.append(draw(block, t % machine.period + 1))
        noise.append(machine.oracle.noise_std * np.stack(drawn))
    return batches, directions, np.stack(fractions), np.stack(noise)


@pytest.mark.parametrize("oracle", ["variance-reduced", "naive"])
@pytest.mark.parametrize("horizon", [1, 5])
def test_a_run_is_the_twins(oracle, horizon):
    data = np.random.default_rng(0).normal(size=(60, DIM))
    choices = {"first_batch": 4} if oracle == "naive" else {"first_batch": 4, "diff_batch": 2}
    plan = make_plan(60, oracle=oracle, horizon=horizon, **choices)
    start = np.array([0.3, -0.2, 0.5])
    result = minimize(capped_distance, jnp.asarray(start), data, plan=plan, seed=42)
    machine, keys = plan.build(), fresh_keys(42)
    batches, directions, fractions, noise = twin_inputs(machine, data, keys)
    run = reference.naive_run if oracle == "naive" else reference.variance_reduced_run
    trace = run(
        capped_distance_numpy,
        start,
        batches,
        directions,
        fractions,
        noise,
        delta=plan.smoothing,
        eta=plan.step,
        D=plan.reach,
        first_clamp=2 * plan.smoothing,
        diff_clamp=lambda distance: distance,
    )
    np.testing.assert_allclose(result.means, trace.epoch_means, rtol=0, atol=1e-9)
    np.testing.assert_allclose(result.final, trace.x_final, rtol=0, atol=1e-9)
    norms = np.linalg.norm(trace.released, axis=-1)
    np.testing.assert_allclose(result.history.gradient_norm, norms, rtol=1e-8)
    # The twin must be able to disagree: without noise it does.
    quiet = run(
        capped_distance_numpy,
        start,
        batches,
        directions,
        fractions,
        0 * noise,
        delta=plan.smoothing,
        eta=plan.step,
        D=plan.reach,
    )
    if horizon > 1:
        assert np.abs(result.means - quiet.epoch_means).max() > 1e-6


def test_variance_reduction_is_not_always_zero():
    # A peer's code overwrites the previous point before it takes the difference.
    machine = make_plan(60, first_batch=4, diff_batch=2).build()
    keys = fresh_keys(1)
    state = machine.begin(jnp.zeros(DIM))
    for _ in range(3):
        state, _ = machine.tell(state, jnp.ones(DIM), keys.public, keys.noise)
        assert float(jnp.linalg.norm(state.point - state.previous)) > 0


def test_moves_and_points_stay_within_reach():
    machine = make_plan(60, first_batch=4, diff_batch=2).build()
    keys = fresh_keys(2)
    state = machine.begin(jnp.zeros(DIM))
    for _ in range(5):
        previous = state.point
        state, released = machine.tell(state, 1e6 * jnp.ones(DIM), keys.public, keys.noise)
        assert float(released.move_norm) <= machine.learner.reach * (1 + 1e-12)
        assert float(jnp.linalg.norm(state.point - previous)) <= 2 * machine.learner.reach
    state, _ = machine.end_epoch(state)
    assert int(state.epoch) == 1
    assert int(state.step) == 0
    np.testing.assert_array_equal(state.move, np.zeros(DIM))


def test_tell_is_jittable_and_the_same():
    machine = make_plan(60, first_batch=4, diff_batch=2).build()
    keys = fresh_keys(3)
    state = machine.begin(jnp.zeros(DIM))
    eager, _ = machine.tell(state, jnp.ones(DIM), keys.public, keys.noise)
    jitted, _ = jax.jit(machine.tell)(state, jnp.ones(DIM), keys.public, keys.noise)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-15)


def test_period_must_divide_horizon():
    machine = make_plan(60, first_batch=4, diff_batch=2).build()
    with pytest.raises(bs.InvalidArgument, match="multiple of the period"):
        Conversion(machine.oracle, machine.learner, horizon=7)


def regret(learner, gradients):
    state, move, total = learner.init(), jnp.zeros(gradients.shape[1]), 0.0
    for g in gradients:
        total += float(g @ move)
        state, move, *_ = learner.update(state, move, jnp.asarray(g))
    best = -learner.reach * np.linalg.norm(gradients.sum(0))
    return total - best


@pytest.mark.parametrize("seed", range(5))
def test_learners_meet_their_regret_bounds(seed):
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(50, 4)) + rng.normal(size=4)
    root = np.sqrt(np.sum(gradients**2))
    reach = 0.3
    assert regret(ConstantStep(reach, reach / root), gradients) <= reach * root
    assert regret(AdaptiveStep(reach), gradients) <= 2 * np.sqrt(2) * reach * root


@pytest.mark.parametrize("reach", [0.5, 50.0])
def test_constant_step_is_the_twins(reach):
    rng = np.random.default_rng(1)
    move, gradient = rng.normal(size=4), rng.normal(size=4)
    ours = ConstantStep(reach, 0.2).update(jnp.zeros(()), jnp.asarray(move), jnp.asarray(gradient))
    np.testing.assert_allclose(ours.move, reference.osd(move, gradient, 0.2, reach), atol=1e-15)
    np.testing.assert_allclose(ours.move_norm, np.linalg.norm(ours.move), rtol=1e-15)
    np.testing.assert_allclose(ours.gradient_norm, np.linalg.norm(gradient), rtol=1e-15)


@pytest.mark.parametrize("learner", [ConstantStep(0.5, 0.2), AdaptiveStep(0.5)])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
def test_moves_reach_no_further_than_they_may(learner, scale):
    state, move = learner.init(), jnp.zeros(7)
    for gradient in scale * np.random.default_rng(2).normal(size=(30, 7)):
        state, move, move_norm, _ = learner.update(state, move, jnp.asarray(gradient))
        norm = np.linalg.norm(move)
        assert norm <= learner.reach * (1 + 1e-14)
        np.testing.assert_allclose(move_norm, norm, rtol=0, atol=1e-14)


def test_a_step_that_takes_back_the_move_ends_at_0():
    move = np.random.default_rng(3).normal(size=9)
    move *= 0.4 / np.linalg.norm(move)
    step = ConstantStep(0.5, 0.2).update(jnp.zeros(()), jnp.asarray(move), jnp.asarray(move / 0.2))
    np.testing.assert_allclose(step.move, 0.0, atol=1e-15)
    np.testing.assert_allclose(step.move_norm, 0.0, atol=1e-15)


def test_adaptive_step_runs_through_a_plan():
    plan = dataclasses.replace(make_plan(60, first_batch=4, diff_batch=2), step=None)
    data = np.random.default_rng(0).normal(size=(60, DIM))
    result = minimize(capped_distance, jnp.zeros(DIM), data, plan=plan, seed=1)
    assert np.all(result.history.move_norm <= plan.reach * (1 + 1e-12))
    assert np.all(np.isfinite(result.means))
