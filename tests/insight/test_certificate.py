"""Certificates against functions whose Goldstein norm is known in closed form."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.insight.certificate_search import shortest_in_hull

RADIUS = 0.1
ONE = np.zeros((1, 1))
# Four slopes in three dimensions: the shortest combination of a maximum's pieces is no corner.
PIECES = np.array([[1.0, 2.0, 0.5], [1.0, -2.0, 0.5], [1.0, 0.0, -2.0], [3.0, 0.0, 0.0]])
VOTES = np.where(np.arange(1000) % 10 < 7, 1.0, -1.0)[:, None]


def shortest(pieces):
    return float(np.linalg.norm(shortest_in_hull(pieces).shortest))


def l1(x, _):
    return jnp.sum(jnp.abs(x))


def ridges(x, _):
    """A W in each coordinate: nonconvex, with a ridge at 0 and valleys at 1 and -1."""
    return jnp.sum(jnp.abs(jnp.abs(x) - 1.0))


def quadratic(x, _):
    return 0.5 * jnp.sum(x**2)


def largest(x, _):
    return jnp.max(jnp.asarray(PIECES) @ x)


def leaning(x, vote):
    """|x| with a slope for each record: the mean is |x| + 0.4 x."""
    return jnp.abs(x[0]) + vote[0] * x[0]


def off_by(shift, dim=1):
    return np.full(dim, shift * RADIUS)


# name: loss, point, data, truth, slope
CASES = {
    "|x| at 0": (l1, off_by(0), ONE, 0.0, 1.0),
    "|x|, off by less than the radius": (l1, off_by(0.8), ONE, 0.0, 1.0),
    "|x|, off by more than the radius": (l1, off_by(1.2), ONE, 1.0, 1.0),
    "l1 norm at 0": (l1, off_by(0, 3), ONE, 0.0, math.sqrt(3)),
    # Within the radius one coordinate can change its sign, not two: (1, 1, 1 - 2/3 each) by symmetry.
    "l1 norm, one sign at a time": (l1, off_by(0.9, 3), ONE, math.sqrt(3) / 3, math.sqrt(3)),
    "quadratic": (quadratic, np.array([1.0, 0, 0]), ONE, 0.9, 1.1),
    "maximum of four": (largest, np.zeros(3), ONE, shortest(PIECES), 3.0),
    "a ridge": (ridges, off_by(0.3, 2), ONE, 0.0, math.sqrt(2)),
    "a valley": (ridges, 1 + off_by(0.3, 2), ONE, 0.0, math.sqrt(2)),
    "a slope between them": (ridges, 0.5 + off_by(0, 2), ONE, math.sqrt(2), math.sqrt(2)),
    "records that lean, at the kink": (leaning, off_by(0), VOTES, 0.0, 2.0),
    "records that lean, beside it": (leaning, off_by(-1.5), VOTES, 0.6, 2.0),
}
# From values, the others of the list are like these.
QUICK = ["|x|, off by more than the radius", "records that lean, beside it"]
DEEP = ["|x| at 0", "l1 norm, one sign at a time", "quadratic", "maximum of four", "a ridge"]


@pytest.mark.parametrize("name", CASES)
def test_within_five_percent_by_autodiff(name):
    loss, point, data, truth, slope = CASES[name]
    made = bs.certificate(loss, point, data, RADIUS, public=True, seed=0)
    assert made.method == "autodiff"
    assert made.confidence == 1.0
    assert truth * (1 - 1e-9) <= made.norm_bound <= 1.05 * truth + 0.005 * slope * (truth == 0)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in DEEP)]
)
def test_within_five_percent_by_values(name):
    """Of the truth where that is above 0, of the promised slope where it is 0."""
    loss, point, data, truth, slope = CASES[name]
    samples = math.ceil(1.5e3 * math.sqrt(point.size) * slope / (truth or slope))
    made = bs.certificate(
        loss,
        point,
        data[:20],  # the same mean
        RADIUS,
        public=True,
        method="values",
        bounds=bs.Bounds(lipschitz=slope),
        samples=samples,
        seed=1,
    )
    assert made.method == "values"
    assert made.confidence == 0.999
    assert truth <= made.norm_bound <= 1.05 * (truth or slope) - (truth == 0) * slope


def rotation(dim):
    return np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0]


@pytest.mark.slow
def test_fifty_dimensions_take_active_points():
    dim = 50
    turn = rotation(dim)
    slope = math.sqrt(dim)
    many = np.random.default_rng(3).standard_normal((40, dim)) + 0.3
    for loss, point, truth in (
        (l1, np.zeros(dim), 0.0),
        # Ten of fifty signs can change at once: by symmetry the shortest is (1 - 2 x 10/50) (1 .. 1).
        (l1, np.full(dim, RADIUS / math.sqrt(10.5)), 0.6 * slope),
        (lambda x, _: jnp.sum(jnp.abs(turn @ x)), np.zeros(dim), 0.0),
        (lambda x, _: jnp.max(many @ x), np.zeros(dim), shortest(many)),
    ):
        made = bs.certificate(loss, point, ONE, RADIUS, public=True, seed=0)
        assert truth * (1 - 1e-9) <= made.norm_bound <= 1.05 * truth + 0.005 * slope * (truth == 0)


def test_the_solver_meets_its_optimality_condition():
    chance = np.random.default_rng(0)
    for number, dim in ((1, 1), (2, 5), (40, 3), (60, 20)):
        vectors = chance.standard_normal((number, dim)) + 0.5
        for ridge in (0.0, 0.7):
            hull = shortest_in_hull(vectors, ridge)
            assert np.all(hull.weights >= 0)
            assert hull.weights.sum() == pytest.approx(1)
            assert hull.residual < 1e-9
    assert shortest(np.array([[1.0, 1.0], [1.0, -1.0], [4.0, 0.0]])) == pytest.approx(1.0)
    assert shortest(np.array([[0.0, 3.0], [4.0, 0.0]])) == pytest.approx(2.4)
    assert shortest_in_hull(np.array([[1.0, 1.0], [1.0, -1.0], [4.0, 0.0]])).residual < 1e-12


def test_a_step_has_no_derivative_to_trust():
    data = np.random.default_rng(0).uniform(-0.3, 0.3, (200, 1))

    def wrong(x, z):
        return jnp.where(x[0] > z[0], 1.0, 0.0)

    for method in ("auto", "autodiff"):
        with pytest.raises(bs.errors.InvalidArgument, match="does not add up"):
            bs.certificate(wrong, np.zeros(1), data, RADIUS, public=True, method=method)
    made = bs.certificate(
        wrong, np.zeros(1), data, RADIUS, public=True, bounds=bs.Bounds(range=(0, 1)), seed=0
    )
    assert made.method == "values"
    assert made.norm_bound > 1.0  # the share of records passed grows by 1 / 0.6 per unit


def test_a_batch_of_records_is_estimated_with_confidence():
    made = bs.certificate(
        leaning,
        off_by(-1.5),
        VOTES,
        RADIUS,
        public=True,
        batch=10,
        bounds=bs.Bounds(lipschitz=2.0),
        seed=0,
    )
    assert made.confidence == 0.999
    assert 0.6 <= made.norm_bound <= 0.75
    assert made.error > 0.01


def test_a_seed_repeats_it():
    options = {
        "public": True,
        "method": "values",
        "bounds": bs.Bounds(lipschitz=2.0),
        "samples": 200,
    }
    made = [
        bs.certificate(leaning, off_by(0), VOTES[:20], RADIUS, seed=seed, **options)
        for seed in (4, 4, 5)
    ]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_any_python_function_will_do():
    def plain(x, z):
        return abs(float(x[0])) + float(z[0]) * float(x[0])

    made = bs.certificate(
        plain,
        off_by(-1.5),
        VOTES[:20],
        RADIUS,
        public=True,
        bounds=bs.Bounds(lipschitz=2.0),
        samples=2000,
    )
    assert made.method == "values"
    assert 0.6 <= made.norm_bound <= 0.75
    with pytest.raises(bs.errors.InvalidArgument, match="cannot trace"):
        bs.certificate(plain, off_by(0), VOTES[:20], RADIUS, public=True, method="autodiff")


@pytest.mark.parametrize(
    ("says", "options"),
    [
        ("whose records", {}),
        ("whose records", {"public": True, "privacy": bs.Privacy(1.0), "ledger": "x"}),
        ("give ledger", {"privacy": bs.Privacy(1.0), "bounds": bs.Bounds(lipschitz=1.0)}),
        ("leave out ledger", {"public": True, "ledger": "x"}),
        ("method must be", {"public": True, "method": "best"}),
        ("give bounds", {"public": True, "method": "values"}),
        ("give bounds", {"public": True, "batch": 3}),
        ("not below the radius", {"public": True, "method": "values", "smoothing": 1.0}),
        ("steeper", {"public": True, "method": "values", "bounds": bs.Bounds(lipschitz=0.5)}),
        ("steeper", {"public": True, "batch": 3, "bounds": bs.Bounds(lipschitz=0.5)}),
        ("confidence", {"public": True, "confidence": 2.0}),
    ],
)
def test_refusals(says, options):
    if options.get("method") == "values" and "smoothing" in options:
        options = options | {"bounds": bs.Bounds(lipschitz=2.0)}
    with pytest.raises(bs.errors.InvalidArgument, match=says):
        bs.certificate(leaning, off_by(0), VOTES, RADIUS, **options)


def test_a_loss_that_is_not_finite_is_refused():
    with pytest.raises(bs.errors.InvalidArgument, match="not finite"):
        bs.certificate(
            lambda x, z: jnp.log(z[0]) + x[0], off_by(0), -np.ones((3, 1)), RADIUS, public=True
        )


def test_it_reads_well():
    made = bs.certificate(l1, off_by(1.2), ONE, RADIUS, public=True, seed=0)
    assert str(made).startswith("Goldstein norm at radius 0.1: at most 1 (certain up to rounding).")
    assert "1 gradient within" in str(made)
    assert "declared public" in str(made)
    assert made.public


def test_float32_parameters_are_measured_in_float64():
    made = bs.certificate(l1, np.zeros(3, np.float32), ONE, 1e-6, public=True, seed=0)
    assert made.norm_bound < 0.01
