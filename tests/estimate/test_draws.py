"""Public draws: addressed by key, of the right law, and stored without a change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from blindstep.estimate import draws
from blindstep.estimate.draws import opaque_true, stored

SIGNIFICANCE = 1e-6
KEYS = draws.fold_in(jax.random.key(3), jnp.arange(40))


def test_folding_in_is_that_of_jax_in_round_0():
    key, numbers = jax.random.key(11), [0, 1, 7, 2**31 - 1]
    ours = draws.fold_in(key, jnp.asarray(numbers))
    for number, made in zip(numbers, ours, strict=True):
        theirs = jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jax.random.key_data(made), jax.random.key_data(theirs))


def test_every_number_of_every_round_has_its_own_key_and_uniform():
    key, (numbers, rounds) = jax.random.key(1), jnp.indices((40, 40)).reshape(2, -1)
    keys = jax.jit(jax.vmap(lambda n, r: jax.random.key_data(draws.fold_in(key, n, r))))
    uniforms = np.asarray(jax.jit(jax.vmap(lambda n, r: draws.uniform(key, n, r)))(numbers, rounds))
    assert len(np.unique(keys(numbers, rounds), axis=0)) == len(np.unique(uniforms)) == 1600
    assert uniforms.dtype == np.float64
    assert stats.kstest(uniforms, "uniform").pvalue > SIGNIFICANCE
    assert stats.kstest(uniforms**1.2, "uniform").pvalue < SIGNIFICANCE


@pytest.mark.parametrize(("dtype", "number"), [(jnp.float32, 501), (jnp.float64, 500)])
def test_normals_are_normal_and_independent_across_keys(dtype, number):
    many = np.asarray(draws.normals_of_each(KEYS, number, dtype))
    assert many.shape == (number, KEYS.size)
    assert many.dtype == dtype
    assert (many != 0).all()
    assert stats.kstest(many.ravel(), "norm").pvalue > SIGNIFICANCE
    assert stats.kstest(1.1 * many.ravel(), "norm").pvalue < SIGNIFICANCE
    assert largest_correlation(many) < 6
    assert largest_correlation(np.column_stack([many, many[:, 0] + many[:, 1]])) > 6


def largest_correlation(columns):
    """In standard deviations of that of independent columns; 6 of 780 pairs has p = 1.5e-6."""
    pairs = np.triu_indices(columns.shape[1], 1)
    return np.abs(np.corrcoef(columns.T)[pairs]).max() * np.sqrt(len(columns))


def test_a_key_draws_the_same_alone_and_among_others():
    for of_each in (draws.normals_of_each, draws.signs_of_each):
        together = of_each(KEYS, 130, jnp.float64)
        for place in (0, 7):
            alone = of_each(KEYS[place : place + 1], 130, jnp.float64)
            np.testing.assert_allclose(together[:, place], alone[:, 0], rtol=1e-15)


def test_signs_are_balanced_and_not_those_of_normals():
    signs = np.asarray(draws.signs_of_each(KEYS, 1000, jnp.float32))
    of_normals = np.sign(draws.normals_of_each(KEYS, 1000, jnp.float32))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    off = lambda signs: abs(signs.mean()) * np.sqrt(signs.size)  # noqa: E731
    assert max(off(signs), off(signs * of_normals)) < 5  # p = 6e-7 each
    assert off(np.where(np.arange(1000)[:, None] < 50, 1.0, signs)) > 5  # 5% are always 1


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_storing_changes_nothing(monkeypatch, backend, word):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    make = lambda x, y: (x + y, {"a": x[0] * y})  # noqa: E731
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.asarray(2.0)
    true = opaque_true(jnp.asarray([word], jnp.uint32))
    once = jax.jit(lambda t: stored(t, make, x, y))(true)
    many = jax.vmap(lambda t: stored(t, make, x, y))(true[None].repeat(2))
    for got in (once, jax.tree.map(lambda leaf: leaf[1], many)):
        jax.tree.map(np.testing.assert_array_equal, got, make(x, y))


def test_the_branch_that_is_never_taken_gives_nothing_that_could_pass_for_a_result():
    made = stored(jnp.asarray(False), lambda x: (x, x > 0), jnp.ones(3))
    assert np.isnan(made[0]).all()
    assert not made[1].any()
