"""Random arguments: an answer or a clear error, never a traceback, and JSON that parses."""

import json
import os
import random
import signal

import pytest
from typer.testing import CliRunner

import driver_runs
from blindstep.cli import app
from storage_helpers import write_some

RUNNER = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::blindstep.errors.LargeDelta")
NUMBERS = ["0", "-1", "1", "0.5", "1e-5", "1e-300", "5e-324", "1e300", "1e999", "-0.0", "nan"]
NUMBERS += ["inf", "x", "1,5", "0x10", "1_000", "٣"]
NUMBERS += ["1e9", "3.7", "1e-12", "40", "1000", "", " ", "9" * 400]
WORDS = ["", "tight", "paper", "klt", "naive", "blt", "sphere", "record", "[/red]", "\udcff", "é"]
COUNTS = ["--records", "--dim", "--horizon", "--period", "--rounds", "--passes", "--first-batch"]
COUNTS += ["--diff-batch", "--directions", "--evaluations"]
AMOUNTS = ["--mu", "--epsilon", "--delta", "--radius", "--tolerance", "--lipschitz", "--gap"]
AMOUNTS += ["--clip", "--diff-clip", "--smoothing", "--reach"]
CHOICES = ["--method", "--oracle", "--mechanism", "--sampler", "--sharing"]
KNOWN = {
    "--method": ["tight", "paper", "klt"],
    "--oracle": ["naive", "variance-reduced"],
    "--mechanism": ["independent", "tree", "sqrt", "blt"],
    "--sampler": ["sphere", "haar", "structured"],
    "--sharing": ["record", "block"],
}


@pytest.fixture(autouse=True)
def _a_hang_is_a_failure():
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(900)
    yield
    signal.alarm(0)


def checked(arguments):
    """Run it; whatever happens must be an answer, or one clear error."""
    out = RUNNER.invoke(app, arguments)
    said = f"{arguments}: {out.exception!r}\n{out.output}"
    assert out.exit_code in (0, 1, 2), said
    assert out.exception is None or isinstance(out.exception, SystemExit), said
    assert "Traceback" not in out.output, said
    assert out.exit_code == 0 or out.stderr or "Usage" in out.output, said
    answered = out.stdout and "Usage" not in out.output and "--version" not in arguments
    if "--json" in arguments and answered:
        answer = json.loads(out.stdout)
        assert out.exit_code == 0 or answer.keys() == {"error", "message"}, said
    return out.exit_code


def many(number, all_of_them):
    """So many cases in the suite; all of them under `-m slow`."""
    most = pytest.param(all_of_them, marks=pytest.mark.slow)
    return pytest.mark.parametrize("number", [number, most])


@many(200, 4_000)
def test_random_privacy_arguments(number):
    rng, codes = random.Random(1), []
    for _ in range(number):
        arguments = ["privacy"]
        for name in rng.sample(["--mu", "--epsilon", "--delta"], rng.randrange(1, 4)):
            arguments += [name, rng.choice(NUMBERS)]
        arguments += rng.choice([[], ["--json"], ["--json"], ["extra"], ["--unknown"]])
        codes.append(checked(arguments))
    assert {0, 2} <= set(codes)


@many(50, 1_000)
def test_random_words(number):
    rng = random.Random(2)
    names = [
        "privacy",
        "plan",
        "ledger",
        "show",
        "--json",
        "--help",
        "--",
        "-",
        "--mu",
        "--version",
    ]
    for _ in range(number):
        checked(rng.choices(names + WORDS + NUMBERS, k=rng.randrange(6)))


def plan_arguments(rng):
    """Mostly sensible, so that the planner itself is reached; then some of it is spoiled."""
    sensible = {"--dim": rng.choice(["1", "2", "5", "20"]), "--radius": rng.choice(["0.1", "1"])}
    sensible |= {"--records": rng.choice(["1", "10", "1000", "100000"]), "--lipschitz": "1"}
    sensible |= {rng.choice(["--mu", "--epsilon"]): rng.choice(["0.1", "1", "8"])}
    sensible["--delta"] = "1e-6"
    for name in rng.sample(COUNTS[2:], rng.randrange(3)):
        sensible[name] = rng.choice(["1", "2", "4", "7", "64"])
    for name in rng.sample(CHOICES, rng.randrange(3)):
        sensible[name] = rng.choice(KNOWN[name])
    for name in rng.sample(AMOUNTS[6:], rng.randrange(3)):
        sensible[name] = rng.choice(["0.01", "0.1", "1"])
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        # A small tolerance is no error, but a search over many sizes: minutes.
        name = rng.choice(COUNTS + [a for a in AMOUNTS if a != "--tolerance"] + CHOICES)
        sensible[name] = rng.choice(NUMBERS + WORDS)
    if rng.random() < 0.1:
        sensible.pop(rng.choice(sorted(sensible)))
    return ["plan", *(word for pair in sensible.items() for word in pair)]


@many(30, 1_000)
def test_random_plans(number):
    rng, codes = random.Random(3), []
    for _ in range(number):
        codes.append(checked(plan_arguments(rng) + rng.choice([[], ["--json"]])))
    assert codes.count(0) > number / 10


@many(80, 1_000)
def test_random_ledger_arguments(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_some(tmp_path / "good.jsonl", run="[/red] and [bold]")
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe{")
    paths = ["good.jsonl", "good.jsonl", "bad.jsonl", ".", "nothing", "/dev/null", *WORDS]
    rng, codes = random.Random(4), []
    for _ in range(number):
        arguments = ["ledger", "show", rng.choice(paths)]
        if rng.random() < 0.5:
            arguments += ["--delta", rng.choice(NUMBERS)]
        codes.append(checked(arguments + rng.choice([[], ["--json"]])))
    assert {0, 2} <= set(codes)


def test_commands_that_read_a_plan_refuse_it_by_name(tmp_path):
    driver_runs.run("host", tmp_path / "run", plan=driver_runs.SHORT, data=driver_runs.DATA)
    path = tmp_path / "run" / "plan.json"
    for content in (b"", b"\xff\xfe{", b"[" * 9999, b'{"dim": NaN}', None):
        path.unlink()
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content)
        for arguments in (["audit", "--plan", str(path)], ["report", str(tmp_path / "run")]):
            assert checked([*arguments, "--json"]) == 2
            said = RUNNER.invoke(app, arguments).stderr
            assert said.startswith("blindstep: ")
            assert str(path) in said
