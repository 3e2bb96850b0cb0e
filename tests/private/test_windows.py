"""Windows: whoever comes answers, sums are divided by the planned number, one moves one share."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.planning.noise import calibrated
from blindstep.planning.statement import statement
from blindstep.private.clip import unit_of
from blindstep.private.mechanisms import MECHANISMS
from blindstep.private.noise import STD
from blindstep.private.schedule import MOST_IN_A_WINDOW, Kind, Schedule
from blindstep.private.terms import EFFECTIVE, REPLACE, ZERO_OUT, Terms
from gates import make_gate, permit_of, release_answers, release_records

PLANNED, SIZE, CLIP = 6, 3, 1.5


def terms_of(neighbours=REPLACE, mu=0.5, size=SIZE):
    schedule = Schedule(4 * PLANNED, PLANNED, PLANNED, 1, 4, windows=True)
    return calibrated(schedule, MECHANISMS["independent"](1), size, CLIP, CLIP, mu, neighbours)


@eqx.filter_jit
def released(permit, memory, answers):
    return release_answers(permit, memory, Kind.GRAD, answers, lambda own: own)[1]


def release(vectors, places=0, terms=None):
    """What a window releases from these vectors, and empty places."""
    permit, memory = permit_of(make_gate(terms or terms_of()))
    answers = np.asarray(vectors, float).reshape(-1, SIZE)
    empty = max(0, places - len(answers))
    answers = np.pad(answers, [(0, empty), (0, 0)], constant_values=np.nan)
    return np.asarray(released(permit, memory, jnp.asarray(answers)))


def hostile(number, chance):
    """Vectors of every length there is, some of which are none."""
    vectors = chance.normal(size=(number, SIZE)) * 10.0 ** chance.integers(-9, 200, (number, 1))
    vectors[chance.random(number) < 0.1, 0] = chance.choice([np.nan, np.inf, -np.inf])
    return vectors


def clipped(vectors):
    """Each vector with norm at most the clip; one that is not finite, or 1e154 clips long, is 0."""
    scaled = vectors / CLIP
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.sum(scaled**2, axis=1, keepdims=True))
        shorter = vectors * np.where(lengths > 1.0, 1.0 / np.maximum(lengths, 1e-300), 1.0)
    return np.where(np.isfinite(lengths), shorter, 0.0)


@pytest.mark.parametrize("number", [1, 5, 6, 7, 40, 3000])
def test_a_window_adds_whoever_answers_and_divides_by_the_planned_number(number):
    vectors = hostile(number, np.random.default_rng(number))
    nobody = release(np.full((1, SIZE), np.nan))  # the noise alone
    moved = release(vectors) - nobody
    expected = clipped(vectors).sum(axis=0) / PLANNED
    slack = number * float(unit_of(CLIP, MOST_IN_A_WINDOW)) + terms_of().noise_std / STD
    np.testing.assert_allclose(moved, expected, atol=slack)


def test_who_answers_where_and_beside_whom_changes_no_bit():
    vectors = hostile(50, np.random.default_rng(3))
    whole = release(vectors)
    np.testing.assert_array_equal(release(vectors[::-1]), whole)
    # An empty place is one of somebody who did not come.
    np.testing.assert_array_equal(release(vectors, 2000), whole)


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO_OUT])
def test_one_person_moves_a_window_by_what_is_charged_at_most(neighbours):
    """Whoever comes beside them: absent one share, replaced two, or one each in two windows."""
    chance, terms = np.random.default_rng(5), terms_of(neighbours)
    width = terms.noise_std / STD
    allowed = terms.mu() * EFFECTIVE * terms.noise_std
    share = CLIP / PLANNED
    reached = 0.0
    for case in range(60):
        others = hostile(int(chance.integers(1, 30)), chance)
        one, two = hostile(2, chance)
        if case == 0:  # the worst there is
            one, two = np.eye(SIZE)[0] * 1e9, -np.eye(SIZE)[0] * 1e9
        absent, first, second = (
            release([*others, *more], 32, terms) for more in ([], [one], [two])
        )
        away = np.linalg.norm(first - absent)
        assert away <= share + math.sqrt(SIZE) * width
        if neighbours == ZERO_OUT:
            reached = max(reached, away)
            assert away <= allowed
        else:
            same, apart = (
                np.linalg.norm(first - second),
                math.hypot(away, np.linalg.norm(second - absent)),
            )
            reached = max(reached, same)
            assert max(same, apart) <= allowed
    assert reached > 0.999 * allowed


def test_staying_away_costs_half_of_what_being_replaced_costs():
    both = [terms_of(neighbours, mu=0.5).noise_std for neighbours in (REPLACE, ZERO_OUT)]
    assert both[0] / both[1] == pytest.approx(2.0, rel=1e-4)
    assert terms_of().mu() == pytest.approx(0.5, rel=1e-9)
    assert terms_of().mu() <= 0.5


def test_answers_come_from_outside_and_are_not_more_than_are_added_exactly():
    gate = make_gate(terms_of())
    permit, memory = permit_of(gate)
    data = jnp.zeros((24, SIZE))
    with pytest.raises(InvalidArgument, match="None answers in a window"):
        release_records(permit, memory, Kind.GRAD, data, lambda own: own, 3)
    with pytest.raises(InvalidArgument, match="nobody is assigned"):
        gate.rows(0)
    assert (MOST_IN_A_WINDOW * CLIP / float(unit_of(CLIP, MOST_IN_A_WINDOW))) / CLIP <= 2.0**52
    with pytest.raises(InvalidArgument, match="16777217 answers"):
        permit._rows(memory.position, Kind.GRAD, MOST_IN_A_WINDOW + 1)


def test_windows_are_steps_of_their_own():
    for wrong in ({"period": 2, "first_batch": 2, "diff_batch": 2}, {"secrecy": 1e-9}):
        chosen = {"records": 24, "first_batch": 6, "diff_batch": 6, "period": 1, "blocks": 2}
        with pytest.raises(InvalidArgument, match="fix period 1"):
            Schedule(**(chosen | wrong), windows=True)


def test_the_statement_says_that_taking_part_is_private_and_between_whom():
    said = [
        str(statement(terms_of(neighbours), 1e-6, seeded=False, unit="one person"))
        for neighbours in (REPLACE, ZERO_OUT)
    ]
    assert "one person, replaced by any other, or by nobody (which is half of this mu)" in said[0]
    assert "one person, who comes or stays away (replacing one by another is twice" in said[1]
    assert all("How many came is not public; the planned number is." in each for each in said)
    assert isinstance(terms_of(), Terms)
