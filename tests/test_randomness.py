"""Noise: ChaCha20 against the RFC, its law, and that no two draws coincide."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from blindstep import InvalidArgument, NoEntropy
from blindstep.trusted import chacha, randomness


def test_chacha20_is_the_one_of_rfc_8439():
    # Section 2.3.2: key 00..1f, nonce 00:00:00:09:00:00:00:4a:00:00:00:00, block counter 1.
    key = jnp.asarray(np.frombuffer(bytes(range(32)), "<u4").astype(np.uint32))
    nonce = bytes.fromhex("000000090000004a00000000")
    words = jnp.asarray(np.frombuffer(nonce, "<u4").astype(np.uint32))
    stream = np.asarray(chacha.chacha20(key, words, 2))[:, 1].astype("<u4").tobytes()
    assert stream.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def draws(key, blocks, steps, dim):
    over_steps = jax.vmap(lambda b, s: randomness.gaussian(key, b, s, dim), (None, 0))
    both = jax.vmap(over_steps, (0, None))
    return np.asarray(both(jnp.arange(blocks), jnp.arange(1, steps + 1)))


@pytest.mark.parametrize(("scale", "normal"), [(1.0, True), (0.97, False)])
def test_the_law_is_standard_normal(scale, normal):
    sample = scale * draws(randomness.fresh_keys(3).noise, 40, 100, 101).ravel()
    p = stats.kstest(sample, "norm").pvalue
    assert bool(p > 1e-6) is normal


def test_the_circle_is_round():
    ends = np.arange(65) / 64
    turns = [
        np.random.default_rng(0).uniform(size=100_000),
        ends,
        np.nextafter(ends, 0),
        [2.0**-65],
    ]
    turns = np.concatenate(turns)
    cosine, sine = map(np.asarray, jax.jit(randomness._on_circle)(jnp.asarray(turns)))
    angle = 2 * np.longdouble("3.14159265358979323846264338327950288") * turns
    np.testing.assert_allclose(cosine, np.cos(angle).astype(float), rtol=0, atol=2.0**-51)
    np.testing.assert_allclose(sine, np.sin(angle).astype(float), rtol=0, atol=2.0**-51)


def test_draws_are_uncorrelated_across_steps_blocks_and_coordinates():
    z = draws(randomness.fresh_keys(4).noise, 16, 16, 4096)
    flat = z.reshape(256, 4096)
    correlations = np.corrcoef(flat)[np.triu_indices(256, 1)] * np.sqrt(4096)
    assert stats.kstest(correlations, "norm").pvalue > 1e-6
    assert np.abs(correlations).max() < 7


def test_no_two_draws_coincide_within_and_between_runs():
    first = draws(randomness.fresh_keys().noise, 8, 8, 9)
    second = draws(randomness.fresh_keys().noise, 8, 8, 9)
    everything = np.concatenate([first.ravel(), second.ravel()])
    assert len(np.unique(everything)) == everything.size


def test_noise_is_addressed_and_double_precision():
    key = randomness.fresh_keys(5).noise
    again = randomness.gaussian(key, 3, 7, 5)
    assert again.dtype == jnp.float64
    np.testing.assert_array_equal(
        again, jax.jit(randomness.gaussian, static_argnums=3)(key, 3, 7, 5)
    )
    # More than half-precision's handful of values.
    assert len(np.unique(draws(key, 4, 64, 256))) == 4 * 64 * 256


def test_noise_and_directions_share_nothing():
    keys = randomness.fresh_keys(6)
    noise_words = set(np.asarray(keys.noise).tolist())
    public_words = set(np.asarray(jax.random.key_data(keys.public)).tolist())
    assert not noise_words & public_words


def test_fresh_keys_take_256_bits_from_the_operating_system(monkeypatch):
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or real(n))
    keys = randomness.fresh_keys()
    assert asked == [32, 8]
    assert keys.noise.shape == (8,)
    assert not keys.seeded
    assert np.any(np.asarray(keys.noise) != np.asarray(randomness.fresh_keys().noise))


def test_no_entropy_fails_closed(monkeypatch):
    def broken(n):
        raise NotImplementedError

    monkeypatch.setattr(os, "urandom", broken)
    with pytest.raises(NoEntropy, match="nothing was released"):
        randomness.fresh_keys()


@pytest.mark.parametrize("seed", [-1, True])
def test_bad_seeds(seed):
    with pytest.raises(InvalidArgument, match="seed must be"):
        randomness.fresh_keys(seed)


def test_seeds_are_reproducible_and_say_so():
    assert randomness.fresh_keys(1).seeded
    np.testing.assert_array_equal(randomness.fresh_keys(1).noise, randomness.fresh_keys(1).noise)
    assert np.any(np.asarray(randomness.fresh_keys(1).noise != randomness.fresh_keys(2).noise))


def test_named_streams_differ():
    key = randomness.fresh_keys(1).public
    names = ("directions", "path", "order of records", "chosen epoch")
    data = {
        tuple(np.asarray(jax.random.key_data(randomness.public_stream(key, n))).tolist())
        for n in names
    }
    assert len(data) == len(names)
