"""What secret batches cost: against Monte Carlo and other people's accountants."""

import math
import warnings

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq

from blindstep.private import secret_batches as allocation
from blindstep.private.secret_batches import presence_mu
from profiles import KINDS, needed, profile

with warnings.catch_warnings():  # it says that it is faster with numba
    warnings.simplefilter("ignore", ImportWarning)
    import PLD_accounting


# -- Monte Carlo -----------------------------------------------------------------------------------


def sampled(c, steps, kind, ks, number, rng, made=None):
    """Profiles at `ks` and their standard errors, by importance sampling from a mixture of shifts.

    Where a part of the steps is made, a ratio of 1 stands for each of the others.
    """
    share, steps = (made or steps) / steps, made or steps
    if kind == "without":
        shifts = [(-z / math.sqrt(steps),) * 2 for z in (0.0, 2.0, 4.0)]
    else:
        shifts = [(c + b, z / math.sqrt(steps)) for b in (0.0, 2.0, 4.0) for z in (0.0, 2.0, 4.0)]
    b, a = np.array(shifts).T
    total, squares, done = np.zeros(len(ks)), np.zeros(len(ks)), 0
    chunk = max(1, 1_000_000 // (steps * len(b)))
    while done < number:
        x = rng.standard_normal((len(b), chunk, steps))
        x[:, :, 0] += b[:, None]
        x[:, :, 1:] += a[:, None, None]
        x = x.reshape(-1, steps)
        first, rest = x[:, :1], x[:, 1:].sum(1, keepdims=True)
        tilt = b * first - b * b / 2 + a * rest - (steps - 1) * a * a / 2
        weight = 1 / np.exp(tilt).mean(1)
        s = 1 - share + share * np.exp(c * x - c * c / 2).mean(1)
        # S may be replaced by one of its terms
        likely = weight * (1 - share + share * np.exp(c * x[:, 0] - c * c / 2))
        if kind == "with":
            values = [likely * np.maximum(1 - k / s, 0) for k in ks]
        else:
            values = [weight * np.maximum(1 - k * s, 0) for k in ks]
        total += [v.sum() for v in values]
        squares += [v @ v for v in values]
        done += len(x)
    mean = total / done
    return mean, np.sqrt(np.maximum(squares / done - mean**2, 0) / done)


class Sampled:
    """What Monte Carlo says of a pass: whether a mu is refuted, and what mu is needed at least."""

    def __init__(self, c, steps, slack, number, made=None):
        self.slack = slack
        self.epsilons = epsilons_of(c, steps, slack, made)
        self.low = lower_bounds(c, steps, self.epsilons, number, 0, made)

    def refutes(self, mu):
        claims = [profile(mu, self.slack, e) for e in self.epsilons]
        return bool(np.any(self.low > claims))

    def at_least(self):
        pairs = zip(self.epsilons, self.low, strict=True)
        return max(needed(e, low, self.slack) for e, low in pairs)


def epsilons_of(c, steps, slack, made=None):
    """Where the profile is looked at."""
    return np.linspace(0.05, 7.5, 12) * presence_mu(c, steps, slack, made)


def lower_bounds(c, steps, epsilons, number, seed, made=None):
    """The larger of both profiles at each epsilon, less five standard errors."""
    rng, ks = np.random.default_rng(seed), np.exp(epsilons)
    sampling = [sampled(c, steps, kind, ks, number, rng, made) for kind in KINDS]
    return np.max([mean - 5 * error for mean, error in sampling], axis=0)


def test_against_monte_carlo():
    c, steps, slack = 0.6, 8, 1e-6
    mu, truth = presence_mu(c, steps, slack), Sampled(c, steps, slack, 1_000_000)
    assert not truth.refutes(mu)
    assert truth.at_least() > 0.97 * mu
    # Power: a little too small, half the clip or twice the noise, steps and slack that are not there.
    assert truth.refutes(0.97 * mu)
    assert truth.refutes(presence_mu(c / 2, steps, slack))
    assert truth.refutes(presence_mu(c, 2 * steps, slack))
    assert truth.refutes(presence_mu(c, steps, 100 * slack))


def test_a_part_of_a_pass_against_monte_carlo():
    c, steps, made, slack = 0.7, 8, 3, 1e-5
    mu, truth = presence_mu(c, steps, slack, made), Sampled(c, steps, slack, 300_000, made)
    assert not truth.refutes(mu)
    assert truth.at_least() > 0.94 * mu
    # Power: a step less, twice as many that are not made.
    assert truth.refutes(presence_mu(c, steps, slack, made - 1))
    assert truth.refutes(presence_mu(c, 2 * steps, slack, made))


LENGTHS = {2: (0.1, 0.3, 1.0, 2.0), 4: (0.1, 0.3, 0.6, 1.0), 8: (0.1, 0.4, 0.9, 1.5)}
LENGTHS |= {16: (0.07, 0.2, 0.4, 0.7), 64: (0.13, 0.3, 0.5, 0.75)}


SLACKS_SAMPLED = (1e-3, 1e-6, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "c"), [(t, c) for t, some in LENGTHS.items() for c in some])
def test_sixty_settings_against_ten_million_samples(c, steps):
    """Each with three slacks. How close Monte Carlo comes is its own error: a few % in far tails."""
    epsilons = np.concatenate([epsilons_of(c, steps, slack) for slack in SLACKS_SAMPLED])
    low = lower_bounds(c, steps, epsilons, 10_000_000, 1)
    for slack, own, found in zip(
        SLACKS_SAMPLED, np.split(epsilons, 3), np.split(low, 3), strict=True
    ):
        mu = presence_mu(c, steps, slack)
        assert np.all(found <= [profile(mu, slack, e) for e in own])
        pairs = zip(own, found, strict=True)
        assert max(needed(e, each, slack) for e, each in pairs) > 0.92 * mu


# -- other accountants -----------------------------------------------------------------------------


def epsilon_of(c, steps, delta):
    """Epsilon of one pass at delta, straight from the law of S: no Gaussian in between."""
    law = allocation._law_of_mean(c, steps, 1e-7 * delta)

    def over(epsilon):
        k = math.exp(epsilon)
        with_it = float(np.maximum(law.points - k, 0) @ law.weights) + law.lost
        return max(with_it, float(np.maximum(1 - k * law.points, 0) @ law.weights)) - delta

    return brentq(over, 1e-9, 60.0)


SETTINGS = [(0.3, 8, 1e-5), (0.1, 4, 1e-5), (0.5, 16, 1e-6), (1.5, 4, 1e-6)]


@pytest.mark.parametrize(("c", "steps", "delta"), SETTINGS[:2])
def test_another_accountant_of_random_allocation_gives_the_same_epsilon(c, steps, delta):
    """PLD-accounting (Feldman & Shenfeld 2026) bounds it from both sides, 2% away on either."""
    high, low = PLD_accounting.gaussian_allocation_epsilon_range(
        delta=delta, sigma=1 / c, num_steps=steps
    )
    found = epsilon_of(c, steps, delta)
    assert low <= found <= high
    assert found == pytest.approx((low + high) / 2, rel=5e-3)
    # Power: with 5% more noise, or steps that are not there, it would not.
    assert epsilon_of(c / 1.05, steps, delta) < low
    assert epsilon_of(c, 2 * steps, delta) < low


@pytest.mark.slow
@pytest.mark.parametrize(
    ("c", "steps", "delta"), [*SETTINGS[2:], (0.74, 64, 1e-6), (1.0, 256, 1e-6)]
)
def test_another_accountant_gives_the_same_epsilon_of_longer_passes(c, steps, delta):
    test_another_accountant_of_random_allocation_gives_the_same_epsilon(c, steps, delta)


@pytest.mark.slow
@pytest.mark.parametrize(("c", "steps"), [(0.5, 16), (0.74, 64), (1.0, 256)])
def test_poisson_batches_of_the_same_size_are_neighbours(c, steps):
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    step = dp_event.PoissonSampledDpEvent(1 / steps, dp_event.GaussianDpEvent(1 / c))
    accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    assert epsilon_of(c, steps, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=0.25)
