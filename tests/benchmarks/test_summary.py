"""Tables of the documents are those of the results."""

from __future__ import annotations

import json

import pytest
from benchmarks import summary, utility
from benchmarks.utility_methods import BLINDSTEP, FREE, METHODS

import blindstep as bs


@pytest.mark.parametrize("document", summary.TABLES)
def test_tables_of_the_documents_are_those_of_the_results(document):
    text = (summary.ROOT / document).read_text()
    assert summary.rewritten(document, text) == text


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    monkeypatch.setattr(utility, "RESULTS", tmp_path)
    return tmp_path


def row(method: str, epsilon: float | None, mean: float, **others):
    named = {"problem": "spam", "units": "original", "epsilon": epsilon, "method": method}
    sizes = {"records": 3_681, "dim": 58, "validation": 90.0, "path": None}
    return {**named, **sizes, "mean": mean, "spread": 0.26, **others}


def written(results, rows) -> None:
    utility.write_rows(results / utility.FILE, rows)


def test_a_table_has_a_line_for_each_problem_and_epsilon_and_says_what_is_not_paid(results):
    written(results, [row(BLINDSTEP, 1.0, 89.96), row(FREE, None, 92.5), row("DPZero", 0.1, 77.0)])
    full = summary.utility_in_full()
    assert "not accounted for" in full
    assert "not accounted for" in summary.utility_in_short()
    header, _, first, second = full.splitlines()[-4:]
    assert header.count("|") == len(METHODS) + 3
    first, second = (line.replace("\u00a0", " ") for line in (first, second))
    assert "for a record that is replaced" in full
    assert first.startswith("| spam, 3,681 × 58 | 1 | 90.0 ± 0.3 | - |")
    assert second.startswith("| spam, 3,681 × 58 | 0.1 | - |")
    assert "77.0 ± 0.3" in second
    assert first.endswith("| 92.5 ± 0.3 |")
    assert second.endswith("| 92.5 ± 0.3 |")
    line = summary.utility_in_short().splitlines()[-1]
    assert line == "| spam, 3,681 × 58 | 90.0 / - | - | - | - | - | 92.5 |"


def test_what_another_version_made_is_marked_and_counts_in_no_margin(results):
    old, ours = {"version": "0.2.0"}, {"version": bs.__version__}
    rows = [row(BLINDSTEP, 1.0, 80.0, **ours), row("first order, tuned", 1.0, 90.0, **old)]
    written(results, [*rows, row("Opacus", 1.0, 70.0, **old)])
    line = summary.utility_in_short().splitlines()[-1]
    assert line == "| spam, 3,681 × 58 | 80.0 / - | - | 70.0 / - | - | 90.0† / - | - |"
    assert "†: made with version 0.2.0, not this one." in summary.utility_in_full()
    assert "| first order, tuned | 1 | - |" in summary.margins()
    written(results, rows[:1])
    assert "†" not in summary.utility_in_full()


def test_margins_are_over_the_problems_that_both_have(results):
    cars = {"problem": "cars"}
    rows = [row(BLINDSTEP, 1.0, 80.0), row("Opacus", 1.0, 77.0), row(FREE, None, 90.0)]
    rows += [row(BLINDSTEP, 1.0, 60.0, **cars), row("Opacus", 1.0, 61.0, **cars)]
    rows += [row(BLINDSTEP, 1.0, 10.0, problem="votes"), row("DPZero", 0.1, 1.0)]
    written(results, rows)
    lines = summary.margins().splitlines()
    assert lines[2] == "| Opacus | 1 | 2 | +1.0 | -1.0 (cars) | -1.0 |"
    assert lines[-2] == "| DPZero, tuned | 0.1 | - | - | - | - |"


def test_costs_are_of_one_run_and_only_where_they_were_measured(results):
    told = {"evaluations": 1_234.4, "seconds_a_run": 2.04}
    written(results, [row(BLINDSTEP, 1.0, 80.0, **told), row("DPZero", 1.0, 77.0)])
    cells = summary.costs().splitlines()[-1].split(" | ")
    assert cells[1] == "1,234 / 2.0"
    assert set(cells[2:-1]) == {"-"}


def test_evaluations_are_those_of_the_row_or_how_much_was_missing(results):
    path = {"evaluations": [0.0, 1_000.0, 2_000.0]}
    near, far = path | {"points": [[50.0, 60.0, 89.0]]}, path | {"points": [[50.0, 80.0, 75.0]]}
    written(
        results,
        [row(BLINDSTEP, 1.0, 89.0, path=near), row("DPZero", 1.0, 80.0, path=far),
         row(FREE, None, 92.0)],
    )  # fmt: skip
    line = summary.evaluations().splitlines()[-1]
    assert line == "| spam | 88.0 | 2,000 | - | not reached (10.0 short) |"


def test_a_text_is_rewritten_between_its_marks_alone(results):
    text = "before\n<!-- utility -->\nold\n<!-- /utility -->\nafter\n"
    assert summary.rewritten("README.md", text) == text  # there are no results
    written(results, [row(BLINDSTEP, 1.0, 89.0)])
    made = summary.rewritten("README.md", text)
    assert made.startswith("before\n<!-- utility -->\n\n")
    assert made.endswith("\n\n<!-- /utility -->\nafter\n")
    assert "old" not in made
    assert summary.rewritten("README.md", made) == made
    with pytest.raises(ValueError, match="one pair"):
        summary.rewritten("README.md", "nothing")


def test_of_a_tuned_language_model_the_best_setting_by_validation_is_shown(results):
    named = {"part": "contest", "problem": "SST-2", "method": "DPZero", "epsilon": 2.0}
    rows = [
        {**named, "seed": 0, "clip": 1.0, "validation": 0.9, "test": 0.7},
        {**named, "seed": 1, "clip": 1.0, "validation": 0.9, "test": 0.8},
        {**named, "seed": 0, "clip": 2.0, "validation": 0.5, "test": 0.99},
        {"part": "throughput", "problem": "SST-2"},
    ]
    (results / "finetune.json").write_text(json.dumps({"rows": rows}))
    (line,) = summary.finetune().splitlines()[2:]
    assert line == "| SST-2 | DPZero | 2 | - | 2 | 2 | 75.0 ± 7.1 |"
