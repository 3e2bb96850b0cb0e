"""What is added to an estimate is enough, and not far more; private certificates are charged first."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import blindstep as bs
from blindstep.insight import certificate_private as private
from blindstep.insight.certificate_private import release_gradient
from blindstep.insight.certificate_search import bernstein, gaussian_combination, stratified_error
from blindstep.ledger.ledger import read_ledger
from blindstep.losses.evaluators import CompiledLoss
from blindstep.losses.pytrees import ParameterSpace
from blindstep.planning.noise import calibrated
from blindstep.private.gate import Gate
from blindstep.private.noise import fresh_keys
from one_noise import seed_alone

FAILURE = 0.05
REPEATS = 2000
# More failures than this happen with probability 1e-6 if each has probability FAILURE.
MOST = int(binom.isf(1e-6, REPEATS, FAILURE))


def distance(x, z):
    return jnp.sqrt(jnp.sum((x - z) ** 2))


def plain_distance(x, z):
    return float(np.sqrt(np.sum((np.asarray(x) - z) ** 2)))


PEOPLE = 0.3 * np.random.default_rng(0).standard_normal((4000, 2))
PRIVATE = {"bounds": bs.Bounds(lipschitz=1.0), "privacy": bs.Privacy(mu=1.0)}


def stratified_trials(repeats=REPEATS):
    """Errors and their bounds, for two strata of rare large vectors: far from Gaussian."""
    chance = np.random.default_rng(5)
    weights, counts = np.array([0.7, 0.3]), np.array([42, 18])
    stratum = np.repeat([0, 1], counts)
    means = np.array([[0.2, 0, 0], [0, 0.1, 0]])
    for _ in range(repeats):
        large = chance.uniform(size=60) < np.array([0.2, 0.1])[stratum]
        estimates = large[:, None] * np.eye(3)[stratum]
        error = (weights / counts)[stratum] @ (estimates - means[stratum])
        yield np.linalg.norm(error), stratified_error(estimates, stratum, weights, 1.0, FAILURE)


def test_estimation_error_is_covered():
    trials = np.array(list(stratified_trials()))
    assert np.sum(trials[:, 0] > trials[:, 1]) <= MOST
    # Power: a tenth of the bound would not do.
    assert np.sum(trials[:, 0] > 0.1 * trials[:, 1]) > MOST


def test_the_bound_follows_the_sample():
    """Without any variance only the terms of order 1/n are left; with much, those of 1/sqrt(n)."""
    stratum, weights = np.zeros(10_000, int), np.ones(1)
    still = stratified_error(np.ones((10_000, 2)), stratum, weights, 2.0, 1e-3)
    signs = np.where(np.arange(10_000)[:, None] % 4 < 2, 1.0, -1.0) * np.array([1.0, -1.0])
    signs[1::2] *= -1
    moving = stratified_error(signs, stratum, weights, 2.0, 1e-3)
    assert still < 0.02
    assert moving > math.sqrt(2 * 2.0 * math.log(4e3) / 1e4)
    with pytest.raises(ValueError, match="even"):
        stratified_error(np.ones((3, 2)), np.zeros(3, int), weights, 2.0, 1e-3)


def test_bernstein_solves_its_equation():
    for variance, largest in ((1e-4, 1e-3), (0.0, 0.1), (2.0, 1e-9)):
        t = bernstein(variance, largest, 0.01)
        assert 2 * math.exp(-(t**2) / (2 * (variance + largest * t / 3))) == pytest.approx(0.01)


def test_noise_is_covered_for_the_worst_combination():
    chance = np.random.default_rng(0)
    norms = np.array([np.linalg.norm(chance.standard_normal((6, 12)), 2) for _ in range(REPEATS)])
    bound = gaussian_combination(1.0, 1.0, 6, 12, FAILURE)
    assert np.sum(norms > bound) <= MOST
    assert np.sum(norms > 0.7 * bound) > MOST
    assert gaussian_combination(0.5, 3.0, 6, 12, FAILURE) == pytest.approx(1.5 * bound)


def prepared(dim=3, records=1000, mu=1.0, bounds=None):
    privacy = bs.Privacy(mu=mu)
    return private.prepare(dim, records, 0.1, bounds or bs.Bounds(lipschitz=1.0), privacy, 1e-3)


def test_private_noise_spends_what_was_asked():
    for mu in (0.1, 1.0, 7.0):
        _, terms, _ = prepared(mu=mu)
        assert mu * (1 - 1e-9) <= terms.mu() <= mu
        assert terms.schedule.passes == 12


def test_the_error_of_directions_covers_real_estimates():
    """Means over all records of estimates along fresh frames, against their own long-run mean."""
    estimator, terms, error = prepared(dim=2, records=200)
    people = PEOPLE[:200]
    evaluator = CompiledLoss(
        lambda x, z: jnp.clip(x[0] + 0.01 * z[0], -0.05, 0.05),
        ParameterSpace.of(np.zeros(2)),
        people,
    )
    # Next to no noise, so that the estimates themselves are seen.
    schedule, clip = replace(terms.schedule, blocks=60), terms.first_clip
    gate = Gate(
        calibrated(schedule, terms.mechanism, 2, clip, clip, 1e3), fresh_keys(0), NobodyPays()
    )
    means = np.stack(
        [
            release_gradient(
                gate, estimator, evaluator, evaluator.space, np.zeros(2), jax.random.key(i)
            )
            for i in range(60)
        ]
    )
    worst = np.linalg.norm(means - means.mean(axis=0), axis=1).max()
    assert 0.01 * error < worst < error


class NobodyPays:
    def charge(self, first, count, answers):
        pass


def test_a_clip_alone_is_refused():
    with pytest.raises(bs.errors.InvalidArgument, match="clip alone"):
        prepared(bounds=bs.Bounds(clip=1.0))
    *_, with_clip = prepared(bounds=bs.Bounds(lipschitz=1.0) & bs.Bounds(clip=1.1))
    *_, without = prepared(bounds=bs.Bounds(lipschitz=1.0))
    assert with_clip > without + 0.1  # what the clip may cut away is in the bound
    estimator, *_ = prepared(bounds=bs.Bounds(range=(0.0, 1.0)))
    assert estimator.bounds.clip == math.inf


def test_a_private_certificate_holds(tmp_path):
    point = np.full(2, 0.5)
    truth = bs.certificate(distance, point, PEOPLE, 0.1, public=True, seed=0).norm_bound
    made = bs.certificate(distance, point, PEOPLE, 0.1, ledger=tmp_path / "l.jsonl", **PRIVATE)
    assert truth <= made.norm_bound <= truth + 0.15
    assert made.privacy.mu == pytest.approx(1.0)
    account = read_ledger(tmp_path / "l.jsonl")
    assert account.spent() == pytest.approx(1.0)
    assert account.cohort == "l.jsonl"
    assert [run.identity.delta for run in account.runs.values()] == [1e-5]
    assert "charged to the ledger" in str(made)
    assert not made.public
    again = bs.certificate(distance, point, PEOPLE, 0.1, ledger=tmp_path / "l.jsonl", **PRIVATE)
    assert again.measured != made.measured
    assert read_ledger(tmp_path / "l.jsonl").spent() == pytest.approx(math.sqrt(2))


def test_plain_python_and_jax_give_the_same(tmp_path, monkeypatch):
    """Under the same noise: a seed's hangs on the loss as well."""
    some = PEOPLE[:10]
    monkeypatch.setattr(private, "fresh_keys", seed_alone)
    made = [
        bs.certificate(loss, np.zeros(2), some, 0.1, ledger=tmp_path / name, seed=3, **PRIVATE)
        for loss, name in ((distance, "a"), (plain_distance, "b"))
    ]
    assert made[0].measured == pytest.approx(made[1].measured, rel=1e-10)
    assert "NOT private" in str(made[0])


def test_charged_before_release(tmp_path, monkeypatch):
    """A crash at the third release has charged three of twelve; a budget is kept before any."""
    seen, real = [], Gate.through

    def through(gate, program, *arguments):
        def crash(permit, memory):
            seen.append(read_ledger(tmp_path / "l").spent())
            if len(seen) == 3:
                raise KeyboardInterrupt
            return program(permit, memory)

        return real(gate, crash, *arguments)

    monkeypatch.setattr(Gate, "through", through)
    options = PRIVATE | {"ledger": tmp_path / "l", "budget": bs.Privacy(mu=1.2)}
    with pytest.raises(KeyboardInterrupt):
        bs.certificate(distance, np.zeros(2), PEOPLE[:50], 0.1, **options)
    assert seen == pytest.approx([math.sqrt(n / 12) for n in (1, 2, 3)])
    more = PRIVATE | {"privacy": bs.Privacy(mu=1.15), "ledger": tmp_path / "l"}
    with pytest.raises(bs.errors.BudgetExceeded):
        bs.certificate(distance, np.zeros(2), PEOPLE[:50], 0.1, **more)
    assert len(seen) == 3
