"""People with several rows: one person is one record, and nobody's rows reach another's record."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blindstep as bs
from blindstep.losses.people import (
    ROWS,
    People,
    by_person,
    by_person_on_host,
    count_people,
    grouped,
)
from driver_runs import PLAN
from losses import capped_distance, capped_distance_numpy
from people_tables import NAMES, PEOPLE, TABLE, TOTALS, distances

POINT = np.asarray([0.3, -0.2])


def compiled_values(loss, data):
    return np.asarray(jax.vmap(lambda person: loss(jnp.asarray(POINT), person))(data))


def host_values(loss, data):
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], data) for i in range(len(data[1]))]
    return np.asarray([loss(POINT, person) for person in each])


def values(driver, table, people, rows=ROWS, loss=None):
    """What each person's loss is at one point, by each driver's own way of computing it."""
    people = People(people, rows)
    if driver == "compiled":
        made, data, _ = by_person(loss or capped_distance, POINT, table, people)
        return compiled_values(made, jax.tree.map(jnp.asarray, data))
    vectorized = driver == "vectorized"
    plain = distances if vectorized else capped_distance_numpy
    made, data, _ = by_person_on_host(loss or plain, table, people, vectorized)
    if vectorized:
        return made(np.tile(POINT, (len(data[1]), 1)), data)
    return host_values(made, data)


WAYS = ("compiled", "host", "vectorized")


# -- who has which rows -----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_slots_hold_a_persons_own_rows(people, rows):
    index, used = grouped(people, len(people), rows)
    present = sorted(set(people))
    assert len(used) == count_people(people, len(people)) == len(present)
    assert index.shape == (len(present), rows)  # by who is there and what is public alone
    for who, slots, number in zip(present, index, used, strict=True):
        assert number == min(people.count(who), rows)
        assert {people[row] for row in slots} == {who}
        assert len(set(slots[:number])) == number  # none counts twice
        assert set(slots[number:]) <= {slots[0]}


def replaced(table, people, who, number, rng):
    """The table with other rows for one person, so many of them, in other places of the table."""
    table, people = table[people != who], people[people != who]
    places = np.sort(rng.integers(0, len(people) + 1, number))
    return np.insert(table, places, 1e3 * rng.normal(size=(number, 2)), axis=0), np.insert(
        people, places, who
    )


@pytest.mark.parametrize("number", [1, 8, 9, 70])
@pytest.mark.parametrize("who", [0, 5, 23])
def test_replacing_a_person_changes_one_record_and_no_place(who, number):
    """The premise of the gate, for people: every other record and its place stay, bit for bit."""
    rng = np.random.default_rng(number)
    other = replaced(TABLE, PEOPLE, who, number, rng)
    others = np.arange(24) != who
    for make in (
        lambda table, people: by_person(capped_distance, POINT, table, People(people))[1],
        lambda table, people: by_person_on_host(distances, table, People(people), True)[1],
    ):
        leaves = map(jax.tree.leaves, (make(TABLE, PEOPLE), make(*other)))
        for before, after in zip(*leaves, strict=True):
            assert before.shape == after.shape
            np.testing.assert_array_equal(before[others], after[others])
    for way in WAYS:
        before, after = values(way, TABLE, PEOPLE), values(way, *other)
        np.testing.assert_array_equal(before[others], after[others])
        assert before[who] != after[who]


def test_which_rows_are_used_is_spread_over_all_of_them():
    """A place that all tables have in common, such as the first question, is not preferred."""
    number, total, rows = 4_000, 50, 8
    index, _ = grouped(np.repeat(np.arange(number), total), number * total, rows)
    places = index % total
    often = np.bincount(places.ravel(), minlength=total)
    expected = number * rows / total
    # Chi-square with 49 degrees of freedom, without replacement: 118 has probability 1e-7.
    assert np.sum((often - expected) ** 2 / expected) < 118
    assert len({tuple(sorted(row)) for row in places}) > 0.99 * number
    again, _ = grouped(np.repeat(np.arange(number), total), number * total, rows)
    np.testing.assert_array_equal(index, again)  # a resumed run has the same


@pytest.mark.parametrize(
    "people",
    [
        NAMES,
        list(NAMES),
        NAMES.astype(object),
        NAMES.astype(np.dtypes.StringDType()),
        NAMES.astype("S"),
        pandas.Series(NAMES),
        pandas.Series(NAMES, dtype="category"),
        PEOPLE.astype(float),
        PEOPLE.astype(np.uint8),
        [10**30 + int(who) for who in PEOPLE],
        jnp.asarray(PEOPLE),
    ],
)
def test_identifiers_of_any_kind(people):
    np.testing.assert_array_equal(
        grouped(people, len(PEOPLE), 3).row, grouped(PEOPLE, len(PEOPLE), 3).row
    )


SECRET = "Ada Lovelace"


@pytest.mark.parametrize(
    ("people", "says"),
    [
        ([SECRET] * 3, r"people has shape \(3,\), but there are 4 rows"),
        ([[SECRET]] * 4, r"people has shape \(4, 1\)"),
        ([SECRET, "b", "", "c"], "none missing"),
        ([SECRET, "b", None, "c"], "none missing"),
        (np.asarray([SECRET, 1, 2, 3], dtype=object), "all of one kind"),
        ([1815.0, 2.0, np.nan, 3.0], "dtype float64"),
        ([1815.5, 2.0, 1.0, 3.0], "dtype float64"),
        ([True, False, True, False], "dtype bool"),
        (np.asarray(["1815-12-10"] * 4, "M8[D]"), "leave them out"),
    ],
)
def test_identifiers_that_cannot_be_used_are_refused_without_a_word_of_them(people, says):
    for evaluate in (None, bs.Host()):
        with pytest.raises(bs.errors.InvalidArgument, match=says) as caught:
            bs.minimize(
                capped_distance,
                np.zeros(2),
                np.zeros((4, 2)),
                people=people,
                method=PLAN,
                evaluate=evaluate,
            )
        assert SECRET not in str(caught.value)
        assert "1815" not in str(caught.value)


def test_rows_belong_to_people_and_a_row_is_checked_as_one():
    for evaluate in (None, bs.Host()):
        with pytest.raises(
            bs.errors.InvalidArgument, match="rows must be a whole number of at least 1"
        ):
            bs.People(PEOPLE, rows=0)
        with pytest.raises(
            bs.errors.InvalidArgument, match="24 records"
        ):  # people are counted, not rows
            bs.minimize(
                capped_distance,
                np.zeros(2),
                TABLE,
                people=PEOPLE % 7,
                method=PLAN,
                evaluate=evaluate,
            )
    with pytest.raises(
        bs.errors.InvalidArgument, match=r"returned \(2,\), but it must return one number"
    ):
        bs.minimize(lambda x, z: x - z, np.zeros(2), TABLE, method=PLAN, people=PEOPLE)
    with pytest.raises(bs.errors.InvalidArgument, match="called as loss"):
        bs.minimize(
            lambda x: 0.0, np.zeros(2), TABLE, method=PLAN, people=PEOPLE, evaluate=bs.Host()
        )


# -- the loss of a person ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 3, ROWS, 60])
def test_the_loss_of_a_person_is_the_mean_over_their_rows(way, rows):
    index, used = grouped(NAMES, len(NAMES), rows)
    losses = distances(POINT, TABLE)
    means = [losses[own[:number]].mean() for own, number in zip(index, used, strict=True)]
    np.testing.assert_allclose(values(way, TABLE, NAMES, rows), means, rtol=1e-12)
    if rows == 60:  # all of them
        whole = np.bincount(PEOPLE, losses) / TOTALS
        np.testing.assert_allclose(means, whole, rtol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_voids_its_person_alone(way, bad):
    spoiled = TABLE.copy()
    spoiled[np.flatnonzero(PEOPLE == 5)[-1]] = bad
    linear = {
        "compiled": lambda x, z: jnp.sum(x * z),
        "host": lambda x, z: np.sum(x * z),
        "vectorized": lambda x, z: np.sum(x * z, axis=1),
    }[way]
    clean = values(way, TABLE, PEOPLE, 60, linear)
    with np.errstate(all="ignore"):  # as in a run
        found = values(way, spoiled, PEOPLE, 60, linear)
    others = np.arange(24) != 5
    np.testing.assert_array_equal(found[others], clean[others])
    assert not np.isfinite(found[5])


def test_what_stands_in_a_slot_that_does_not_count_voids_nobody():
    made, data, _ = by_person(capped_distance, POINT, TABLE, People(PEOPLE))
    clean = compiled_values(made, jax.tree.map(jnp.asarray, data))
    idle = np.arange(8) >= data[1][:, None]
    assert np.any(idle)
    spoiled = np.where(idle[..., None], np.nan, data[0])
    found = compiled_values(made, (jnp.asarray(spoiled), jnp.asarray(data[1])))
    np.testing.assert_array_equal(found, clean)

    # The same for a check of equinox, which would end the program, or void more than its own row.
    def checked(x, z):
        eqx.error_if(z, z[0] > 50, "too far")
        return capped_distance(x, z)

    made, _, _ = by_person(checked, POINT, TABLE, People(PEOPLE))
    far = np.where(idle[..., None], 100.0, data[0])
    np.testing.assert_array_equal(compiled_values(made, (jnp.asarray(far), data[1])), clean)
    far[5, 0] = 100.0
    found = compiled_values(made, (jnp.asarray(far), jnp.asarray(data[1])))
    np.testing.assert_array_equal(np.isnan(found), np.arange(24) == 5)


@pytest.mark.parametrize("fails", [False, True])
def test_everybody_costs_as_many_calls(fails):
    """Neither the number of rows nor a row that raises shows in how often the loss is called."""
    calls = []

    def loss(x, z):
        calls.append(z[0])
        if fails and len(calls) == 1:
            raise ValueError(SECRET)
        return capped_distance_numpy(x, z)

    made, data, _ = by_person_on_host(loss, TABLE, People(PEOPLE), False)
    for who in (5, 9):  # with 50 rows, with one
        calls.clear()
        value = made(POINT, jax.tree.map(lambda leaf, who=who: leaf[who], data))
        assert len(calls) == 8
        assert np.isnan(value) == fails
    # What fails from the second call on voids nobody who has one row.
    seen = set()

    def once(x, z):
        if z[0] in seen:
            raise ValueError(SECRET)
        seen.add(z[0])
        return capped_distance_numpy(x, z)

    found = host_values(*by_person_on_host(once, TABLE, People(PEOPLE), False)[:2])
    np.testing.assert_allclose(found, values("host", TABLE, PEOPLE))


@pytest.mark.slow
def test_a_vectorised_call_that_fails_for_one_person_is_taken_apart():
    def loss(x, z):
        if np.any(z > 100):
            raise ValueError(SECRET)
        return distances(x, z)

    spoiled = TABLE.copy()
    spoiled[np.flatnonzero(PEOPLE == 9)] = 1e3
    many = bs.Host(vectorized=True)
    options = {"method": PLAN, "seed": 7, "people": PEOPLE, "evaluate": many}
    found = bs.minimize(loss, np.zeros(2), spoiled, **options)
    table = TABLE.copy()
    table[PEOPLE == 9] = np.nan
    alone = bs.minimize(distances, np.zeros(2), table, **options)
    np.testing.assert_array_equal(found.means, alone.means)
