"""Signs from a hash, and slopes from one side of a point."""

import jax
import jax.numpy as jnp
import numpy as np

from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Signs, seeds, words
from blindstep.estimate.estimators import Query, Sharing, ValueEstimator
from blindstep.private.schedule import Kind

WORDS = ["18c8709152643478", "b182aa1e5b68525", "a2c67da24527900d"]
SEED = "b1558abdcdc922cd"


def test_the_hash_is_fixed_for_good():
    """A tuned model in a file depends on these numbers: they may never change."""
    number = np.arange(3, dtype=np.uint64)
    with np.errstate(over="ignore"):
        assert [f"{int(each):x}" for each in words(np.uint64(5), number)] == WORDS
        assert f"{int(seeds(np.uint64(1), np.uint64(2), np.uint64(3))):x}" == SEED


def test_directions_have_length_1_and_do_not_depend_on_how_they_are_asked_for():
    signs, key = Signs((70, 30)), jax.random.key(2)
    every = np.asarray(signs.sample(key, None, 6, 100))
    np.testing.assert_allclose(np.linalg.norm(every, axis=1), 1.0)
    some = signs.sample(key, jnp.array([4, 1]), 6, 100)
    np.testing.assert_array_equal(some, every[[4, 1]])
    alone = np.asarray(Signs().sample(key, None, 6, 70))
    np.testing.assert_array_equal(np.sign(alone), np.sign(every[:, :70]))


def test_one_side_shows_the_slopes_and_not_what_all_directions_share():
    dim, q, h = 50, 8, 0.5
    estimator = ValueEstimator(
        dim, q, Signs(), h, 1.0, Bounds(clip=1e6), Sharing.BLOCK, "float64", curve=0.0, sides=1
    )
    nowhere = jnp.zeros(1)
    query = Query(nowhere, nowhere, jax.random.key(0), Kind.GRAD)
    directions = np.asarray(Signs().sample(jax.random.key(1), None, q, dim))
    slope = np.random.default_rng(0).normal(size=dim)
    # Curvature of the same size in all directions, and a loss of its own at the point.
    values = 3.0 + h * directions @ slope + 0.5 * 7.0 * h**2
    found = np.asarray(estimator.coefficients(query, jnp.asarray(values)[None, None]))[0]
    along = directions @ slope
    np.testing.assert_allclose(found, dim / q * (along - along.mean()), rtol=1e-10)
