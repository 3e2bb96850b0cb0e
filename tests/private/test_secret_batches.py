"""What secret batches cost: against exact integrals and hostile strategies, and its arithmetic."""

import contextlib
import math
from functools import partial

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from blindstep.errors import InvalidArgument
from blindstep.planning.noise import longest, secrecy_for
from blindstep.private import accounting
from blindstep.private import secret_batches as allocation
from blindstep.private.secret_batches import group, presence_mu
from profiles import KINDS, needed, profile

SLACKS = st.floats(-12.0, -2.0).map(lambda e: 10.0**e)


# -- two steps, where profiles are integrals of one variable ---------------------------------------


def call(c, strike):
    """E (exp(c x - c^2/2) - strike)+ for x ~ N(0, 1)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        d = (c * c / 2 - np.log(strike)) / c
        return np.where(strike > 0, ndtr(d) - strike * ndtr(d - c), 1 - strike)


def put(c, strike):
    with np.errstate(divide="ignore", invalid="ignore"):
        d = (c * c / 2 - np.log(strike)) / c
        return np.where(strike > 0, strike * ndtr(c - d) - ndtr(-d), 0.0)


def two_steps(c, kind, k):
    """The profile at k, by a fine trapezoidal rule over the first step's noise."""
    x = np.linspace(-13.0, 13.0 + c, 8_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    up = np.exp(c * x - c * c / 2)
    if kind == "with":
        return float(density @ call(c, 2 * k - up)) / 2
    return float(density @ (k * put(c, 2 / k - up))) / 2


def exact(c, slack):
    """The mu of two steps, from below: the largest that some epsilon asks for."""
    return max(
        needed(e, two_steps(c, kind, math.exp(e)), slack)
        for e in np.linspace(0.01, 1.0, 50) * c * (c + 8)
        for kind in KINDS
    )


@pytest.mark.parametrize("slack", [1e-4, 1e-8])
@pytest.mark.parametrize("c", [0.05, 0.5, 1.3, 3.0])
def test_two_steps_against_the_integral(c, slack):
    truth, mu = exact(c, slack), presence_mu(c, 2, slack)
    assert truth <= mu <= 1.01 * truth
    assert presence_mu(c, 4, slack) < truth  # power


def one_step_of(steps, c, kind, k):
    """The profile at k where one step of a pass is made: that of a Poisson step, in closed form."""
    p = 1 / steps
    if kind == "with":
        return p * float(call(c, np.maximum((k - 1 + p) / p, 0.0)))
    return k * p * float(put(c, (1 - k * (1 - p)) / (k * p)))


@pytest.mark.parametrize(("c", "steps"), [(0.05, 2), (0.5, 16), (1.3, 4), (0.8, 256)])
def test_one_step_of_a_pass_against_the_closed_form(c, steps):
    mu = presence_mu(c, steps, 1e-6, made=1)
    truth = max(
        needed(e, one_step_of(steps, c, kind, math.exp(e)), 1e-6)
        for e in np.geomspace(1e-4, c * (c + 8), 100)
        for kind in KINDS
    )
    assert truth <= mu <= 1.01 * truth
    assert mu < 0.97 * presence_mu(c, steps, 1e-6, made=2)


@settings(deadline=None, max_examples=15)
@given(st.floats(1e-2, 2.0), st.integers(1, 5), SLACKS, st.data())
def test_a_part_of_a_pass_costs_less_than_more_of_it(c, log, slack, data):
    steps = 2**log
    made = data.draw(st.integers(1, steps))
    more = data.draw(st.integers(made, steps))
    mu = presence_mu(c, steps, slack, made)
    assert mu <= 1.005 * presence_mu(c, steps, slack, more)  # of the grids
    assert presence_mu(longest(mu, steps, slack, made), steps, slack, made) <= mu


def bounded(c, kind, k, slack):
    """What the accountant says of the profile at k, for two steps."""
    law = allocation._law_of_mean(c, 2, allocation._TAIL * slack)
    if kind == "with":
        return np.maximum(law.points - k, 0) @ law.weights + law.lost
    return np.maximum(1 - k * law.points, 0) @ law.weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("c", [0.3, 1.3, 3.0])
def test_any_grid_is_safe(monkeypatch, c, kind):
    for name, value in (
        ("_STEP", 0.03),
        ("_STEP", 0.4),
        ("_WIDTH", 0.3),
        ("_TAIL", 0.9),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(allocation, name, value)
            for k in (1.0, 1.4, 6.0):
                truth = two_steps(c, kind, k)
                assert bounded(c, kind, k, 1e-4) >= truth * (1 - 1e-9), name
                if name == "_STEP" and value < 0.1 and truth > 1e-2:
                    assert bounded(c, kind, k, 1e-4) <= 1.02 * truth


def contracted(values, weights, points, lost):
    """The mutant of `_spread` that rounds inwards: masses between two points meet at their mean."""
    inside = np.clip(values, points[0], points[-1])
    left = np.searchsorted(points, inside, side="right") - 1
    mass, mean = np.bincount(left, weights), np.bincount(left, weights * inside)
    full = mass > 0
    return allocation._Law(mean[full] / mass[full], mass[full], lost)


def forgetful(function, *arguments):
    """The mutant of whatever makes a law that forgets what was cut off above."""
    law = function(*arguments)
    return allocation._Law(law.points, law.weights, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_inwards_is_caught(monkeypatch, kind):
    monkeypatch.setattr(allocation, "_spread", contracted)
    monkeypatch.setattr(allocation, "_nodes", partial(sparse, allocation._nodes))
    assert bounded(1.3, kind, 1.4, 1e-4) < two_steps(1.3, kind, 1.4)


def sparse(nodes, low, high, width):
    """A fine grid for one step, which rounds outwards, and a coarse one afterwards."""
    points = nodes(low, high, width)
    return points if low < 0 and width == 4.0 else np.append(points[:-1:10], points[-1])


def test_forgotten_tails_are_caught(monkeypatch):
    monkeypatch.setattr(allocation, "_TAIL", 0.9)
    assert bounded(1.3, "with", 3.0, 0.03) >= two_steps(1.3, "with", 3.0)
    for name in ("_spread", "_one_step"):
        monkeypatch.setattr(allocation, name, partial(forgetful, getattr(allocation, name)))
    assert bounded(1.3, "with", 3.0, 0.03) < two_steps(1.3, "with", 3.0)


# -- nothing an adversary chooses is worse than the pair -------------------------------------------


def strategy(rng):
    """How long the vector is in a step, from what was seen in the step before."""
    length, turn = rng.uniform(0, 1, 2), rng.normal()
    return lambda seen: length[(seen * turn > 0).astype(int)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("c", "k"), [(0.4, 1.05), (1.2, 1.0), (1.2, 3.0)])
def test_no_strategy_beats_full_length(c, k, kind):
    rng = np.random.default_rng(0)
    truth, number, reached = two_steps(c, kind, k), 100_000, 0
    for turn in range(30):
        choose = strategy(rng) if turn else np.ones_like
        seen, s = np.zeros(number), 0.0
        for _ in range(2):
            length = c * choose(seen)
            seen = rng.normal(size=number)
            s = s + np.exp(length * seen - length**2 / 2) / 2
        values = np.maximum(s - k, 0) if kind == "with" else np.maximum(1 - k * s, 0)
        error = values.std() / math.sqrt(number)
        assert values.mean() <= truth + 5 * error
        reached += abs(values.mean() - truth) <= 5 * error
        assert turn > 0 or reached == 1
    assert reached < 30


# -- what is known of the cost ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "mu", "gain"),
    [
        *((16, 0.016, 4.0), (16, 0.134, 3.62), (16, 0.268, 2.65)),
        *((64, 0.016, 7.97), (64, 0.134, 5.53), (256, 0.016, 15.73)),
    ],
)
def test_gains_over_public_batches(steps, mu, gain):
    assert longest(mu, steps, 1e-8) / mu == pytest.approx(gain, rel=4e-3)


@given(st.floats(1e-6, 30.0), SLACKS)
def test_one_step_is_the_gaussian_itself(c, slack):
    assert presence_mu(c, 1, slack) == longest(c, 1, slack) == c


@settings(deadline=None, max_examples=25)
@given(st.floats(1e-3, 3.0), st.integers(0, 6), SLACKS, st.floats(1.0, 1.5), st.integers(0, 2))
def test_costs_rise_with_the_clip_and_fall_with_steps_and_slack(c, log, slack, more, extra):
    off, steps = 1.005, 2**log  # of the grids
    mu = presence_mu(c, steps, slack)
    assert mu <= c
    assert mu <= off * presence_mu(more * c, steps, slack)
    assert presence_mu(c, steps * 2**extra, slack) <= off * mu
    assert presence_mu(c, steps, min(more * slack, 0.01)) <= off * mu


@settings(deadline=None, max_examples=15)
@given(st.floats(1e-3, 12.0), st.integers(0, 6), SLACKS)
def test_the_inverse_never_overshoots_and_hardly_undershoots(mu, log, slack):
    steps = 2**log
    c = longest(mu, steps, slack)
    assert mu <= c
    assert presence_mu(c, steps, slack) <= mu
    assert presence_mu(1.01 * c, steps, slack) > mu


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-3, 0.7), st.integers(1, 3), st.floats(-25.0, -6.0))
def test_secrecy_is_what_leaves_room(mu, size, exponent):
    room = 10.0**exponent
    secrecy = secrecy_for(mu, size, room)
    assert group(mu, secrecy, size)[1] <= room
    with contextlib.suppress(InvalidArgument):
        assert group(mu, 3 * secrecy, size)[1] > room


def test_the_ends_of_the_ranges_are_safe():
    assert presence_mu(1e-7, 4, 1e-8) == 1e-7
    assert presence_mu(11.0, 8, 1e-8) == 11.0
    assert 0.0 < presence_mu(0.01, 4, 0.5) < 1e-9  # all of it is slack
    assert 0.1 < presence_mu(0.5, 16, 1e-50) < 0.5


def test_what_cannot_be_is_refused():
    for bad in (0.0, -1.0, math.nan, math.inf):
        for cost in (presence_mu, longest):
            with pytest.raises(InvalidArgument):
                cost(bad, 4, 1e-8)
            with pytest.raises(InvalidArgument):
                cost(1.0, 4, bad)
        with pytest.raises(InvalidArgument):
            group(bad, 1e-8, 2)
        with pytest.raises(InvalidArgument):
            secrecy_for(bad, 2, 1e-8)
    for cost in (presence_mu, longest):
        with pytest.raises(InvalidArgument, match="whole number"):
            cost(1.0, 0, 1e-8)
        with pytest.raises(InvalidArgument, match="2, 4, 8"):
            cost(1.0, 6, 1e-8)
        with pytest.raises(InvalidArgument, match="9 steps of a pass that has 8"):
            cost(1.0, 8, 1e-8, 9)
        with pytest.raises(InvalidArgument, match="at least 1e-50"):
            cost(1.0, 2, 1e-51)
    with pytest.raises(InvalidArgument, match="public batches"):
        secrecy_for(40.0, 2, 1e-9)
    for slack in (-1e-9, 1.0, math.nan):
        with pytest.raises(InvalidArgument, match="below 1"):
            group(1.0, slack, 2)
        with pytest.raises(InvalidArgument, match="below 1"):
            accounting.exceeds(1.0, 2, slack)


# -- the currency ----------------------------------------------------------------------------------


def power(mu, slack, level):
    """1 - f(level), for the trade-off f of mu-Gaussian-DP composed with (0, slack)-DP."""
    inside = np.minimum(level / (1 - slack), 1.0)
    return slack + (1 - slack) * ndtr(ndtri(inside) + mu)


LEVELS = np.concatenate([[0.0], ndtr(np.linspace(-37.0, 6.0, 20_001))])


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-3, 1.5), st.floats(-14.0, -4.0), st.integers(2, 4))
def test_groups_against_all_tests_of_a_row_of_data_sets(mu, exponent, size):
    slack = 10.0**exponent
    try:
        total, kept = group(mu, slack, size)
    except InvalidArgument:
        assert size * mu > 1.0
        return
    reached = LEVELS
    for _ in range(size):
        reached = power(mu, slack, reached)
    assert total == pytest.approx(size * mu)
    for epsilon in np.linspace(0.0, 9.0, 19) * total:
        found = np.max(reached - math.exp(epsilon) * LEVELS)
        assert found <= profile(total, kept, epsilon) * (1 + 1e-9)
    # No smaller slack will do: a test of level 0 has all but this.
    assert kept >= reached[0] * (1 - 1e-9)
    if size == 2 and mu < 0.7:
        assert kept <= 1.03 * reached[0]


@pytest.mark.parametrize(("mu", "times"), [(0.016, 2.1), (0.134, 3.15), (0.3, 6.42)])
def test_replacing_costs_a_few_times_the_slack(mu, times):
    twice, kept = group(mu, 1e-8, 2)
    assert (twice, kept / 1e-8) == (2 * mu, pytest.approx(times, rel=5e-3))


def test_records_changed_in_each_pass_take_less_slack():
    mu, slack, passes = 0.3, 1e-8, 16
    at_once = group(mu, slack, 2)[1]
    in_each = passes * group(mu / math.sqrt(passes), slack / passes, 2)[1]
    assert in_each < 0.5 * at_once


def test_groups_of_one_and_without_slack_and_too_large():
    assert group(0.3, 1e-8, 1) == (0.3, 1e-8)
    assert group(0.3, 0.0, 3) == (pytest.approx(0.9), 0.0)
    for mu, slack in ((9.0, 1e-8), (0.1, 0.6), (100.0, 1e-8)):
        with pytest.raises(InvalidArgument, match="give less"):
            group(mu, slack, 2)


@given(st.floats(0.01, 3.0), SLACKS, st.floats(0.0, 20.0))
def test_the_profile_is_that_of_the_tensor_product_of_both(mu, slack, epsilon):
    """P is the Gaussian pair times one that shares all but a mass of `slack` on either side."""
    z = np.linspace(-12.0, 16.0, 8001)
    q, p = allocation._cells(z), allocation._cells(z - mu)
    truth = slack + (1 - slack) * np.sum(np.maximum(p - math.exp(epsilon) * q, 0))
    found = profile(mu, slack, epsilon)
    assert truth <= found * (1 + 1e-12) + 1e-13
    assert found <= truth + 1e-4


def test_the_loss_exceeds_epsilon_no_more_often_than_said():
    c, steps, slack, rng = 0.8, 8, 1e-6, np.random.default_rng(0)
    x = rng.normal(size=(1_000_000, steps))
    x[:, 0] += c
    loss = np.log(np.exp(c * x - c * c / 2).mean(1))
    mu = presence_mu(c, steps, slack)
    for epsilon in (0.2, 0.5, 1.0, 2.0):
        said, seen = accounting.exceeds(mu, epsilon, slack), float(np.mean(loss > epsilon))
        assert seen <= said <= 1.0
        assert said >= accounting.exceeds(mu, epsilon)
        # A test of that size and power is allowed: the bound is reached by some pair of this cost.
        assert power(mu, slack, math.exp(-epsilon) * said) == pytest.approx(said, rel=1e-6)
    assert accounting.exceeds(mu, 0.0, slack) == 1.0
    assert accounting.exceeds(mu, 50.0) < 1e-200


# -- arithmetic ------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1e-4, 0.3, 3.0])
def test_first_masses_are_good_to_far_more_than_is_said(c):
    low = float(ndtri(1e-14))
    nodes = allocation._nodes(low - c, c - low, 4.0)[::20]
    with mpmath.workdps(200):
        for x in (nodes, nodes - c, nodes + c):
            for a, b, mass in zip(x, x[1:], allocation._cells(x), strict=False):
                truth = mpmath.ncdf(mpmath.mpf(float(b))) - mpmath.ncdf(mpmath.mpf(float(a)))
                assert abs(mpmath.mpf(float(mass)) / truth - 1) < 1e-13


@pytest.mark.parametrize("steps", [1, 2, 7, 64])
def test_means_stay_and_only_ends_are_cut(steps):
    law = allocation._law_of_mean(0.9, steps, 1e-10)
    assert np.all(np.diff(law.points) > 0)
    assert law.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert law.points @ law.weights <= 1.0 + 1e-10
    assert law.points @ law.weights + law.lost >= 1.0 - 1e-12
    assert law.lost < 1e-8
    assert law.weights[0] < 1e-8


def test_there_are_fewer_pairs_than_the_bound_on_rounding_says(monkeypatch):
    most, spread = 0, allocation._spread

    def counting(values, weights, points, lost):
        nonlocal most
        most = max(most, len(values))
        return spread(values, weights, points, lost)

    monkeypatch.setattr(allocation, "_spread", counting)
    for c, steps in ((10.0, 4), (1.0, 8), (3.0, 31), (10.0, 7), (1e-4, 4)):
        allocation._law_of_mean(c, steps, 1e-54)
    assert 2**17 < most < 2**22
