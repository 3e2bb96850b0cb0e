"""A person with 50 rows, attacked: as one record the claim holds, as 50 records it would not."""

import jax
import numpy as np
import pytest

import blindstep as bs
from blindstep.insight import audit_bounds as bounds
from blindstep.insight.audit_scene import Scene
from blindstep.losses.people import People, by_person
from blindstep.planning.statement import statement
from blindstep.private.noise import fresh_keys

OTHERS, MANY, PERSON, KEYS = 200, 50, 77, 20_000


def scene_of(records):
    """The worst case of a plan in which every release takes all records; mu is 1."""
    plan = bs.plan(
        bs.Tight(
            radius=0.1,
            bounds=bs.Bounds(clip=1.0),
            horizon=1,
            first_batch=records,
            directions=4,
            sharing="block",
            passes=1,
        ),
        dim=4,
        records=records,
        privacy=bs.Privacy(mu=1.0),
    )
    assert plan.mu == pytest.approx(1.0, rel=1e-6)
    return Scene(plan, fresh_keys(0))


def table(z, number, seed):
    """Everybody has one row, which counts 0; one person has so many, at z, all over the table."""
    people = np.delete(np.arange(OTHERS + 1), PERSON)
    places = np.random.default_rng(seed).integers(0, OTHERS + 1, number)
    rows = np.insert(np.zeros(OTHERS, np.int8), places, z)
    return rows, np.insert(people, places, PERSON)


def lower_bound(seen):
    """What an adversary who knows all but z proves about mu, with confidence 0.999.

    The noise of a release is as large in each direction, so the best score is along the change.
    """
    seen = seen.reshape(len(seen), 2, -1)
    shift = seen[0, 1] - seen[0, 0]
    scores, neighbour_scores = ((seen - seen.mean(axis=(0, 1))) @ shift).T
    return bounds.mu_lower_bound(scores, neighbour_scores)


def keys(number=KEYS):
    return np.random.default_rng(1).integers(0, 2**32, (number, 8), dtype=np.uint32)


@pytest.mark.slow
@pytest.mark.parametrize("number", [MANY, 3])
def test_a_person_with_50_rows_spends_what_is_claimed(number):
    """All 50 rows are replaced, by as many or by fewer elsewhere, through the driver's own path."""
    scene = scene_of(OTHERS + 1)
    worlds = [table(-1, MANY, seed=2), table(1, number, seed=3)]
    made = [by_person(scene.loss, np.zeros(4), rows, People(ids)) for rows, ids in worlds]
    data = jax.tree.map(lambda *pair: np.stack(pair), *(each[1] for each in made))
    found = lower_bound(scene.watch_two(scene.blocks(0), made[0][0], data, keys()))
    # No more than the claim, and the attack is good enough to see nearly all of it.
    assert 0.9 * scene.plan.mu < found <= scene.plan.mu


@pytest.mark.slow
def test_the_same_person_as_50_records_would_break_the_claim():
    """The power twin: rows taken as records protect a row, and this person has 50."""
    rows, people = table(-1, MANY, seed=2)
    scene = scene_of(len(rows))
    own = np.flatnonzero(people == PERSON)
    found = lower_bound(scene.watch(scene.blocks(0), own, keys()))
    assert found > 5 * scene.plan.mu
    # The group guarantee covers as many rows as it can be stated for; for 50 it says that it cannot.
    said = statement(scene.terms, 1e-5, seeded=False)
    some = lower_bound(scene.watch(scene.blocks(0), own[:4], keys()))
    assert 0.9 * said.for_rows(4).mu < some <= said.for_rows(4).mu == 4 * said.mu
    with pytest.raises(bs.errors.InvalidArgument, match=r"epsilon is about 1\.47e"):
        said.for_rows(MANY)
    # One row alone is as claimed.
    alone = lower_bound(scene.watch(scene.blocks(0), own[:1], keys()))
    assert 0.9 * scene.plan.mu < alone <= scene.plan.mu
