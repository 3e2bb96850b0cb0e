"""Public draws: addressed by key, of the right law, and stored without a change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from blindstep.trusted import draws
from blindstep.trusted import stored as stored_module
from blindstep.trusted.stored import stored, true_for

SIGNIFICANCE = 1e-6
KEYS = draws.fold_in(jax.random.key(3), jnp.arange(40))


def test_folding_in_is_that_of_jax_in_epoch_0():
    key, numbers = jax.random.key(11), [0, 1, 7, 2**31 - 1]
    ours = draws.fold_in(key, jnp.asarray(numbers))
    for number, made in zip(numbers, ours, strict=True):
        theirs = jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jax.random.key_data(made), jax.random.key_data(theirs))


def test_every_number_of_every_epoch_has_its_own_key_and_uniform():
    key = jax.random.key(1)
    pairs = [(number, epoch) for number in range(20) for epoch in range(20)]
    keys = {
        tuple(np.asarray(jax.random.key_data(draws.fold_in(key, n, e))).tolist()) for n, e in pairs
    }
    uniforms = np.asarray([draws.uniform(key, n, e) for n, e in pairs])
    assert len(keys) == len(np.unique(uniforms)) == len(pairs)
    assert uniforms.dtype == np.float64
    assert stats.kstest(uniforms, "uniform").pvalue > SIGNIFICANCE


@pytest.mark.parametrize(("dtype", "number"), [(jnp.float32, 501), (jnp.float64, 500)])
def test_normals_are_normal_and_independent_across_keys(dtype, number):
    many = np.asarray(draws.normals_of_each(KEYS, number, dtype))
    assert many.shape == (number, KEYS.size)
    assert many.dtype == dtype
    assert (many != 0).all()
    assert stats.kstest(many.ravel(), "norm").pvalue > SIGNIFICANCE
    assert stats.kstest(1.03 * np.repeat(many.ravel(), 9), "norm").pvalue < SIGNIFICANCE
    correlations = np.corrcoef(many.T)[np.triu_indices(KEYS.size, 1)] * np.sqrt(number)
    assert np.abs(correlations).max() < 6


def test_a_key_draws_the_same_alone_and_among_others():
    for of_each in (draws.normals_of_each, draws.signs_of_each):
        together = of_each(KEYS, 130, jnp.float64)
        for place in (0, 7):
            alone = of_each(KEYS[place : place + 1], 130, jnp.float64)
            np.testing.assert_allclose(together[:, place], alone[:, 0], rtol=1e-15)


def test_signs_are_balanced_and_not_those_of_normals():
    signs = np.asarray(draws.signs_of_each(KEYS, 1000, jnp.float32))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 6 / np.sqrt(signs.size)
    of_normals = np.sign(draws.normals_of_each(KEYS, 1000, jnp.float32))
    assert abs((signs * of_normals).mean()) < 6 / np.sqrt(signs.size)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_storing_changes_nothing(monkeypatch, backend):
    monkeypatch.setattr(stored_module.jax, "default_backend", lambda: backend)
    make = lambda x, y: (x + y, {"a": x[0] * y})  # noqa: E731
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.asarray(2.0)
    for word in (0, 1, 2**32 - 1):
        true = true_for(jnp.asarray([word], jnp.uint32))
        for got in (
            stored(true, make, x, y),
            jax.jit(lambda t: stored(t, make, x, y))(true),
            jax.tree.map(
                lambda leaf: leaf[1],
                jax.vmap(lambda t: stored(t, make, x, y))(true[None].repeat(2)),
            ),
        ):
            jax.tree.map(np.testing.assert_array_equal, got, make(x, y))


def test_the_branch_that_is_never_taken_gives_no_number_that_could_pass_for_noise():
    made = stored(jnp.asarray(False), lambda x: (x, x > 0), jnp.ones(3))
    assert np.isnan(made[0]).all()
    assert not made[1].any()
