"""Looks: a record's vector is short whatever the loss does, and the scales follow from the means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.estimate.calibration import FIRST, PLACES, CalibrationQuery
from blindstep.estimate.scales import ScaleFinder, Scales, along


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("directions", "distance"), [(3, 0.1), (3, -0.1), (2, 0.1)])
@pytest.mark.parametrize(
    "values",
    [
        np.zeros(7),
        np.full(7, 1e308) * np.resize([1, -1], 7),
        np.array([5, 1e-320, -1e-320, 3, 1e200, -1e200, 7.0]),
        np.array([1, np.nan, 2, 3, 4, 5, 6.0]),
        np.array([1, np.inf, 2, 3, 4, 5, 6.0]),
        np.random.default_rng(0).normal(size=7) * 1e9,
    ],
)
def test_a_records_vector_is_never_longer_than_the_clip(values, directions, distance):
    calibration = CalibrationQuery((3,), directions)
    given = jnp.asarray(values[: calibration.evaluations])
    vector = np.asarray(calibration.vector(given, distance))
    assert vector.shape == (calibration.size,)
    if np.all(np.isfinite(vector)):
        assert np.linalg.norm(vector) <= calibration.clip * (1 + 1e-12)
    else:  # what is not finite in one place is so everywhere, and the gate counts it 0
        assert np.isnan(vector).all()


def test_rows_of_a_batch_do_not_touch_each_other():
    calibration, values = CalibrationQuery((3,), 3), np.random.default_rng(1).normal(size=(5, 7))
    spoiled = values.copy()
    spoiled[2] = np.nan
    before, after = (np.asarray(calibration.vector(jnp.asarray(v), 0.5)) for v in (values, spoiled))
    np.testing.assert_array_equal(np.delete(before, 2, 0), np.delete(after, 2, 0))
    assert np.isnan(after[2]).all()


def test_the_places_are_those_of_the_logarithms():
    # f = 3 at the start, slopes (0.6, 0, 0): log2 3 and log2 0.6.
    calibration = CalibrationQuery((3,), 3)
    vector = calibration.vector(jnp.asarray([3.0, 3.3, 3, 3, 2.7, 3, 3]), 0.5)
    parts, places = calibration.parts(np.asarray(vector)), np.arange(PLACES) + FIRST
    assert np.flatnonzero(parts.values).tolist() == [1 - FIRST, 2 - FIRST]
    assert np.flatnonzero(parts.slopes[0]).tolist() == [-1 - FIRST, -FIRST]
    assert places @ parts.values == pytest.approx(np.log2(3))
    assert places @ parts.slopes[0] == pytest.approx(np.log2(0.6))
    np.testing.assert_allclose(parts.shares, [1, 0, 0])
    assert parts.slopes.shape == (1, PLACES)


def looked(loss, dim, records, start=None, noise=0.0, factor=1.0):
    """The scales that a finder reads from the means over records, with this much noise."""
    random, calibration = np.random.default_rng(2), CalibrationQuery((dim,), dim)
    start = np.zeros(dim) if start is None else start
    finder = ScaleFinder(calibration, float(np.linalg.norm(start)), max(noise, 1e-9))
    for number in range(finder.calibrations):
        points = start + along(finder.axes, calibration.offsets(finder.distance, number))
        values = factor * np.stack([[loss(p, r) for p in points] for r in records])
        mean = np.asarray(calibration.vector(jnp.asarray(values), finder.asks)).mean(axis=0)
        finder.take(mean + noise * random.standard_normal(calibration.size))
    return finder.scales(start)


FEATURES = np.random.default_rng(3).normal(size=(300, 4))


def hinge(weights, features):
    return max(0.0, 1.0 - features @ weights)


def test_other_units_give_other_scales_and_the_same_natural_problem():
    usual = looked(hinge, 4, FEATURES)
    louder = looked(hinge, 4, FEATURES, factor=1000.0)
    finer = looked(lambda w, z: hinge(100.0 * w, z), 4, FEATURES)
    np.testing.assert_allclose(louder.lengths, usual.lengths, rtol=0.35)
    np.testing.assert_allclose(louder.unit, 1000.0 * usual.unit, rtol=0.35)
    np.testing.assert_allclose(100.0 * finer.lengths, usual.lengths, rtol=0.35)
    np.testing.assert_allclose(finer.unit, usual.unit, rtol=0.35)
    assert not (usual.jumps)
    assert not (louder.jumps)
    assert not (finer.jumps)


def test_coordinates_of_very_different_size_come_closer_to_each_other():
    stretched = FEATURES * np.array([40.0, 1.0, 1.0, 0.05])
    scales = looked(hinge, 4, stretched)
    # Equal would be lengths in the ratio of 1 / 40 to 1 to 20; one setting for all leaves 40 and 20.
    sizes = scales.lengths * np.array([40.0, 1.0, 1.0, 0.05])
    assert sizes.max() / sizes[:3].min() < 8.0


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_column_of_millionths_is_found_beside_one_of_millions(noise):
    sizes = np.array([1e6, 1.0, 1.0, 1e-6])
    scales = looked(hinge, 4, FEATURES * sizes, noise=noise)
    lengths = scales.lengths * sizes
    assert lengths.max() / lengths.min() < 8.0


def test_directions_in_which_slopes_vary_most_get_shorter_units():
    # The second column hardly varies beside its mean: one direction has nearly all of the slopes.
    random = np.random.default_rng(5)
    columns = np.stack([np.ones(300), 1.7 + 0.1 * random.normal(size=300)], axis=1)
    records = np.concatenate([columns, np.resize([3.0, -3.0], (300, 1))], axis=1)
    scales = looked(lambda w, z: abs(z[:2] @ w - z[2]), 2, records)
    together, apart = np.array([1.0, 1.7]), np.array([1.7, -1.0])
    moved = [np.linalg.norm(scales.natural(scales.origin + v)) for v in (together, apart)]
    # A step along both columns is worth many natural units, one against each other few.
    assert moved[0] > 8.0 * moved[1]


def test_slopes_that_all_agree_say_nothing_of_the_directions_across():
    # Everybody is far away in one direction. Units across would be 250 times as long.
    homes = np.array([300.0, 100.0]) + np.random.default_rng(5).normal(size=(300, 2))
    scales = looked(lambda x, home: float(np.linalg.norm(x - home)), 2, homes)
    assert np.linalg.cond(scales.axes) < 8.0


def test_leaves_of_very_different_slopes_get_units_of_their_own():
    calibration, random = CalibrationQuery((100, 60), 8), np.random.default_rng(6)
    factor = np.repeat([1.0, 1e-3], calibration.leaves)
    features = random.normal(size=(200, 160)) * factor
    finder = ScaleFinder(calibration, 0.0, 1e-9)
    for number in range(finder.calibrations):
        points = along(finder.axes, calibration.offsets(finder.distance, number))
        values = np.abs(features @ points.T - 3.0)
        vectors = np.asarray(calibration.vector(jnp.asarray(values), finder.distance))
        assert np.linalg.norm(vectors, axis=1).max() <= calibration.clip * (1 + 1e-12)
        finder.take(vectors.mean(axis=0))
    lengths = finder.scales(np.zeros(160)).lengths
    assert 300 < lengths[-1] / lengths[0] < 3_000


def test_noise_alone_stretches_no_coordinate():
    scales = looked(hinge, 4, FEATURES[:50], noise=0.3)
    assert np.ptp(scales.lengths) < 1e-9 * scales.lengths.mean()


@pytest.mark.parametrize("start", [np.zeros(4), np.array([2.0, -1.0, 0.5, 1.0])])
def test_a_staircase_is_known_by_slopes_that_grow(start):
    def wrong(weights, features):
        return float((features @ weights > 0) != (features[0] > 0))

    scales = looked(wrong, 4, FEATURES, start)
    assert scales.jumps
    assert np.all(scales.lengths > 0)
    assert scales.unit > 0


def test_natural_coordinates_are_placed_at_the_origin():
    scales = Scales(np.array([1.0, 2.0]), np.array([0.5, 4.0]), np.asarray(3.0), False)
    np.testing.assert_allclose(scales.place(np.zeros(2)), [1, 2])
    np.testing.assert_allclose(scales.place(np.ones((3, 2))), np.tile([1.5, 6.0], (3, 1)))
    turned = Scales(
        np.array([1.0, 2.0]), np.array([[1.0, 2.0], [0.0, 4.0]]), np.asarray(3.0), False
    )
    points = np.random.default_rng(7).normal(size=(3, 2))
    np.testing.assert_allclose(turned.natural(turned.place(points)), points)
    np.testing.assert_allclose(turned.lengths, [np.sqrt(5.0), 4.0])


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_taken_for_the_slope_of_a_leaf_that_has_none(seed):
    calibration, noise = CalibrationQuery((100, 100), 4, signs=True), 0.05
    finder, chance = ScaleFinder(calibration, 1.0, noise, 0.5), np.random.default_rng(seed)
    for _ in range(finder.calibrations):
        release = noise * chance.standard_normal(calibration.size)
        histograms = release.reshape(3, PLACES)
        histograms[[0, 2], PLACES // 2] += 0.9  # the first leaf's slopes and the values: about 1
        finder.take(release)
    units = finder.units()
    assert units.seen.tolist() == [True, False]
    assert units.lengths[1] < 16 * units.lengths[0]
