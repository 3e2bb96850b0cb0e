"""`benchmarks.utility`: other units are the same problem, references are tuned, rows are kept.

A gap is only as honest as what it is measured against: a reference that is noised too much, asked with
too few settings or judged on what it was tuned on would make it smaller than it is.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys

import jax
import numpy as np
import pytest
from benchmarks import (
    problems,
    untouched,
    untuned,
    utility,
    utility_methods,
    utility_problems,
    utility_votes,
)
from benchmarks.data import Split
from benchmarks.problems import Problem
from benchmarks.utility_methods import BLINDSTEP, FREE, METHODS, Contest, Entrant, Scored
from benchmarks.utility_votes import VoteSetting
from examples.demo import votes
from scipy import stats

import blindstep as bs
from blindstep.errors import InvalidArgument

pytestmark = pytest.mark.slow  # of the benchmarks, not of the library

RECORDS, FEATURES = 40, 3


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((RECORDS, FEATURES)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(np.int32)


def small(loss=utility_problems.logistic, start=None, score=problems.linear_points):
    split = utility_problems.split_table(*table())
    start = start or (lambda seed: np.full(FEATURES, 0.1 * (1 + seed), np.float32))
    return Problem("small", loss, loss, start, score, split)


def network() -> Problem:
    return small(
        problems.cross_entropy,
        utility_problems.network_start(FEATURES, 2),
        problems.network_points,
    )


def regression() -> Problem:
    """Scored by how far predictions are off, so a score in wrong units shows."""
    return small(utility_problems.absolute, score=utility_problems.absolute_points)


def flat() -> Problem:
    """A loss without slopes, beside a surrogate that has them."""
    return dataclasses.replace(small(), loss=problems.zero_one_loss)


# Problems.


def test_a_split_has_every_record_once_and_tests_on_none_that_it_trained_on():
    numbers = np.arange(100)
    split = utility_problems.split_table(numbers[:, None].astype(np.float32), numbers)
    assert sorted([*split.train["label"], *split.test["label"]]) == list(numbers)
    assert sorted([*split.fit["label"], *split.validation["label"]]) == sorted(split.train["label"])
    assert [len(part["label"]) for part in (split.test, split.validation)] == [20, 16]


@pytest.mark.parametrize("make", [small, network, regression])
@pytest.mark.parametrize("name", list(utility_problems.UNITS))
def test_other_units_are_the_same_problem(make, name):
    units, problem = utility_problems.UNITS[name], make()
    other = utility_problems.in_units(problem, units)
    outer, inner = other.start(3), problem.start(3)
    for left, right in zip(jax.tree.leaves(outer), jax.tree.leaves(inner), strict=True):
        assert left.dtype == right.dtype
    given = jax.tree.map(lambda rows: rows[0], problem.split.train)
    scaled = jax.tree.map(lambda rows: rows[0], other.split.train)
    np.testing.assert_allclose(scaled["features"], units.features * given["features"], rtol=1e-6)
    # Starts are the same in other units: so is the loss of a record there, and the score.
    expected = units.loss * problem.loss(inner, given)
    np.testing.assert_allclose(other.loss(outer, scaled), expected, rtol=1e-5)
    expected = problem.score(inner, problem.split.test)
    assert other.score(outer, other.split.test) == pytest.approx(expected, rel=1e-5)


def test_points_of_a_regression_are_0_for_the_best_constant_and_100_for_the_truth():
    features = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 9.0]], np.float32)
    records = {"features": features, "label": features[:, 1]}
    assert utility_problems.absolute_points(np.array([4.0, 0.0]), records) == pytest.approx(0.0)
    assert utility_problems.absolute_points(np.array([0.0, 1.0]), records) == pytest.approx(100.0)


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
    monkeypatch.setattr(utility_problems, "FOLDER", tmp_path)
    features, label, age = utility_problems.bank_table.__wrapped__()
    np.testing.assert_array_equal(features[0], features[1])
    np.testing.assert_allclose(features[0, -7:], [0, 5, 1, 1, 0, 0, 1])
    assert list(label) == [1, 0]
    assert list(age) == [5.0, 5.0]
    with pytest.raises(InvalidArgument, match=r"spambase\.csv is not there"):
        utility_problems.spam_table.__wrapped__()


def test_delta_is_below_a_tenth_of_one_over_the_records():
    for records in (3_681, 4_000, 10_000, 32_560, 36_169):
        assert utility_problems.delta_for(records) <= 0.1 / records
    assert utility_votes.DELTA <= 0.1 / votes.USERS


# References.


@pytest.mark.parametrize("make", [small, network, flat])
def test_every_tuned_method_has_as_many_settings_and_the_same_most_evaluations(make):
    given = utility_methods.contest(make())
    asked = utility_votes.contest()
    for contest in (given, asked):
        for name, entrant in contest.entrants.items():
            tuned = name not in utility_methods.NOTHING_TUNED
            assert len(entrant.settings) == (utility_methods.SETTINGS if tuned else 1), name
            assert len(set(entrant.settings)) == len(entrant.settings), name
    assert set(METHODS) - set(given.entrants) == set()
    without = {"blindstep, gradients", "Opacus", "diffprivlib", "DP-AggZO"}
    assert set(METHODS) - set(asked.entrants) == without
    privacy = bs.Privacy(mu=1.0)
    for turned in given.entrants["first order, tuned"].settings:
        about = (make(), RECORDS, privacy, turned, given.evaluations)
        assert utility_methods.turned_plan(*about).evaluations <= given.evaluations * RECORDS
    for name in ("DP-AggZO", "DPZero"):
        made = [2 * s.directions * s.passes for s in given.entrants[name].settings]
        assert max(made) <= given.evaluations, name
        assert len({s.passes for s in given.entrants[name].settings}) > 1, name


def test_blindstep_stays_below_the_most_evaluations():
    problem = small()
    entrants = utility_methods.contest(problem).entrants
    privacy = bs.Privacy(epsilon=1, delta=1e-3)
    for name in (BLINDSTEP, "first order, tuned"):
        made, points = entrants[name].path(entrants[name].settings[0], privacy, 0)
        assert made[0] == 0.0
        assert len(made) == len(points) <= 17
        assert 0 < made[-1] <= utility_methods.most_evaluations(RECORDS)
        assert list(made) == sorted(made)


def test_first_order_has_our_own_plan_on_gradients_turned():
    budget = bs.Privacy(mu=1.0)
    own, fewer, turned = (
        utility_methods.turned_plan(small(), 1_000, budget, utility_methods.Turned(*each), 1_000)
        for each in [(1.0, 1.0, 1.0), (1.0, 1.0, 0.4), (2.0, 2.5, 0.4)]
    )
    assert {type(plan.estimate).__name__ for plan in (own, fewer, turned)} == {"Gradients"}
    # Fewer steps have a clip of their own, which is then turned.
    assert turned.bounds.clip == 2.5 * fewer.bounds.clip
    assert turned.passes == fewer.passes == round(0.4 * own.passes)


def test_places_of_a_path_are_equally_far_apart_and_end_at_its_end():
    assert utility_methods.places(5) == [0, 1, 2, 3, 4]
    assert utility_methods.places(64) == list(range(3, 64, 4))
    assert utility_methods.places(17)[-1] == 16


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

    loss = utility_problems.logistic
    problem = Problem("seen", loss, loss, lambda seed: np.zeros(1, np.float32), score, split)
    entrant = utility_methods.contest(problem).entrants["DP-AggZO"]
    privacy = bs.Privacy(epsilon=1, delta=1e-5)
    for trial in (True, False):
        entrant.points(entrant.settings[0], privacy, 0, trial)
    assert seen == [parts["validation"], parts["test"]]


def test_gradients_are_the_same_call_on_the_surrogate(monkeypatch):
    problem, calls = flat(), []
    budget = bs.Privacy(epsilon=1, delta=1e-3)

    def minimize(loss, start, records, privacy, method):
        calls.append((loss, privacy, method))
        raise StopIteration

    monkeypatch.setattr(bs, "minimize", minimize)
    entrants = utility_methods.contest(problem).entrants
    for name in (BLINDSTEP, utility_methods.GRADIENTS):
        with pytest.raises(StopIteration):
            entrants[name].points(None, budget, 0, False)
    cap = utility_methods.most_evaluations(RECORDS) * len(problem.split.train["label"])
    assert calls == [
        (problem.loss, budget, bs.Auto(evaluations=cap)),
        (problem.reference_loss, budget, bs.Auto(evaluations=cap, estimate="gradient")),
    ]


def test_a_trial_that_was_lucky_once_is_not_chosen():
    """Two were luckier than the good one at first, so it has to be among the finalists."""

    def points(setting, privacy, seed, trial):
        found = 80.0 if setting == "good" else 90.0 if seed == utility.TUNING_SEED else 60.0
        return Scored(found, 8.0)

    entrant = Entrant(["lucky", "luckier", "good"], points, lambda *_: ([], []))
    assert utility.choose(entrant, None) == ("good", 80.0)


def test_what_is_asked_of_opacus_gives_the_budget_to_a_record_that_is_replaced():
    """Replacing is two changes: epsilons add up, and the first delta counts exp(epsilon / 2) times."""
    for epsilon, delta in [(1.0, 1e-5), (0.1, 1e-6)]:
        half, share = untuned.half_budget(bs.Privacy(epsilon, delta))
        assert 2 * half == pytest.approx(epsilon)
        assert share * (1 + math.exp(half)) == pytest.approx(delta)


@pytest.mark.parametrize("make", [small, network, regression, flat])
def test_opacus_trains_the_problem_that_the_others_have(make):
    """With hardly any noise it lowers the very loss that the others are given."""
    problem = make()
    if make is flat:
        problem = dataclasses.replace(problem, reference_loss=problems.capped_svm)
    found = untuned.opacus(problem, problem.split.train, bs.Privacy(20.0, 0.01), None, 0)
    assert jax.tree.structure(found.params) == jax.tree.structure(problem.start(0))

    def mean(params):
        losses = jax.vmap(problem.reference_loss, (None, 0))(params, problem.split.train)
        return float(losses.mean())

    assert mean(found.params) < mean(problem.start(0))


def test_rows_of_diffprivlib_are_wanted_where_it_can_be_imported(monkeypatch):
    """It cannot with scikit-learn 1.6 and later; `make bench` gives it an environment of its own."""
    asked = utility.parse(["--only", "spam", "--method", "diffprivlib", "--epsilon", "1"])
    entrant = Entrant([None], lambda *_: Scored(1.0, 1.0), lambda *_: ([], []))
    given = Contest("spam", 3_681, 58, 1e-5, 4_096, {"diffprivlib": entrant})
    monkeypatch.setattr(utility, "contest_of", lambda name, units: given)
    for here in (True, False):
        monkeypatch.setattr(untuned, "finds_diffprivlib", lambda here=here: here)
        assert len(utility.wanted(asked)) == here
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "diffprivlib.models", None)
    assert not untuned.finds_diffprivlib()


# The four that nothing was set by.


def test_a_choice_is_judged_by_the_highest_utility():
    features = np.array([[[1.0], [0.0]], [[0.0], [1.0]], [[2.0], [1.0]]], np.float32)
    records = {"features": features, "label": np.array([0, 0, 0])}
    assert untouched.choice_points(np.array([1.0]), records) == pytest.approx(200 / 3)
    given = {"features": features[0], "label": np.array(0)}
    expected = math.log(1 + math.exp(-1))
    assert float(untouched.choice(np.array([1.0]), given)) == pytest.approx(expected)


@pytest.mark.parametrize("name", utility.UNTOUCHED)
def test_an_untouched_table_is_whole_and_holds_its_answer_in_no_feature(name):
    problem = untouched.made(name)
    for part in (problem.split.train, problem.split.test):
        features, label = part["features"], part["label"].astype(float)
        assert np.all(np.isfinite(features))
        assert np.abs(features).max() <= 10
        flat = features.reshape(len(features), -1)
        varying = flat[:, flat.std(0) > 0]
        assert all(abs(np.corrcoef(column, label)[0, 1]) < 0.8 for column in varying.T)


# Votes.


def test_everybody_votes_twice_at_most_and_in_one_batch(monkeypatch):
    asked = np.zeros(1_000, int)

    class Counting(votes.Crowd):
        def votes_down(self, weights, users):
            np.add.at(asked, np.asarray(users), 1)
            return super().votes_down(weights, users)

    crowd, users = Counting(0), len(asked)
    utility_votes.descend(VoteSetting(10, 0.1, 2.0, 0.25), users, 1.0, crowd, 0)
    assert set(asked) == {2}
    asked[:] = 0
    privacy = bs.Privacy(epsilon=1, delta=1e-5)
    found = utility_votes.ask_everybody(votes.plan_votes(users, privacy), crowd)
    assert asked.max() <= 2
    assert found.shape[1] == votes.WEIGHTS


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_votes_are_clipped_and_noised_as_one_pass_needs(clip):
    """Replacing one person moves the sum by 2 C; the noise on it is 2 C / mu."""
    people, mu, chance = 4, 0.7, np.random.default_rng(1)
    setting = VoteSetting(1, 1.0, clip)
    far = np.zeros((people, 2))
    far[0, 0] = 100.0
    sums = [
        people * utility_votes.noisy_mean(sign * far, setting, math.inf, chance)
        for sign in (1.0, -1.0)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(2 * clip)
    draws = np.array(
        [people * utility_votes.noisy_mean(0 * far, setting, mu, chance) for _ in range(20_000)]
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
    drawn = utility_votes.policy_gradients(weights, taste, 100_000, np.random.default_rng(0))
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


# Rows.


def row(problem: str, method: str, epsilon: float | None = 1.0, **others):
    given = {"problem": problem, "units": "original", "epsilon": epsilon, "method": method}
    return given | {"mean": 50.0, "spread": 0.1, "path": None, "validation": None} | others


@dataclasses.dataclass(frozen=True)
class Choice:
    rate: float


def test_a_run_goes_on_from_the_rows_that_are_there(tmp_path, monkeypatch, capsys):
    calls, settings = [], [None]

    def points(setting, privacy, seed, trial):
        calls.append((setting, privacy and privacy.epsilon, trial))
        if len(calls) == 7:
            raise KeyboardInterrupt  # in the second row
        return Scored(50.0, 8.0)

    entrant = Entrant(settings, points, lambda *_: ([0.0, 8.0], [40.0, 50.0]))
    given = Contest("spam", 3_681, 58, 1e-5, 4_096, {BLINDSTEP: entrant})
    monkeypatch.setattr(utility, "contest_of", lambda name, units: given)
    monkeypatch.setattr(utility, "RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.summary.RESULTS", tmp_path)
    command = ["--only", "spam", "--method", "blindstep", "--workers", "0"]
    target, seeds = tmp_path / "utility.json", utility.SEEDS

    def epsilons() -> list[float]:
        return [r["epsilon"] for r in json.loads(target.read_text())["rows"]]

    with pytest.raises(KeyboardInterrupt):
        utility.main(command)
    assert epsilons() == [1.0]
    utility.main(command)
    assert epsilons() == [1.0, 0.1]
    assert len(calls) == 7 + seeds
    utility.main(command)
    utility.main([*command, "--show", "--redo"])
    assert len(calls) == 7 + seeds
    utility.main([*command, "--redo"])
    assert len(calls) == 7 + 3 * seeds
    settings[:] = [Choice(1.0)]  # chosen from other settings: made again
    utility.main([*command, "--epsilon", "1"])
    assert len(calls) == 7 + 4 * seeds
    monkeypatch.setattr(bs, "__version__", "another")
    utility.main([*command, "--epsilon", "1"])
    assert len(calls) == 7 + 5 * seeds
    there = utility.read_rows(target)
    utility.main(["--merge", str(target), "--results", str(tmp_path / "another.json")])
    assert utility.read_rows(tmp_path / "another.json") == there
    assert not any(trial for _, _, trial in calls)
    assert "0 rows to make" in capsys.readouterr().out


def test_processes_have_a_core_each(monkeypatch):
    for name in utility.ONE_CORE:
        monkeypatch.setenv(name, "")
    found = list(utility.in_processes(os.sched_getaffinity, [0, 0], 1))
    assert [len(cores) for cores in found] == [1, 1]
    found = set(utility.in_processes(os.getenv, utility.ONE_CORE, 1))
    assert found == set(utility.ONE_CORE.values())


def test_evaluations_count_until_the_median_seed_is_within_two_points():
    free = row("spam", FREE, None, validation=90.0)
    path = {"evaluations": [0.0, 10.0, 20.0, 30.0]}
    points = [[50, 89, 60, 60], [50, 60, 88, 60], [50, 60, 60, 87.9]]
    found = row("spam", "DPZero", path=path | {"points": points})
    assert utility.reached(found, [free, found]) == 20.0
    assert utility.reached(found, [found]) is None
    assert utility.reached(free, [free]) is None
    never = row("spam", "DPZero", path=path | {"points": [points[0], points[2], points[2]]})
    assert utility.reached(never, [free, never]) is None
    assert utility.closest(never, [free, never]) == pytest.approx(2.1)


def test_what_other_units_lose_is_original_minus_other():
    other = row("spam", BLINDSTEP, units="loss x 1000", mean=46.0)
    rows = [row("spam", BLINDSTEP), other, row("spam", "DPZero", units="loss x 1000")]
    assert utility.unit_gaps(rows, 1.0) == {("spam", "loss x 1000"): 4.0}
    assert utility.unit_gaps(rows, 0.1) == {}


def test_votes_have_other_units_of_the_parameters_alone():
    known = [utility.contest_of("votes", units) is not None for units in utility_problems.UNITS]
    assert known == [True, False, False, True]
