"""A membership attack on released parameters: close to the claim at worst, and never above it."""

import numpy as np
import pytest

import blindstep as bs
from blindstep.insight import membership
from blindstep.insight.audit_bounds import audit_table
from blindstep.optimize.learners import Heeding
from plans import with_noise


def plan_in(dim, mu=3.0):
    """A plan in which every record answers in every step, with the learner of runs without knobs."""
    method = bs.Tight(
        radius=0.1,
        bounds=bs.Bounds(clip=1.0),
        estimate="gradient",
        oracle="naive",
        first_batch=dim,
        horizon=4,
        rounds=16,
        passes=64,
        learner=Heeding(),
    )
    return bs.plan(method, dim=dim, records=dim, privacy=bs.Privacy(mu=mu, delta=1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_attack_reaches_four_fifths_of_the_claim_and_never_more(seed):
    plan, canaries = plan_in(4000), bs.Canaries.worst_case(4000, seed=seed)
    found = membership.attack(run(plan, canaries), canaries)
    assert 0.8 * 3 <= found.lower_bound_mu <= 3
    halved = membership.attack(run(with_noise(plan, 0.5), canaries), canaries)
    assert halved.lower_bound_mu > 3
    assert not halved.holds


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_bound_is_below_the_truth_on_gaussians_of_known_mu(mu):
    # Losses at four rounds that share their noise, as those of a path do.
    rng, found = np.random.default_rng(0), []
    noise = rng.normal(size=(300, 4000, 4)).cumsum(axis=2)
    for each in noise:
        inside = rng.random(4000) < 0.5
        canaries = bs.Canaries(at, {"which": np.arange(4000)}, inside)
        found.append(membership.from_losses(each + mu * inside[:, None], canaries, mu, 0.999))
    assert np.median([each.lower_bound_mu for each in found]) > (0.7 if mu >= 1 else 0.1) * mu
    over = sum(not each.holds for each in found)
    assert over <= 5  # nominal 0.001: more than 5 of 300 have probability below 1e-6


def test_a_loss_for_a_host_is_evaluated_in_python():
    inside = np.arange(300) % 2 == 0
    found = np.random.default_rng(0).normal(size=300) + 4 * inside

    def loss(params, record):
        return float(params[int(record["which"])])

    records = {"which": np.arange(300)}
    plain, compiled = (
        membership.losses_seen([found], bs.Canaries(each, records, inside)) for each in (loss, at)
    )
    np.testing.assert_array_equal(plain, compiled)
    got = membership.from_losses(plain, bs.Canaries(loss, records, inside), 4.0, 0.999)
    assert 3 < got.estimated_mu < 5


@pytest.mark.parametrize(
    ("took_part", "said"),
    [
        (np.zeros(300, bool), "0 of 300 canaries took part"),
        (np.ones(200, bool), "for each of the 300 canaries"),
        (np.ones(300), "True or False"),
    ],
)
def test_canaries_that_cannot_be_told_apart_are_refused(took_part, said):
    with pytest.raises(bs.errors.InvalidArgument, match=said):
        bs.Canaries(at, {"which": np.arange(300)}, took_part)


def test_canaries_are_looked_for_in_a_result():
    canaries = bs.Canaries.worst_case(300, seed=0)
    with pytest.raises(bs.errors.InvalidArgument, match="give the result of their run"):
        bs.audit(plan_in(300), canaries=canaries)


def at(params, record):
    return params[record["which"]]


def run(plan, canaries):
    return bs.minimize(
        canaries.loss, np.zeros(plan.dim), canaries.data, method=plan, rehearse=False
    )


def test_the_attack_comes_close_to_the_claim_and_shows_noise_that_is_missing():
    plan, canaries = plan_in(1000), bs.Canaries.worst_case(1000, seed=1)
    found = membership.attack(run(plan, canaries), canaries)
    assert found.holds
    # Of 20 runs: 2.2 on average, with a standard deviation of 0.12. Both bounds are 6 of these away.
    assert 0.45 * 3 < found.lower_bound_mu <= 3
    halved = bs.audit(run(with_noise(plan, 0.5), canaries), canaries=canaries, pairs=500)
    assert halved.membership is not None
    assert halved.membership.lower_bound_mu > 3
    assert not halved.holds
    assert "ABOVE THE CLAIM" in str(halved)
    assert "parameters alone" in str(list(audit_table(halved).columns[0].cells))
    assert halved.to_dict()["membership"]["canaries"] == found.canaries
