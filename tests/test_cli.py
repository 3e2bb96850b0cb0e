"""The command line as scripts and people use it."""

import json
import math
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from blindstep.cli import app

RUNNER = CliRunner()
KEYS = {
    *("preset", "oracle", "mechanism", "horizon", "period", "epochs", "first_batch", "diff_batch"),
    *("directions", "reach", "step", "radius", "sensitivity", "noise_std", "release_std_max"),
    *("release_std_mean", "rho", "epsilon", "delta", "tolerance"),
}
SMALL = ["--rho", "1", "--radius", "0.1", "--lipschitz", "1", "--gap", "1"]
PLAN = ["plan", "--preset", "paper", "--records", "1000000", "--dim", "100", *SMALL]


def run(*arguments):
    return RUNNER.invoke(app, list(arguments))


def test_privacy_json():
    assert json.loads(run("privacy", "--rho", "1", "--delta", "1e-5", "--json").stdout)[
        "epsilon"
    ] == pytest.approx(4.3772, abs=1e-4)
    assert json.loads(run("privacy", "--rho", "8", "--json").stdout)["epsilon"] == pytest.approx(
        65.32, abs=0.01
    )
    back = json.loads(run("privacy", "--epsilon", "4.3772", "--delta", "1e-5", "--json").stdout)
    assert back["rho"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("horizon", [1, 2, 4, 7, 8, 1024])
def test_plan_json(horizon):
    out = json.loads(run(*PLAN, "--horizon", str(horizon), "--json").stdout)
    assert set(out) >= KEYS
    worst = 2 * 100 / out["first_batch"]
    if horizon >= 2:
        worst = max(worst, 4 * 100 / (out["diff_batch"] * horizon))
    expected = worst * math.sqrt(math.floor(math.log2(horizon)) + 1)
    assert out["noise_std"] == pytest.approx(expected)
    assert out["noise_std"] > 0
    assert out["epsilon"] == pytest.approx(4.3772, abs=1e-4)


def test_secure_is_a_flag():
    out = json.loads(run(*PLAN, "--horizon", "16", "--secure", "--json").stdout)
    plain = json.loads(run(*PLAN, "--horizon", "16", "--json").stdout)
    assert (out["secure"], plain["secure"]) == (True, False)
    assert plain["noise_std"] < out["noise_std"] < plain["noise_std"] * (1 + 2e-4)


def test_tables_for_people():
    out = run(*PLAN, "--horizon", "16")
    assert out.exit_code == 0
    assert "noise_std" in out.stdout
    assert "VACUOUS" in out.stdout
    assert "4.37718" in run("privacy", "--rho", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["privacy"], "either epsilon or rho"),
        (["privacy", "--rho", "-1"], "rho must be above 0, got -1.0"),
        (["privacy", "--rho", "nan"], "finite"),
        (["privacy", "--rho", "1", "--delta", "1"], "delta must be below 1"),
        ([*PLAN[:-1], "0"], "gap must be above 0"),
        ([*PLAN, "--horizon", "600000"], "needs 1200000 records"),
        ([*PLAN, "--preset", "magic"], "preset must be one of"),
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


def test_refusal_of_a_vacuous_plan():
    out = run("plan", "--preset", "paper", "--records", "1000", "--dim", "100", *SMALL)
    assert out.exit_code == 2
    assert "promises nothing" in out.stderr


def test_tolerance_to_records():
    # The naive oracle alone: the search over all periods takes half a minute under type checking.
    for preset in (["paper"], ["tight", "--oracle", "naive"]):
        wanted = ["--preset", *preset, "--tolerance", "0.5", "--dim", "5", *SMALL]
        out = run("plan", *wanted, "--json")
        assert json.loads(out.stdout)["tolerance"] <= 0.5


def test_the_installed_command_runs():
    done = subprocess.run(
        [sys.executable, "-c", "from blindstep.cli import main; main()", "privacy", "--rho", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "epsilon" in done.stdout
