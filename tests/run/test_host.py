"""The host driver: NumPy losses through any map or executor; a record that fails fails alone."""

import asyncio
import concurrent.futures
import functools
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import warnings

import numpy as np
import pytest

import blindstep as bs
from blindstep.losses.engines import Task, Work, perform
from blindstep.losses.pytrees import ParameterSpace
from blindstep.losses.silence import silence
from blindstep.planning.statement import round_up
from blindstep.run import host
from blindstep.run.progress import RunProgress, how_to_go_on
from driver_runs import BUDGET, DATA, SHORT, run, same
from losses import capped_distance_numpy
from plans import plan_of

ONE = int(np.argmin(np.linalg.norm(DATA, axis=1)))  # its loss is not flat at the start
START = np.zeros(2)


def rows(x, z):
    distance = np.sqrt(np.sum((x - z) ** 2, axis=-1))
    return np.where(distance > 1.5, 1.5, distance)


def short(loss=capped_distance_numpy, **how):
    return run("host", plan=SHORT, data=DATA, loss=loss, **how)


@pytest.fixture(scope="module")
def alone():
    return short()


def test_a_vectorised_loss_gives_the_same(alone):
    np.testing.assert_allclose(short(rows, vectorized=True).means, alone.means, rtol=0, atol=1e-12)


def test_a_vectorised_loss_gets_rows_of_any_parameters_and_records():
    start = {"w": np.zeros((1, 1), np.float32), "b": np.zeros(())}
    data = {"x": DATA[:, :1].astype(np.float32), "y": DATA[:, 1]}

    def one(p, r):
        assert p["w"].shape == (1, 1)
        assert r["x"].shape == (1,)
        return abs(float((r["x"] @ p["w"])[0]) + p["b"] - r["y"])

    def many(p, r):
        assert p["w"].shape[1:] == (1, 1)
        assert p["w"].dtype == np.float32
        return np.abs(np.einsum("ni,nij->n", r["x"], p["w"]) + p["b"] - r["y"])

    a, b = (
        run("host", plan=SHORT, start=start, data=data, loss=loss, vectorized=loss is many)
        for loss in (one, many)
    )
    np.testing.assert_allclose(a.means, b.means, rtol=0, atol=1e-6)  # float32 parameters
    assert np.any(a.means != 0)


def test_any_map_and_any_executor_in_any_order(alone):
    def shuffled(function, tasks):
        answers = [None] * len(tasks)
        for place in random.Random(3).sample(range(len(tasks)), len(tasks)):
            answers[place] = function(tasks[place])
        return answers

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        ways = [
            {"map": shuffled},
            {"map": pool.map},
            {"executor": pool},
            {"executor": lambda: concurrent.futures.ThreadPoolExecutor(2)},
        ]
        for way in ways:
            assert same(short(**way), alone)


@pytest.mark.parametrize("sharing", ["record", "block"])
@pytest.mark.parametrize("batch", [5, 200])
@pytest.mark.parametrize("memory", [2**20, 400])
def test_a_step_is_cut_into_pieces_that_make_it_up(monkeypatch, sharing, batch, memory):
    monkeypatch.setattr(host, "_POINTS", memory)
    plan = plan_of(
        records=200,
        dim=2,
        **BUDGET,
        bounds=bs.Bounds(clip=1.0),
        horizon=1,
        first_batch=batch,
        directions=2,
        sharing=sharing,
        rounds=1,
    )
    data = np.random.default_rng(0).normal(size=(200, 2))
    query = bs.Optimizer(plan, START, seed=1).ask()
    work = Work(capped_distance_numpy, query.space, False, None)
    tasks = list(host.tasks_of(query, data, work))
    assert np.array_equal(np.concatenate([task.records for task in tasks]), data[query.rows])
    sizes = [task.number for task in tasks]
    assert sizes == sorted(sizes, reverse=True)  # the large ones first
    assert max(sizes) <= 2 * -(-batch // 64)
    assert all(task.points.size <= memory or task.number <= 2 for task in tasks)
    points = [np.broadcast_to(t.points, (t.number, *t.points.shape[1:])) for t in tasks]
    assert np.array_equal(np.concatenate(points).reshape(-1, 2), query.points)


# -- a record that fails -------------------------------------------------------------------------


def spoiled(how):
    """A loss that goes wrong for one record, in one of many ways."""

    def loss(x, z):
        return how() if z[0] == DATA[ONE, 0] else capped_distance_numpy(x, z)

    return loss


def raises(error):
    def fail():
        raise error("the record says 42.4242")

    return fail


WRONG = {
    "raises": raises(ValueError),
    "exits": lambda: exit(1),
    "is cancelled": raises(asyncio.CancelledError),
    "interrupts": raises(KeyboardInterrupt),
    "ends a generator": raises(GeneratorExit),
    "nan": lambda: np.nan,
    "infinite": lambda: -np.inf,
    "nothing": lambda: None,
    "text": lambda: "1.0",
    "array": lambda: np.zeros(3),
    "warns": lambda: np.log(np.full(1, -42.4242)),
    "prints": lambda: print("42.4242", file=sys.__stderr__) or print("42.4242"),
    "warns in Python": lambda: warnings.warn("42.4242", stacklevel=1),
    "logs": lambda: logging.getLogger("a.loss").critical("42.4242"),
}


@pytest.fixture(scope="module")
def void():
    return short(spoiled(lambda: np.nan))


def test_a_record_that_fails_counts_zero_and_nobody_hears_of_it(capfd, caplog, alone, void):
    for name, how in WRONG.items():
        assert same(short(spoiled(how)), void), name
    assert not same(alone, void)
    said = capfd.readouterr()
    assert said.out + said.err + caplog.text == ""


def test_an_interrupt_in_a_thread_is_the_loss_s_own(void):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert same(short(spoiled(raises(KeyboardInterrupt)), executor=pool), void)


def catches():
    """What a loss does while the user presses Ctrl-C, and tries to hide it."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return 0.0


def speaks_over():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the record says 42.4242") from None


@pytest.mark.parametrize("how", [catches, speaks_over])
def test_ctrl_c_ends_the_run_without_the_words_of_a_loss(how):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as stopped:
        short(spoiled(how))
    assert stopped.value.args == (how_to_go_on(None),)
    assert stopped.value.__context__ is None
    assert signal.getsignal(signal.SIGINT) is before


def test_threads_are_silent_until_the_last_is_out(capsys):
    """And streams, filters and logging are as before then."""
    before = (sys.stdout, sys.stderr, warnings.filters[:], logging.root.manager.disable)
    with silence(worker=False):
        with silence(worker=False):
            sys.stdout.close()  # a loss cannot close it for others
        print("42.4242")
        logging.getLogger("a.loss").error("42.4242")
    assert (sys.stdout, sys.stderr, warnings.filters, logging.root.manager.disable) == before
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_a_vectorised_call_that_fails_is_taken_apart():
    """Or one record could void the values of its neighbours."""

    def fragile(x, z):
        if np.any(z[:, 0] == DATA[0, 0]):
            raise ValueError
        return rows(x, z)

    space = ParameterSpace.of(START)
    points = np.random.default_rng(1).normal(size=(10, 4, 2))

    def performed(loss, vectorized=True):
        return perform(Task(Work(loss, space, vectorized, None), points, DATA[:10], 10))

    values, honest = performed(fragile), performed(rows)
    assert np.all(np.isnan(values[0]))
    np.testing.assert_allclose(values[1:], honest[1:], rtol=1e-14)
    for bad in (lambda x, z: 1.0, lambda x, z: None, lambda x, z: np.full(len(x), "a")):
        assert np.all(np.isnan(performed(bad)))
    np.testing.assert_allclose(performed(capped_distance_numpy, False), honest, rtol=1e-14)


# -- workers that die ----------------------------------------------------------------------------


class Dying(concurrent.futures.Executor):
    """An executor that breaks for good at the first task that the record ONE is in, or at any."""

    deaths = 0

    def __init__(self, *, everything=False, times=10**9):
        self.everything, self.times, self.broken = everything, times, False

    def submit(self, function, task):
        future = concurrent.futures.Future()
        doomed = self.everything or (task.number and np.any(task.records[:, 0] == DATA[ONE, 0]))
        if doomed and Dying.deaths < self.times:
            Dying.deaths += 1
            self.broken = True
        if self.broken:
            future.set_exception(concurrent.futures.BrokenExecutor("value 42.4242"))
        else:
            future.set_result(function(task))
        return future


@pytest.mark.parametrize("times", [1, 3])
def test_lost_tasks_are_repeated_on_a_fresh_executor(monkeypatch, times, alone):
    monkeypatch.setattr(Dying, "deaths", 0)
    assert same(short(executor=lambda: Dying(times=times)), alone)
    assert Dying.deaths == times


def test_a_record_that_always_kills_its_worker_counts_zero_alone(void):
    assert same(short(executor=Dying), void)


def gone(function, tasks):
    raise RuntimeError("value 42.4242")


@pytest.mark.parametrize(
    "how",
    [
        {"executor": lambda: Dying(everything=True)},
        {"executor": Dying()},  # broken for good, and no way to make another
        {"map": gone},
    ],
)
def test_an_engine_that_is_gone_is_an_error_that_tells_nothing(how):
    with pytest.raises(bs.errors.EngineLost, match="not released") as caught:
        short(**how)
    assert "42.4" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_arguments_are_checked_before_anything_is_evaluated():
    with pytest.raises(bs.errors.InvalidArgument, match=r"loss\(params, record\)"):
        short(lambda x: 0.0)
    for how, said in (
        ({"executor": Dying(), "map": map}, "not both"),
        ({"timeout": -1.0}, "timeout"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(bs.errors.InvalidArgument, match=said):
            short(**how)
    # A built-in function, whose arguments nobody can see. It fails for everybody.
    assert short(max, rehearse=False).means.shape == (2, 2)


def test_a_lambda_can_be_sent_to_any_worker():
    """By plain pickle, as pools of processes do; and it is one object in all tasks of a worker."""
    space, factor = ParameterSpace.of(START), 3.0
    work = Work(lambda x, z: factor * float(np.sum(np.abs(x - z))), space, False)
    task = Task(work, np.zeros((1, 1, 2)), DATA[:3], 3)
    sent = [pickle.loads(pickle.dumps(task)) for _ in range(2)]
    np.testing.assert_array_equal(perform(sent[0]), perform(task))
    np.testing.assert_allclose(perform(task)[:, 0], 3 * np.abs(DATA[:3]).sum(axis=1))
    assert sent[0].work is sent[1].work


@pytest.mark.slow
def test_a_lambda_in_a_plain_pool_of_processes(alone):
    spawn = multiprocessing.get_context("spawn")
    pool = functools.partial(concurrent.futures.ProcessPoolExecutor, 1, mp_context=spawn)
    loss = lambda x, z: capped_distance_numpy(x, z)  # noqa: E731
    assert same(short(loss, executor=pool), alone)


def test_data_on_disk_and_bars(tmp_path, capfd, alone):
    np.save(tmp_path / "data.npy", DATA)
    on_disk = np.load(tmp_path / "data.npy", mmap_mode="r")
    assert same(run("host", plan=SHORT, data=on_disk, progress=True), alone)
    said = capfd.readouterr()
    steps = SHORT.schedule.releases
    assert f"step {steps}/{steps}: epsilon {round_up(SHORT.epsilon, 4)} of" in said.err


def test_progress_is_seen_while_losses_are_silent(capfd):
    opt = bs.Optimizer(SHORT, START, seed=7)
    with RunProgress(SHORT, show=True) as bar, silence(worker=False):
        opt.shown_by(bar)
    assert f"{SHORT.schedule.releases} steps of" in capfd.readouterr().err


@pytest.mark.parametrize("vectorized", [False, True])
def test_how_much_work_is_reasonable_is_measured_as_the_run_evaluates(tmp_path, vectorized):
    """With a time limit: in processes of their own, which take longer than a quick loss."""
    seen = tmp_path / "processes"

    def told(params, record):
        with open(seen, "a") as file:
            print(os.getpid(), file=file)
        return np.zeros(len(record)) if vectorized else 0.0

    space = ParameterSpace.of(np.zeros(2))
    for timeout, apart in ((None, False), (60.0, True)):
        seen.unlink(missing_ok=True)
        assert (
            host._effort(told, space, DATA, bs.Host(timeout=timeout, vectorized=vectorized))
            >= 2**12
        )
        assert (str(os.getpid()) not in seen.read_text().split()) == apart
