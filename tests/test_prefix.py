"""The tree against the paper's NODE by brute force, for every horizon up to 64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from blindstep import InvalidArgument
from blindstep.trusted.prefix import BinaryTree, Independent

MECHANISMS = [Independent, BinaryTree]
HORIZONS = range(1, 65)


def stream(mechanism, draws):
    def step(state, inputs):
        draw, number = inputs
        return mechanism.next(state, draw, number)

    numbers = jnp.arange(1, mechanism.steps + 1)
    return jax.lax.scan(step, mechanism.init(draws.shape[1]), (draws, numbers))[1]


@pytest.mark.parametrize("steps", HORIZONS)
def test_the_tree_is_the_papers(steps):
    noise, strategy = reference.tree_matrices(steps)
    tree = BinaryTree(steps)
    np.testing.assert_array_equal(tree.materialize(), noise)
    np.testing.assert_array_equal(tree.strategy(), strategy)
    assert tree.column_norms().max() ** 2 == pytest.approx(reference.exact_node_count(steps))


@pytest.mark.parametrize("cls", MECHANISMS)
@pytest.mark.parametrize("steps", HORIZONS)
def test_factors_and_norms_are_exact(cls, steps):
    mechanism = cls(steps)
    noise, strategy = mechanism.materialize(), mechanism.strategy()
    np.testing.assert_array_equal(noise @ strategy, np.tri(steps))
    np.testing.assert_allclose(
        mechanism.column_norms(), np.linalg.norm(strategy, axis=0), rtol=1e-15
    )
    np.testing.assert_allclose(mechanism.row_norms(), np.linalg.norm(noise, axis=1), rtol=1e-15)


@pytest.mark.parametrize("cls", MECHANISMS)
def test_streaming_is_the_matrix_for_every_horizon_at_once(cls):
    # The first n releases of a 64-step stream are those of an n-step one, for these two mechanisms.
    draws = jax.random.normal(jax.random.key(0), (64, 3), jnp.float64)
    streamed = stream(cls(64), draws)
    np.testing.assert_allclose(streamed, cls(64).materialize() @ draws, atol=1e-13)
    for steps in (1, 2, 3, 7, 33):
        np.testing.assert_allclose(stream(cls(steps), draws[:steps]), streamed[:steps], atol=1e-13)


def test_streaming_is_the_papers_tree():
    draws = np.random.default_rng(0).normal(size=(37, 2))
    expected = [reference.tree(t, draws) for t in range(1, 38)]
    np.testing.assert_allclose(stream(BinaryTree(37), jnp.asarray(draws)), expected, atol=1e-13)


def test_state_is_logarithmic():
    assert BinaryTree(1024).init(5).shape == (11, 5)
    assert BinaryTree(1).init(5).shape == (1, 5)
    assert Independent(1024).init(5).shape == (0, 5)


@pytest.mark.parametrize("steps", [0, -1])
def test_bad_horizons(steps):
    with pytest.raises(InvalidArgument, match="steps"):
        BinaryTree(steps)
