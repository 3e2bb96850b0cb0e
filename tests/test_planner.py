"""The planner of preset `paper`, and one test for each erratum of docs/errata.md."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import blindstep as bs
import reference
from blindstep.optimize.theory import Problem, explicit_bound, oracle_errors, sphere_moments
from blindstep.trusted import accounting
from blindstep.trusted.directions import Sphere
from blindstep.trusted.prefix import BinaryTree

FACTS = {"preset": "paper", "dim": 100, "radius": 0.1, "lipschitz": 1.0, "gap": 1.0}


def make(horizon=None, rho=1.0, records=10**6, **choices):
    return bs.plan(
        **{**FACTS, "records": records, "horizon": horizon, **choices}, privacy=bs.Privacy(rho=rho)
    )


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 7, 8, 64, 1000, 1024])
@pytest.mark.parametrize("rho", [0.1, 1.0, 3.0])
def test_noise_is_the_corrected_corollary(horizon, rho):
    plan = make(horizon, rho)
    sensitivities = [2 * 100 / plan.first_batch]
    if horizon >= 2:
        sensitivities.append(4 * 100 / (plan.diff_batch * horizon))
    nodes = math.floor(math.log2(horizon)) + 1
    assert plan.sensitivity == pytest.approx(max(sensitivities))
    assert plan.noise_std == pytest.approx(max(sensitivities) * math.sqrt(nodes) / rho)
    assert plan.noise_std > 0
    assert plan.mu <= rho
    popcounts = [t.bit_count() for t in range(1, horizon + 1)]
    assert plan.release_std_max == pytest.approx(plan.noise_std * math.sqrt(max(popcounts)))
    assert plan.release_std_mean == pytest.approx(plan.noise_std * math.sqrt(np.mean(popcounts)))


def test_theorem_parameters():
    plan = make(records=10**8, dim=5)
    problem = Problem(5, 10**8, 1.0, 1.0, 0.05, 1.0)
    assert plan.horizon == math.ceil(max(problem.balancing_horizons()))
    assert plan.first_batch == plan.horizon + 1
    assert plan.diff_batch == 1
    assert plan.epochs == 10**8 // (2 * plan.horizon)
    assert plan.reach == pytest.approx(plan.smoothing / plan.horizon)
    assert plan.directions == 5
    assert plan.period == plan.horizon
    assert plan.tolerance < 1.0
    assert not plan.vacuous


@pytest.mark.parametrize(
    "fixed",
    [
        {"horizon": 10},
        {"epochs": 7},
        {"first_batch": 50, "epochs": 3},
        {"diff_batch": 5, "epochs": 3},
        {"horizon": 10, "first_batch": 3, "diff_batch": 2, "epochs": 4},
        {"oracle": "naive", "epochs": 10, "first_batch": 20},
        {"oracle": "naive", "horizon": 10, "first_batch": 20},
    ],
)
def test_what_the_user_fixes_stays(fixed):
    plan = make(**fixed)
    for name, value in fixed.items():
        assert getattr(plan, name) == value
    assert plan.build().epochs == plan.epochs
    assert plan.mu <= 1.0


def test_records_and_tolerance_are_inverse():
    arguments = {**FACTS, "dim": 5, "privacy": bs.Privacy(rho=1.0)}
    wanted = bs.plan(**arguments, tolerance=0.5)
    assert wanted.tolerance <= 0.5
    assert bs.plan(**arguments, records=wanted.records).tolerance == wanted.tolerance
    fewer = bs.plan(**arguments, records=int(wanted.records * 0.99))
    assert fewer.tolerance > 0.5


def test_a_vacuous_theorem_is_refused_and_a_fixed_horizon_is_told():
    with pytest.raises(bs.VacuousPlan, match=r"promises nothing.*100000 records.*fix horizon"):
        make(rho=0.1, records=10**5, radius=0.2)
    plan = make(horizon=64, rho=0.1, records=10**5)
    assert plan.vacuous
    assert "VACUOUS" in plan.explain()
    assert "vacuous" in str(plan)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"records": None}, "either records or tolerance"),
        ({"tolerance": 0.5}, "either records or tolerance"),
        ({"records": None, "tolerance": 2.0}, "every point meets it"),
        ({"records": None, "tolerance": 0.5, "lipschitz": None, "bounds": bs.Range(0, 1)}, "needs"),
        ({"records": None, "tolerance": 0.5, "horizon": 5}, "do not fix"),
        ({"lipschitz": None}, "nothing bounds"),
        ({"lipschitz": None, "bounds": bs.Range(0, 1)}, "fix horizon"),
        ({"records": 1, "horizon": 2}, "needs 4 records"),
        ({"gap": 0.0}, "gap must be above 0"),
    ],
)
def test_requests_that_cannot_be_planned(arguments, says):
    base = {**FACTS, "records": 10**6, "privacy": bs.Privacy(rho=1.0)}
    with pytest.raises(bs.InvalidArgument, match=says):
        bs.plan(**{**base, **arguments})


def test_without_lipschitz_or_gap_privacy_is_planned_and_nothing_certified():
    for known in ({"lipschitz": None, "bounds": bs.Range(0, 1)}, {"gap": None}):
        plan = make(horizon=8, **known)
        assert plan.tolerance is None
        assert plan.mu <= 1.0
        assert "nothing is certified" in plan.explain()
        assert (plan.step is None) == ("bounds" in known)


def test_plans_survive_json():
    plan = make(horizon=8, bounds=bs.Clip(1.0, 0.5))
    assert bs.Plan.from_json(plan.to_json()) == plan
    for bad in ("{}", "[1]", "nonsense", plan.to_json().replace('"dim"', '"dam"')):
        with pytest.raises(bs.InvalidArgument, match="not a plan"):
            bs.Plan.from_json(bad)


# -- errata -----------------------------------------------------------------------------------


def test_erratum_1_tree_constant():
    for horizon in range(1, 65):
        exact = BinaryTree(horizon).column_norms().max() ** 2
        assert exact == pytest.approx(math.floor(math.log2(horizon)) + 1)
        assert (exact > 2 * math.log(horizon)) == (horizon in (1, 2, 4))
        if horizon >= 8:
            assert exact < 2 * math.log(horizon)
    assert reference.printed_sigma(1, 100, 1.0, 1, 1.0) == 0.0
    assert make(1).noise_std > 0


def test_erratum_2_the_larger_horizon():
    problem = Problem(100, 10**5, 1.0, 1.0, 0.1, 0.1)
    small, large = sorted(problem.balancing_horizons())
    assert (small, large) == pytest.approx(
        sorted(reference.balancing_horizons(10**5, 100, 1.0, 0.1, 1.0, 0.1))
    )
    assert problem.order_bound(small) == pytest.approx(5.39, abs=0.01)
    assert problem.order_bound(large) == pytest.approx(2.20, abs=0.01)
    best = minimize_scalar(lambda t: problem.order_bound(math.exp(t)), bounds=(0, 12)).fun
    assert best == pytest.approx(2.20, abs=0.01)


def test_erratum_3_rdp_to_dp():
    assert reference.printed_epsilon(8.0, 1e-5) == pytest.approx(54.3, abs=0.05)
    assert accounting.epsilon(8.0, 1e-5) == pytest.approx(65.3, abs=0.05)
    # Where delta <= exp(-rho^2) the printed formula is an upper bound, as it should be.
    assert accounting.epsilon(1.0, 1e-5) < reference.printed_epsilon(1.0, 1e-5)


def test_erratum_5_radius():
    plan = make(16)
    assert plan.smoothing == plan.radius / 2
    assert "certifies radius 0.1" in plan.explain()


def bound(dim, horizon, epochs, smoothing, release):
    """The explicit bound of preset paper, with L = gap = 1."""
    reach = smoothing / horizon
    error = oracle_errors(
        sphere_moments(dim, dim),
        lipschitz=1.0,
        smoothing=smoothing,
        reach=reach,
        period=horizon,
        first_batch=horizon + 1,
        diff_batch=1,
        shared=False,
    )
    return explicit_bound(
        lipschitz=1.0,
        gap=1.0,
        smoothing=smoothing,
        reach=reach,
        horizon=horizon,
        epochs=epochs,
        error=error,
        noise=math.sqrt(dim) * release,
    )


def test_erratum_6_step_size():
    plan = make(16)
    terms = bound(100, 16, plan.epochs, 0.05, plan.noise_std * BinaryTree(16).row_norms())
    assert plan.step == pytest.approx(plan.reach / (4 * terms.gradient_rms))
    assert plan.tolerance == pytest.approx(terms.total)


def test_erratum_8_the_naive_appendix_halves_the_noise():
    # sigma = d L / (B rho), as printed, spends 2 rho: the sensitivity is 2 d L / B.
    plan = make(oracle="naive", horizon=10, first_batch=20)
    assert plan.noise_std == pytest.approx(2 * 100 / 20)


def test_our_bound_is_below_the_papers():
    for dim, horizon, epochs in [(5, 64, 10), (20, 1000, 100), (100, 4096, 50)]:
        delta, first = 0.05, horizon + 1
        reach = delta / horizon
        sigma = 4 * dim / horizon * math.sqrt(horizon.bit_length())
        release = sigma * BinaryTree(horizon).row_norms()
        ours = bound(dim, horizon, epochs, delta, release).total
        theirs = reference.proof_bound(
            horizon,
            epochs,
            first,
            1,
            dim,
            1.0,
            delta,
            1.0,
            reach,
            math.sqrt(dim) * release.max(),
        )
        assert ours < theirs


def test_privacy_is_free_from_here():
    problem = Problem(20, 10**6, 1.0, 1.0, 0.05, 1.0)
    statistical, private = Problem(
        20, 10**6, 1.0, 1.0, 0.05, problem.free_rho()
    ).balancing_horizons()
    assert statistical == pytest.approx(private)
    assert "Privacy is free" in make(dim=20).explain()
    assert Sphere().gain(7, 20) == 20.0
