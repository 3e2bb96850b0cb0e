"""The command line as scripts and people use it."""

import json
import math
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from blindstep.cli import app

RUNNER = CliRunner()
KEYS = {
    *("method", "oracle", "mechanism", "horizon", "period", "rounds", "first_batch", "diff_batch"),
    *("estimate", "reach", "step", "radius", "sensitivity", "noise_std", "release_std_max"),
    *("release_std_mean", "mu", "epsilon", "delta", "tolerance"),
}
SMALL = ["--mu", "1", "--radius", "0.1", "--lipschitz", "1", "--gap", "1"]
PLAN = ["plan", "--method", "paper", "--records", "1000000", "--dim", "100", *SMALL]


def run(*arguments):
    return RUNNER.invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("budget", "name", "value"),
    [
        (("--mu", "1", "--delta", "1e-5"), "epsilon", 4.3772),
        (("--mu", "8"), "epsilon", 65.32),
        (("--epsilon", "4.3772", "--delta", "1e-5"), "mu", 1.0),
    ],
)
def test_privacy_json(budget, name, value):
    assert json.loads(run("privacy", *budget, "--json").stdout)[name] == pytest.approx(value, 1e-4)


def test_plan_json():
    out = json.loads(run(*PLAN, "--horizon", "7", "--json").stdout)
    assert set(out) >= KEYS
    assert out["horizon"] == 7
    assert out["estimate"].keys() == {
        *("kind", "directions", "smoothing"),
        *("sampler", "sharing", "sides", "breadth"),
    }
    assert out["epsilon"] == pytest.approx(4.3772, abs=1e-4)


def test_a_plan_without_a_radius_finds_its_scales():
    sizes = ("plan", "--records", "10000", "--dim", "20", "--epsilon", "1", "--delta", "1e-6")
    out = json.loads(run(*sizes, "--json").stdout)
    assert (out["method"], out["calibration"]["number"], out["tolerance"]) == ("auto", 4, None)
    fewer = json.loads(run(*sizes, "--evaluations", "100000", "--json").stdout)
    work = [
        each["estimate"]["directions"]
        * math.prod(each[name] for name in ("first_batch", "rounds", "horizon"))
        for each in (fewer, out)
    ]
    assert 2 * work[0] <= 100_000 < 2 * work[1]
    assert "calibrations, with 15% of mu^2" in " ".join(run(*sizes).stdout.split())


def test_tables_for_people():
    out = run(*PLAN, "--horizon", "16")
    assert out.exit_code == 0
    assert "noise_std" in out.stdout
    assert "VACUOUS" in out.stdout
    assert "4.37718" in run("privacy", "--mu", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["privacy"], "give one of epsilon, mu and zcdp"),
        (["privacy", "--mu", "-1"], "mu must be above 0, got -1.0"),
        (["privacy", "--mu", "nan"], "finite"),
        (["privacy", "--mu", "1", "--delta", "1"], "delta must be below 1"),
        ([*PLAN[:-1], "0"], "gap must be above 0"),
        ([*PLAN, "--horizon", "600000"], "needs 1200000 records"),
        ([*PLAN, "--method", "magic"], "method must be one of"),
        ([*PLAN, "--horizon", "16", "--mu", "100"], "Give an epsilon of at most"),
        (
            ["plan", "--method", "paper", "--records", "1000", "--dim", "9", *SMALL],
            "promises nothing",
        ),
        (
            ["plan", "--records", "10000", "--dim", "9", "--mu", "1", "--diff-clip", "2"],
            "--diff-clip 2.0: a run that finds its own scales takes no such choice",
        ),
        ([*PLAN[:1], *PLAN[3:], "--method", "auto"], "--radius 0.1, --lipschitz 1.0, --gap 1.0"),
        (["plan", "--dim", "9", "--mu", "1"], "How many does it take"),
        (["ledger", "show", "nowhere.jsonl"], "nowhere.jsonl"),
        (["report", "nowhere"], "nowhere is no run directory"),
        (["audit", "--plan", "nowhere.json"], "nowhere.json cannot be read"),
        (["audit", "--plan", "nowhere.json", "--dim", "3"], "give either --plan or dim"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments, says):
    out = run(*arguments)
    assert out.exit_code == 2
    assert out.stderr.startswith("blindstep: ")
    assert says in out.stderr
    assert "Traceback" not in out.stderr
    as_json = json.loads(run(*arguments, "--json").stdout)
    assert says in as_json["message"]


def test_tolerance_to_records():
    wanted = ["--method", "paper", "--tolerance", "0.5", "--dim", "5", *SMALL]
    assert json.loads(run("plan", *wanted, "--json").stdout)["tolerance"] <= 0.5


@pytest.mark.parametrize(
    "how", [["-m", "blindstep"], ["-c", "from blindstep.cli import main; main()"]]
)
def test_the_command_runs_and_knows_its_version(how):
    done = subprocess.run(
        [sys.executable, *how, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"blindstep {version('blindstep')}\n"
