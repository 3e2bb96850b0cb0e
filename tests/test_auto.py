"""Preset tight: less noise for the same guarantee, and a search that finds the best layout."""

import math

import jax
import numpy as np
import pytest
from benchmarks import auto_grid

import blindstep as bs
from blindstep.optimize import tight
from blindstep.optimize.request import Request
from blindstep.optimize.theory import clip_bias, frame_moments, sphere_moments
from blindstep.trusted.frames import Haar, Structured

PRINTED = 4.599  # noise of the paper's constants at d = 100, T = 1024, rho = 1, per coordinate


def plan(**choices):
    arguments = {
        "dim": 100,
        "privacy": bs.Privacy(rho=1.0),
        "radius": 0.1,
        "lipschitz": 1.0,
        "gap": 1.0,
        "records": 10**6,
        **choices,
    }
    return bs.plan(**arguments)


def test_38_times_less_noise_without_clipping():
    fixed = {"horizon": 1024, "first_batch": 1025, "diff_batch": 1}
    tied = plan(**fixed, period=1024, smoothing=0.05, reach=0.05 / 1024)
    assert PRINTED / tied.release_std_max >= 38
    assert tied.mu == pytest.approx(1.0)
    # The noise is set by the DIFFs, which are not clipped.
    assert tied.sensitivity == pytest.approx(4 * math.sqrt(100) / 1024, rel=1e-9)
    assert PRINTED / plan(**fixed).release_std_max >= 38


@pytest.mark.parametrize("seed", range(6))
def test_auto_is_within_5_percent_of_every_fixed_choice(seed):
    # benchmarks/auto_grid.py does this for 100 problems on a finer grid.
    problem = auto_grid.random_problem(np.random.default_rng(seed))
    coarse = auto_grid.Grid(periods=(0, 2, 6), blocks=(0, 4, 8), batches=(0, 4, 8), ratios=(0,))
    assert bs.plan(**problem).tolerance <= 1.05 * auto_grid.best_fixed(problem, coarse)


def test_the_plan_states_the_bound_that_the_search_minimised():
    problem = auto_grid.random_problem(np.random.default_rng(9))
    made = bs.plan(**problem)
    facts = {k: problem[k] for k in ("lipschitz", "gap")}
    request = Request(
        problem["dim"],
        problem["privacy"],
        problem["radius"],
        bs.Lipschitz(problem["lipschitz"]),
        **facts,
    )
    found = tight.search(request, problem["records"])
    assert made.tolerance == pytest.approx(found.bound, rel=1e-9)
    assert made.mu == pytest.approx(made.rho, rel=1e-9)


def test_the_oracle_can_be_fixed_and_auto_is_no_worse():
    for records in (10**4, 10**9):
        free = plan(records=records).tolerance
        for oracle in ("naive", "variance-reduced"):
            made = plan(records=records, oracle=oracle)
            assert made.oracle == oracle
            assert (made.period == 1) == (oracle == "naive")
            assert free <= made.tolerance * (1 + 1e-9)


def test_what_is_fixed_stays_and_what_is_more_helps():
    made = plan(horizon=64, period=8, first_batch=100, diff_batch=3, directions=50, passes=2)
    for name, value in {
        "horizon": 64,
        "period": 8,
        "first_batch": 100,
        "diff_batch": 3,
        "directions": 50,
        "passes": 2,
    }.items():
        assert getattr(made, name) == value
    base = plan().tolerance
    assert plan(records=2 * 10**6).tolerance < base
    assert plan(privacy=bs.Privacy(rho=2.0)).tolerance < base
    assert plan(evaluations=10**7).tolerance > base
    assert "one more record" in plan().explain()
    assert "one more direction" in plan(evaluations=10**7).explain()
    assert "binds" in plan().explain()


def test_evaluations_are_within_budget():
    for budget in (10**6, 10**8):
        made = plan(evaluations=budget)
        block = made.first_batch + made.diff_batch * (made.period - 1)
        blocks = made.epochs * made.horizon // made.period
        assert 2 * made.directions * block * blocks <= budget


def test_what_does_not_fit_is_refused():
    with pytest.raises(bs.InvalidArgument, match="do not hold one epoch"):
        plan(records=10, horizon=1000)
    with pytest.raises(bs.InvalidArgument, match="mechanism must be one of"):
        plan(mechanism="magic")
    with pytest.raises(bs.InvalidArgument, match="see the names of a Plan"):
        plan(horizons=3)
    with pytest.raises(bs.InvalidArgument, match="preset paper ties"):
        plan(preset="paper", passes=2)
    with pytest.raises(bs.InvalidArgument, match="preset klt ties"):
        plan(preset="klt", horizon=2)


def test_by_clip_norm_without_lipschitz():
    made = plan(lipschitz=None, gap=None, bounds=bs.Clip(0.5), records=4000, passes=40)
    assert made.tolerance is None
    assert "nothing is certified" in made.explain()
    assert made.step is None
    assert made.mu == pytest.approx(1.0)
    assert made.sensitivity == pytest.approx(2 * 0.5 / made.first_batch)
    with pytest.raises(bs.InvalidArgument, match="nothing bounds"):
        plan(lipschitz=None, gap=None)
    with pytest.raises(bs.InvalidArgument, match="does not fit"):
        plan(lipschitz=None, gap=None, bounds=bs.Clip(0.5), records=10, first_batch=11)
    with pytest.raises(bs.InvalidArgument, match="smaller first_batch"):
        plan(lipschitz=None, gap=None, bounds=bs.Clip(0.5), records=10, first_batch=10)


def test_klt_is_a_plan_of_its_own():
    made = plan(preset="klt", dim=20)
    assert made.first_batch == made.period
    assert made.mechanism == "tree"
    assert "Kornowski" in made.explain()
    assert made.mu <= 1.0
    with pytest.raises(bs.InvalidArgument, match="give both"):
        plan(preset="klt", gap=None)


@pytest.mark.parametrize("sampler", [Haar(), Structured()])
@pytest.mark.parametrize("clip", [1.2, 2.0, 3.0])
def test_clip_bias_bounds_the_real_one(sampler, clip):
    # Two odd, 1-Lipschitz functions on the sphere: a linear one, and one with kinks.
    dim = 12
    draw = jax.jit(jax.vmap(lambda k: sampler.sample(k, None, dim, dim)))
    frames = draw(jax.random.split(jax.random.key(0), 4000))
    up, down = (np.linalg.norm(np.maximum(side, 0), axis=-1) for side in (frames, -frames))
    for coefficients in (np.asarray(frames[..., 0]), (up - down) / math.sqrt(2)):
        norms = np.linalg.norm(coefficients, axis=-1)
        excess = np.maximum(norms - clip, 0).mean()
        assert excess <= clip_bias(frame_moments(dim, dim), clip) + 1e-12
    assert clip_bias(sphere_moments(dim, dim), clip) >= clip_bias(frame_moments(dim, dim), clip)
