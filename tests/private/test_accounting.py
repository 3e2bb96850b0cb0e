"""Exact Gaussian-DP against brute force, against dp-accounting, and in the direction of safety."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

import reference
from blindstep.errors import InvalidArgument
from blindstep.private import accounting

MUS = st.floats(1e-3, 30.0)
DELTAS = st.floats(1e-12, 0.2)


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 4.3772), (8.0, 65.32)])
def test_known_values(mu, epsilon):
    assert accounting.epsilon(mu, 1e-5) == pytest.approx(epsilon, abs=1e-2 if mu > 1 else 1e-4)


def exact_delta(mu, epsilon):
    """In as many digits as the difference of two nearly equal numbers needs."""
    with mpmath.workdps(60 + 2 * max(0, -math.floor(math.log10(mu)))):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


# From the smallest float to the largest mu, and as far into the tail as floats go.
ANY_MU = st.floats(-320, 6).map(lambda power: 10.0**power)
TAIL = st.floats(0, 38)


def epsilon_at(mu, share, x):
    """A share of the epsilon at which the formula's first term is Phi(-x)."""
    return share * mu * (x + mu / 2)


@settings(max_examples=400, deadline=None)
@given(ANY_MU, st.sampled_from([0.0, 1e-9, 0.3, 1.0]), TAIL)
@example(1.1e-4, 1.0, 3.0)
@example(1e-7, 1.0, 5.0)
@example(5e-324, 0.0, 0.0)
@example(1e6, 1.0, 1.0)
def test_delta_is_never_below_the_truth_for_any_mu(mu, share, x):
    epsilon = epsilon_at(mu, share, x)
    truth, found = exact_delta(mu, epsilon), accounting.delta(mu, epsilon)
    assert truth <= found
    assert found <= truth * (1 + 1e-7) + 1e-300


def test_the_old_formula_was_on_the_wrong_side():
    """The power twin: two logarithms that nearly cancel, and 1e-9 on top, as in version 0.2."""
    rng, below = np.random.default_rng(0), [0, 0]
    for power, x in zip(rng.uniform(-7, -4, 200), rng.uniform(0, 8, 200), strict=True):
        mu = 10.0**power
        epsilon = mu * (x + mu / 2)
        truth = exact_delta(mu, epsilon)
        old = reference.gaussian_delta(mu, epsilon) * (1 + 1e-9)
        for which, found in enumerate((old, accounting.delta(mu, epsilon))):
            below[which] += found < truth
    assert below[0] > 20
    assert below[1] == 0


def test_a_formula_that_bounds_its_error_is_asked_for_it():
    """Where mu is huge the formula has few digits: what it may be off by is in the answer."""
    for mu, x in ((1e6, 3.0), (3e5, 20.0), (0.0021, 38.0), (1e-9, 30.0)):
        epsilon = mu * (x + mu / 2)
        log_delta, error = accounting._log_delta(mu, epsilon)
        with mpmath.workdps(60):
            truth = float(mpmath.log(exact_delta(mu, epsilon)))
        assert abs(log_delta - truth) <= error
        assert accounting._most(mu, epsilon) == log_delta + error


@settings(max_examples=200, deadline=None)
@given(st.floats(-14, 3).map(lambda power: 10.0**power), st.floats(-14, -0.05), st.booleans())
@example(1.4e-6, -7.0, True)
def test_epsilon_is_never_below_the_truth_for_any_mu(mu, power, close):
    """Also where epsilon 0 is just not enough: at delta near its value there."""
    delta = 10.0**power
    if close:
        delta = min(0.9, accounting.delta(mu, 0.0) * (1 - delta))
    epsilon = accounting.epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 1e-3 * mu:
        assert exact_delta(mu, epsilon * (1 - 1e-6)) > delta * (1 - 1e-12)


def test_an_answer_moves_until_it_is_enough():
    """In steps of 1e-9 of itself, then twice that, and so on: a billionth more takes one step."""
    assert accounting._until(lambda value: value >= 1.0, 1.0, +1) == 1.0
    assert accounting._until(lambda value: value >= 1 + 5e-10, 1.0, +1) == 1 + 1e-9
    assert 0.5 > accounting._until(lambda value: value <= 0.5, 1.0, -1) > 0.2


@settings(max_examples=200, deadline=None)
@given(st.floats(-6, 4), st.floats(-14, -0.05))
def test_mu_is_never_above_what_was_asked_for(power, log_delta):
    epsilon, delta = 10.0**power, 10.0**log_delta
    try:
        mu = accounting.mu_for_epsilon(epsilon, delta)
    except InvalidArgument:
        assert exact_delta(1.1e-7, epsilon) > delta
        return
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu * (1 + 1e-6), epsilon) > delta


@given(st.floats(-320, 6), TAIL)
def test_the_probability_of_a_large_loss_is_never_below_the_truth(power, x):
    mu = 10.0**power
    epsilon = mu * (x + mu / 2)
    with mpmath.workdps(400):
        truth = mpmath.ncdf(mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mpmath.mpf(mu))
    assert truth <= accounting.exceeds(mu, epsilon)


@pytest.mark.parametrize("mu", [1e-5, 0.01, 0.3, 1.0, 20.0, 1e3])
@pytest.mark.parametrize("z", [-30.0, -5.0, -1.0, 2.0])
def test_a_large_loss_is_never_likelier_than_said(mu, z):
    """Against the fixed point p = Phi(mu + z), Phi(z) = e^-epsilon p, at 60 digits."""
    with mpmath.workdps(60):
        power, size = mpmath.ncdf(mpmath.mpf(mu) + z), mpmath.ncdf(mpmath.mpf(z))
        epsilon = float(mpmath.log(power / size))
        off = abs(mpmath.log(power / size) - epsilon)
    said = accounting.exceeds(mu, epsilon * (1 - 1e-14))
    assert power * (1 - 10 * off) <= said <= float(power) * 1.01


@given(st.floats(-11, 11))
def test_mu_of_zcdp_is_the_root_and_never_above_it(power):
    """zCDP is mu^2 / 2: (alpha, zcdp alpha)-RDP for all alpha, and mu gives (alpha, mu^2 alpha / 2)."""
    zcdp = 10.0**power
    mu = accounting.mu_for_zcdp(zcdp)
    assert Fraction(mu) ** 2 / 2 <= Fraction(zcdp)
    assert mu == pytest.approx(math.sqrt(2 * zcdp), rel=1e-8)


@given(MUS, DELTAS)
def test_epsilon_is_enough_and_hardly_more(mu, delta):
    epsilon = accounting.epsilon(mu, delta)
    assert reference.gaussian_delta(mu, epsilon) <= delta * (1 + 1e-12)
    if epsilon > 1e-6:
        assert reference.gaussian_delta(mu, epsilon * (1 - 1e-6)) > delta * (1 - 1e-9)


@given(MUS, st.floats(0.0, 50.0))
def test_delta_is_never_below_the_truth(mu, epsilon):
    truth = reference.gaussian_delta(mu, epsilon)
    found = accounting.delta(mu, epsilon)
    assert truth * (1 - 1e-9) <= found <= truth * (1 + 1e-7) + 1e-300


@given(st.floats(1e-3, 100.0), DELTAS)
def test_calibration_never_overshoots_and_hardly_undershoots(epsilon, delta):
    mu = accounting.mu_for_epsilon(epsilon, delta)
    assert accounting.epsilon(mu, delta) <= epsilon * (1 + 2e-9)
    assert reference.gaussian_delta(mu, epsilon) <= delta
    assert reference.gaussian_delta(mu * (1 + 1e-6), epsilon) > delta


@given(MUS, DELTAS)
def test_there_and_back(mu, delta):
    epsilon = accounting.epsilon(mu, delta)
    if epsilon > 1e-6:
        assert accounting.mu_for_epsilon(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_against_dp_accounting():
    # PLD doubles a Gaussian's sensitivity under REPLACE_ONE, so compare on the pair itself.
    for mu in (0.3, 1.0, 4.0):
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            1 / mu, value_discretization_interval=1e-4
        )
        theirs = pld.get_epsilon_for_delta(1e-5)
        assert accounting.epsilon(mu, 1e-5) == pytest.approx(theirs, rel=2e-3)
        accountant = RdpAccountant(orders=[2.0, 5.0, 20.0])
        accountant.compose(dp_event.GaussianDpEvent(1 / mu))
        for order, rdp in zip(accountant._orders, accountant._rdp, strict=True):
            assert order * mu**2 / 2 == pytest.approx(rdp)


def test_composition():
    assert accounting.compose([3.0, 4.0]) == 5.0
    assert accounting.compose([]) == 0.0


def test_what_is_no_budget_is_refused():
    for bad in (0.0, -1.0, math.nan, math.inf):
        for call in (
            lambda bad=bad: accounting.delta(bad, 1.0),
            lambda bad=bad: accounting.epsilon(bad, 1e-5),
            lambda bad=bad: accounting.epsilon(1.0, bad),
            lambda bad=bad: accounting.mu_for_epsilon(bad, 1e-5),
            lambda bad=bad: accounting.mu_for_epsilon(1.0, bad),
            lambda bad=bad: accounting.exceeds(bad, 1.0),
            lambda bad=bad: accounting.mu_for_zcdp(bad),
        ):
            with pytest.raises(InvalidArgument):
                call()
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match="epsilon must be at least 0"):
            accounting.delta(1.0, bad)
    with pytest.raises(InvalidArgument, match="below 1"):
        accounting.epsilon(1.0, 1.0)


def test_the_ends_of_the_ranges_are_safe():
    for mu in (5e-324, 1e-17, 1e-9):
        least = mu / math.sqrt(2 * math.pi)
        assert least < accounting.delta(mu, 0.0) <= least * (1 + 1e-8) + 1e-323
        assert accounting.epsilon(mu, 1e-8) == 0.0
    # No delta is 0: below all floats it is the smallest of them.
    for epsilon in (1.0, 1e9, 1e300):
        assert accounting.delta(1e-7, epsilon) == accounting.delta(5e-324, epsilon) == 5e-324
    assert accounting.delta(1e9, 1.0) == 1.0
    assert accounting.epsilon(1e-7, 0.1) == 0.0
    # Phi(a) - e^epsilon Phi(a - mu) = 1/2 at a close to 0: epsilon is close to mu^2 / 2.
    assert accounting.epsilon(1e6, 0.5) >= 0.5e12
    assert accounting.epsilon(1e6, 0.5) == pytest.approx(0.5e12, rel=1e-8)
    with pytest.raises(InvalidArgument, match="needs a mu below 1e-07"):
        accounting.mu_for_epsilon(1e-9, 1e-12)
    with pytest.raises(InvalidArgument, match="protects nobody"):
        accounting.epsilon(1.1e6, 0.5)
    with pytest.raises(InvalidArgument, match="protects nobody"):
        accounting.mu_for_epsilon(1e12, 0.5)
    with pytest.raises(InvalidArgument, match="protects nobody"):
        accounting.mu_for_zcdp(1e12)


# -- what delta is not -----------------------------------------------------------------------------


def of_one_release(mu, epsilon):
    """The probability that the loss of N(mu, 1) against N(0, 1) exceeds epsilon."""
    return float(stats.norm.cdf(mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("epsilon", "one", "any_"), [(1.0, 16, 41), (0.1, 111, 290)])
def test_the_loss_exceeds_epsilon_with_more_than_delta(epsilon, one, any_):
    """In one release, and at most, as docs/threat-model.md says."""
    mu = accounting.mu_for_epsilon(epsilon, 1e-5)
    assert of_one_release(mu, epsilon) / 1e-5 == pytest.approx(one, abs=0.5)
    assert accounting.exceeds(mu, epsilon) / 1e-5 == pytest.approx(any_, abs=0.5)


def test_a_record_that_falls_silent_does_not_make_large_losses_likelier_than_said():
    """100 releases of mu / 10 each; once the loss is above epsilon, the record's vectors are 0."""
    mu, epsilon, number, rng = 1.3, 2.0, 400_000, np.random.default_rng(0)
    losses, each = np.zeros(number), mu / 10
    for _ in range(100):
        moved = each * (losses <= epsilon)
        losses += moved * rng.normal(size=number) + moved**2 / 2
    seen = np.mean(losses > epsilon)
    assert 1.3 * of_one_release(mu, epsilon) < seen < accounting.exceeds(mu, epsilon)
    # And no less may be said: a test of this power is allowed at this size.
    most = accounting.exceeds(mu, epsilon)
    allowed = stats.norm.cdf(mu + stats.norm.ppf(math.exp(-epsilon) * most))
    assert allowed == pytest.approx(most, rel=1e-8)


@pytest.mark.parametrize(("scale", "right"), [(1.0, True), (0.9, False)])
def test_delta_is_what_is_left_of_large_losses(scale, right):
    """The privacy loss of x ~ N(mu, 1) is log p(x) / q(x) = mu x - mu^2 / 2: counted."""
    mu, epsilon, number = 1.3, 2.0, 400_000
    x = mu + np.random.default_rng(0).normal(size=number)
    losses = stats.norm.logpdf(x, mu) - stats.norm.logpdf(x, 0)
    seen = int(np.sum(losses > epsilon))
    p = stats.binomtest(seen, number, scale * of_one_release(mu, epsilon)).pvalue
    assert bool(p > 1e-6) is right
    # delta is the mean of what is left of such losses: 1 - e^(epsilon - loss).
    left = np.maximum(0, 1 - np.exp(epsilon - losses))
    error = left.std() / math.sqrt(number)
    off = abs(left.mean() - scale * accounting.delta(mu, epsilon))
    assert bool(off < 5 * error) is right


# -- slack -----------------------------------------------------------------------------------------


@given(st.floats(0.01, 3.0), st.floats(1e-9, 0.1), st.floats(1e-60, 1e-12))
def test_the_slack_is_taken_off_delta(mu, delta, slack):
    """A total variation of `slack` on both sides costs (1 + e^epsilon) slack."""
    try:
        epsilon = accounting.epsilon(mu, delta, slack)
    except InvalidArgument:
        assert slack * math.exp(accounting.epsilon(mu, delta / 2)) > delta / 5
        return
    left = delta - (1 + math.exp(epsilon)) * slack
    assert reference.gaussian_delta(mu, epsilon) <= left * (1 + 1e-10)
    assert epsilon >= accounting.epsilon(mu, delta) * (1 - 1e-12)


def test_slack_of_whole_number_noise_changes_nothing_until_it_cannot_be_stated():
    plain = accounting.epsilon(1.0, 1e-5)
    assert accounting.epsilon(1.0, 1e-5, 1e-40) == plain
    assert accounting.epsilon(1.0, 1e-5, 1e-8) > plain
    with pytest.raises(InvalidArgument, match="too large to be stated"):
        accounting.epsilon(20.0, 1e-5, 1e-40)


@given(st.floats(0.01, 3.0), st.floats(1e-9, 0.1), st.floats(1e-6, 0.2), st.floats(1e-60, 1e-12))
def test_secrecy_is_taken_off_delta_once(mu, delta, share, slack):
    """What costs (mu, secrecy) has the profile secrecy + (1 - secrecy) delta_mu, at most."""
    try:
        epsilon = accounting.epsilon(mu, delta, slack, secrecy=share * delta)
    except InvalidArgument:
        assert slack * math.exp(accounting.epsilon(mu, delta / 2)) > delta / 5
        return
    left = delta * (1 - share) - (1 + math.exp(epsilon)) * slack
    assert reference.gaussian_delta(mu, epsilon) <= left * (1 + 1e-10)
    if share > 1e-3:
        assert epsilon > accounting.epsilon(mu, delta) or epsilon == 0.0


def test_a_secrecy_that_delta_cannot_hold_is_refused():
    with pytest.raises(InvalidArgument, match=r"at a delta of at least 4e-06"):
        accounting.epsilon(1.0, 1e-6, secrecy=1e-6)
