"""Plans that cannot work are told before anything is spent, and others are not."""

import math
import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import blindstep as bs
from blindstep.losses.pytrees import rounding
from blindstep.planning.checks import doubts
from driver_runs import CHOICES, NAIVE_PLAN, PLAN
from plans import plan_of

ONE = bs.Privacy(epsilon=1, delta=1e-5)


def planned(records, dim=2, privacy=ONE, **choices):
    choices = {"radius": 0.5, "bounds": bs.Bounds(clip=1.0), "passes": 20, **choices}
    return plan_of(records=records, dim=dim, privacy=privacy, **choices)


def full(records, dim, privacy=ONE, **choices):
    """Every step takes all records along one shared frame."""
    return planned(
        records, dim, privacy, first_batch=records, horizon=10, sharing="block", **choices
    )


def test_three_rows_at_epsilon_1_cannot_work():
    (said,) = doubts(planned(3))
    assert "whatever 3 records can say" in said
    assert "learning begins at about" in said
    assert doubts(planned(1_000)) == ()


def numbers_in(said, before):
    """The numbers that stand before or after these words."""
    return [int(each.replace(",", "")) for each in re.findall(before, said)]


@pytest.mark.parametrize("dim", [2, 20, 100])
@pytest.mark.parametrize("privacy", [ONE, bs.Privacy(mu=0.03)])
def test_how_many_records_it_takes_is_answered_with_a_number(dim, privacy):
    """And the plans for these numbers are what was said of them."""
    with pytest.raises(bs.errors.InvalidArgument, match="How many does it take") as asked:
        bs.plan(bs.Auto(), dim=dim, privacy=privacy)
    begins, enough = numbers_in(str(asked.value), r"about ([\d,]+)")
    made = {n: bs.plan(bs.Auto(secret=False), dim=dim, privacy=privacy, records=n)
            for n in (begins, enough)}  # fmt: skip
    steps = {n: plan.rounds * plan.horizon for n, plan in made.items()}
    assert steps[begins] < 0.6 * steps[enough]
    assert steps[enough] > 60
    more = bs.plan(bs.Auto(secret=False), dim=dim, privacy=privacy, records=10 * enough)
    assert steps[enough] > 0.85 * more.rounds * more.horizon
    assert doubts(made[begins]) == ()


def test_few_rows_are_not_lost_in_silence():
    """Nine rows at epsilon 1 are all noise; what the warning asks for is enough to learn from."""
    for rows in (3, 9):
        (said,) = doubts(bs.plan(bs.Auto(), dim=2, privacy=ONE, records=rows))
        ends, begins = numbers_in(said, r"at about ([\d,]+)")
        assert rows < ends < begins
        assert begins > 3 * rows
        assert doubts(bs.plan(bs.Auto(), dim=2, privacy=ONE, records=2 * ends)) == ()


@pytest.mark.parametrize("dim", [1, 50])
@pytest.mark.parametrize("passes", [10, 40])
def test_the_quotient_is_2_over_records_times_rho_whatever_the_steps(dim, passes):
    """Where it crosses 1 the warning begins: at 2 / mu records, in every dimension."""
    edge = 2 / ONE.mu
    assert doubts(full(math.floor(0.98 * edge), dim, passes=passes))
    assert not doubts(full(math.ceil(1.02 * edge), dim, passes=passes))


def test_many_coordinates_drown_a_signal_that_one_would_carry():
    """Quotients over all coordinates grow as the square root of their number."""
    few, many = (full(10, q, passes=10, directions=q) for q in (50, 5_000))
    assert not doubts(few)
    (said,) = doubts(many)
    assert "5,000 coordinates" in said


def test_a_warning_is_right_records_that_all_agree_are_outweighed():
    """The mean of all releases, with the longest signal there can be, has the wrong sign this often."""
    plan = full(math.floor(0.98 * 2 / ONE.mu), 1)
    assert doubts(plan)
    steps = plan.rounds * plan.horizon
    wrong = norm.cdf(-plan.clips[0] * math.sqrt(steps) / plan.noise_std)
    assert wrong > 0.15


def test_what_tests_and_documents_run_is_not_hopeless():
    votes = {"oracle": "naive", "sharing": "record", "directions": 1, "first_batch": 400}
    votes |= {
        "horizon": 10,
        "smoothing": 1.0,
        "reach": 0.2,
        "passes": 1,
        "bounds": bs.Bounds(range=(0, 1)),
    }
    others = [planned(4_000, 3, radius=1.0, **votes), planned(2_000), planned(24, **CHOICES)]
    others += [planned(1_000, 10**6, passes=5)]
    for plan in (PLAN, NAIVE_PLAN, *others):
        assert doubts(plan) == ()


def test_the_paper_s_own_plans_travel_as_far_as_they_smooth():
    paper = bs.plan(
        bs.Paper(radius=0.5, lipschitz=1.0, gap=1.0, horizon=4), records=10_000, dim=5, privacy=ONE
    )
    assert doubts(paper) == ()


def test_steps_that_cannot_travel():
    (said,) = doubts(planned(1_000, smoothing=5.0, reach=0.001, horizon=10))
    assert "away from the start, less than the smoothing 5" in said


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32, np.float64])
def test_moves_that_rounding_swallows(dtype):
    """A tenth of what rounding does: hardly a coordinate of such a probe differs from the start."""
    start = jnp.asarray(np.random.default_rng(0).uniform(1, 2, 1_000), dtype)
    rounded = rounding(start)
    unit = np.random.default_rng(1).normal(size=1_000)
    unit /= np.linalg.norm(unit)
    for share, seen in ((0.09, True), (100.0, False)):
        plan = planned(1_000, 1_000, smoothing=share * rounded, reach=10.0, directions=4)
        assert bool(doubts(plan, rounded)) == seen
        probe = (np.asarray(start, np.float64) + plan.smoothing * unit).astype(start.dtype)
        moved = np.mean(probe != np.asarray(start))
        assert moved < 0.2 if seen else moved > 0.9


@pytest.mark.parametrize("driver", ["compiled", "host", "ask"])
def test_every_driver_says_so_before_anything_is_spent(driver, tmp_path):
    hopeless, start, data = planned(3), np.zeros(2), np.zeros((3, 2))

    def loss(x, z):
        return jnp.sum(x - z)

    calls = {
        "compiled": lambda: bs.minimize(
            loss, start, data, method=hopeless, checkpoint=tmp_path / "a"
        ),
        "host": lambda: bs.minimize(
            loss, start, data, method=hopeless, evaluate=bs.Host(), checkpoint=tmp_path / "a"
        ),
        "ask": lambda: bs.Optimizer(hopeless, start, checkpoint=tmp_path / "a"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(bs.errors.HopelessPlan, match="3 records"):
            calls[driver]()
    assert not (tmp_path / "a").exists()
