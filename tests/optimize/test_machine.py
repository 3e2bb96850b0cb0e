"""The state machine, and whole runs against the NumPy twin, on the same random inputs, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
import reference
from blindstep.estimate import draws
from blindstep.optimize.machine import Machine, lift
from blindstep.private.noise import STD, fresh_keys, lattice_noise, public_stream
from blindstep.private.schedule import Kind
from losses import capped_distance, capped_distance_numpy
from plans import plan_of

DIM = 4


def make_plan(records, **choices):
    return plan_of(
        records=records,
        method="paper",
        dim=DIM,
        privacy=bs.Privacy(mu=2.0),
        radius=0.8,
        lipschitz=1.0,
        gap=1.0,
        **choices,
    )


def twin_inputs(plan, data, seed):
    """The batches, directions, path fractions and noise that the run with this seed takes."""
    keys, schedule, estimator = fresh_keys(seed), plan.schedule, plan.estimator
    shape, order = (plan.rounds, plan.horizon), schedule.order(keys.public, keys.noise, 0)
    steps = [(k, t) for k in range(plan.rounds) for t in range(plan.horizon)]

    @jax.jit
    def along(k, t, records):
        key = draws.fold_in(public_stream(keys.public, "directions"), t, k)
        every = draws.fold_in(key, jnp.arange(records.shape[0]))
        one = lambda key: estimator.sampler.sample(key, None, plan.directions, DIM)  # noqa: E731
        return jax.lax.map(one, every)

    batches = [data[schedule.rows(order, number)] for number in range(schedule.releases)]
    directions = [np.asarray(along(k, t, b)) for (k, t), b in zip(steps, batches, strict=True)]
    path = jax.jit(lambda k, t: draws.uniform(public_stream(keys.public, "path"), t, k))
    fractions = np.asarray([path(k, t) for k, t in steps]).reshape(shape)
    drawn = lattice_noise(jnp.asarray(keys.noise.words()), jnp.arange(schedule.releases), DIM)
    noise = plan.noise_std / STD * np.asarray(drawn).reshape(*shape, DIM)

    def nested(flat):
        return [flat[k * plan.horizon : (k + 1) * plan.horizon] for k in range(plan.rounds)]

    return nested(batches), nested(directions), fractions, noise


@pytest.mark.parametrize(
    ("oracle", "horizon", "rounds"),
    [("variance-reduced", 7, 10), ("naive", 5, 4), ("naive", 1, 6)],
)
def test_a_run_is_the_twins(oracle, horizon, rounds):
    """With the paper's variance-reduced oracle: 70 releases y = C m + z and 60 updates from B y."""
    choices = {"first_batch": 4} if oracle == "naive" else {"first_batch": 4, "diff_batch": 2}
    records = rounds * (4 * horizon if oracle == "naive" else 4 + 2 * (horizon - 1))
    plan = make_plan(records, oracle=oracle, horizon=horizon, rounds=rounds, **choices)
    data = np.random.default_rng(0).normal(size=(records, DIM))
    start = np.array([0.3, -0.2, 0.5, 0.1])
    result = bs.minimize(capped_distance, jnp.asarray(start), data, method=plan, seed=42)
    batches, directions, fractions, noise = twin_inputs(plan, data, 42)
    run = reference.naive_run if oracle == "naive" else reference.variance_reduced_run

    def twin(noise):
        return run(
            capped_distance_numpy, start, batches, directions, fractions, noise,
            delta=plan.smoothing, eta=plan.step, D=plan.reach, width=plan.noise_std / STD,
            first_clamp=2 * plan.smoothing, diff_clamp=lambda distance: distance,
        )  # fmt: skip

    trace = twin(noise)
    np.testing.assert_allclose(result.means, trace.round_means, rtol=0, atol=1e-12)
    norms = np.linalg.norm(trace.released, axis=-1)
    np.testing.assert_allclose(result.history.gradient_norm, norms, rtol=1e-9)
    moves = np.linalg.norm(trace.moves[:, 1:], axis=-1)
    np.testing.assert_allclose(result.history.move_norm[:, :-1], moves, rtol=1e-9, atol=1e-15)
    if horizon > 1:  # the twin must be able to disagree: without noise it does
        assert np.abs(result.means - twin(0 * noise).round_means).max() > 1e-6


PLAN = make_plan(60, horizon=5, rounds=3, first_batch=4, diff_batch=2)
PUBLIC = fresh_keys(1).public


def test_asked_points_move_on_and_stay_within_reach():
    """A peer's code overwrites the previous point before it takes the difference."""
    machine = PLAN.build()
    tell, state = jax.jit(machine.tell), machine.begin(jnp.zeros(DIM))
    for step in range(5):
        query = machine.ask(state, Kind.DIFF, PUBLIC)
        state, told = tell(state, 1e6 * jnp.ones(DIM), PUBLIC)
        assert float(told.move_norm) <= PLAN.reach * (1 + 1e-12)
        moved = float(jnp.linalg.norm(state.path.point - query.point))
        assert moved <= 2 * PLAN.reach
        assert moved > 0 or step == 0
        np.testing.assert_array_equal(state.path.previous, query.point)
    state, _ = machine.end_round(state)
    assert (int(state.round), int(state.step)) == (1, 0)
    np.testing.assert_array_equal(state.path.move, np.zeros(DIM))


def test_tell_is_the_same_compiled_or_not():
    machine = PLAN.build()
    state = machine.begin(jnp.zeros(DIM))
    eager, _ = machine.tell(state, jnp.ones(DIM), PUBLIC)
    jitted, _ = jax.jit(machine.tell)(state, jnp.ones(DIM), PUBLIC)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-15)


def test_period_must_divide_horizon():
    machine = PLAN.build()
    with pytest.raises(bs.errors.InvalidArgument, match="multiple of the period"):
        Machine(machine.estimator, machine.prefix, machine.learner, machine.pace, horizon=7)


@pytest.mark.parametrize("directions", [3, 21])
def test_a_shared_release_is_lifted_along_its_directions(directions):
    """sum_j y_j u_j, in whatever precision the directions are."""
    plan = bs.plan(
        bs.Tight(
            radius=0.5,
            bounds=bs.Bounds(clip=1.0),
            horizon=1,
            first_batch=8,
            directions=directions,
            sharing="block",
            sampler="haar",
            rounds=1,
        ),
        records=64,
        dim=21,
        privacy=bs.Privacy(mu=1.0),
    )
    y = np.random.default_rng(0).normal(size=directions)
    expected = y @ np.asarray(plan.estimator.sampler.sample(PUBLIC, None, directions, 21))
    for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 1e-5)):
        estimator = plan.estimator.working_in(dtype)
        frame = estimator.prepare_one(PUBLIC)
        lifted = jax.jit(lambda y, frame, e=estimator: lift(e, y, frame))(jnp.asarray(y), frame)
        assert lifted.dtype == np.float64
        np.testing.assert_allclose(lifted, expected, atol=tolerance)
