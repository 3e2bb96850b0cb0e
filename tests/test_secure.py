"""Secure plans: rounding in the sensitivity, privacy, refusals, and the same run in every driver."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

import blindstep as bs
import reference
from blindstep import InvalidArgument
from blindstep.drivers import fingerprints
from blindstep.optimize.plan import MECHANISMS, Plan
from blindstep.trusted import accounting
from blindstep.trusted.arithmetic import Float64, Lattice
from blindstep.trusted.directions import Sphere
from blindstep.trusted.discrete_gaussian import STD
from blindstep.trusted.estimators import Estimator, Sharing
from blindstep.trusted.frames import Haar
from blindstep.trusted.oracle import Oracle, increment_sensitivities
from blindstep.trusted.prefix import BinaryTree, Independent
from blindstep.trusted.randomness import fresh_keys
from blindstep.trusted.schedule import Schedule
from losses import capped_distance
from resume_helpers import cut_after, same, small_run

LATTICE = Lattice()


def make(period=4, dim=3, noise_std=0.37, mechanism=None, passes=1, first=3, diff=2):
    estimator = Estimator(dim, dim, Sphere(), 0.5, 0.5 / period, bs.Lipschitz(1.0))
    per_pass = 1000 // (first + diff * (period - 1))
    schedule = Schedule(1000, first, diff, period, blocks=passes * per_pass)
    return Oracle(estimator, mechanism or BinaryTree(period), schedule, noise_std, LATTICE)


# -- sensitivity ------------------------------------------------------------------------------

values = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6).map(lambda k: (k + 0.5) / STD)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=6), st.floats(1e-6, 1e6))
def test_snapping_adds_at_most_its_bound(pairs, noise_std):
    one, two = (np.asarray(column) for column in zip(*pairs, strict=True))
    snapped = [np.asarray(LATTICE.snap(jnp.asarray(m), noise_std)) for m in (one, two)]
    gamma = noise_std / STD
    moved = gamma * np.linalg.norm(snapped[0] - snapped[1])
    rounding = 4 * 2.0**-53 * (np.linalg.norm(one) + np.linalg.norm(two))
    bound = np.linalg.norm(one - two) + LATTICE.snapping(len(one)) * noise_std
    assert moved <= bound * (1 + 1e-12) + rounding


def test_a_worst_case_reaches_the_bound():
    # Two increments 1e-6 lattice steps apart, on the two sides of a tie in every coordinate.
    gamma, dim = 1.0 / STD, 16
    one, two = (gamma * np.full(dim, 7.5 + 1e-6 * sign / 8) for sign in (1, -1))
    moved = gamma * np.linalg.norm(
        np.asarray(LATTICE.snap(jnp.asarray(one), 1.0) - LATTICE.snap(jnp.asarray(two), 1.0))
    )
    bound = np.linalg.norm(one - two) + LATTICE.snapping(dim)
    assert 0.99 * bound <= moved <= bound


def test_float64_sums_move_more_than_declared_and_the_lattice_accounts_for_it():
    # Replacing 1 by -1 moves a sum by 2. But small numbers are rounded up next to 1, down next to -1.
    count = 40_000
    one = np.full(count, 0.7 * 2.0**-52)
    two = one.copy()
    one[0], two[0] = 1.0, -1.0
    sums = [np.cumsum(terms)[-1] for terms in (one, two)]
    moved = abs(sums[0] - sums[1])
    assert moved > 2.0
    assert moved / count <= LATTICE.as_computed(2.0 / count, count * (count + 4))
    assert Float64().as_computed(2.0 / count, count**2) == 2.0 / count
    assert LATTICE.as_computed(1.0, 10.0**12) == pytest.approx(1 + 2.2e-4, abs=1e-5)


def test_a_frame_shared_by_a_batch_counts_its_product():
    schedule = Schedule(100, 10, 1, 1, 10)
    estimators = [Estimator(8, 4, Haar(), 0.5, 0.1, bs.Clip(1.0), sharing) for sharing in Sharing]
    found = [increment_sensitivities(e, schedule, LATTICE)[0] for e in estimators]
    assert found[0] == found[2] < found[1] < 0.2 * (1 + 1e-12)


# -- accounting -------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 2, 3, 4, 7, 8, 31, 64])
def test_mu_is_the_brute_force_one(period):
    oracle = make(period, passes=3)
    _, strategy = reference.tree_matrices(period)
    plain = Oracle(oracle.estimator, oracle.mechanism, oracle.schedule, 0.37)
    snapped = np.asarray(plain.sensitivities()) + math.sqrt(3) * 0.37 / STD
    std = 0.37 * math.sqrt(1 - 16 / STD**2)
    expected = reference.block_mu(snapped, strategy, std) * math.sqrt(3)
    assert oracle.mu() == pytest.approx(expected, rel=1e-11)
    assert oracle.mu() > expected


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.05, 50.0),
    st.integers(1, 40),
    st.integers(1, 10**5),
    st.integers(1, 50),
    st.floats(1e-8, 1e8),
)
def test_calibration_never_overshoots_and_hardly_undershoots(rho, period, dim, passes, clip):
    estimator = Estimator(dim, 1, Sphere(), 0.5, 0.5, bs.Clip(clip, clip))
    mechanism = BinaryTree(period)
    schedule = Schedule(100, 1, 1, period, blocks=passes * (100 // period))
    moved = increment_sensitivities(estimator, schedule, LATTICE)
    arguments = (moved, mechanism.column_norms(), schedule.passes, dim)
    snapping = LATTICE.snapping(dim) * mechanism.column_norms().max() * math.sqrt(schedule.passes)
    assume(snapping < 0.49 * rho)
    std = LATTICE.noise_std_for(rho, *arguments)
    found = Oracle(estimator, mechanism, schedule, std, LATTICE).mu()
    assert rho * (1 - 1e-12) <= found <= rho
    assert std <= 2.01 * Float64().noise_std_for(rho, *arguments)


@pytest.mark.parametrize(("scale", "right"), [(1.0, True), (0.9, False)])
def test_releases_have_the_noise_that_is_claimed(scale, right):
    oracle, key = make(2, dim=2000, noise_std=0.37), fresh_keys(5).noise

    def run(block):
        state, first = oracle.release(oracle.init(), jnp.ones(2000), block, 1, key)
        return jnp.stack([first, oracle.release(state, jnp.ones(2000), block, 2, key)[1]])

    released = np.asarray(jax.jit(jax.vmap(run))(jnp.arange(10)))
    centred = scale * (released - np.asarray([[1.0], [2.0]]))
    for step in (0, 1):
        statistic = np.sum((centred[:, step] / 0.37) ** 2)
        assert bool(1e-6 < stats.chi2.cdf(statistic, 20_000) < 1 - 1e-6) is right


def test_the_slack_is_taken_off_delta():
    plain = accounting.epsilon(1.0, 1e-5)
    assert accounting.epsilon(1.0, 1e-5, 1e-40) == plain
    with_slack = accounting.epsilon(1.0, 1e-5, 1e-8)
    assert with_slack > plain
    left = 1e-5 - (1 + math.exp(with_slack)) * 1e-8
    assert accounting.delta(1.0, with_slack) <= left
    with pytest.raises(InvalidArgument, match="too large to be stated"):
        accounting.epsilon(20.0, 1e-5, 1e-40)
    oracle = make(4, dim=3)
    assert oracle.slack() == oracle.schedule.blocks * 4 * 3 * 2.0**-175
    assert Oracle(oracle.estimator, oracle.mechanism, oracle.schedule, 1.0).slack() == 0.0


# -- plans ------------------------------------------------------------------------------------

BUDGET = {"privacy": bs.Privacy(rho=1.0), "radius": 0.5}
PLANS = {
    "naive": {"bounds": bs.Clip(1.0), "horizon": 2, "first_batch": 5, "directions": 2},
    "tree": {"preset": "paper", "lipschitz": 1.0, "horizon": 3, "first_batch": 4, "diff_batch": 2},
}


def plan_of(name, **more):
    return bs.plan(records=60, dim=3, **BUDGET, **PLANS[name], **more)


@pytest.mark.parametrize("name", PLANS)
def test_a_secure_plan_costs_next_to_nothing(name):
    plain, secure = plan_of(name), plan_of(name, secure=True)
    assert not plain.secure
    assert secure.secure
    assert secure.mechanism in ("independent", "tree")
    assert 1 < secure.noise_std / plain.noise_std < 1 + 3e-5
    assert plain.mu * (1 - 1e-12) <= secure.mu <= secure.rho
    assert "lattice" in str(secure)
    statement = bs.minimize(capped_distance, jnp.zeros(3), DATA, plan=secure, seed=1).privacy
    assert "whole multiples" in str(statement)
    assert 0 < statement.slack < 1e-45
    assert statement.mu == secure.mu


def test_the_search_takes_whole_number_noise_only():
    shared = {"dim": 5, "records": 2000, "lipschitz": 1.0, "gap": 1.0}
    made = bs.plan(**BUDGET, **shared, oracle="variance-reduced", horizon=8, secure=True)
    assert made.mechanism == "tree"
    assert made.build().oracle.mu() <= 1.0
    for name, mechanism in MECHANISMS.items():
        noise, strategy = mechanism(13).factors()
        whole = np.array_equal(noise, np.rint(noise)) and np.array_equal(
            strategy, np.rint(strategy)
        )
        assert mechanism.integer is whole
        if not whole:
            with pytest.raises(InvalidArgument, match="take one of independent, tree"):
                bs.plan(**BUDGET, **shared, mechanism=name, secure=True)
            with pytest.raises(InvalidArgument, match="not made of whole numbers"):
                make(4, mechanism=mechanism(4))


def test_what_cannot_be_exact_is_refused():
    with pytest.raises(InvalidArgument, match="lattice steps are not exact"):
        make(4, noise_std=1e-12)
    with pytest.raises(InvalidArgument, match="secure"):
        plan_of("naive", secure="yes")
    huge = {"bounds": bs.Clip(1.0), "horizon": 1, "first_batch": 1, "passes": 10**4}
    with pytest.raises(InvalidArgument, match="more than double the noise"):
        bs.plan(dim=10**8, records=1, sharing="record", directions=1, secure=True, **BUDGET, **huge)
    loud = {**PLANS["naive"], "privacy": bs.Privacy(rho=30.0), "radius": 0.5}
    with pytest.raises(InvalidArgument, match="too large to be stated"):
        bs.plan(records=60, dim=3, secure=True, **loud)


def test_plan_files_from_before_still_load():
    plan = plan_of("naive")
    old = {name: value for name, value in json.loads(plan.to_json()).items() if name != "secure"}
    assert Plan.from_json(json.dumps(old)) == plan
    secure = plan_of("naive", secure=True)
    assert Plan.from_json(secure.to_json()) == secure
    names = [field for field in old if field != "notes"]
    assert fingerprints.of_plan(plan) == fingerprints.sealed_json.fingerprint(
        {name: old[name] for name in names}
    )
    assert fingerprints.of_plan(secure) != fingerprints.of_plan(plan)


# -- drivers ----------------------------------------------------------------------------------

DATA = np.random.default_rng(0).normal(size=(60, 3))


@pytest.mark.parametrize("name", PLANS)
def test_ask_and_tell_is_the_compiled_run_bit_for_bit(name):
    plan = plan_of(name, secure=True)
    compiled = bs.minimize(capped_distance, jnp.zeros(3), DATA, plan=plan, seed=3)
    optimizer = bs.Optimizer(plan, jnp.zeros(3), seed=3)
    while not optimizer.done:
        query = optimizer.ask()
        answers = jax.vmap(capped_distance)(jnp.asarray(query.points), DATA[query.record])
        optimizer.tell(query, np.asarray(answers))
    np.testing.assert_array_equal(optimizer.result().means, compiled.means)
    assert np.any(compiled.means != 0)


def test_a_secure_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    choices = {"secure": True, "mechanism": "tree"}
    whole = small_run(**choices)
    cut_after(monkeypatch, tmp_path / "run", 3, share=1, **choices)
    assert same(small_run(tmp_path / "run", **choices), whole)
    assert whole.plan.secure
    assert whole.plan.mechanism == "tree"


def test_independent_noise_over_several_steps_is_whole_too():
    oracle, key = make(3, mechanism=Independent(3)), fresh_keys(0).noise
    state, step_on = oracle.init(), jax.jit(oracle.release)
    for step in (1, 2, 3):
        state, released = step_on(state, jnp.full(3, 0.1), 0, step, key)
        steps = np.asarray(released) / (0.37 / STD)
        np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-7)
    assert np.all(state.running == 3 * np.rint(0.1 / (0.37 / STD)))
