"""The examples on real people's answers, on made-up files of the same form."""

import csv
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import open_bandit, polis


@dataclass
class Folder:
    path: object
    people: int = 60
    statements: int = 12


@pytest.fixture(scope="module")
def votes(tmp_path_factory):
    """People of two camps; statement 3 was taken down by moderators."""
    folder = Folder(tmp_path_factory.mktemp("polis"))
    chance = np.random.default_rng(0)
    with open(folder.path / "comments.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["comment-id", "moderated", "comment-body"])
        table.writerows([s, -1 if s == 3 else 1, "a, b"] for s in range(folder.statements + 1))
    with open(folder.path / "votes.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["timestamp", "comment-id", "voter-id", "vote"])
        for person in range(folder.people):
            for statement in range(folder.statements + 1):
                agrees = (statement + person) % 2 == 0 or chance.random() < 0.1
                table.writerow([0, statement, person, -1])
                table.writerow([1, statement, person, 1 if agrees else -1])
    return folder


def test_a_person_is_one_record_of_their_last_votes(votes):
    people, statements = polis.read(votes.path)
    assert statements == votes.statements
    assert people.known.shape == (votes.people, 32)
    sides = people.has_liked.sum(axis=1) + people.has_others.sum(axis=1)
    assert set(sides + (people.votes != 0).sum(axis=1)) == {statements}
    asked = [*people.liked[0][people.has_liked[0]], *people.others[0][people.has_others[0]]]
    assert not set(asked) & set(people.known[0][people.votes[0] != 0])


def test_the_loss_is_the_share_of_pairs_in_the_wrong_order(votes):
    people, statements = polis.read(votes.path)
    one = jax.tree.map(lambda part: part[0], people)
    liked = np.isin(np.arange(statements), one.liked[one.has_liked])
    flat = {"factor": np.zeros(statements), "score": np.zeros(statements)}
    good, bad = ({**flat, "score": sign * liked.astype(float)} for sign in (1, -1))
    shares = [float(polis.misordered(each, one)) for each in (good, bad, flat)]
    assert shares == [0.0, 1.0, 0.5]
    nobody = one._replace(has_others=np.zeros_like(one.has_others))
    assert float(polis.misordered(good, nobody)) == 0.5


def test_a_factor_tells_the_camps_apart_and_counts_cannot(votes):
    people, statements = polis.read(votes.path)
    learned = polis.without_privacy(people, statements, steps=200)
    counted = polis.noisy_counts(people, statements, mu=1e6, seed=0)
    assert polis.right(learned, people) > 0.8 > polis.right(counted, people)


def test_replacing_a_person_moves_the_counts_by_at_most_what_the_noise_is_for(votes):
    people, statements = polis.read(votes.path)
    one = jax.tree.map(lambda part: part[:1], people)
    none = one._replace(has_liked=0 * one.has_liked > 0, has_others=0 * one.has_others > 0)
    moved = [polis.noisy_counts(each, statements, 1e12, 0)["score"] for each in (one, none)]
    assert np.linalg.norm(moved[0] - moved[1]) <= np.sqrt(32) + 1e-6


@pytest.mark.slow
def test_the_table_of_votes(votes):
    told = list(polis.rows(votes.path, 50.0, 1, 2**12))
    assert [row.split()[0] for row in told[1:]] == [
        "start",
        "without",
        "noisy",
        "blindstep",
        "blindstep",
    ]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """Item 5 is clicked by half of those who see it, others by hardly anybody."""
    folder, chance = tmp_path_factory.mktemp("bandit"), np.random.default_rng(0)
    names = ["item_id", "click", "propensity_score", "user_feature_0"]
    with open(folder / "men.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        for row in range(3000):
            item = int(chance.integers(open_bandit.ITEMS))
            click = int(chance.random() < (0.5 if item == 5 else 0.01))
            table.writerow([item, click, 1 / open_bandit.ITEMS, f"{row % 7:032x}"])
    return folder


def test_a_policy_is_worth_what_its_items_are(clicks):
    shown = open_bandit.read(clicks / "men.csv")
    always = np.zeros((5, open_bandit.ITEMS))
    always[0, 5] = 50.0
    rate = 100 * shown.click[shown.item == 5].mean()
    assert open_bandit.earned(always, shown) == pytest.approx(rate, rel=1e-4)
    assert open_bandit.earned(0 * always, shown) == pytest.approx(
        100 * shown.click.mean(), rel=1e-4
    )
    one = jax.tree.map(lambda part: jnp.asarray(part[0]), shown._replace(click=shown.click + 1.0))
    assert float(open_bandit.lost(0 * always, one)) == pytest.approx(-100 * (shown.click[0] + 1))


@pytest.mark.slow
def test_the_table_of_clicks(clicks):
    told = list(open_bandit.rows(clicks / "men.csv", 50.0, 2, 2**14))
    shares = {
        row.split(" ± ")[0].rsplit(" ", 1)[0]: float(row.split(" ± ")[0].split()[-1])
        for row in told[3:]
    }
    assert shares["without privacy"] > 5 * shares["uniform"]
    assert shares["noisy counts"] > 5 * shares["uniform"]
    assert shares["blindstep"] >= 0.9 * shares["uniform"]  # not worse, but for chance
