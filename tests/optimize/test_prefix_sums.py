"""Running sums B y: what they are, how much noise they carry, and how close that is to the least."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from blindstep.optimize.prefix import prefix_of
from blindstep.private.mechanisms import BLT, TABLE, BinaryTree, SquareRoot, matrix_of
from matrices import OURS

HORIZONS = [1, 2, 3, 4, 7, 8, 33, 64]
every_mechanism = pytest.mark.parametrize("name", OURS)
better = pytest.mark.parametrize("name", ["sqrt", "blt"])


@eqx.filter_jit
def stream(prefix, releases):
    places, start = jnp.arange(prefix.mechanism.steps), prefix.init(releases.shape[1])
    step = lambda state, each: prefix.next(state, *each)  # noqa: E731
    return jax.lax.scan(step, start, (releases, places))[1]


def normal(steps, size=3):
    return np.random.default_rng(steps).normal(size=(steps, size))


def variances(name, steps):
    """Of the noise on each running sum, at mu = 1 for increments of sensitivity 1."""
    mechanism = OURS[name](steps)
    return (mechanism.column_norms().max() * prefix_of(mechanism).row_norms()) ** 2


# -- the contract ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", HORIZONS)
@every_mechanism
def test_streaming_is_the_matrix_and_norms_are_those_of_its_rows(name, steps):
    prefix, releases = prefix_of(OURS[name](steps)), normal(steps)
    matrix = prefix.matrix()
    np.testing.assert_array_equal(matrix, np.tril(matrix))
    np.testing.assert_allclose(prefix.row_norms(), np.linalg.norm(matrix, axis=1), rtol=1e-13)
    streamed = stream(prefix, jnp.asarray(releases))
    np.testing.assert_allclose(streamed, matrix @ releases, rtol=0, atol=1e-12)


@every_mechanism
def test_sums_of_releases_are_sums_of_increments(name):
    """B C m = A m: without noise the running sums come out."""
    mechanism, increments = OURS[name](37), normal(37)
    released = matrix_of(mechanism) @ increments
    sums = stream(prefix_of(mechanism), jnp.asarray(released))
    np.testing.assert_allclose(sums, np.cumsum(increments, axis=0), rtol=0, atol=1e-11)


@every_mechanism
def test_eager_sums_are_the_compiled_ones(name):
    prefix, releases = prefix_of(OURS[name](3)), jnp.asarray(normal(3))
    state, eager = prefix.init(3), []
    for place, release in enumerate(releases):
        state, total = prefix.next(state, release, jnp.asarray(place))
        eager.append(total)
    np.testing.assert_allclose(np.stack(eager), stream(prefix, releases), rtol=0, atol=1e-14)


def test_the_tree_is_the_papers():
    noise = normal(37, 2)
    expected = [reference.tree(t, noise) for t in range(1, 38)]
    found = stream(prefix_of(BinaryTree(37)), jnp.asarray(noise))
    np.testing.assert_allclose(found, expected, atol=1e-13)
    for steps in range(1, 65):
        np.testing.assert_array_equal(
            prefix_of(BinaryTree(steps)).matrix(), reference.tree_matrices(steps)[0]
        )


def test_memory_of_the_sums():
    slots = {name: prefix_of(make(1000)).init(5).shape for name, make in OURS.items()}
    assert slots == {"independent": (1, 5), "tree": (10, 5), "sqrt": (1001, 5), "blt": (4, 5)}


# -- long blocks -----------------------------------------------------------------------------------


@better
def test_long_streams_stay_exact(name):
    mechanism = OURS[name](4000)
    prefix, noise = prefix_of(mechanism), normal(4000, 1)
    filtered = np.convolve(prefix.inverse_coefficients(), noise[:, 0])[:4000]
    expected = np.cumsum(mechanism.scaling() * filtered)
    found = stream(prefix, jnp.asarray(noise))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@better
def test_long_row_norms_are_exact(name):
    mechanism = OURS[name](3000)
    prefix = prefix_of(mechanism)
    scaling, inverse = mechanism.scaling(), prefix.inverse_coefficients()
    row, checked = np.zeros(3000), prefix.row_norms()
    for t in range(1, 3001):
        row[:t] += scaling[t - 1] * inverse[t - 1 :: -1]
        assert np.linalg.norm(row) == pytest.approx(checked[t - 1], rel=1e-11)


def test_a_million_releases():
    few, tree = variances("blt", 10**6), variances("tree", 10**6)
    assert np.isfinite(few).all()
    assert few.max() < tree.max() / 10
    assert few.mean() < tree.mean() / 5


# -- how good they are -----------------------------------------------------------------------------


def lower_bound(steps):
    """(nuclear norm of A / steps)^2: no A = B C with columns of norm 1 has a smaller mean."""
    angles = (2 * np.arange(1, steps + 1) - 1) * np.pi / (4 * steps + 2)
    return (np.sum(1 / (2 * np.sin(angles))) / steps) ** 2


@pytest.mark.parametrize("steps", [1, 2, 8, 64, 1024, 2**20])
def test_within_11_percent_of_the_lower_bound(steps):
    bound = lower_bound(steps)
    if steps <= 64:
        nuclear = np.linalg.norm(np.tri(steps), "nuc")
        assert bound == pytest.approx((nuclear / steps) ** 2, rel=1e-10)
    if steps == 1024:
        assert round(bound, 2) == 8.47
    for name in ("sqrt", "blt"):
        assert bound * (1 - 1e-9) <= variances(name, steps).mean() <= 1.11 * bound


def test_scaling_columns_beats_the_plain_square_root():
    coefficients = SquareRoot(1024).coefficients()
    plain = np.sum(coefficients**2) * np.cumsum(coefficients**2)
    assert (round(plain.max(), 2), round(plain.mean(), 2)) == (10.71, 9.67)
    assert variances("sqrt", 1024).mean() < plain.mean()


@pytest.mark.parametrize("steps", [8, 64, 2**20, 3, 24, 90, 1500, 50000])
def test_blt_is_as_accurate_as_the_square_root(steps):
    # From 3 on they lie between rows of the table.
    few, root = variances("blt", steps), variances("sqrt", steps)
    assert few.mean() <= 1.01 * root.mean()
    assert few.max() <= 1.01 * root.max()


# -- the parameters of BLT -------------------------------------------------------------------------


def test_the_table_is_sound():
    assert TABLE[0][0, 0] == 1
    for before, after in pairwise(TABLE):
        assert before[-1, 0] == after[0, 0]
    for row in (row for group in TABLE for row in group):
        # The inverse that streams B y is a contraction: else noise would swell with rounding.
        times, scales = np.split(row[1:], 2)
        root, decays = np.sqrt(scales), 1 - 1 / times
        powers = np.linalg.eigvalsh(np.diag(decays) - np.outer(root, root))
        assert np.abs(powers).max() < 1


def test_parameters_are_elementary_arithmetic_on_the_table():
    (first, *low), (last, *high) = (row.tolist() for row in TABLE[1][-2:])
    middle = BLT(int(first + last) // 2)
    between = [a + 0.5 * (b - a) for a, b in zip(low, high, strict=True)]
    half = len(between) // 2
    assert middle.decays == tuple(1 - 1 / time for time in between[:half])
    assert middle.scales == tuple(between[half:])
    assert BLT(int(last)).scales == tuple(high[half:])
