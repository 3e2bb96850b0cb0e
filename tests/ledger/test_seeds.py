"""A user's seed makes the noise together with what a run is about: nobody can subtract it twice."""

import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger import session
from blindstep.private.noise import fresh_keys
from driver_runs import DATA, SHORT, cut_after, run, same
from losses import capped_distance, capped_distance_numpy

DRIVERS = {"compiled": capped_distance, "host": capped_distance_numpy}
NEIGHBOUR = np.where(np.arange(len(DATA))[:, None] == 3, DATA[3] + 1e-12, DATA)
PRIVACY = bs.Privacy(mu=1.0)


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch):
    """Other tests run under the seed alone (`one_noise`)."""
    monkeypatch.setattr(session, "fresh_keys", fresh_keys)


def first_releases(found):
    """What came out of the first step: its norm, which holds the noise."""
    return found.history.gradient_norm.ravel()[0]


@pytest.mark.parametrize("driver", DRIVERS)
def test_one_seed_gives_two_data_sets_other_noise(driver, monkeypatch):
    """A record moves by a trillionth: what is released moves by as much as new noise does."""
    ours, theirs = (run(driver, plan=SHORT, data=data) for data in (DATA, NEIGHBOUR))
    assert abs(first_releases(ours) - first_releases(theirs)) > 1e-6
    assert same(ours, run(driver, plan=SHORT, data=DATA))
    # Power: under the seed alone the noise is the same, and the difference is the record.
    monkeypatch.setattr(session, "fresh_keys", lambda seed, about: fresh_keys(seed))
    ours, theirs = (run(driver, plan=SHORT, data=data) for data in (DATA, NEIGHBOUR))
    assert abs(first_releases(ours) - first_releases(theirs)) < 1e-6


def loss(point, record):
    return abs(point - record).sum()


@pytest.mark.parametrize(
    "other",
    [
        {"data": NEIGHBOUR},
        {"loss": lambda p, z: abs(p - z).sum() + 1e-12 * p[0]},
        {"params": np.full(2, 1e-12)},
        {"privacy": bs.Privacy(mu=1.0 + 1e-9)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_seeded_value_has_noise_of_its_own(other):
    call = {"loss": loss, "params": np.zeros(2), "data": DATA, "privacy": PRIVACY}
    one, again, two = (
        bs.value(**{**call, **more}, largest=8.0, seed=5) for more in ({}, {}, other)
    )
    assert one == again
    assert abs(one.mean - two.mean) > 1e-6 * one.std


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_seeded_run_goes_on_with_its_bits(driver, tmp_path, monkeypatch):
    whole, place = run(driver, plan=SHORT), tmp_path / "run"
    cut_after(monkeypatch, 2, driver, place, plan=SHORT)
    assert same(run(driver, place, plan=SHORT), whole)
    with pytest.raises(bs.errors.CheckpointMismatch, match="another seed"):
        run(driver, place, plan=SHORT, seed=8)
    assert same(run(driver, place, plan=SHORT, seed=None), whole)
