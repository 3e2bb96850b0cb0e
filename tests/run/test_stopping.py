"""Ctrl-C: whichever driver it meets, one line says how to go on, and the same call does."""

import os
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.session import Session
from blindstep.run.progress import how_to_go_on
from driver_runs import DRIVERS, NAIVE_PLAN, run, same

SCRIPT = """
import contextlib, logging, sys, time
import numpy as np
import blindstep as bs

data = np.random.default_rng(0).normal(size=(400, 2))


def loss(params, record):
    time.sleep(0.0005)
    return float(np.abs(params - record).sum())


def joblib_map(function, items):
    from joblib import Parallel, delayed
    return Parallel(n_jobs=2)(delayed(function)(item) for item in items)


def engine(name, opened):
    if name == "pool":
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        spawn = multiprocessing.get_context("spawn")
        return {"executor": lambda: ProcessPoolExecutor(2, mp_context=spawn)}
    if name == "loky":
        from loky import get_reusable_executor
        return {"executor": lambda: get_reusable_executor(max_workers=2)}
    if name == "joblib":
        return {"map": joblib_map}
    if name == "dask":
        from distributed import Client
        quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}  # of its own closing
        client = Client(n_workers=2, threads_per_worker=1, **quiet)
        opened.enter_context(client)
        return {"executor": client.get_executor()}
    if name == "ray":
        import ray
        ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.CRITICAL)
        return {"map": bs.Host.ray}
    return {"timeout": 10} if name == "timeout" else {}


if __name__ == "__main__":
    privacy = bs.Privacy(epsilon=1, delta=1e-4)
    with contextlib.ExitStack() as opened:
        bs.minimize(loss, np.zeros(2), data, privacy, method=bs.Auto(evaluations=200_000),
                    checkpoint="run", evaluate=bs.Host(**engine(sys.argv[1], opened)))
"""


def press(monkeypatch, after):
    """Ctrl-C, once, when so many charges of steps are on the disk."""
    left, real = [after], Session.charge

    def charge(session, *given):
        real(session, *given)
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Session, "charge", charge)


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_says_how_to_go_on_and_does(driver, tmp_path, monkeypatch, capsys):
    directory = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "excepthook", sys.__excepthook__)
        press(patch, after=2)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run(driver, directory, plan=NAIVE_PLAN)
        sys.excepthook(stopped.type, stopped.value, stopped.tb)
    said = f"Stopped; the same call goes on where it was, from {directory}."
    assert capsys.readouterr().err == f"blindstep: {said}\n"
    assert str(stopped.value) == said
    # No frame of a compiler, an engine or a gate is left for those who print frames all the same.
    assert "gate.py" not in "".join(traceback.format_exception(stopped.value))
    assert same(run(driver, directory, plan=NAIVE_PLAN), run(driver, plan=NAIVE_PLAN))


def test_other_errors_are_printed_as_ever(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    press(monkeypatch, after=1)
    with pytest.raises(KeyboardInterrupt):
        run(plan=NAIVE_PLAN)
    for error in (ValueError("of the user's own"), KeyboardInterrupt("later")):
        sys.excepthook(type(error), error, None)
        assert str(error) in capsys.readouterr().err


def test_what_is_said_is_so(tmp_path):
    assert "nothing" not in how_to_go_on(None)
    assert "What was released is spent, and this run cannot go on" in how_to_go_on(None)
    assert "people.jsonl has it" in how_to_go_on(None, "people.jsonl")
    before = how_to_go_on(tmp_path / "run")
    assert before.startswith("Stopped before anything was released or spent")
    run("host", tmp_path / "run", plan=NAIVE_PLAN)
    assert how_to_go_on(tmp_path / "run", call="command").startswith("Stopped; the same command")


def interrupted(command, folder, **more):
    """Run a command as in a terminal, and press Ctrl-C when two looks are charged."""
    ledger = folder / "run" / "ledger.jsonl"
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, text=True, stderr=subprocess.PIPE, **more
    )
    try:
        while process.poll() is None and not (
            ledger.exists() and ledger.read_text().count('"kind":"intent"') >= 2
        ):
            time.sleep(0.05)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to workers, too
        return process, process.communicate(timeout=120)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "timeout", "pool", "loky", "joblib", "dask", "ray"])
def test_a_terminal_s_ctrl_c_prints_one_line_with_every_engine(engine, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    process, said = interrupted([sys.executable, "script.py", engine], tmp_path)
    lines = [line for line in said.splitlines() if "authentication_token" not in line]  # Ray's own
    assert lines == ["blindstep: Stopped; the same call goes on where it was, from run."]
    assert process.returncode != 0
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").spent() > 0
    assert not (tmp_path / "run" / "ledger.jsonl.torn-1").exists()


@pytest.mark.slow
def test_a_terminal_s_ctrl_c_ends_the_command_in_one_line(tmp_path):
    (tmp_path / "problem.py").write_text(
        "import jax.numpy as jnp\n"
        "loss = lambda params, record: jnp.abs(params - record).sum()\n"
        "params, data = jnp.zeros(2), jnp.ones((4_000, 2))\n"
    )
    options = ["--epsilon", "1", "--checkpoint", "run", "--json", "--passes", "100000"]
    options += ["--radius", "1", "--first-batch", "4000", "--horizon", "1"]
    command = [sys.executable, "-m", "blindstep", "train", "problem.py", *options]
    process, said = interrupted(command, tmp_path, stdout=subprocess.PIPE)
    assert process.returncode == 130
    assert said == "blindstep: Stopped; the same command goes on where it was, from run.\n"


def test_a_worker_of_the_same_terminal_leaves_ctrl_c_to_the_run():
    """A worker of another terminal, or machine, keeps its own."""
    check = (
        "import os, signal, threading\n"
        "from blindstep.losses.silence import interrupt, this_terminal\n"
        "interrupt.left_to('elsewhere-1')\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "work = threading.Thread(target=interrupt.left_to, args=(this_terminal(),))\n"
        "work.start(); work.join()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "interrupt.left_to(this_terminal())\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "still here\n"


def test_an_optimizer_in_the_user_s_own_loop(tmp_path):
    def ask():
        with bs.Optimizer(NAIVE_PLAN, np.zeros(2), checkpoint=tmp_path / "run") as opt:
            opt.tell(opt.ask(), [0.0], where=[0])
            signal.raise_signal(signal.SIGINT)  # while people are asked

    with pytest.raises(KeyboardInterrupt, match="the same call goes on where it was"):
        ask()
    with bs.Optimizer(NAIVE_PLAN, np.zeros(2), checkpoint=tmp_path / "run") as opt:
        assert len(opt.unanswered()) == len(opt.ask()) - 1
