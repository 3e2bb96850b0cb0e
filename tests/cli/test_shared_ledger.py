"""Runs on the same data file are counted together, with nothing said, and keep to one budget."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindstep.cli import app
from blindstep.cli import train as command
from blindstep.ledger import data_ledger
from blindstep.ledger.budget import Privacy
from blindstep.ledger.ledger import Ledger
from blindstep.planning.statement import round_up
from blindstep.private import accounting

PROBLEM = """
import jax.numpy as jnp

def loss(params, record):
    return jnp.abs(params - record["height"])

params = jnp.zeros(())
data = "people.csv"
"""
# One pass, one step: the ledger is what is tested.
QUICK = ("--radius", "0.5", "--clip", "1", "--passes", "1", "--horizon", "2", "--delta", "1e-4")
QUICK += ("--first-batch", "200")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    heights = np.random.default_rng(0).normal(size=400)
    np.savetxt("people.csv", heights, header="height", comments="")
    (tmp_path / "problem.py").write_text(PROBLEM)
    return tmp_path


@pytest.fixture
def stopped(monkeypatch):
    """All that is said before a run, and no run."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "minimize", stop)


def blindstep(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def train(*options, problem="problem.py"):
    return blindstep("train", problem, *QUICK, "--epsilon", "1", *options)


def words(text):
    return " ".join(text.split())


def test_another_checkpoint_another_problem_or_another_name_is_counted_together(folder, home):
    one = train("--json")
    ledger = json.loads(one.stdout)["ledger"]
    assert ledger.startswith(str(home))
    assert json.loads(one.stdout)["ledger_epsilon"] <= 1
    two = train("--checkpoint", "two", "--out", "out")
    assert f"counted together, in {ledger}" in words(two.stderr)
    mu = math.sqrt(2) * Privacy(epsilon=1, delta=1e-4).mu
    both = round_up(accounting.epsilon(mu, 1e-4), 4)
    assert f"They have spent epsilon 1 at delta 0.0001 so far, and with this run it is {both}" in (
        words(two.stderr)
    )
    assert f"All runs in it have spent epsilon {both}" in words(two.stdout)
    os.rename("people.csv", "renamed.csv")
    Path("other.py").write_text(PROBLEM.replace("people.csv", "renamed.csv"))
    assert json.loads(train("--json", problem="other.py").stdout)["ledger"] == ledger
    # All ways to ask lead there.
    for path in (ledger, "two", "other-run", "other.py", "renamed.csv"):
        told = json.loads(blindstep("ledger", "show", path, "--json").stdout)
        assert (told["ledger"], len(told["runs"])) == (ledger, 3)
    (told,) = json.loads(blindstep("ledger", "show", "--json").stdout)
    assert (told["cohort"], len(told["runs"])) == ("people", 3)
    # And so does the report, made from the run directory.
    assert blindstep("report", "two").exit_code == 0
    assert Path("two-report.html").read_text().count("(this run)") == 1


def test_a_budget_is_for_all_of_them(folder):
    assert train("--budget", "1.2").exit_code == 0
    refused = train("--checkpoint", "two")
    assert refused.exit_code == 2
    assert "nothing was released" in refused.stderr
    assert "of a budget of 1.2: what is left is epsilon 0.5" in words(refused.stderr)
    # What is said to be left can be asked for.
    assert train("--checkpoint", "two", "--epsilon", "0.5", "--dry-run").exit_code == 0
    assert train("--checkpoint", "two", "--epsilon", "0.6", "--dry-run").exit_code == 2


def test_a_ledger_that_is_named_is_the_one(folder, home):
    done = train("--ledger", "mine.jsonl", "--json")
    assert json.loads(done.stdout)["ledger"] == str(folder / "mine.jsonl")
    assert not list(home.iterdir())
    # The run goes on with it, also where it is not named again.
    assert json.loads(train("--json").stdout)["ledger"] == str(folder / "mine.jsonl")
    assert not list(home.iterdir())
    assert len(json.loads(blindstep("ledger", "show", "problem-run", "--json").stdout)["runs"]) == 1


def test_arrays_have_a_ledger_in_the_run_directory_and_that_is_said(folder, home, stopped):
    made = PROBLEM.replace('"people.csv"', '{"height": jnp.ones(400)}')
    Path("problem.py").write_text(made)
    done = train()
    own = folder / "problem-run" / "ledger.jsonl"
    assert f"What it spends is written to {own}" in words(done.stderr)
    assert "give all of them the same --ledger" in words(done.stderr)
    assert not list(home.iterdir())


def test_a_run_that_has_a_ledger_of_its_own_goes_on_with_it(folder, home, stopped):
    """As runs of earlier versions do."""
    (folder / "problem-run").mkdir()
    Ledger.open(folder / "problem-run" / "ledger.jsonl", cohort="people").close()
    assert "What it spends is written to" in words(train().stderr)
    assert not list(home.iterdir())


def test_a_file_that_has_changed_is_taken_for_the_same_people(folder, stopped):
    ledger = data_ledger.keep("people.csv").ledger
    with open("people.csv", "a") as file:
        file.write("1.5\n")
    done = train()
    assert f"counted together, in {ledger}" in words(done.stderr)
    assert "people.csv has held other records before" in words(done.stderr)
    assert "if they are others, give --ledger" in words(done.stderr)


def test_a_dry_run_writes_nothing_and_says_where(folder, home):
    dry = train("--dry-run")
    assert f"A ledger of people.csv would be begun in {data_ledger.home()}" in words(dry.stderr)
    assert not list(home.iterdir())


def test_a_place_that_cannot_be_written_is_refused_with_the_remedy(folder, monkeypatch):
    monkeypatch.setenv(data_ledger.HOME, str(folder / "people.csv"))
    refused = train()
    assert refused.exit_code == 2
    assert "give --ledger PATH, or set BLINDSTEP_HOME" in refused.stderr
    assert not (folder / "problem-run").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ((), "no ledger of a data file is kept in"),
        (("people.csv",), "no run on people.csv is in a ledger"),
        (("problem.py",), "problem-run is not there, where a run on this problem would be"),
        ((".",), "is no run directory, and has no ledger"),
    ],
)
def test_nothing_was_spent_yet(folder, path, says):
    shown = blindstep("ledger", "show", *path)
    assert shown.exit_code == 2
    assert says in shown.stderr


@pytest.mark.parametrize("out", ["problem-run", "problem-run/answer", "two"])
def test_an_answer_never_goes_into_a_run_directory(folder, out):
    (folder / "two").mkdir()
    (folder / "two" / "checkpoint.json").write_text("{}")
    refused = train("--out", out)
    assert refused.exit_code == 2
    assert "which holds the noise key" in refused.stderr
    assert not (folder / "problem-run").exists()
