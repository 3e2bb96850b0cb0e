"""`benchmarks.no_knobs`: other units are the same problem, references are tuned, rows are kept.

A gap is only as honest as what it is measured against: a reference that is noised too much, asked with
too few settings or judged on what it was tuned on would make it smaller than it is.
"""

from __future__ import annotations

import json
import math
import types

import jax
import numpy as np
import pytest
from benchmarks import (
    grids,
    methods,
    no_knobs,
    no_knobs_methods,
    no_knobs_problems,
    no_knobs_votes,
)
from benchmarks.data import Split
from benchmarks.no_knobs_methods import Contest, Entrant
from benchmarks.no_knobs_votes import VoteSetting
from benchmarks.problems import Problem
from scipy import stats

import blindstep as bs
from blindstep.errors import InvalidArgument
from blindstep.insight.demo import votes

pytestmark = pytest.mark.slow  # of the benchmarks, not of the library

RECORDS, FEATURES = 40, 3


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((RECORDS, FEATURES)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(np.int32)


def small(loss=no_knobs_problems.logistic, start=None, score=no_knobs_problems.linear_points):
    split = no_knobs_problems.split_table(*table())
    start = start or (lambda seed: np.full(FEATURES, 0.1 * (1 + seed), np.float32))
    return Problem(
        "small", "points", True, loss, loss, bs.Clip(1.0), None, None, start, score, split
    )


def network() -> Problem:
    return small(
        no_knobs_problems.cross_entropy,
        no_knobs_problems.network_start(FEATURES, 2),
        no_knobs_problems.network_points,
    )


def regression() -> Problem:
    """Scored by how far predictions are off, so a score in wrong units shows."""
    return small(no_knobs_problems.absolute, score=no_knobs_problems.absolute_points)


# Problems.


def test_a_split_has_every_record_once_and_tests_on_none_that_it_trained_on():
    numbers = np.arange(100)
    split = no_knobs_problems.split_table(numbers[:, None].astype(np.float32), numbers)
    assert sorted([*split.train["label"], *split.test["label"]]) == list(numbers)
    assert sorted([*split.fit["label"], *split.validation["label"]]) == sorted(split.train["label"])
    assert [len(part["label"]) for part in (split.test, split.validation)] == [20, 16]


@pytest.mark.parametrize("make", [small, network, regression])
@pytest.mark.parametrize("name", list(no_knobs_problems.UNITS))
def test_other_units_are_the_same_problem(make, name):
    units, problem = no_knobs_problems.UNITS[name], make()
    other = no_knobs_problems.in_units(problem, units)
    outer, inner = other.start(3), problem.start(3)
    for left, right in zip(jax.tree.leaves(outer), jax.tree.leaves(inner), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(units.parameters * left, right, rtol=1e-6)
    given = {part: values[:1] for part, values in problem.split.train.items()}
    scaled = {part: values[:1] for part, values in other.split.train.items()}
    np.testing.assert_allclose(scaled["features"], units.features * given["features"], rtol=1e-6)
    seen = jax.tree.map(lambda rows: rows[0], {**given, "features": scaled["features"]})
    expected = units.loss * problem.loss(inner, seen)
    found = other.loss(outer, jax.tree.map(lambda rows: rows[0], scaled))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # Of the same parameters in other units the score is the same.
    by_hand = problem.score(inner, {**problem.split.test, "features": other.split.test["features"]})
    assert other.score(outer, other.split.test) == pytest.approx(by_hand)


def test_points_of_a_regression_are_0_for_the_best_constant_and_100_for_the_truth():
    features = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 9.0]], np.float32)
    records = {"features": features, "label": features[:, 1]}
    assert no_knobs_problems.absolute_points(np.array([4.0, 0.0]), records) == pytest.approx(0.0)
    assert no_knobs_problems.absolute_points(np.array([0.0, 1.0]), records) == pytest.approx(100.0)


def test_a_table_is_read_with_public_constants_and_without_the_length_of_the_call(
    tmp_path, monkeypatch
):
    named = {"age": 50, "balance": 99_999, "day": 31, "duration": 12_345, "campaign": 20}
    named |= {"pdays": -1, "previous": 0, "job": "student", "marital": "single", "y": "yes"}
    named |= {"education": "unknown", "default": "no", "housing": "yes", "loan": "no"}
    named |= {"contact": "unknown", "month": "dec", "poutcome": "unknown"}
    other = {**named, "duration": 1, "y": "no"}
    lines = [",".join(map(str, row)) for row in (named, named.values(), other.values())]
    (tmp_path / "bank.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(no_knobs_problems, "FOLDER", tmp_path)
    features, label, age = no_knobs_problems.bank_table.__wrapped__()
    np.testing.assert_array_equal(features[0], features[1])
    np.testing.assert_allclose(features[0, -7:], [0, 5, 1, 1, 0, 0, 1])
    assert list(label) == [1, 0]
    assert list(age) == [5.0, 5.0]
    with pytest.raises(InvalidArgument, match=r"spambase\.csv is not there"):
        no_knobs_problems.spam_table.__wrapped__()


def test_delta_is_below_a_tenth_of_one_over_the_records():
    for records in (3_681, 4_000, 10_000, 32_560, 36_169):
        assert no_knobs_problems.delta_for(records) <= 0.1 / records
    assert no_knobs_votes.DELTA <= 0.1 / votes.USERS


# References.


@pytest.mark.parametrize("make", [small, network])
def test_references_have_24_settings_and_a_bounded_number_of_evaluations(make):
    entrants = no_knobs_methods.contest(make()).entrants
    for name in ("DP-AggZO", "DPZero"):
        settings = entrants[name].settings
        assert len(set(settings)) == len(settings) >= 24
        assert all(
            2 * s.directions * s.passes <= no_knobs_methods.MOST_EVALUATIONS for s in settings
        )
    for name in (no_knobs_methods.BLINDSTEP, no_knobs_methods.FIRST_ORDER, "0.1 defaults"):
        assert entrants[name].settings == [None]
    asked = no_knobs_votes.contest().entrants
    for name in (no_knobs_methods.FIRST_ORDER, "DPZero"):
        assert len(set(asked[name].settings)) >= 24


def test_trials_see_fit_and_validation_and_runs_that_count_train_and_test():
    parts = {"fit": 8, "validation": 5, "train": 13, "test": 7}
    split = Split(
        **{
            n: {"features": np.ones((k, 1), "f4"), "label": np.ones(k, "i4")}
            for n, k in parts.items()
        }
    )
    seen = []

    def score(params, records):
        seen.append(len(records["label"]))
        return 0.0

    problem = Problem(
        "seen", "points", True, no_knobs_problems.logistic, no_knobs_problems.logistic, bs.Clip(1.0),
        None, None, lambda seed: np.zeros(1, np.float32), score, split,
    )  # fmt: skip
    entrant = no_knobs_methods.contest(problem).entrants["DP-AggZO"]
    privacy = bs.Privacy(epsilon=1, delta=1e-5)
    for trial in (True, False):
        entrant.points(entrant.settings[0], privacy, 0, trial)
    assert seen == [parts["validation"], parts["test"]]


def test_first_order_is_the_same_call_on_gradients_of_the_surrogate(monkeypatch):
    def flat(params, record):
        return 0.0 * params[0]

    problem = small()
    calls, privacy = [], bs.Privacy(epsilon=1, delta=1e-3)

    def minimize(loss, start, records, **options):
        calls.append((loss, options))
        return types.SimpleNamespace(params=start)

    monkeypatch.setattr(bs, "minimize", minimize)
    entrants = no_knobs_methods.contest(Problem(**{**vars(problem), "loss": flat})).entrants
    for name in (no_knobs_methods.BLINDSTEP, no_knobs_methods.FIRST_ORDER):
        entrants[name].points(None, privacy, 0, False)
    given = {"privacy": privacy}
    assert calls == [(flat, given), (problem.reference_loss, given | {"estimate": "gradient"})]


def test_first_order_in_units_of_the_parameters_has_the_settings_of_values():
    for name in ("digits", "a9a"):
        problem = Problem(**{**vars(small()), "name": name})
        settings = grids.gradients(problem)
        assert all(each["estimate"] == "gradient" for each in settings)
        assert not any({"directions", "smoothing"} & each.keys() for each in settings)
        kept = ("passes", "reach", "clip")
        of = [
            {tuple(e[k] for k in kept) for e in all_} for all_ in (settings, grids.tight(problem))
        ]
        assert of[0] == of[1]
        assert len(of[0]) == len(settings)
    records = problem.split.train
    outcome = methods.METHODS["first-order"].run(
        problem, records, bs.Privacy(rho=8.0), settings[0], 0
    )
    assert problem.score(outcome.params, problem.split.test) > 80.0
    assert outcome.evaluations == 3 * settings[0]["passes"] * len(records["label"])
    flat = Problem(**{**vars(small()), "name": "zero-one"})
    assert grids.gradients(flat) == []


def test_a_trial_that_was_lucky_once_is_not_chosen():
    """Five were luckier than the good one at first, so it has to be among the finalists."""

    def points(setting, privacy, seed, trial):
        return 80.0 if setting == "good" else 90.0 if seed == no_knobs.TUNING_SEED else 60.0

    lucky = [f"lucky {number}" for number in range(5)]
    assert no_knobs.choose(Entrant([*lucky, "good"], points), None) == ("good", 80.0)


def test_a_row_that_was_chosen_in_another_way_is_not_alike():
    fixed, chosen = (Entrant(list(range(n)), lambda *_: 0.0) for n in (1, 30))
    assert no_knobs.made_alike({"settings": 1}, fixed)
    assert no_knobs.made_alike({"settings": 30, "finalists": 10}, chosen)
    for other in (
        {"settings": 30},
        {"settings": 29, "finalists": 10},
        {"settings": 30, "finalists": 4},
    ):
        assert not no_knobs.made_alike(other, chosen)


# Votes.


def test_everybody_votes_twice_at_most_and_in_one_batch(monkeypatch):
    asked = np.zeros(1_000, int)

    class Counting(votes.Crowd):
        def votes_down(self, weights, users):
            np.add.at(asked, np.asarray(users), 1)
            return super().votes_down(weights, users)

    crowd, users = Counting(0), len(asked)
    no_knobs_votes.descend(VoteSetting(10, 0.1, 2.0, 0.25), users, 1.0, crowd, 0)
    assert set(asked) == {2}
    asked[:] = 0
    privacy = bs.Privacy(epsilon=1, delta=1e-5)
    no_knobs_votes.ask_everybody(no_knobs_votes.version_0_1(users, privacy), crowd)
    assert asked.max() == 2


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_votes_are_clipped_and_noised_as_one_pass_needs(clip):
    """Replacing one person moves the sum by 2 C; the noise on it is 2 C / mu."""
    people, mu, chance = 4, 0.7, np.random.default_rng(1)
    setting = VoteSetting(1, 1.0, clip)
    far = np.zeros((people, 2))
    far[0, 0] = 100.0
    sums = [
        people * no_knobs_votes.noisy_mean(sign * far, setting, math.inf, chance)
        for sign in (1.0, -1.0)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(2 * clip)
    draws = np.array(
        [people * no_knobs_votes.noisy_mean(0 * far, setting, mu, chance) for _ in range(20_000)]
    )
    squares, size = np.sum(draws**2), draws.size

    def plausible(sigma: float) -> bool:
        return (
            2
            * min(stats.chi2.cdf(squares / sigma**2, size), stats.chi2.sf(squares / sigma**2, size))
            > 1e-6
        )

    assert plausible(2 * clip / mu)
    assert not plausible(0.9 * 2 * clip / mu)
    assert not plausible(clip / mu)


def test_the_policy_gradient_points_to_fewer_votes_down():
    """Against the slope of the chance of a vote down, by differences of many simulated people."""
    taste = votes.Crowd(0).taste
    weights = 0.3 * votes.start()
    drawn = no_knobs_votes.policy_gradients(weights, taste, 100_000, np.random.default_rng(0))
    mean, error = drawn.mean(axis=0), drawn.std(axis=0) / math.sqrt(len(drawn))
    items = np.random.default_rng(1).standard_normal((100_000, votes.ITEMS, votes.WEIGHTS))
    down = 1.0 / (1.0 + np.exp(2.0 * items @ taste))

    def chance_down(point: np.ndarray) -> float:
        powers = np.exp(items @ point)
        return float(np.mean(np.sum(powers * down, axis=1) / powers.sum(axis=1)))

    for axis in (0, 7):
        step = 0.05 * np.eye(votes.WEIGHTS)[axis]
        slope = (chance_down(weights + step) - chance_down(weights - step)) / 0.1
        assert abs(mean[axis] - slope) < 6 * error[axis]
        assert abs(mean[axis] + slope) > 6 * error[axis]


# Rows and gaps.


def row(problem: str, method: str, mean: float, epsilon: float = 1.0, units: str = "original"):
    return {
        "problem": problem, "units": units, "epsilon": epsilon, "method": method, "mean": mean,
        "spread": 0.1, "records": 10, "dim": 2,
    }  # fmt: skip


def test_a_run_goes_on_from_the_rows_that_are_there(tmp_path, monkeypatch, capsys):
    calls = []

    def points(setting, privacy, seed, trial):
        calls.append((setting, privacy and privacy.epsilon, trial))
        if len(calls) == 6:
            raise KeyboardInterrupt  # in the second row
        return 50.0

    given = Contest("spam", 3_681, 58, 1e-5, {no_knobs_methods.BLINDSTEP: Entrant([None], points)})
    monkeypatch.setattr(no_knobs, "contest_of", lambda name, units: given)
    monkeypatch.setattr(no_knobs, "RESULTS", tmp_path)
    command = ["--only", "spam", "--method", "blindstep"]
    with pytest.raises(KeyboardInterrupt):
        no_knobs.main(command)
    target = tmp_path / "no-knobs.json"
    assert [r["epsilon"] for r in json.loads(target.read_text())["rows"]] == [1.0]
    no_knobs.main(command)
    assert [r["epsilon"] for r in json.loads(target.read_text())["rows"]] == [1.0, 0.1]
    assert len(calls) == 6 + no_knobs.SEEDS
    no_knobs.main(command)
    no_knobs.main([*command, "--show", "--redo"])
    assert len(calls) == 6 + no_knobs.SEEDS
    no_knobs.main([*command, "--redo"])
    assert len(calls) == 6 + 3 * no_knobs.SEEDS
    text = target.read_text()
    target.write_text(text.replace('"settings": 1,', '"settings": 2,'))
    no_knobs.main([*command, "--epsilon", "1"])  # chosen from other settings: made again
    assert len(calls) == 6 + 4 * no_knobs.SEEDS
    no_knobs.main([*command, "--quick"])
    assert len(calls) == 6 + 4 * no_knobs.SEEDS + 2
    assert len(json.loads((tmp_path / "no-knobs-quick.json").read_text())["rows"]) == 2
    assert not any(trial for _, _, trial in calls)
    assert "nothing was tuned" in capsys.readouterr().out


def test_gaps_are_first_order_minus_blindstep_and_original_minus_other_units():
    rows = [
        row("spam", "first-order", 90.0), row("spam", "blindstep", 89.0),
        row("digits", "first-order", 80.0), row("digits", "blindstep", 82.0),
        row("bank", "first-order", 70.0),
        row("spam", "blindstep", 85.0, units="loss x 1000"),
        row("spam", "first-order", 99.0, epsilon=0.1),
    ]  # fmt: skip
    assert no_knobs.gaps(rows, 1.0) == {"digits": -2.0, "spam": 1.0}
    assert no_knobs.gaps(rows, 0.1) == {}
    assert no_knobs.unit_gaps(rows, 1.0) == {("spam", "loss x 1000"): 4.0}
    first, second = no_knobs.verdicts(rows)
    assert "on 2 of 8 problems" in first
    assert "mean -0.50 (at most 0.5), largest +1.00 on spam (at most 1.5)" in first
    assert "mean +4.00 (at most 0.3), mean size 4.00" in second


def test_votes_have_other_units_of_the_parameters_alone():
    known = [no_knobs.contest_of("votes", units) is not None for units in no_knobs_problems.UNITS]
    assert known == [True, False, False, True]
