"""Delta against the number of records: a warning above 0.1 / records, an error from 1 / records on."""

import dataclasses
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import blindstep as bs
from blindstep.cli import app
from blindstep.planning.checks import check_delta, fitting_delta
from blindstep.sklearn import PrivateClassifier, PrivateRegressor
from plans import plan_of

DATA = np.linspace(-1.0, 1.0, 20)
SMALL = {"radius": 1.0, "bounds": bs.Bounds(clip=1.0), "horizon": 2, "rounds": 2, "first_batch": 5}
LARGE, TOO_LARGE = (bs.Privacy(epsilon=1, delta=delta) for delta in (0.006, 0.05))
PROBLEM = """
import jax.numpy as jnp
import numpy as np
loss, params, data = lambda p, z: jnp.abs(p - z), jnp.zeros(()), np.linspace(-1.0, 1.0, 20)
"""


def loss(place, home):
    return jnp.abs(place - home)


def planned(privacy, **choices):
    return plan_of(dim=1, records=len(DATA), privacy=privacy, **SMALL, **choices)


def by_command(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code == 2:
        raise bs.errors.InvalidArgument(done.stderr)


def plan_command(privacy, _):
    small = ("--radius", "1", "--clip", "1", "--horizon", "2", "--first-batch", "5")
    budget = ("--epsilon", "1", "--delta", str(privacy.delta))
    by_command("plan", "--records", "20", "--dim", "1", *small, *budget)


def train_command(privacy, folder):
    (folder / "problem.py").write_text(PROBLEM)
    choices = (
        "--radius",
        "1",
        "--clip",
        "1",
        "--passes",
        "1",
        "--horizon",
        "2",
        "--first-batch",
        "5",
    )
    budget = ("--epsilon", "1", "--delta", str(privacy.delta))
    by_command("train", str(folder / "problem.py"), *choices, *budget)


def ready(privacy):
    """A plan that `blindstep.plan` has not seen."""
    return dataclasses.replace(planned(bs.Privacy(mu=1.0)), privacy=privacy)


def certificate(folder, **budgets):
    return bs.certificate(
        loss,
        0.0,
        DATA,
        radius=0.5,
        bounds=bs.Bounds(lipschitz=1.0),
        ledger=folder / "people.jsonl",
        **budgets,
    )


ENTRANCES = {
    "plan": lambda privacy, _: planned(privacy),
    "minimize": lambda privacy, _: bs.minimize(loss, 0.0, DATA, privacy, method=bs.Tight(**SMALL)),
    "host": lambda privacy, _: bs.minimize(
        loss, 0.0, DATA, privacy, method=bs.Tight(**SMALL), evaluate=bs.Host()
    ),
    "ready plan": lambda privacy, _: bs.minimize(loss, 0.0, DATA, method=ready(privacy)),
    "ready plan, host": lambda privacy, _: bs.minimize(
        loss, 0.0, DATA, method=ready(privacy), evaluate=bs.Host()
    ),
    "Optimizer": lambda privacy, _: bs.Optimizer(ready(privacy), 0.0),
    "classifier": lambda privacy, _: PrivateClassifier(
        epsilon=1, delta=privacy.delta, method=bs.Tight(**SMALL), classes=[0, 1]
    ).fit(DATA[:, None], np.arange(20) % 2),
    "regressor": lambda privacy, _: PrivateRegressor(
        epsilon=1, delta=privacy.delta, method=bs.Tight(**SMALL)
    ).fit(DATA[:, None], DATA),
    "budget of minimize": lambda privacy, folder: bs.minimize(
        loss, 0.0, DATA, method=planned(bs.Privacy(mu=0.1)), checkpoint=folder, budget=privacy
    ),
    "budget of host": lambda privacy, folder: bs.minimize(
        loss,
        0.0,
        DATA,
        method=planned(bs.Privacy(mu=0.1)),
        evaluate=bs.Host(),
        checkpoint=folder,
        budget=privacy,
    ),
    "budget of Optimizer": lambda privacy, folder: bs.Optimizer(
        planned(bs.Privacy(mu=0.1)), 0.0, checkpoint=folder, budget=privacy
    ).close(),
    "budget of classifier": lambda privacy, folder: PrivateClassifier(
        epsilon=0.1,
        delta=1e-6,
        method=bs.Auto(evaluations=2**12),
        classes=[0, 1],
        checkpoint=folder,
        budget=privacy,
    ).fit(DATA[:, None], np.arange(20) % 2),
    "certificate": lambda privacy, folder: certificate(folder, privacy=privacy),
    "budget of certificate": lambda privacy, folder: certificate(
        folder, privacy=bs.Privacy(mu=0.1), budget=privacy
    ),
    "blindstep plan": plan_command,
    "blindstep train": train_command,
}


# 20 records at mu 0.1 are hopeless, and here that does not matter.
@pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan")
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_delta_is_held_against_the_number_of_records(entrance, tmp_path):
    """Above 0.1 / 20 every entrance warns, by number; at 1 / 20 none lets it through."""
    enter = ENTRANCES[entrance]
    folders = [tmp_path / name for name in ("large", "too large")]
    for folder in folders:
        folder.mkdir(mode=0o700)
    name = "budget" if "budget" in entrance else "privacy"
    with pytest.warns(
        bs.errors.LargeDelta, match=f"{name} has delta 0.006 for 20 records, .* 0.1 / records"
    ):
        enter(LARGE, folders[0])
    with pytest.raises(
        bs.errors.InvalidArgument, match=rf"{name} has delta 0.05 for 20 records.*0\.001 or"
    ):
        enter(TOO_LARGE, folders[1])


@pytest.mark.parametrize("records", [1, 20, 10_000, 10**6, 10**15])
def test_a_budget_in_rho_has_no_delta_to_spend(records):
    check_delta(bs.Privacy(mu=1.0, delta=0.5), records)
    check_delta(None, records)


@pytest.mark.parametrize("records", [1, 3, 10, 10_000, 32_560, 10**6, 10**6 + 1, 10**15])
def test_the_remedy_is_a_power_of_ten_that_fits_and_the_largest(records):
    check_delta(bs.Privacy(epsilon=1, delta=fitting_delta(records)), records)
    if records > 1:
        power = records == 10 ** (len(str(records)) - 1)  # then ten times as much is 1 / records
        with (
            pytest.raises(bs.errors.InvalidArgument)
            if power
            else pytest.warns(bs.errors.LargeDelta)
        ):
            check_delta(
                bs.Privacy(epsilon=1, delta=1 / round(0.1 / fitting_delta(records))), records
            )


@pytest.mark.slow
def test_the_records_that_a_tolerance_takes_are_what_delta_is_held_against():
    """The number is found first; with the delta that the error names, it is found again."""
    wanted = {"dim": 2, "tolerance": 0.3, "radius": 0.5, "lipschitz": 1.0, "gap": 1.0}
    with pytest.raises(bs.errors.InvalidArgument, match=r"privacy has delta 0\.001 for") as refused:
        plan_of(**wanted, privacy=bs.Privacy(epsilon=1, delta=1e-3))
    named = float(str(refused.value).partition("Give a delta of ")[2].split()[0])
    made = plan_of(**wanted, privacy=bs.Privacy(epsilon=1, delta=named))
    assert made.delta * made.records <= 0.1


@pytest.mark.parametrize("privacy", [bs.Privacy(epsilon=1, delta=1e-3), bs.Privacy(mu=1.0)])
def test_a_plan_from_a_file_knows_whether_its_delta_is_spent(privacy):
    read = bs.Plan.from_json(planned(privacy).to_json())
    assert read.privacy == privacy
    assert read.privacy.spends_delta is privacy.spends_delta


def test_what_a_smaller_delta_costs():
    mus = [bs.Privacy(epsilon=1, delta=delta).mu for delta in (1e-5, 1e-6)]
    assert 1 - mus[1] / mus[0] == pytest.approx(0.12, abs=0.005)


@pytest.mark.slow
def test_a_person_is_told_once_in_one_line(tmp_path):
    """The command line: plan and driver both check, and stderr has one line, of the same numbers."""
    check = (
        "import sys, numpy as np; from blindstep.cli import main\n"
        "open('problem.py', 'w').write(sys.argv.pop())\nmain()"
    )
    choices = (
        "--radius",
        "1",
        "--clip",
        "1",
        "--passes",
        "1",
        "--horizon",
        "2",
        "--first-batch",
        "5",
    )
    budget = ("--epsilon", "1", "--delta", "0.006", "--json")
    done = subprocess.run(
        [sys.executable, "-c", check, "train", "problem.py", *choices, *budget, PROBLEM],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr.count("blindstep: warning: privacy has delta 0.006") == 1
    assert ".py:" not in done.stderr
