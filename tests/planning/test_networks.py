"""Plans for networks: few directions of very many parameters."""

import math
from dataclasses import replace

import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.ledger.budget import Privacy
from blindstep.planning.auto import Auto
from blindstep.planning.method import Problem
from blindstep.planning.networks import advised
from blindstep.planning.plan import Plan

PRIVACY = Privacy(epsilon=2, delta=1e-5)


def planned(**change):
    sizes = {"dim": 100_000_000, "records": 1024, "evaluations": 2_000_000, "privacy": PRIVACY}
    sizes |= change
    dim, records, privacy = (sizes.pop(name) for name in ("dim", "records", "privacy"))
    return Auto(**sizes).plan(Problem(dim, records, privacy, (dim - 8, 8), network=True))


@pytest.mark.parametrize("dim", [20, pytest.param(1000, marks=pytest.mark.slow), 100_000_000])
@pytest.mark.parametrize("records", [100, 5000, 300_000])
@pytest.mark.parametrize("evaluations", [5_000, 300_000, 2_000_000])
def test_a_plan_keeps_to_its_evaluations_and_its_budget(dim, records, evaluations):
    made = planned(dim=dim, records=records, evaluations=evaluations)
    assert made.evaluations <= evaluations
    assert made.mu <= PRIVACY.mu
    assert made.directions <= dim
    assert Plan.from_json(made.to_json()) == made


def test_with_room_every_record_is_in_every_public_step_on_one_side():
    made = planned(secret=False)
    assert made.sides == 1
    assert made.takes_all
    assert made.evaluations > 0.9 * 2_000_000
    assert planned(dim=40).sides == 2


def test_secret_batches_leave_room_for_many_more_directions():
    secret, public = planned(), planned(secret=False)
    assert secret.secret
    assert not public.secret
    every = [made.directions * made.schedule.releases for made in (secret, public)]
    assert every[0] > 5 * every[1]
    assert secret.evaluations <= 2_000_000


@pytest.mark.parametrize("evaluations", [4096, 16_384, 65_536])
def test_few_evaluations_are_not_spent_on_noise(evaluations):
    """As many as a processor makes in ten minutes with a language model: steps can be heard."""
    made = planned(records=3000, evaluations=evaluations)
    noise = math.sqrt(made.directions) * made.noise_std / made.clips[0]
    assert made.secret
    assert noise < 0.4
    public = planned(records=3000, evaluations=evaluations, secret=False)
    assert math.sqrt(public.directions) * public.noise_std / public.clips[0] > noise


def test_a_larger_epsilon_buys_no_fewer_directions():
    about = {"dim": 6634, "records": 4000, "evaluations": 500_000}
    made = [
        planned(**about, privacy=Privacy(epsilon, 1e-5, neighbours="zero-out"))
        for epsilon in (1.0, 2.0, 8.0)
    ]
    every = [each.directions * each.schedule.releases for each in made]
    assert min(every) > 0.9 * every[0]


@pytest.mark.parametrize("records", [100, 5000, 300_000])
def test_a_plan_of_gradients_keeps_to_its_budget_and_says_nothing_is_better(records):
    made = planned(dim=1000, records=records, estimate="gradient")
    assert made.differentiates
    assert made.network
    assert made.evaluations <= 2_000_000
    assert made.mu <= PRIVACY.mu
    assert Plan.from_json(made.to_json()) == made
    assert advised(made, True) is made
    values = advised(planned(dim=1000, records=records), True)
    assert "estimate='gradient'" in values.notes[-1]


def test_noise_is_never_longer_than_the_clip():
    for epsilon in (0.1, 0.5, 2.0):
        made = planned(privacy=Privacy(epsilon=epsilon, delta=1e-5), evaluations=2**30)
        noise = math.sqrt(made.directions) * made.noise_std / made.bounds.clip
        assert noise < 1.0


def test_steps_grow_as_the_square_root_of_directions_and_parameters():
    reach = {q: planned(directions=q, secret=False).reach for q in (2, 8)}
    # Up to a few dozen directions, of which the curvature is made.
    assert 1.6 < reach[8] / reach[2] < 2.0
    large, small = (
        planned(directions=8, dim=dim, secret=False).reach for dim in (100_000_000, 1_000_000)
    )
    assert large / small == pytest.approx(10.0, rel=1e-3)


def test_steps_are_shorter_where_noise_is_most_of_them():
    reach = [planned(records=records, secret=False).reach for records in (20_000, 1024, 30)]
    assert reach[0] > reach[1] > 3.0 * reach[2]


def test_one_side_is_for_signs_alone():
    made = planned()
    with pytest.raises(InvalidArgument, match="sides"):
        replace(made.estimate, sampler="sphere")
    with pytest.raises(InvalidArgument, match="signs is for networks"):
        replace(made, natural_units=False)


def test_passes_limit_the_steps():
    made = planned(passes=3)
    assert made.passes <= 3
    assert np.isfinite(made.reach)
