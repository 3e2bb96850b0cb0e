"""`benchmarks.battery`: a gain is as honest as its optimum, and a table as the rows it is made of."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import battery, battery_problems
from benchmarks.battery_problems import KINDS, NAMES, PROBLEMS, Case, Problem

import blindstep as bs

RECORDS = 40
MEAN, MEDIAN, THRESHOLD = "mean of one number", "median, 1,000 away", "0/1 loss, one threshold"
THERE = "least squares, starts at its optimum"


def small(name: str) -> tuple[Case, battery.Judge]:
    case = PROBLEMS[name].case(RECORDS)
    return case, battery.Judge(case)


# Problems.


def test_there_are_enough_of_every_kind():
    assert len(NAMES) >= 40
    for kind in KINDS:
        assert any(kind in problem.kinds for problem in PROBLEMS.values()), kind
    for problem in PROBLEMS.values():
        assert set(problem.kinds) <= set(KINDS), problem.name
        assert {"smooth", "nonsmooth", "staircase"} & set(problem.kinds), problem.name
    assert {500, 1_000, 2_000, 5_000, 20_000} <= {p.fixed for p in PROBLEMS.values()}
    assert not PROBLEMS[THRESHOLD].has_gradient
    assert PROBLEMS[MEAN].has_gradient


@pytest.mark.parametrize("name", NAMES)
def test_a_case_has_a_loss_of_its_records_and_is_the_same_each_time(name):
    problem = PROBLEMS[name]
    case, again = problem.case(RECORDS), problem.case(RECORDS)
    for one, other in zip(*map(jax.tree.leaves, (case.data, again.data)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert len(one) == problem.records(RECORDS)
    shapes = jax.eval_shape(case.loss, case.start, jax.tree.map(lambda leaf: leaf[0], case.data))
    assert shapes.shape == ()
    assert shapes.dtype.kind == "f"
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(case.start))
    assert ("already-there" in problem.kinds) == (case.usual is not None)
    assert ("stochastic" in problem.kinds) == (case.judged is not None)
    for hint in (*case.hints, *(() if case.known is None else (case.known,))):
        assert jax.tree.map(np.shape, hint) == jax.tree.map(np.shape, case.start)


def test_a_definition_is_of_all_that_a_problem_is_made_of(monkeypatch):
    problem = PROBLEMS["meeting point, 500 people"]
    before = problem.definition()
    assert before == problem.definition(RECORDS)  # its number of people is fixed
    assert PROBLEMS[MEAN].definition() != PROBLEMS[MEAN].definition(RECORDS)

    def walk(place, home):
        return jnp.sum(place - home)

    walk.__module__ = battery_problems.__name__
    monkeypatch.setattr(battery_problems, "walk", walk)
    assert problem.definition() != before


def test_a_threshold_is_the_best_of_all():
    case, judge = small(THRESHOLD)
    every = [judge.mean(np.array([at])) for at in np.linspace(0.0, 10.0, 2_001)]
    assert judge.mean(judge.vector(case.known)) <= min(every)
    assert judge.mean(judge.vector(case.known)) < judge.mean(judge.start)


def test_a_loss_with_noise_of_its_own_draws_anew_at_each_point_and_is_judged_on_fixed_draws():
    case = PROBLEMS["a simulator with noise of its own"].case(RECORDS)
    record = jax.tree.map(lambda leaf: leaf[0], case.data)
    near = [float(case.loss(np.float32([1.0, x]), record)) for x in (0.0, 0.0, 1e-6, 2e-6)]
    assert near[0] == near[1]
    assert len(set(near)) == 3
    assert np.ptp(near) > 1e-3
    judge = battery.Judge(case)
    close = [judge.mean(np.array([1.0, x])) for x in (0.0, 1e-6)]
    assert close[0] == pytest.approx(close[1], abs=1e-5)


# The optimum.


def test_optimizers_find_what_formulas_say():
    for name in (MEAN, MEDIAN):
        case, judge = small(name)
        known = judge.mean(judge.vector(case.known))
        blind = Case(case.loss, case.start, case.data)
        found = battery.optimum(blind, judge)
        assert found["best"] == pytest.approx(known, rel=1e-3)
        assert found["start"] == judge.mean(judge.start)
        assert battery.optimum(case, judge)["best"] <= known


def test_an_optimum_is_kept_until_its_problem_changes(tmp_path, monkeypatch):
    problem, calls = PROBLEMS[THERE], []

    def optimum(case, judge):
        calls.append(case)
        return {"start": 1.0, "best": 1.0}

    monkeypatch.setattr(battery, "optimum", optimum)
    found = [battery.optimum_of(problem, RECORDS, tmp_path) for _ in range(2)]
    assert found[0] == found[1]
    assert len(calls) == 1
    assert battery.way(found[0]) > 0.0  # from a usual start: from its own there is none
    battery.optimum_of(problem, RECORDS + 1, tmp_path)
    monkeypatch.setattr(Problem, "definition", lambda *_: "another")
    battery.optimum_of(problem, RECORDS, tmp_path)
    assert len(calls) == 3


def test_privacy_is_what_it_is_elsewhere():
    assert battery.gaussian(4.3772, 1e-5) == pytest.approx(1.0, abs=1e-4)
    assert battery.gaussian(80.0, 1e-6) == pytest.approx(
        bs.Privacy(epsilon=80, delta=1e-6).mu, rel=1e-4
    )


def test_the_gradient_is_0_at_the_optimum_and_the_same_in_all_units():
    case, judge = small(MEAN)
    for way in (0.0, 1.0):
        length, noise = judge.gradient_and_noise(np.asarray(case.known + way), 1.0, 64, RECORDS)
        other = Case(lambda x, z: 7.0 * case.loss(x / 3.0, z), 3.0 * case.start, case.data)
        far = np.asarray(3.0 * (case.known + way))
        again = battery.Judge(other).gradient_and_noise(far, 1.0, 64, RECORDS)
        assert length == pytest.approx(again[0], abs=1e-5)
        assert noise == again[1]
        assert (length < 1e-5) == (way == 0.0)


# Rows.


def row(problem: str = MEAN, epsilon: float = 1.0, gain: float = 1.0, **more):
    given = {"problem": problem, "epsilon": epsilon, "seed": 0, "version": "x", "records": RECORDS}
    given |= {"definition": "", "seconds": 1.0, "loss": 0.0, "gain": gain, "missed": 1.0 - gain}
    return given | {"returned": False, "outcome": "Settled: so it is."} | more


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(battery, "RESULTS", tmp_path)
    return tmp_path


def test_the_start_gains_0_the_optimum_1_and_a_refusal_spends_nothing(folder, monkeypatch):
    case = PROBLEMS[MEAN].case(RECORDS)

    def made(answer):
        monkeypatch.setattr(battery, "answer", lambda *_: answer())
        return battery.made_row((MEAN, 1.0, 0, "x", RECORDS))

    start = made(lambda: (case.start, "Nothing better than the start: noise.", 64))
    assert (start["gain"], start["missed"], start["returned"]) == (0.0, 1.0, True)
    best = made(lambda: (case.known, "Settled: here.", 64))
    assert (best["gain"], best["missed"]) == (pytest.approx(1.0), pytest.approx(0.0))
    assert best["gradient"] < best["noise"]
    lost = made(lambda: (np.asarray(math.nan), "Settled: nowhere.", 64))
    assert lost["gain"] == -math.inf
    assert not battery.is_true(lost)

    def refused():
        raise bs.errors.VacuousPlan("too few")

    def broken():
        raise TypeError("a bug")

    assert made(refused)["gain"] == 0.0
    assert battery.is_true(made(refused))
    assert not battery.is_true(made(broken))


def test_the_call_has_four_arguments_and_no_seed(folder, monkeypatch):
    calls = []

    def minimize(*given, **options):
        calls.append((given, options))
        raise StopIteration

    monkeypatch.setattr(bs, "minimize", minimize)
    case = PROBLEMS[MEAN].case(RECORDS)
    with pytest.raises(StopIteration):
        battery.answer(case, 1.0)
    ((given, options),) = calls
    assert given == (case.loss, case.start, case.data)
    assert options.pop("privacy") == bs.Privacy(epsilon=1.0, delta=1e-6)
    assert options == {"seed": None, "progress": False}


def test_a_call_goes_on_from_the_rows_that_are_there(folder, monkeypatch, capsys):
    case, calls = PROBLEMS[MEAN].case(RECORDS), []

    def answer(given, epsilon, seed):
        calls.append((epsilon, seed))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return case.known, "Settled: here.", 64

    monkeypatch.setattr(battery, "answer", answer)
    command = ["--only", MEAN, "--records", str(RECORDS), "--epsilon", "1", "8", "--seeds", "2"]
    with pytest.raises(KeyboardInterrupt):
        battery.main(command)
    assert len(battery.read_rows(folder / battery.ROWS)) == 2
    battery.main(command)
    assert calls == [(1.0, None), (1.0, None), (8.0, None), (8.0, None), (8.0, None)]
    battery.main([*command, "--show", "--redo"])
    battery.main([*command, "--version", "y", "--show"])
    assert len(calls) == 5
    battery.main([*command, "--reproduce", "--redo", "--epsilon", "1"])
    assert calls[5:] == [(1.0, 1), (1.0, 2)]
    assert "4 runs to make" in capsys.readouterr().out
    rows = json.loads((folder / battery.ROWS).read_text())["rows"]
    assert [(r["epsilon"], r["seed"]) for r in rows] == [(1.0, 0), (1.0, 1), (8.0, 0), (8.0, 1)]
    monkeypatch.setattr(Problem, "definition", lambda *_: "another")  # made again
    battery.main([*command, "--epsilon", "1", "--seeds", "1"])
    assert len(calls) == 8


# What rows say.


@pytest.mark.parametrize(
    ("outcome", "gain", "more", "truth"),
    [
        ("Settled: x", 0.95, {}, True),
        ("Settled: x", 0.5, {}, False),
        ("Settled: x", 0.5, {"gradient": 0.1, "noise": 0.2}, True),
        ("Settled: x", -0.5, {"gradient": 0.1, "noise": 0.2}, False),
        ("Settled: x", 0.0, {"returned": True, "missed": 0.0}, False),
        ("Nothing better than the start: x", 0.0, {"returned": True}, True),
        ("Nothing better than the start: x", 0.5, {}, False),
        ("Lost in noise: x", 0.2, {}, True),
        ("Lost in noise: x", 0.95, {}, False),
        ("Still travelling: x", 0.5, {}, True),
        ("Still travelling: x", 0.95, {}, False),
        ("Still travelling: x", -0.5, {}, False),
    ],
)
def test_an_outcome_is_true_or_not(outcome, gain, more, truth):
    assert battery.is_true(row(outcome=outcome, gain=gain, **more)) == truth


def test_places_are_told_apart():
    gains = (-0.5, 0.0, 0.5, 0.95)
    assert [battery.place(row(gain=gain)) for gain in gains] == list(battery.PLACES[1:])
    assert battery.place(row(gain=0.0, returned=True)) == battery.PLACES[0]
    assert battery.place(row(THERE, gain=0.0, missed=0.0)) == battery.PLACES[-1]


def test_what_should_not_be_is_listed():
    assert not any(battery.failures([row(), row(epsilon=80.0)]).values())
    rows = [row(gain=0.5), row(gain=-0.2), row(epsilon=8.0, gain=-0.1), row(epsilon=80.0, gain=0.9)]
    worse, low, falls, short = battery.failures(rows).values()
    assert worse == [f"{MEAN}, epsilon 8: -0.10"]
    assert low == [f"{MEAN}, epsilon 1: -0.20"]
    assert falls == [f"{MEAN}: 0.15 at 1, -0.10 at 8"]
    assert short == [f"{MEAN}: 0.90, not 0.95"]
    # Less is asked without a gradient, and nothing where there is no way to go.
    rows = [row(THRESHOLD, epsilon=80.0, gain=0.9), row(THERE, epsilon=80.0, gain=0.0)]
    assert not any(battery.failures(rows).values())


def test_the_tables_hold_every_run():
    rows = [row(gain=g, outcome=o) for g, o in ((1.0, "Settled: x"), (0.5, "Lost in noise: x"))]
    rows.append(row(THERE, gain=-math.inf, missed=math.inf))
    optima = {name: {"start": 13.0, "best": 4.0} for name in (MEAN, THERE)}
    text = battery.printed(rows, optima)
    assert "0.75 / 0.50" in text
    assert "settled 1, lost in noise 1" in text
    assert "-inf" in text
    lines = [line.split() for line in battery.confusion(rows).splitlines()]
    assert ["settled", "0", "1", "0", "0", "1", "1", "of", "2"] in lines
    kinds = {line.split("  ")[0]: line.split()[-1] for line in battery.by_kind(rows).splitlines()}
    assert (kinds["one-parameter"], kinds["already-there"]) == ("0.75", "-1.00")
    assert battery.printed([], {}) == "no rows yet"
