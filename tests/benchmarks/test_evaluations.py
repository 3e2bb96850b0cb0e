"""Evaluations to within a point: Poisson accounting, the ladder, and what its table says."""

import json
import math

import numpy as np
import pytest
from benchmarks import evaluations, simulator
from benchmarks.evaluations import BEFORE, REFERENCE, SECRET, File, climb, mean_ratio, table
from benchmarks.poisson import noise_multiplier

from blindstep.private import accounting


def test_poisson_noise_of_everybody_is_that_of_the_gaussian():
    """Zero-out: half of what replacing takes. Fewer records in a step take less, but not rate times."""
    every = noise_multiplier(1.0, 1e-5, 1.0, 16)
    assert every == pytest.approx(4.0 / accounting.mu_for_epsilon(1.0, 1e-5), rel=1e-2)
    some = noise_multiplier(1.0, 1e-5, 0.25, 16)
    assert 0.25 * every < some < 0.5 * every


@pytest.fixture
def ladder(tmp_path, monkeypatch):
    """Methods whose scores rise with evaluations, without any run."""
    asked = []

    def made(problem, epsilon, method, each, seeds, before):
        asked.append((method, each))
        needs = {REFERENCE: 1, SECRET: 32, BEFORE: 256}.get(method, math.inf)
        mean = 90.0 if each >= needs else 80.0
        row = {"problem": problem, "epsilon": epsilon, "method": method, "evaluations": each}
        return {**row, "seeds": seeds, "mean": mean, "scores": [mean] * seeds, "asked": each}

    monkeypatch.setattr(evaluations, "made", made)
    monkeypatch.setattr(evaluations.problems, "made", lambda name: name)
    monkeypatch.setattr(evaluations, "most_of", lambda problem: 1024)
    return File(tmp_path / "rows.jsonl", 2, None), asked


def test_a_method_climbs_until_it_is_there_and_goes_on_from_the_file(ladder):
    file, asked = ladder
    climb(file, "spam", 1.0, (SECRET, BEFORE))
    assert [each for method, each in asked if method == SECRET] == [8, 16, 32]
    assert [each for method, each in asked if method == BEFORE] == [8, 16, 32, 64, 128, 256]
    number = len(asked)
    again = File(file.path, 2, None)
    assert again.rows == [json.loads(line) for line in file.path.read_text().splitlines()]
    climb(again, "spam", 1.0, (SECRET, BEFORE, "DPZero"), 89.0)
    assert {method for method, _ in asked[number:]} == {"DPZero"}
    assert len(asked) == number + 8  # 8 .. 1024, and never there
    (line,) = [line for line in table(again).splitlines() if line.startswith("| spam")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["spam", "1", "90.0", "32", "256", "-", "not (80.0)", "8.0"]
    assert mean_ratio(again, 1.0) == pytest.approx(8.0)
    assert math.isnan(mean_ratio(again, 0.1))


@pytest.mark.parametrize(
    ("begin", "asked"), [(64, [64, 32, 16]), (16, [16, 32]), (512, [512, 256, 128, 64, 32, 16])]
)
def test_a_method_may_begin_anywhere(ladder, begin, asked):
    """It goes down as long as it is there: what it finds does not hang on where it begins."""
    file, made = ladder
    climb(file, "spam", 1.0, (SECRET,), 89.0, begin)
    assert [each for _, each in made] == asked


def test_the_simulator_is_planned_in_minutes_and_its_optimum_is_the_median():
    hidden, shown = (simulator.planned(4_000, 5, secret=secret) for secret in (True, False))
    assert hidden.evaluations < shown.evaluations / 3
    data = simulator.records(400, 5)
    best = np.median(data, axis=0)
    for other in (np.zeros(5), best + 0.1, best - 0.1):
        assert simulator.mean_loss(best, data) < simulator.mean_loss(other, data)
