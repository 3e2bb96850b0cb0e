"""The discrete Gaussian: its table in exact arithmetic, its law, and the two bounds it rests on."""

import math
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from blindstep.trusted import accounting
from blindstep.trusted import discrete_gaussian as dg
from blindstep.trusted.randomness import fresh_keys, noise_words

SIGMA, FACTOR, BINS, CAPACITY = 1024, 256, 2**15, 2**177


@pytest.fixture(scope="module")
def probabilities():
    """2^192 times the exact probability of 0 .. 2^14 - 1, from 80 digits of each exponential."""
    with localcontext() as context:
        context.prec = 80
        density = [(Decimal(-k * k) / (2 * SIGMA**2)).exp() for k in range(BINS // 2)]
        scale = Decimal(2**192) / (2 * sum(density) - 1)
        return [value * scale for value in density]


def test_weights_are_the_probabilities_rounded(probabilities):
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


def draws(seed=1, steps=4, dim=100_000):
    draw = jax.jit(dg.discrete_gaussian, static_argnums=3)
    key = fresh_keys(seed).noise
    return np.concatenate([np.asarray(draw(key, 3, step, dim)) for step in range(1, steps + 1)])


@pytest.fixture(scope="module")
def sample():
    with jax.enable_x64(True):
        return draws()


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
    variance = np.sum((scale * sample) ** 2) / dg.VARIANCE
    tail = stats.chi2.cdf(variance, len(sample))
    assert bool(5e-7 < tail < 1 - 5e-7) is right
    if right:
        assert abs(sample.mean()) < 5 * dg.STD / math.sqrt(len(sample))


def test_last_bits_are_uniform_and_neighbours_uncorrelated(sample):
    for modulus in (2, 7, 256, 257):
        residues = np.bincount(sample.astype(int) % modulus, minlength=modulus)
        assert stats.chisquare(residues).pvalue > 1e-6
    correlation = np.mean(sample[1:] * sample[:-1]) / dg.VARIANCE * math.sqrt(len(sample))
    assert abs(correlation) < 5


def test_draws_are_addressed_and_share_no_words_with_other_noise():
    key = fresh_keys(2).noise
    one = jax.jit(lambda b, s: dg.discrete_gaussian(key, b, s, 5))
    table = np.asarray([[one(b, s) for s in range(8)] for b in range(4)])
    assert len(np.unique(table[..., 0])) == 32
    np.testing.assert_array_equal(one(3, 7), table[3, 7])
    stream = jax.jit(lambda tag, step: noise_words(key, tag, 1, step, 96))
    words = [stream(jnp.uint32(tag), s) for tag in (0x6C617474, 0x626C696E) for s in range(8)]
    assert len(np.unique(words)) == np.size(words)


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
