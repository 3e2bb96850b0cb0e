"""`blindstep train --dry-run`, and columns of categories in a problem file."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from blindstep.cli import app

PROBLEM = """
import jax.numpy as jnp

def loss(params, record):
    return jnp.abs(record["bought"] - params @ record["features"])

params = jnp.zeros(3)
scales = {"age": (40, 20)}
categories = {"job": ("cook", "clerk")}
data = "people.csv"
"""
OPTIONS = ("--epsilon", "2", "--radius", "0.5", "--passes", "2")
SECRET = "Ada Lovelace"


def table(number=400):
    rng = np.random.default_rng(0)
    jobs = rng.choice(["cook", "clerk", SECRET], number)
    ages = rng.integers(20, 60, number)
    return pd.DataFrame({"age": ages, "job": jobs, "bought": (jobs == "cook").astype(float)})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("people.csv", index=False)
    (tmp_path / "problem.py").write_text(PROBLEM)
    return tmp_path


def train(*options):
    return CliRunner().invoke(app, ["train", "problem.py", *OPTIONS, *options])


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_checks_everything_and_writes_nothing(folder):
    before = files(folder)
    done = train("--dry-run")
    assert done.exit_code == 0, done.output
    assert "nothing was charged, nothing written" in done.stdout
    assert "The run would spend epsilon 2 at delta 1e-05" in done.stdout
    assert "evaluations of the loss, which take about" in done.stdout
    assert "noise_std" in done.stdout  # the plan
    told = json.loads(train("--dry-run", "--json").stdout)
    assert told["dry_run"] is True
    assert told["cost"]["evaluations"] > 0
    assert told["cost"]["seconds"] > 0
    assert files(folder) == before
    # The run that follows is the one that was announced.
    real = json.loads(train("--json").stdout)
    assert real["plan"] == told["plan"]
    assert real["privacy"]["mu"] == told["cost"]["mu"]


def test_a_dry_run_of_a_run_that_finds_its_scales_says_all_that_it_costs(folder):
    budget = ("train", "problem.py", "--epsilon", "2", "--dry-run", "--json")
    told = json.loads(CliRunner().invoke(app, list(budget)).stdout)
    assert told["plan"]["calibration"]["number"] == 4
    steps = (
        2
        * told["plan"]["estimate"]["directions"]
        * told["plan"]["first_batch"]
        * told["plan"]["rounds"]
        * told["plan"]["horizon"]
    )
    asked, compared = (told["plan"][part]["batch"] for part in ("calibration", "comparison"))
    assert told["cost"]["evaluations"] == steps + 4 * asked * (1 + 2 * 3) + 3 * compared * 2
    # Calibrations along three axes, and three comparisons of one point with the start.
    assert told["cost"]["epsilon"] == 2.0
    assert told["cost"]["mu"] == pytest.approx(told["plan"]["mu"], rel=1e-6)  # looks and steps
    assert not (folder / "problem-run").exists()


def test_a_dry_run_adds_to_what_a_ledger_holds_and_keeps_to_its_budget(folder):
    shared = ("--ledger", "all.jsonl", "--budget", "2.5")
    assert train(*shared).exit_code == 0
    before = files(folder)
    again = train(*shared, "--dry-run")
    assert again.exit_code == 0, again.output
    assert "would go on" in again.stdout
    other = train(*shared, "--checkpoint", "other", "--dry-run", "--json")
    assert other.exit_code == 2
    assert json.loads(other.stdout)["error"] == "BudgetExceeded"
    raised = train("--ledger", "all.jsonl", "--budget", "9", "--dry-run", "--json")
    assert json.loads(raised.stdout)["error"] == "LedgerMismatch"
    little = ("--ledger", "all.jsonl", "--checkpoint", "other", "--epsilon", "0.5", "--dry-run")
    fits = train(*little)
    assert fits.exit_code == 0, fits.output
    assert "With what the ledger holds" in fits.stdout
    assert files(folder) == before


def test_a_dry_run_refuses_a_run_directory_of_another_plan_as_the_run_does(folder):
    assert train().exit_code == 0
    before = files(folder)
    for dry in ((), ("--dry-run",)):
        done = train("--passes", "3", *dry)
        assert done.exit_code == 2
        assert "is another plan than the one given" in " ".join(done.stderr.split())
    assert files(folder) == before


def test_numbers_may_be_written_as_people_write_them(folder):
    budget = ("train", "problem.py", "--epsilon", "2", "--dry-run", "--json")
    told = [
        json.loads(CliRunner().invoke(app, [*budget, "--evaluations", number]).stdout)
        for number in ("1e5", "100000")
    ]
    assert told[0]["plan"] == told[1]["plan"]
    assert told[0]["cost"]["evaluations"] <= 1e5
    refused = CliRunner().invoke(app, [*budget, "--evaluations", "1.5"])
    assert refused.exit_code == 2
    assert "'1.5' is not a whole number" in " ".join(refused.stderr.replace("│", "").split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("jnp.abs(", "jnp.nan * ("), "not finite at the start parameters"),
        (('record["bought"]', 'record["bougth"]'), "raised KeyError"),
    ],
)
@pytest.mark.filterwarnings("default::blindstep.errors.LossNotFinite")
def test_a_dry_run_finds_what_a_run_would(folder, change, says):
    (folder / "problem.py").write_text(PROBLEM.replace(*change))
    before = files(folder)
    if "NaN" in says or "finite" in says:
        with pytest.warns(UserWarning, match=says):
            assert train("--dry-run").exit_code == 0
    else:
        done = train("--dry-run")
        assert done.exit_code == 2
        assert says in done.stderr
    assert files(folder) == before


def test_a_place_that_cannot_be_written_is_found(folder, monkeypatch):
    (folder / "file").write_text("")
    done = train("--dry-run", "--checkpoint", "file/run")
    assert done.exit_code == 2
    assert "file/run cannot be written (Not a directory" in " ".join(done.stderr.split())
    # What root is never told, of a directory.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).is_file())
    done = train("--dry-run", "--checkpoint", "elsewhere")
    assert "cannot be written (Permission denied" in " ".join(done.stderr.split())


# -- categories and scales in a problem file ------------------------------------------------------


@pytest.mark.parametrize("source", ["csv", "parquet", "frame", "encoded"])
def test_columns_of_categories_with_a_public_list_are_data(folder, source):
    made = "__import__('test_dry_run').table()"
    change = {
        "csv": '"people.csv"',
        "parquet": '"people.parquet"',
        "frame": made,
        "encoded": f"__import__('blindstep').encode({made}, scales=scales, categories=categories)\n"
        "del scales, categories",
    }[source]
    table().to_parquet("people.parquet")
    (folder / "problem.py").write_text(PROBLEM.replace('"people.csv"', change))
    (folder / "test_dry_run.py").write_text("")  # the module of that name is loaded already
    done = train("--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["plan"]["records"] == 400
    assert SECRET not in done.output


@pytest.mark.parametrize("source", ["people.csv", "frame"])
def test_people_and_categories_together(folder, source):
    """One column says whose row it is, in text too, and another is a category."""
    several = table().assign(person=[f"p{row // 4}" for row in range(400)])
    several.to_csv("people.csv", index=False)
    frame = "__import__('pandas').read_csv('people.csv')"
    given = f'"{source}"' if source != "frame" else frame
    (folder / "problem.py").write_text(PROBLEM.replace('"people.csv"', given))
    done = train("--dry-run", "--json", "--people", "person", "--rows", "2")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["plan"]["records"] == 100
    alone = json.loads(train("--dry-run", "--json", "--people", "person", "--rows", "1").stdout)
    assert told["cost"]["evaluations"] == 2 * alone["cost"]["evaluations"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"job":', '"jop":'), "there is no column 'jop'"),
        (('"age": (40, 20)', '"age": (40, 0)'), "the size of scales['age'] must be above 0"),
        (
            ('categories = {"job": ("cook", "clerk")}', "categories = 3"),
            "categories is a int: give",
        ),
        (('categories = {"job": ("cook", "clerk")}', ""), "column 'job', is not a number"),
        (('"people.csv"', "__import__('numpy').zeros((4, 2))"), "are for columns with names"),
    ],
)
def test_what_is_wrong_with_lists_and_scales_is_said(folder, change, says):
    assert change[0] in PROBLEM
    (folder / "problem.py").write_text(PROBLEM.replace(*change))
    done = train("--dry-run")
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.output
