"""`blindstep train`: a problem file to parameters, and what a newcomer is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindstep.cli import app
from blindstep.cli import train as command
from blindstep.estimate.bounds import Bounds
from blindstep.ledger import data_ledger
from blindstep.ledger.budget import Privacy
from blindstep.planning.auto import Auto
from blindstep.planning.planner import plan as make_plan

GOOD = """
import jax.numpy as jnp

def loss(params, record):
    guess = params["slope"] * record["height"] + params["offset"]
    return jnp.abs(record["weight"] - guess)

params = {"slope": jnp.zeros(()), "offset": jnp.zeros(())}
data = "people.csv"
"""
OPTIONS = ("--epsilon", "4", "--radius", "0.5")
ALONE = ("--epsilon", "4")  # a budget, and nothing else
SECRET = "Ada Lovelace"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    height = rng.normal(size=2_000)
    weight = 0.5 * height + 0.2 + 0.1 * rng.normal(size=2_000)
    np.savetxt(
        "people.csv", np.c_[height, weight], delimiter=",", header="height,weight", comments=""
    )
    (tmp_path / "problem.py").write_text(GOOD)
    return tmp_path


def train(*options, fixed=OPTIONS):
    return CliRunner().invoke(app, ["train", "problem.py", *fixed, *options])


def words(text):
    """Without the line breaks of a narrow terminal."""
    return " ".join(text.split())


def test_a_problem_file_is_trained_on(folder):
    done = train(fixed=ALONE)
    assert done.exit_code == 0, done.stderr
    assert "Gaussian differentially private" in done.stdout
    assert "SECRET" in done.stdout
    assert "The run finds its scales itself" in words(done.stderr)
    assert "move at most" not in words(done.stderr)  # its units are not the parameters'
    assert done.stdout.count("Settled: ") + done.stdout.count("Still travelling: ") == 1
    assert (folder / "problem-run").stat().st_mode & 0o777 == 0o700
    assert "A new run in problem-run: it spends epsilon 4" in done.stderr
    assert sorted(p.name for p in (folder / "problem-result").iterdir()) == [
        "params.npz",
        "report.html",
    ]
    with np.load(folder / "problem-result" / "params.npz", allow_pickle=False) as answer:
        assert set(answer) == {"slope", "offset"}
        assert abs(answer["slope"] - 0.5) < 0.15
        assert abs(answer["offset"] - 0.2) < 0.15
    page = (folder / "problem-result" / "report.html").read_text()
    assert "problem.py" in page
    # The same command again: the same answer, and nothing more is spent.
    ledger = Path(data_ledger.find("people.csv").ledger)
    spent = ledger.read_bytes()
    before = (folder / "problem-result" / "params.npz").read_bytes()
    again = train("--json", fixed=ALONE)
    told = json.loads(again.stdout)
    assert told["privacy"]["epsilon"] <= 4
    assert (told["plan"]["method"], told["plan"]["calibration"]["number"]) == ("auto", 4)
    assert told["outcome"] in done.stdout
    assert (folder / "problem-result" / "params.npz").read_bytes() == before
    assert ledger.read_bytes() == spent
    # A report of the run goes beside its directory, which is secret, not into it.
    before = sorted((folder / "problem-run").iterdir())
    shown = CliRunner().invoke(app, ["report", "problem-run"])
    assert shown.stdout.startswith(f"{folder / 'problem-run-report.html'}: the report")
    assert "<html" in (folder / "problem-run-report.html").read_text()
    assert sorted((folder / "problem-run").iterdir()) == before


def test_another_epsilon_in_an_old_run_directory_is_named(folder):
    quick = (*ALONE, "--evaluations", "4096")
    assert train(fixed=quick).exit_code == 0
    ledger = Path(data_ledger.find("people.csv").ledger)
    spent = ledger.read_bytes()
    other = train("--epsilon", "3", fixed=quick)
    assert other.exit_code == 2
    assert "is another plan than the one given, with another" in words(other.stderr)
    assert "epsilon" in words(other.stderr).partition("with another")[2]
    assert "--checkpoint gives another one" in words(other.stderr)
    assert ledger.read_bytes() == spent


def planned(folder, monkeypatch, *options, fixed=OPTIONS):
    """The choices that a command leads to, without a run."""
    seen = {}

    def stop(*given, method, **rest):
        seen["plan"], seen["rest"] = method, rest
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "minimize", stop)
    done = train(*options, fixed=fixed)
    return done, seen["plan"], seen["rest"]


def test_a_run_without_a_radius_is_that_of_four_arguments(folder, monkeypatch):
    """The same plan as `minimize` makes of a budget alone, and what a file knows besides is told."""
    (folder / "problem.py").write_text(GOOD + "lipschitz, gap = 2.0, 1.0\n")
    done, plan, _ = planned(folder, monkeypatch, fixed=ALONE)
    assert "lipschitz, gap in the file: for runs with --radius" in words(done.stderr)
    privacy = Privacy(epsilon=4)
    made = make_plan(Auto(), dim=2, records=2_000, privacy=privacy)
    assert plan == made  # more evaluations than these gain nothing
    _, plan, _ = planned(folder, monkeypatch, "--evaluations", "100000", fixed=ALONE)
    assert plan.evaluations <= 100_000
    _, plan, _ = planned(folder, monkeypatch, "--method", "auto", fixed=ALONE)
    assert plan == made
    _, plan, _ = planned(folder, monkeypatch)
    assert plan.method == "tight"


def test_people_share_the_evaluations_of_their_rows(folder, monkeypatch):
    """By default each record has 8 rows, so as many fewer records are evaluated."""
    monkeypatch.setattr(command.planned, "of_compiled", lambda *_: 2**12)  # a sixteenth
    whose = "{'who': __import__('numpy').arange(2_000), 'height': H, 'weight': H}"
    (folder / "problem.py").write_text(
        GOOD.replace('"people.csv"', whose.replace("H", "__import__('numpy').ones(2_000)"))
    )
    _, plan, _ = planned(folder, monkeypatch, "--people", "who", fixed=ALONE)
    assert 2**15 // 8 < plan.evaluations <= 2**16 // 8


def test_a_run_that_stopped_among_its_looks_goes_on(folder, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("blindstep.run.compiled.ScaledLoss", stop)
        stopped = train(fixed=ALONE)
        assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1] == (
        "blindstep: Stopped; the same command goes on where it was, from problem-run."
    )
    dry = train("--dry-run", fixed=ALONE)
    assert "There is a run in problem-run: it would go on" in dry.stdout
    done = train(fixed=ALONE)
    assert done.exit_code == 0, done.stderr
    assert "Going on with the run in problem-run" in words(done.stderr)
    told = json.loads(CliRunner().invoke(app, ["ledger", "show", "problem-run", "--json"]).stdout)
    assert len(told["runs"]) == 3  # the calibrations were paid for once


def test_without_a_bound_a_run_with_a_radius_clips_to_norm_1_and_says_so(folder, monkeypatch):
    done, plan, _ = planned(folder, monkeypatch)
    assert "clipped to norm 1" in words(done.stderr)
    assert "so parameters move at most" in words(done.stderr)
    assert plan.bounds == Bounds(clip=1.0)


def test_an_interrupted_run_says_how_to_go_on(folder, monkeypatch):
    done, _, rest = planned(folder, monkeypatch, "--checkpoint", "here", "--ledger", "all.jsonl")
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-1] == (
        "blindstep: Stopped before anything was released or spent; the same command starts the run."
    )
    assert (str(rest["checkpoint"]), str(rest["ledger"])) == ("here", "all.jsonl")


def test_what_the_file_knows_is_used_and_the_command_line_wins(folder, monkeypatch):
    (folder / "problem.py").write_text(GOOD + "lipschitz, gap = 2.0, 1.0\n")
    _, plan, _ = planned(folder, monkeypatch)
    assert (plan.lipschitz, plan.gap) == (2.0, 1.0)
    assert plan.tolerance is not None
    _, plan, _ = planned(folder, monkeypatch, "--lipschitz", "3", "--clip", "1")
    assert plan.bounds.lipschitz == 3.0
    assert plan.bounds.clip <= 1.0
    (folder / "problem.py").write_text(
        GOOD + "import blindstep\nbounds = blindstep.Bounds(range=(0, 2))\n"
    )
    _, plan, _ = planned(folder, monkeypatch, "--passes", "3")
    assert (plan.bounds.width, plan.passes) == (2.0, 3)


def test_passes_are_many_where_they_cost_little(folder, monkeypatch):
    assert planned(folder, monkeypatch)[1].passes == 20
    monkeypatch.setattr(command, "_CHEAP_EVALUATIONS", 3 * 2 * 2 * 2_000)
    assert planned(folder, monkeypatch)[1].passes == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("data =", "people ="), "problem.py does not define `data`, arrays with one row"),
        (("def loss", "def cost"), "does not define `loss`, a function loss(params, record)"),
        (("params =", "loss = 3\nparams ="), "loss is a int, not a function"),
        (
            ("people.csv", "nobody.csv"),
            "nobody.csv cannot be read (No such file or directory): data is looked for",
        ),
        (("jnp.zeros(())}", "0}"), "parameters move in small steps, so they must be floating"),
        (('record["weight"]', "record['wait']"), "KeyError"),
        (("return jnp.abs(", "return jnp.ones(3) * ("), "it must return one number"),
        (("return jnp.abs(", "return float("), "JAX cannot trace the loss"),
        (("import jax.numpy as jnp", "import jax.numpy as jnp\n1 / 0"), "line 3, raised ZeroDiv"),
        (("def loss", "def def"), "line 4, is not Python"),
        (("data =", "bounds = 1\ndata ="), "bounds is a int: give blindstep.Bounds(clip=1.0)"),
        (('"people.csv"', "{'height': [1.0, 2.0]}"), "is a float, not an array"),
        (
            (
                '"people.csv"',
                "__import__('pandas').DataFrame({'height': ['tall'], 'weight': [1.0]})",
            ),
            "data['height'] has dtype",
        ),
        (
            ('record["weight"]', "jnp.ones(2) @ jnp.ones(3)"),
            "line 6, raised TypeError (dot_general",
        ),
        (('record["weight"]', f"float({SECRET!r})"), "line 6, raised ValueError when the loss"),
        (('record["weight"]', f"{{}}[{SECRET!r}]"), "line 6, raised KeyError when the loss"),
        (("data =", f"float({SECRET!r})\ndata ="), "line 9, raised ValueError: run `python"),
    ],
)
def test_what_is_wrong_with_a_problem_file_is_said(folder, change, says):
    assert change[0] in GOOD
    (folder / "problem.py").write_text(GOOD.replace(*change))
    done = train()
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.output
    assert not (folder / "problem-run").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--epsilon", "1000"), "Give an epsilon of at most"),
        (("--epsilon", "1e30"), "epsilon must be at most"),
        (("--budget", "0"), "epsilon must be above 0"),
        (("--clip", "-1"), "clip"),
        (("--method", "auto"), "--radius 0.5: a run that finds its own scales takes no such"),
    ],
)
def test_a_refusal_comes_before_anything_is_spent(folder, options, says):
    done = train(*options)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "problem-run").exists()


@pytest.mark.parametrize(
    "option", ["lipschitz", "gap", "clip", "horizon", "first-batch", "smoothing", "reach"]
)
def test_what_only_a_run_with_a_radius_has_is_refused_without(folder, option):
    done = train(f"--{option}", "2", fixed=ALONE)
    assert done.exit_code == 2, done.output
    assert f"--{option} 2" in done.stderr
    assert (
        "a run that finds its own scales takes no such choice. Leave it out, or give --radius"
        in (done.stderr)
    )
    assert not (folder / "problem-run").exists()


def test_a_method_that_needs_a_radius_says_so(folder):
    done = train("--method", "paper", "--lipschitz", "1", fixed=ALONE)
    assert done.exit_code == 2
    assert "method paper needs --radius" in done.stderr


def test_runs_share_a_ledger_and_its_budget(folder):
    shared = ("--passes", "1", "--delta", "1e-6", "--ledger", "people.jsonl", "--budget", "5")
    shared += ("--json",)
    assert train(*shared, "--checkpoint", "one").exit_code == 0
    done = train(*shared, "--checkpoint", "two", "--epsilon", "4")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"] == "BudgetExceeded"
    told = json.loads(CliRunner().invoke(app, ["ledger", "show", "people.jsonl", "--json"]).stdout)
    (only,) = told["runs"]
    assert only["delta"] == 1e-6  # the run's own, which its epsilon is quoted at
    assert 3.99 < only["epsilon"] <= 4


def test_a_certificate_that_was_asked_for_has_its_point(folder):
    known = ("--lipschitz", "2", "--gap", "1", "--passes", "1", "--horizon", "4")
    told = json.loads(train(*known, "--json").stdout)
    assert told["random_round"] == str(Path("problem-result", "random_round.npz"))
    with np.load(told["random_round"], allow_pickle=False) as point:
        assert set(point) == {"slope", "offset"}
    # The next run in the same place asked for none: the old one's point is gone.
    again = train("--passes", "1", "--checkpoint", "another", "--json")
    assert "random_round" not in json.loads(again.stdout)
    assert not (folder / "problem-result" / "random_round.npz").exists()


def test_a_file_that_is_not_there(folder):
    done = CliRunner().invoke(app, ["train", "nothing.py", *OPTIONS, "--json"])
    assert done.exit_code == 2
    assert (
        "nothing.py cannot be read (No such file or directory)"
        in json.loads(done.stdout)["message"]
    )


def test_an_answer_that_cannot_be_written_is_not_lost(folder):
    (folder / "problem-result").write_text("in the way")
    done = train("--passes", "1")
    assert done.exit_code == 2
    assert "give another --out" in done.stderr
    assert train("--passes", "1", "--out", "elsewhere").exit_code == 0
    assert (folder / "elsewhere" / "params.npz").exists()
    # A name that looks like markup is a name.
    assert train("--passes", "1", "--out", "[/red]").exit_code == 0
