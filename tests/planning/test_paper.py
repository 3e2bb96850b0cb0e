"""Method `paper`: the theorem's parameters, and what it promises."""

import math

import numpy as np
import pytest

import reference
from blindstep.errors import InvalidArgument, VacuousPlan
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Sphere
from blindstep.ledger.budget import Privacy
from blindstep.optimize.learners import AdaptiveStep, ConstantStep
from blindstep.optimize.prefix import prefix_of
from blindstep.planning.theory import Theorem, explicit_bound, oracle_errors
from blindstep.private.mechanisms import BinaryTree
from plans import plan_of

FACTS = {"method": "paper", "dim": 100, "radius": 0.1, "lipschitz": 1.0, "gap": 1.0}


def make(horizon=None, mu=1.0, records=10**6, **choices):
    given = {**FACTS, "records": records, "horizon": horizon, **choices}
    return plan_of(**given, privacy=Privacy(mu=mu))


@pytest.mark.parametrize(("horizon", "mu"), [(1, 1.0), (2, 0.1), (3, 3.0), (4, 1.0), (1000, 0.1)])
def test_noise_is_the_corrected_corollary(horizon, mu):
    made = make(horizon, mu)
    sensitivities = [2 * 100 / made.first_batch]
    if horizon >= 2:
        sensitivities.append(4 * 100 / (made.diff_batch * horizon))
    nodes = math.floor(math.log2(horizon)) + 1
    assert made.sensitivity == pytest.approx(max(sensitivities))
    # The lattice adds a little, and takes nothing off.
    least = max(sensitivities) * math.sqrt(nodes) / mu
    assert least < made.noise_std < least * 1.01
    assert made.mu <= mu
    popcounts = [t.bit_count() for t in range(1, horizon + 1)]
    assert made.release_std_max == pytest.approx(made.noise_std * math.sqrt(max(popcounts)))
    assert made.release_std_mean == pytest.approx(made.noise_std * math.sqrt(np.mean(popcounts)))


def test_theorem_parameters():
    made = make(records=10**8, dim=5)
    problem = Theorem(5, 10**8, 1.0, 1.0, 0.05, 1.0)
    assert made.horizon == math.ceil(max(problem.balancing_horizons()))
    assert made.first_batch == made.horizon + 1
    assert made.diff_batch == 1
    assert made.rounds == 10**8 // (2 * made.horizon)
    assert made.reach == pytest.approx(made.smoothing / made.horizon)
    assert made.directions == 5
    assert made.period == made.horizon
    assert made.tolerance < 1.0
    assert not made.vacuous


@pytest.mark.parametrize(
    "fixed",
    [
        {"rounds": 7},
        {"first_batch": 50, "rounds": 3},
        {"diff_batch": 5, "rounds": 3},
        {"horizon": 10, "first_batch": 3, "diff_batch": 2, "rounds": 4},
        {"oracle": "naive", "rounds": 10, "first_batch": 20},
        {"oracle": "naive", "horizon": 10, "first_batch": 20},
    ],
)
def test_what_the_user_fixes_stays(fixed):
    made = make(**fixed)
    for name, value in fixed.items():
        assert getattr(made, name) == value
    assert made.passes == 1
    assert made.mu <= 1.0


def test_a_vacuous_theorem_is_refused_and_a_fixed_horizon_is_told():
    with pytest.raises(VacuousPlan, match=r"promises nothing.*100000 records.*fix horizon"):
        make(mu=0.1, records=10**5, radius=0.2)
    made = make(horizon=64, mu=0.1, records=10**5)
    assert made.vacuous
    assert "VACUOUS" in made.explain()
    assert "vacuous" in str(made)


def test_without_lipschitz_or_gap_privacy_is_planned_and_nothing_certified():
    for known in ({"lipschitz": None, "bounds": Bounds(range=(0, 1))}, {"gap": None}):
        for oracle in ("variance-reduced", "naive"):
            made = make(horizon=8, oracle=oracle, **known)
            assert made.horizon == 8
            assert made.tolerance is None
            assert 0.8 < made.mu <= 1.0  # the corollary spends less than the budget
            assert "nothing is certified" in made.explain()
            assert (made.step is None) == ("bounds" in known)
            assert type(made.learner) is (AdaptiveStep if "bounds" in known else ConstantStep)
        assert make(rounds=3, **known).rounds == 3
        with pytest.raises(InvalidArgument, match="from lipschitz and gap: give both, or fix hor"):
            make(**known)


def bound(dim, horizon, rounds, smoothing, release):
    """The explicit bound of method paper, with L = gap = 1."""
    reach = smoothing / horizon
    error = oracle_errors(
        Sphere().moments(dim, dim),
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
        rounds=rounds,
        error=error,
        noise=math.sqrt(dim) * release,
    )


def tree_rows(horizon):
    return prefix_of(BinaryTree(horizon)).row_norms()


def test_erratum_6_step_size():
    made = make(16)
    parts = bound(100, 16, made.rounds, 0.05, made.noise_std * tree_rows(16))
    # The plan counts the rounding to the lattice, too.
    assert made.step == pytest.approx(made.reach / (4 * parts.gradient_rms), rel=1e-4)
    assert 1 < made.tolerance / parts.total < 1 + 1e-4


def test_our_bound_is_below_the_papers():
    for dim, horizon, rounds in [(5, 64, 10), (20, 1000, 100), (100, 4096, 50)]:
        sigma = 4 * dim / horizon * math.sqrt(horizon.bit_length())
        release = sigma * tree_rows(horizon)
        ours = bound(dim, horizon, rounds, 0.05, release).total
        theirs = reference.proof_bound(
            *(horizon, rounds, horizon + 1, 1, dim, 1.0, 0.05, 1.0, 0.05 / horizon),
            math.sqrt(dim) * release.max(),
        )
        assert ours < theirs


def test_privacy_is_free_from_here():
    free = Theorem(20, 10**6, 1.0, 1.0, 0.05, 1.0).free_mu()
    statistical, private = Theorem(20, 10**6, 1.0, 1.0, 0.05, free).balancing_horizons()
    assert statistical == pytest.approx(private)
    assert "Privacy is free" in make(dim=20).explain()
    assert Sphere().gain(7, 20) == 20.0
