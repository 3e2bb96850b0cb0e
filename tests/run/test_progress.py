"""Progress moves with the steps, and what it says was spent is what the ledger says."""

import io
import sys

import numpy as np
import pytest

import blindstep as bs
from blindstep import display
from blindstep.ledger.ledger import read_ledger
from blindstep.planning.statement import round_up
from blindstep.private import accounting
from blindstep.run import compiled
from blindstep.run.progress import RunProgress
from blindstep.run.result import released_std
from driver_runs import NAIVE_PLAN, cut_after, run, same
from plans import plan_of

# Finds its scales: four looks, and then steps.
SCALED = bs.plan(bs.Auto(passes=8), dim=2, records=24, privacy=bs.Privacy(epsilon=4, delta=1e-3))


@pytest.fixture
def said(monkeypatch, tmp_path):
    """What progress says each time it moves, beside what the ledger says then."""
    lines, real = [], RunProgress._moved

    def moved(bar):
        real(bar)
        mu = read_ledger(tmp_path / "run" / "ledger.jsonl").spent()
        epsilon = accounting.epsilon(mu, bar._plan.delta) if mu else None
        lines.append((bar._sessions[-1].position, bar._said(), epsilon))

    monkeypatch.setattr(RunProgress, "_moved", moved)
    return lines


@pytest.mark.parametrize("driver", ["compiled", "host"])
def test_it_moves_with_the_steps_and_agrees_with_the_ledger(driver, said, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_WORTH_A_CALL", 1)  # as if each step were long
    run(driver, tmp_path / "run", plan=SCALED, progress=True)
    positions = [position for position, _, _ in said]
    assert positions[0] == 0
    assert {*range(SCALED.calibrations + 1)} <= {*positions}
    assert {*range(SCALED.schedule.releases + 1)} <= {*positions}
    for _, words, epsilon in said:
        spent = "nothing spent yet" if epsilon is None else f"epsilon {round_up(epsilon, 4)} of"
        assert words.startswith(spent)
    assert said[0][1] == "nothing spent yet"
    assert said[-1][1].startswith(f"epsilon {round_up(SCALED.epsilon, 4)} of")


def test_a_run_that_goes_on_begins_with_what_it_has_spent(said, tmp_path):
    run("host", tmp_path / "run", plan=NAIVE_PLAN)
    run("host", tmp_path / "run", plan=NAIVE_PLAN, progress=True)
    ((position, words, epsilon),) = said
    assert position == NAIVE_PLAN.schedule.releases
    assert words.startswith(f"epsilon {round_up(epsilon, 4)} of")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_a_terminal_and_a_few_lines_elsewhere(terminal, monkeypatch):
    class Stderr(io.StringIO):
        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stderr", Stderr())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(compiled, "_WORTH_A_CALL", 1)
    run(plan=SCALED, progress=True)
    steps = SCALED.comparisons  # the last that a run asks
    shown = sys.stderr.getvalue()
    last = [line for line in shown.replace("\r", "\n").splitlines() if f"{steps}/{steps}" in line]
    assert f"epsilon {round_up(SCALED.epsilon, 4)} of" in last[-1]
    assert ("━" in shown) is terminal
    if not terminal:
        assert 2 < len(shown.splitlines()) <= 22


def test_rounds_in_parts_are_the_same_run(monkeypatch, tmp_path):
    """Parts are calls of a program for fewer blocks; only rounding could differ."""
    whole = run(plan=NAIVE_PLAN)
    monkeypatch.setattr(compiled, "_WORTH_A_CALL", 1)
    assert compiled._blocks_at_once(NAIVE_PLAN) == 1
    parts = run("compiled", tmp_path / "run", plan=NAIVE_PLAN)
    np.testing.assert_allclose(parts.means, whole.means, rtol=1e-12)
    np.testing.assert_allclose(parts.history.gradient_norm, whole.history.gradient_norm, rtol=1e-12)
    assert (tmp_path / "run" / "ledger.jsonl").read_text().count(
        '"kind":"intent"'
    ) == NAIVE_PLAN.schedule.releases
    assert same(run("compiled", tmp_path / "run", plan=NAIVE_PLAN), parts)


@pytest.mark.parametrize("at", [1, 3])
def test_a_run_in_parts_goes_on_in_the_middle_of_a_round(at, monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "_WORTH_A_CALL", 1)
    cut_after(monkeypatch, at, "compiled", tmp_path / "run", plan=NAIVE_PLAN)
    assert same(run("compiled", tmp_path / "run", plan=NAIVE_PLAN), run(plan=NAIVE_PLAN))


def test_parts_are_of_one_size_and_follow_from_the_plan(monkeypatch):
    sizes = {"period": 1, "first_batch": 100, "directions": 2, "sharing": "block"}
    budget = {"privacy": bs.Privacy(mu=1), "radius": 1.0, "bounds": bs.Bounds(clip=1.0)}
    for horizon, steps, part in [(12, 1, 1), (12, 2, 2), (12, 5, 6), (12, 7, 12), (11, 2, 11)]:
        plan = plan_of(dim=2, records=1_200, horizon=horizon, **budget, **sizes)
        each = plan.evaluations // plan.schedule.releases
        monkeypatch.setattr(compiled, "_WORTH_A_CALL", each * steps)
        assert compiled._blocks_at_once(plan) == part


def test_a_notebook_gets_a_bar_that_moves_and_needs_no_widgets(monkeypatch):
    """Drawn once, and then moved in its place."""
    pages = []

    class Handle:
        def update(self, page):
            pages.append(page)

    class Display:
        HTML = staticmethod(str)

        @staticmethod
        def display(page, display_id):
            assert display_id
            pages.append(page)
            return Handle()

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(display, "import_module", {"IPython.display": Display}.__getitem__)
    run(plan=SCALED)  # in a notebook it is shown unless it is told not to be
    assert "evaluations of the loss" in pages[0]
    total = SCALED.calibrations + SCALED.schedule.releases + SCALED.comparisons
    assert f'<progress value="{total}" max="{total}">' in pages[-1]
    assert f"epsilon {round_up(SCALED.epsilon, 4)} of" in pages[-1]


def test_a_loss_that_noise_hides_is_not_shown():
    """It said: loss -254% of the first."""
    bar = RunProgress(SCALED, show=False)
    noise = released_std(SCALED) / np.sqrt(SCALED.horizon)

    class Charged:
        spent, secrecy = 1.0, 0.0

    bar._sessions = [Charged()]
    for first, said in ((2.9 * noise, False), (10.0 * noise, True)):
        bar._values = lambda first=first: np.concatenate(
            [np.full(SCALED.horizon, first), np.full(SCALED.horizon, -5.0 * first)]
        )
        assert ("loss 0% of the first (± 10%)" in bar._said()) is said
        assert ("loss" in bar._said()) is said
