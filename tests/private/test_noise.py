"""Noise: the cipher against its RFC, the table exactly, the law, the keys, no draw twice."""

import copy
import math
import os
import pickle
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from blindstep.errors import InvalidArgument, NoEntropy, SecretCopied
from blindstep.private import accounting, noise
from blindstep.private import noise as dg
from blindstep.private.noise import (
    Keys,
    NoiseKey,
    fresh_keys,
    lattice_noise,
    public_stream,
    second_seed,
)

SIGMA, FACTOR, BINS, CAPACITY = 1024, 256, 2**15, 2**177
KEY = np.arange(8, dtype=np.uint32) * np.uint32(0x9E3779B9)
_draw = jax.jit(lattice_noise, static_argnums=2)


# -- the cipher ------------------------------------------------------------------------------------


def test_chacha20_is_the_one_of_rfc_8439():
    # Section 2.3.2: key 00..1f, nonce 00:00:00:09:00:00:00:4a:00:00:00:00, block counter 1.
    key = jnp.asarray(np.frombuffer(bytes(range(32)), "<u4").astype(np.uint32))
    nonce = bytes.fromhex("000000090000004a00000000")
    words = jnp.asarray(np.frombuffer(nonce, "<u4").astype(np.uint32))
    stream = np.asarray(noise.chacha20(key, words, 2))[:, 1].astype("<u4").tobytes()
    assert stream.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_the_kernel_for_graphics_cards_gives_the_same_words(monkeypatch):
    """Interpreted here. 6 nonces of 50 blocks: more than one program of the kernel, and not full."""
    nonce = jnp.arange(3 * 6, dtype=jnp.uint32).reshape(3, 2, 3)
    by_loop = np.asarray(noise.chacha20(jnp.asarray(KEY), nonce, 50))
    assert by_loop.shape == (16, 2, 3, 50)
    taken = []
    kernel = noise.by_kernel
    monkeypatch.setattr(noise, "by_kernel", lambda *args: taken.append(1) or kernel(*args))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_array_equal(noise.chacha20(jnp.asarray(KEY), nonce, 50), by_loop)
    assert taken == [1]


# -- the table, exactly ----------------------------------------------------------------------------


def test_weights_are_the_probabilities_rounded():
    with localcontext() as context:
        context.prec = 80
        density = [(Decimal(-k * k) / (2 * SIGMA**2)).exp() for k in range(BINS // 2)]
        scale = Decimal(2**192) / (2 * sum(density) - 1)
        probabilities = [value * scale for value in density]
    weights = dg.weights()
    assert sum(weights) == 2**192
    assert weights[0] == 0
    assert weights[1:] == weights[:0:-1]
    half = weights[BINS // 2 :]
    assert all(
        abs(w - p) <= Decimal("0.51") for w, p in zip(half[1:], probabilities[1:], strict=True)
    )
    off = 2 * sum(abs(w - p) for w, p in zip(half, probabilities, strict=True))
    assert off / 2 / 2**192 < 2.0**-178
    # Beyond the table: less than 2^-189.
    assert 2 * stats.norm.sf((BINS // 2 - 0.5) / SIGMA) < 2.0**-188.9


def thresholds():
    table = dg.alias_table()
    high, middle, low = (part.tolist() for part in table.threshold)
    whole = [a << 113 | b << 49 | c for a, b, c in zip(high, middle, low, strict=True)]
    return whole, table.alias.tolist()


def test_the_alias_table_has_exactly_these_weights():
    whole, alias = thresholds()
    total = [0] * BINS
    for i, (threshold, other) in enumerate(zip(whole, alias, strict=True)):
        assert 0 <= threshold < CAPACITY
        total[i] += threshold
        total[other] += CAPACITY - threshold
    assert total == dg.weights()


def test_look_up_compares_all_192_bits():
    whole, alias = thresholds()
    chance = np.random.default_rng(0)
    cases = []
    for bin_ in [0, 1, 16383, 16384, BINS - 1, *chance.integers(0, BINS, 60).tolist()]:
        threshold = whole[bin_]
        near = [threshold + step * scale for step in (-1, 0, 1) for scale in (1, 2**49, 2**113)]
        near += [0, CAPACITY - 1, int.from_bytes(chance.bytes(22), "big")]
        cases += [(bin_, u) for u in near if 0 <= u < CAPACITY]
    words = np.empty((6, len(cases)), np.uint32)
    for i, (bin_, u) in enumerate(cases):
        bits = u << 15 | bin_
        words[:, i] = [bits >> 32 * k & 0xFFFFFFFF for k in range(5, -1, -1)]
    found = np.asarray(dg.look_up(dg.alias_table(), jnp.asarray(words)))
    expected = [(bin_ if u < whole[bin_] else alias[bin_]) - BINS // 2 for bin_, u in cases]
    np.testing.assert_array_equal(found, expected)


def test_a_draw_takes_each_word_once():
    """Change one word of the stream and only the draw that reads it can change."""
    blocks = -(-5 * dg.WORDS // noise.WORDS)
    stream = np.random.default_rng(0).integers(0, 2**32, (16, blocks), dtype=np.uint32)
    changed = np.repeat(stream[None], stream.size, axis=0)
    changed.reshape(stream.size, -1)[np.arange(stream.size), np.arange(stream.size)] ^= 2**32 - 1
    draw = jax.jit(dg.from_words, static_argnums=1)
    cases = draw(jnp.asarray(np.moveaxis(changed, 1, 0)), 5)  # (16, cases, blocks)
    differs = np.asarray(cases) != np.asarray(draw(jnp.asarray(stream), 5))
    assert differs.sum(axis=1).max() == 1
    assert np.all(differs.sum(axis=0) <= dg.WORDS)
    assert np.all(differs.sum(axis=0) >= 2)  # the two words that choose bins, at least


# -- the law ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    with jax.enable_x64(True):
        key = jnp.asarray(fresh_keys(1).noise.words())
        return np.asarray(_draw(key, jnp.arange(4), 50_000)).ravel()


def test_draws_are_whole_float64_numbers_in_range(sample):
    assert sample.dtype == np.float64
    np.testing.assert_array_equal(sample, np.rint(sample))
    assert np.abs(sample).max() <= dg.LARGEST < 2**23
    assert len(np.unique(sample)) > 0.5 * len(sample)  # not half precision's handful


@pytest.mark.parametrize(("scale", "right"), [(1.0, True), (0.9, False)])
def test_the_law(sample, scale, right):
    # Cells of equal probability; at this width, sums over cells are normal to 1e-10.
    edges = stats.norm.ppf(np.linspace(0, 1, 301)[1:-1])
    cells = np.bincount(np.searchsorted(edges, scale * sample / dg.STD), minlength=300)
    assert bool(stats.chisquare(cells).pvalue > 1e-6) is right
    tail = stats.chi2.cdf(np.sum((scale * sample) ** 2) / dg.VARIANCE, len(sample))
    assert bool(5e-7 < tail < 1 - 5e-7) is right
    if right:
        assert abs(sample.mean()) < 5 * dg.STD / math.sqrt(len(sample))
        fourth = np.mean(sample**4) / dg.VARIANCE**2
        assert abs(fourth - 3) < 5 * math.sqrt(96 / len(sample))


def test_last_bits_are_uniform_and_neighbours_uncorrelated(sample):
    for modulus in (2, 7, 256, 257):
        residues = np.bincount(sample.astype(int) % modulus, minlength=modulus)
        assert stats.chisquare(residues).pvalue > 1e-6
    correlation = np.mean(sample[1:] * sample[:-1]) / dg.VARIANCE * math.sqrt(len(sample))
    assert abs(correlation) < 5


def test_two_draws_make_one_wide_one():
    """P(K a + b = z) exp(z^2 / 2 S^2) is the same for all z to 1e-136, and not to 1e-139."""
    with localcontext() as context:
        context.prec = 170

        def relative(z):
            centre = z * FACTOR // (FACTOR**2 + 1)
            terms = (
                (Decimal(z * z) / (FACTOR**2 + 1) - a * a - (z - FACTOR * a) ** 2) / (2 * SIGMA**2)
                for a in range(centre - 120, centre + 121)
            )
            return sum(term.exp() for term in terms)

        found = [relative(z) for z in (0, 1, 64, 128, 200, 4_000, 1_000_077, 3_000_128)]
        spread = max(found) / min(found) - 1
    assert Decimal("1e-139") < spread < Decimal("1e-136")
    assert dg.VARIANCE == (FACTOR**2 + 1) * SIGMA**2


@pytest.mark.parametrize("shift", [1, 7, 30])
def test_a_discrete_gaussian_is_as_private_as_the_smoothed_one(shift):
    """Brute force at S = 30, tau = 3: delta(epsilon) of a shift is below that of N(0, S^2 - tau^2)."""
    wide, tau = 30.0, 3.0
    grid = np.arange(-1500, 1501)
    log_density = stats.norm.logpdf(grid, 0, wide)
    log_density -= np.log(np.sum(np.exp(log_density)))
    log_shifted = np.interp(grid - shift, grid, log_density)
    mu = shift / math.sqrt(wide**2 - tau**2)
    for epsilon in np.linspace(0, 4 * mu * mu + 2 * mu, 9):
        gain = np.exp(log_density) - np.exp(epsilon + log_shifted)
        truth = np.sum(np.maximum(gain, 0))
        assert truth <= accounting.delta(mu, epsilon) + 1e-15
        if truth > 1e-12:  # the comparison can fail: ten percent more noise claimed
            assert truth > accounting.delta(mu / 1.1, epsilon)


# -- addresses -------------------------------------------------------------------------------------


def test_the_noise_of_a_release_is_a_function_of_key_and_number_alone():
    key = jnp.asarray(KEY)
    numbers = jnp.asarray([0, 1, 2, 3, 256, 2**16, 2**24, 2**31 - 1], jnp.int32)
    together = np.asarray(_draw(key, numbers, 40))
    for number, draw in zip(numbers, together, strict=True):
        np.testing.assert_array_equal(_draw(key, number, 40), draw)
    # No two coordinates of any releases agree, and no release is another one shifted or negated.
    assert len(np.unique(np.abs(together))) == together.size


def test_releases_read_disjoint_parts_of_the_stream(monkeypatch):
    read, real = [], noise.chacha20
    monkeypatch.setattr(noise, "chacha20", lambda *args: read.append(real(*args)) or read[0])

    def stream(key):
        lattice_noise(key, jnp.arange(8), 11)
        return read[0]

    words = np.asarray(jax.jit(stream)(jnp.asarray(KEY)))
    assert words.size >= 8 * 11 * dg.WORDS
    assert len(np.unique(words)) == words.size


def test_all_256_bits_of_the_key_matter():
    keys = np.tile(KEY, (257, 1))
    for bit in range(256):
        keys[bit, bit // 32] ^= np.uint32(1 << (bit % 32))
    draws = np.asarray(jax.vmap(lambda key: _draw(key, jnp.asarray(5), 4))(jnp.asarray(keys)))
    assert len(np.unique(draws, axis=0)) == len(keys)


# -- keys ------------------------------------------------------------------------------------------


def test_fresh_keys_take_256_bits_from_the_operating_system(monkeypatch):
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or real(n))
    keys = fresh_keys()
    assert asked == [32, 8]
    assert not keys.seeded
    words = np.stack([fresh_keys().noise.words() for _ in range(64)])
    bits = np.unpackbits(words.view(np.uint8), axis=1)
    # Each of the 256 bits is 0 in some key and 1 in another: missed by chance below 1e-16.
    assert bits.shape[1] == 256
    assert np.all(bits.any(axis=0) & ~bits.all(axis=0))


@pytest.mark.parametrize("failure", [NotImplementedError, OSError])
def test_no_entropy_is_an_error_never_a_fallback(monkeypatch, failure):
    def broken(n):
        raise failure

    monkeypatch.setattr(os, "urandom", broken)
    with pytest.raises(NoEntropy, match="nothing was released"):
        fresh_keys()


@pytest.mark.parametrize("seed", [-1, True])
def test_bad_seeds(seed):
    with pytest.raises(InvalidArgument, match="seed must be"):
        fresh_keys(seed)


def test_seeds_are_reproducible_and_say_so():
    one, again, other = fresh_keys(1), fresh_keys(1), fresh_keys(2)
    assert one.seeded
    np.testing.assert_array_equal(one.noise.words(), again.noise.words())
    assert not set(one.noise.words().tolist()) & set(other.noise.words().tolist())
    # The public key tells nothing of the noise key: they share no word.
    public = np.asarray(jax.random.key_data(one.public)).tolist()
    assert not set(public) & set(one.noise.words().tolist())


def test_a_second_gate_of_one_call_has_other_noise():
    """Under one seed too; the bits are those that runs were made with before."""
    assert second_seed(None) is second_seed(None, "choice") is None
    assert second_seed(5) == 212063380689683165468667061002603228257
    assert second_seed(5, "1") == 247245473004832286931475039599845310193
    seeds = [5, second_seed(5), *(second_seed(5, use) for use in ("0", "1", "choice"))]
    seeds += [second_seed(seed) for seed in (51, 50, second_seed(5), second_seed(5, "1"))]
    assert len(set(seeds)) == len(seeds)
    draws = [fresh_keys(seed).noise.words() for seed in seeds]
    assert len({words.tobytes() for words in draws}) == len(seeds)
    assert fresh_keys(second_seed(5)).seeded


def test_streams_of_public_randomness_are_told_apart_by_name():
    public = fresh_keys(3).public
    names = ["directions", "path", "order of records", "chosen round", ""]
    data = [tuple(np.asarray(jax.random.key_data(public_stream(public, n)))) for n in names]
    assert len(set(data)) == len(names)
    assert tuple(np.asarray(jax.random.key_data(public_stream(public, "path")))) == data[1]


@pytest.mark.parametrize("shape", [(7,), (9,), (8, 1), (0,)])
def test_a_noise_key_is_256_bits(shape):
    with pytest.raises(InvalidArgument, match="8 words of 32 bits"):
        NoiseKey(np.zeros(shape, np.uint32))
    with pytest.raises(InvalidArgument, match="8 words of 32 bits"):
        NoiseKey(np.zeros(8, np.uint64))


def test_a_noise_key_cannot_be_copied_pickled_or_printed():
    keys = fresh_keys(1)
    for refused in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(SecretCopied, match="same noise"):
            refused(keys.noise)
    for refused in (copy.deepcopy, pickle.dumps):
        with pytest.raises(SecretCopied):
            refused(Keys(keys.noise, 0, True))
    for shown in (repr(keys), str(keys), f"{keys.noise}", repr(vars(keys.noise))):
        assert not any(str(word) in shown for word in keys.noise.words())
