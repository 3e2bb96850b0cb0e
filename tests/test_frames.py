"""Frames: orthonormal, addressed by row, within their gain, each direction uniform, no bias."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from blindstep import InvalidArgument, Lipschitz
from blindstep.trusted import draws, frame_building, frame_levels
from blindstep.trusted.directions import Sphere
from blindstep.trusted.estimators import Estimator, Kind, Query
from blindstep.trusted.frames import Haar, Structured
from blindstep.trusted.increments import Chunk, increment

SAMPLERS = [Haar(), Structured()]
SIGNIFICANCE = 1e-6
# Trivial, odd and prime sizes, powers of two, q = d, q just below, far below and above half of d.
SIZES = [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3), (1, 5), (4, 5), (7, 7), (3, 8), (8, 8)]
SIZES += [
    (13, 13),
    (5, 23),
    (31, 31),
    (20, 32),
    (64, 64),
    (33, 95),
    (60, 61),
    (123, 123),
    (62, 123),
]
SIZES += [(200, 826), (826, 826), (6, 5003), (600, 1101)]
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)

draw = functools.partial(jax.jit, static_argnums=(0, 3, 4))(
    lambda sampler, key, which, number, dim: sampler.sample(key, which, number, dim)
)
draw_many = functools.partial(jax.jit, static_argnums=(0, 3, 4))(
    lambda sampler, keys, which, number, dim: jax.vmap(
        lambda key: sampler.sample(key, which, number, dim)
    )(keys)
)


def frame(sampler, number, dim, seed=0):
    return np.asarray(draw(sampler, jax.random.key(seed), jnp.arange(number), number, dim))


@each_sampler
@pytest.mark.parametrize(("number", "dim"), SIZES)
def test_rows_are_orthonormal(sampler, number, dim):
    rows = frame(sampler, number, dim)
    assert rows.shape == (number, dim)
    assert rows.dtype == np.float64
    np.testing.assert_allclose(rows @ rows.T, np.eye(number), atol=1e-12)


@each_sampler
@pytest.mark.parametrize(("number", "dim"), [(123, 123), (20, 200), (1, 4)])
def test_rows_do_not_depend_on_how_they_are_asked_for(sampler, number, dim):
    whole, key = frame(sampler, number, dim), jax.random.key(0)
    order = np.random.default_rng(0).permutation(number)
    for which in (order, order[:1], np.repeat(order[: number // 3 + 1], 2)):
        some = draw(sampler, key, jnp.asarray(which), number, dim)
        np.testing.assert_allclose(some, whole[which], atol=1e-14)


@each_sampler
@pytest.mark.parametrize(("number", "dim"), [(3, 3), (2, 5)])
def test_jit_equals_eager(sampler, number, dim):
    eager = sampler.sample(jax.random.key(0), jnp.arange(number), number, dim)
    np.testing.assert_allclose(frame(sampler, number, dim), eager, atol=1e-14)


@each_sampler
def test_each_key_has_its_own_frame(sampler):
    keys = jax.random.split(jax.random.key(3), 5)
    many = draw_many(sampler, keys, jnp.arange(9), 9, 13)
    for i in range(5):
        one = draw(sampler, keys[i], jnp.arange(9), 9, 13)
        np.testing.assert_allclose(many[i], one, atol=1e-14)
        for j in range(i):
            assert np.abs(many[i] - many[j]).max() > 0.1


def test_more_directions_than_dimensions_are_refused():
    for sampler in SAMPLERS:
        with pytest.raises(InvalidArgument, match=r"at most dim = 4.*got 5"):
            sampler.gain(5, 4)
        with pytest.raises(InvalidArgument, match=r"at most dim = 4.*got 5"):
            sampler.sample(jax.random.key(0), jnp.arange(5), 5, 4)
        with pytest.raises(InvalidArgument, match="directions must be a whole number"):
            sampler.gain(0, 4)


def test_frames_say_that_they_are_orthonormal():
    assert all(sampler.orthonormal for sampler in SAMPLERS)
    assert not Sphere.orthonormal


# --- gain -------------------------------------------------------------------------------------------


@each_sampler
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_coefficients_exceed_the_gain(sampler, data):
    number, dim = data.draw(st.sampled_from([(1, 1), (3, 3), (5, 23), (8, 8), (20, 32)]))
    rows = frame(sampler, number, dim, data.draw(st.integers(0, 3)))
    hostile = st.one_of(st.sampled_from([-1.0, 1.0]), st.floats(-1.0, 1.0))
    coefficients = data.draw(st.lists(hostile, min_size=number, max_size=number))
    length = np.linalg.norm(dim / number * np.asarray(coefficients) @ rows)
    assert length <= sampler.gain(number, dim) * (1 + 1e-12)


def query(kind, point, reference=None, seed=0):
    point = jnp.asarray(point, jnp.float64)
    reference = point if reference is None else jnp.asarray(reference)
    return Query(point, reference, jax.random.key(seed), kind)


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def estimate_batch(estimator, asked, loss, batch, directions):
    """The mean of `batch` records that all have the same loss."""
    evaluate = lambda points, _: jax.vmap(jax.vmap(loss))(points)  # noqa: E731
    records = jnp.zeros(batch)
    return increment(estimator, asked, evaluate, records, Chunk(batch, directions))


@each_sampler
@pytest.mark.parametrize(("number", "dim"), [(1, 1), (3, 3), (5, 23), (31, 31)])
def test_a_worst_case_attains_the_gain(sampler, number, dim):
    """A loss that jumps by far more than its slope allows, the same way along every direction."""
    slope, key = 3.0, jax.random.key(0)
    estimator = Estimator(dim, number, sampler, 0.1, 0.1, Lipschitz(slope))
    bound = estimator.record_bound(Kind.GRAD)
    assert bound == pytest.approx(slope * dim / math.sqrt(number), rel=1e-12)
    # The record's own key, as `increment` derives it: the loss is built to be the worst for it.
    rows = draw(sampler, jax.random.fold_in(key, 0), jnp.arange(number), number, dim)
    loss = lambda x: 1e6 * jnp.sign(jnp.sum(rows @ x))  # noqa: E731
    got = estimate_batch(estimator, query(Kind.GRAD, np.zeros(dim)), loss, 1, number)
    assert np.linalg.norm(got) == pytest.approx(bound, rel=2e-9)
    assert np.linalg.norm(got) <= bound
    ratio = Sphere().gain(number, dim) / sampler.gain(number, dim)
    assert ratio == pytest.approx(math.sqrt(number), rel=1e-12)


# --- unbiasedness -----------------------------------------------------------------------------------


@each_sampler
@pytest.mark.parametrize(("dim", "parts"), [(1, 1), (3, 3), (16, 1), (123, 1), (123, 4)])
def test_a_full_frame_gives_a_linear_gradient_back(sampler, dim, parts):
    """Sum_j u_j u_j^T = I: no randomness is left, however directions are split into chunks."""
    slope = jnp.asarray(np.random.default_rng(dim).normal(size=dim))
    estimator = Estimator(dim, dim, sampler, 0.5, 0.1, Lipschitz(1e3))
    asked = query(Kind.GRAD, np.ones(dim))
    got = estimate_batch(estimator, asked, lambda x: slope @ x, 2, -(-dim // parts))
    np.testing.assert_allclose(got, slope, atol=1e-12)


def estimates(rows, loss, point, smoothing, factor):
    """Two-sided estimates from many frames."""
    values = jax.vmap(jax.vmap(loss))
    difference = values(point + smoothing * rows) - values(point - smoothing * rows)
    return np.asarray(factor * jnp.einsum("nq,nqd->nd", difference / (2 * smoothing), rows))


def hotelling(samples, mean):
    """p-value of the hypothesis that the samples have this mean (Hotelling's T^2)."""
    n, dim = samples.shape
    gap = samples.mean(axis=0) - mean
    square = n * gap @ np.linalg.solve(np.cov(samples.T), gap)
    return stats.f.sf(square * (n - dim) / (dim * (n - 1)), dim, n - dim)


def many_frames(sampler, number, dim, count=6000):
    keys = jax.random.split(jax.random.key(number * dim), count)
    return draw_many(sampler, keys, jnp.arange(number), number, dim)


@each_sampler
@pytest.mark.parametrize(("number", "dim"), [(3, 8), (4, 13)])
def test_unbiased_on_a_linear_loss_with_few_directions(sampler, number, dim):
    slope = jnp.arange(1.0, dim + 1)
    rows = many_frames(sampler, number, dim)
    got = estimates(rows, lambda x: slope @ x, jnp.zeros(dim), 0.5, dim / number)
    assert hotelling(got, slope) > SIGNIFICANCE
    assert hotelling(got * number / dim, slope) < SIGNIFICANCE  # the factor d/q forgotten


def ball_coordinate(dim):
    """Law of one coordinate of a uniform point of the unit ball."""
    return stats.beta((dim + 1) / 2, (dim + 1) / 2, loc=-1, scale=2)


def nonsmooth(dim):
    """(loss, point, gradient of its uniform smoothing at radius 1), near kinks."""
    law, offsets = ball_coordinate(dim), np.linspace(0.05, 0.4, dim)
    unit = np.arange(1.0, dim + 1) / np.linalg.norm(np.arange(1.0, dim + 1))
    return {
        "absolute value": (lambda x: abs(x @ unit), 0.2 * unit, (2 * law.cdf(0.2) - 1) * unit),
        "sum of absolutes": (lambda x: jnp.sum(jnp.abs(x)), offsets, 2 * law.cdf(offsets) - 1),
        "maximum": (jnp.max, np.zeros(dim), np.full(dim, 1 / dim)),
        "step": (lambda x: jnp.sign(x @ unit), 0.2 * unit, 2 * law.pdf(0.2) * unit),
    }


def signed_hadamard(number, dim, count=6000):
    """Orthonormal and unbiased on linear losses, but no direction is uniform."""
    matrix = np.eye(1)
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (count, 1, dim))
    return jnp.asarray(matrix[:number] * signs / math.sqrt(dim))


@each_sampler
@pytest.mark.parametrize(("number", "dim"), [(8, 8), (3, 8), (7, 7), (4, 13)])
def test_unbiased_for_the_smoothed_gradient_of_nonsmooth_losses(sampler, number, dim):
    rows = many_frames(sampler, number, dim)
    for loss, point, gradient in nonsmooth(dim).values():
        got = estimates(rows, loss, point, 1.0, dim / number)
        assert hotelling(got, gradient) > SIGNIFICANCE


@pytest.mark.parametrize("name", ["sum of absolutes", "step"])
def test_a_frame_without_uniform_directions_is_caught(name):
    loss, point, gradient = nonsmooth(8)[name]
    got = estimates(signed_hadamard(8, 8), loss, point, 1.0, 1.0)
    linear = estimates(signed_hadamard(3, 8), lambda x: jnp.sum(x), jnp.zeros(8), 1.0, 8 / 3)
    assert hotelling(linear, np.ones(8)) > SIGNIFICANCE
    assert hotelling(got, gradient) < SIGNIFICANCE


@each_sampler
def test_differences_of_a_quadratic_are_unbiased(sampler):
    """DIFF is one-sided: its constant part (f(x) - f(y)) / h must average out over directions."""
    number, dim, batch = 3, 5, 4000
    matrix = np.random.default_rng(5).normal(size=(dim, dim))
    matrix = matrix @ matrix.T
    estimator = Estimator(dim, number, sampler, 0.5, 10.0, Lipschitz(1e6))
    x, y = np.arange(5.0), np.array([1.0, 0.0, 2.0, 1.0, -1.0])
    loss = lambda v: v @ jnp.asarray(matrix) @ v / 2  # noqa: E731
    got = np.stack(
        [
            estimate_batch(estimator, query(Kind.DIFF, x, y, seed), loss, batch, number)
            for seed in range(40)
        ]
    )
    assert hotelling(got, matrix @ (x - y)) > SIGNIFICANCE
    assert hotelling(got * number / dim, matrix @ (x - y)) < SIGNIFICANCE


# --- the law of a direction -------------------------------------------------------------------------


def uniformity(rows):
    """Smallest Kolmogorov-Smirnov p-value over rows and over projections.

    A unit vector is uniform if and only if its scalar product with every fixed unit vector has the
    law of a coordinate, 2 Beta((d-1)/2, (d-1)/2) - 1.
    """
    dim = rows.shape[-1]
    axes = [np.eye(dim)[0], np.eye(dim)[-1], np.eye(dim)[0] - np.eye(dim)[dim // 2]]
    axes += [np.ones(dim), np.arange(1.0, dim + 1)]
    law = stats.beta((dim - 1) / 2, (dim - 1) / 2, loc=-1, scale=2)
    projected = np.asarray(rows) @ np.stack([a / np.linalg.norm(a) for a in axes if a.any()]).T
    columns = projected.reshape(len(rows), -1).T
    return min(stats.kstest(column, law.cdf).pvalue for column in columns)


@each_sampler
@pytest.mark.parametrize(
    ("number", "dim"), [(2, 2), (3, 3), (1, 4), (3, 8), (7, 7), (8, 8), (4, 13), (16, 40), (2, 70)]
)
def test_each_direction_is_uniform(sampler, number, dim):
    assert uniformity(many_frames(sampler, number, dim)) > SIGNIFICANCE


def test_directions_that_are_not_uniform_are_caught(monkeypatch):
    gaussian = np.random.default_rng(0).normal(size=(6000, 5, 5))
    assert uniformity(np.swapaxes(np.linalg.qr(gaussian).Q, 1, 2)) < SIGNIFICANCE  # signs forgotten
    assert uniformity(signed_hadamard(8, 8)) < SIGNIFICANCE

    right = frame_building._weights

    def even_split(supply, level, copies):
        """Every half gets the same share of a direction."""
        return jnp.sign(right(supply, level, copies)) / math.sqrt(level.ways)

    monkeypatch.setattr(frame_building, "_weights", even_split)
    keys = jax.random.split(jax.random.key(0), 6000)
    wrong = jax.vmap(lambda key: Structured().sample(key, jnp.arange(3), 3, 24))
    assert uniformity(jax.jit(wrong)(keys)) < SIGNIFICANCE


def largest_share(seed):
    """Share of the error's variance along its worst direction: linear loss x_1, 7 of 24."""
    keys = jax.random.split(jax.random.key(seed), 6000)
    rows = jax.jit(jax.vmap(lambda key: Structured().sample(key, jnp.arange(7), 7, 24)))(keys)
    got = np.einsum("nq,nqd->nd", rows[:, :, 0], rows)
    variances = np.linalg.eigvalsh(np.cov(got.T))
    return variances[-1] / variances.sum()


def test_signs_keep_errors_from_lining_up_across_blocks(monkeypatch):
    """Evenly spread it would be 1/24 = 0.042; measured 0.055, and 0.23 without the random signs."""
    assert largest_share(0) < 0.1
    monkeypatch.setattr(
        draws, "signs_of_each", lambda keys, number, dtype: jnp.ones((number, keys.size), dtype)
    )
    assert largest_share(0) > 0.15


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_multiplication_is_orthogonal_and_permutes_the_factor(ways):
    """The algebra behind a turn: rows of x -> sum_k x_k t[k] are signed permutations of x."""
    factor = np.random.default_rng(ways).normal(size=ways)
    factor /= np.linalg.norm(factor)
    matrix = np.einsum("k,kwv->wv", factor, frame_levels.products(ways))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(ways), atol=1e-14)
    unit, sign = frame_levels.multiplication(ways)
    np.testing.assert_array_equal(sign * factor[unit], matrix)
    for row in matrix:
        np.testing.assert_array_equal(np.sort(np.abs(row)), np.sort(np.abs(factor)))


@pytest.mark.parametrize(("number", "dim"), SIZES)
def test_blocks_hold_the_frame_and_use_far_fewer_draws(number, dim):
    blocks = frame_levels.cut(number, dim)
    assert sum(copies * size for copies, size in blocks) == dim
    assert all(size >= number for _, size in blocks)
    normals = dim + sum(
        copies * frame_levels.Level(number, size).normals for copies, size in blocks
    )
    assert normals <= dim * (3 + 2 * math.log2(number))
