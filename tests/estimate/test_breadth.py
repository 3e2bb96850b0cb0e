"""Steps that look in a few dimensions: which ones, and what becomes of the noise on the others."""

import jax
import jax.numpy as jnp
import numpy as np

import blindstep as bs
from blindstep.estimate.probing import probe_points
from blindstep.private.noise import fresh_keys
from blindstep.private.schedule import Kind

DIM, BREADTH = 7, 3


def machine():
    asked = bs.Questions(breadth=BREADTH)
    return bs.plan(asked, dim=DIM, records=1600, privacy=bs.Privacy(epsilon=1, delta=1e-6)).build()


def test_directions_lie_in_few_dimensions_which_take_turns():
    made, public = machine(), fresh_keys().public
    with jax.enable_x64(True):
        state = made.begin(jnp.zeros(DIM))
        rows = [np.asarray(made.estimator.subspace(public, jnp.asarray(step))) for step in range(4)]
        query = made.ask(state, Kind.GRAD, public)
        points = np.asarray(probe_points(made.estimator, query, jnp.arange(200)))[:, 0, 0]
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), made.estimator.smoothing)
    inside = points @ rows[0].T @ rows[0]
    np.testing.assert_allclose(inside, points, atol=1e-12)
    assert np.linalg.matrix_rank(points, tol=1e-9) == BREADTH
    # Three turns see all seven dimensions; then another frame has its turn.
    assert np.linalg.matrix_rank(np.concatenate(rows[:3]), tol=1e-9) == DIM
    np.testing.assert_allclose(rows[0] @ rows[1].T, 0, atol=1e-12)
    assert np.linalg.norm(rows[3] @ rows[0].T @ rows[0]) < 0.99 * np.sqrt(BREADTH)


def test_a_step_moves_along_the_dimensions_it_looked_in_and_nowhere_else():
    made, public = machine(), fresh_keys().public
    with jax.enable_x64(True):
        state = made.begin(jnp.zeros(DIM))
        noise = jnp.asarray(np.random.default_rng(0).normal(size=DIM))
        rows = np.asarray(made.estimator.subspace(public, jnp.asarray(0)))
        after, info = made.tell(state, noise, public)
    expected = -(rows.T @ rows) @ np.asarray(noise)
    move = np.asarray(after.path.move)
    np.testing.assert_allclose(
        move / np.linalg.norm(move), expected / np.linalg.norm(expected), atol=1e-12
    )
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(expected))
