"""Private values, and choices that are paid for."""

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger.ledger import read_ledger
from blindstep.private import accounting

DATA = np.random.default_rng(0).normal(size=(4000, 2)) + np.array([3.0, 0.0])
PRIVACY = bs.Privacy(epsilon=1, delta=1e-5)


def loss(point, record):
    return jnp.sum(jnp.abs(point - record))


def test_the_mean_loss_within_its_noise():
    errors, point = [], np.array([2.0, 1.0])
    truth = np.mean(np.sum(np.abs(point - DATA), axis=1))
    for _ in range(20):
        found = bs.value(loss, point, DATA, privacy=PRIVACY)
        errors.append((found.mean - truth) / found.std)
        assert found.largest >= 2.0
    # Clamping costs little here: the mean error is that of 20 draws of the noise, and no more.
    assert abs(np.mean(errors)) < 4 / np.sqrt(20) + 0.5
    assert found.privacy.mu == pytest.approx(PRIVACY.mu, rel=1e-6)


def test_a_public_bound_leaves_less_noise():
    wrong = lambda point, record: (record[0] > point[0]).astype(float)  # noqa: E731
    point = np.array([3.0, 0.0])
    known = bs.value(wrong, point, DATA, privacy=PRIVACY, largest=1.0)
    found = bs.value(wrong, point, DATA, privacy=PRIVACY)
    assert known.std < found.std
    assert known.largest == 1.0
    assert known.mean == pytest.approx(0.5, abs=0.02 + 5 * known.std)


def test_one_record_moves_a_value_by_its_sensitivity_at_most():
    point, seeds = np.array([0.0, 0.0]), {"seed": 11, "largest": 4.0, "privacy": PRIVACY}
    other = DATA.copy()
    other[7] = 1e300
    before, after = (bs.value(loss, point, data, **seeds).mean for data in (DATA, other))
    # Equal noise: the difference is what the record moved, at most 2 x 4 / n.
    assert abs(after - before) <= 2 * 4.0 / len(DATA) * (1 + 1e-9)


def test_losses_that_are_no_numbers_count_nothing():
    def sometimes(point, record):
        return jnp.where(record[0] > 3.0, jnp.nan, 1.0)

    found = bs.value(sometimes, np.zeros(1), DATA, privacy=PRIVACY, largest=1.0)
    assert found.mean == pytest.approx(np.mean(DATA[:, 0] <= 3.0), abs=5 * found.std)


def test_a_plain_python_loss_has_values_too():
    found = bs.value(
        lambda p, z: float(abs(p[0] - z[0])), np.zeros(1), DATA[:300], privacy=PRIVACY, largest=8.0
    )
    assert found.mean == pytest.approx(3.0, abs=6 * found.std + 0.3)


def test_tuning_costs_one_budget_and_finds_the_better_start(tmp_path):
    method = bs.Auto(evaluations=2**18)
    candidates = [{"params": np.array([1e7, -1e7]), "method": method}, method]
    budget = bs.Privacy(epsilon=4, delta=1e-5)
    options = {"privacy": budget, "checkpoint": tmp_path / "tuned"}
    tuned = bs.tune(loss, np.zeros(2), DATA, candidates, **options)
    assert tuned.chosen == 1
    assert tuned.values[1] < tuned.values[0]
    spent = read_ledger(tmp_path / "tuned" / "ledger.jsonl").spent()
    assert spent == pytest.approx(tuned.privacy.mu, rel=1e-9)
    assert tuned.privacy.epsilon <= 4.0
    parts = [result.privacy.mu for result in tuned.results]
    assert parts[0] == pytest.approx(parts[1])
    choice = np.sqrt(tuned.privacy.mu**2 - accounting.compose(parts) ** 2)
    assert choice**2 / tuned.privacy.mu**2 == pytest.approx(0.1, rel=0.02)
    again = bs.tune(loss, np.zeros(2), DATA, candidates, **options)
    assert again.values == tuned.values


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ([], "no candidates"),
        ([{"privacy": PRIVACY}], "same for all"),
        ([{"loss": loss}, {}], "score="),
    ],
)
def test_candidates_that_cannot_be_compared_are_refused(candidates, words):
    with pytest.raises(bs.errors.InvalidArgument, match=words):
        bs.tune(loss, np.zeros(2), DATA, candidates, privacy=PRIVACY)


def test_values_and_choices_are_about_the_neighbours_of_their_budget(tmp_path):
    """Half the sensitivity: half the noise, at a mu that means half as much."""
    point = np.zeros(2)
    out = bs.Privacy(epsilon=1, delta=1e-5, neighbours="zero-out")
    given = {"largest": 4.0, "checkpoint": tmp_path / "run", "budget": out}
    half = bs.value(loss, point, DATA, privacy=out, **given)
    whole = bs.value(loss, point, DATA, privacy=PRIVACY, largest=4.0)
    assert half.std == pytest.approx(whole.std / 2, rel=1e-6)
    assert half.privacy.neighbours == "zero-out"
    assert half.privacy.mu == pytest.approx(whole.privacy.mu, rel=1e-6)
    assert "left out or added" in str(half.privacy)
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").unit == "one record (zero-out)"
    methods = [bs.Auto(evaluations=40_000)]
    tuned = bs.tune(loss, point, DATA, methods, privacy=out)
    assert tuned.privacy.neighbours == "zero-out"
    assert tuned.privacy.epsilon <= 1.0
