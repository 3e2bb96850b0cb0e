"""No record reaches another: hostile neighbours with a time limit, and what a limit refuses."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest

import attack
import blindstep as bs
from blindstep.losses import isolation, isolation_worker
from blindstep.losses.engines import Engine, Task, Work, perform
from blindstep.losses.pytrees import ParameterSpace
from blindstep.losses.silence import silence
from driver_runs import DATA, SHORT, run, same
from losses import capped_distance_numpy

START = np.zeros(2)
POINTS = np.random.default_rng(1).normal(size=(10, 4, 2))


@pytest.fixture(autouse=True)
def _no_supervisor_stays():
    yield
    isolation.dismiss()


@pytest.fixture(scope="module")
def pool():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as made:
        yield made


def apart(loss, data=DATA[:10], points=POINTS, *, vectorized=False, timeout=60.0):
    """The values of ten records, each from a process of its own."""
    space = ParameterSpace.of(START)
    sealed = isolation.seal(loss, START, data[:0])
    return perform(Task(Work(sealed, space, vectorized, timeout), points, data, len(data)))


def together(loss):
    return perform(Task(Work(loss, ParameterSpace.of(START), False), POINTS, DATA[:10], 10))


# -- the attack -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_record_reaches_another_in_a_process_pool(pool, capfd):
    attack.check(executor=pool)
    said = capfd.readouterr()
    assert said.out + said.err == ""


@pytest.mark.slow
def test_no_record_reaches_another_in_the_run_s_own_process(capfd):
    attack.check(["grips", "exits", "interrupts", "meddles"])
    said = capfd.readouterr()
    assert said.out + said.err == ""


@pytest.mark.slow
def test_no_record_reaches_another_on_loky():
    from loky import get_reusable_executor

    attack.check(executor=lambda: get_reusable_executor(max_workers=2))


@pytest.mark.slow
def test_a_given_pool_that_breaks_is_replaced_and_the_record_counts_zero():
    """Without a time limit a crash takes the pool's worker down, and with it the pool."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as broken:
        attack.check(["exits", "interrupts"], None, (19,), attack.ByName(), executor=broken)


def test_a_pool_that_was_shut_down_is_not_replaced():
    with concurrent.futures.ProcessPoolExecutor(1) as closed:
        pass
    with pytest.raises(bs.errors.EngineLost):
        Engine(bs.Host(closed)).perform(attack.tasks(attack.records(), None))


@pytest.mark.slow
def test_a_run_is_that_without_the_record(pool):
    victim = DATA[3, 0]

    def dies(x, z):
        return os._exit(1) if z[0] == victim else capped_distance_numpy(x, z)

    def silent(x, z):
        return np.nan if z[0] == victim else capped_distance_numpy(x, z)

    expected = run("host", plan=SHORT, data=DATA, loss=silent)
    assert same(
        run("host", plan=SHORT, data=DATA, loss=dies, executor=pool, timeout=60.0), expected
    )
    assert not same(run("host", plan=SHORT, data=DATA, timeout=60.0), expected)


# -- the supervisor -----------------------------------------------------------------------------------


def spoiled(how):
    victim = DATA[4, 0]

    def loss(x, z):
        if z[0] == victim:
            how()
        return float(np.sum((x - z) ** 2))

    return loss


def test_a_late_call_has_no_value_and_nor_have_those_after_it():
    calls = []

    def second_is_late():
        calls.append(1)
        if len(calls) == 2:
            time.sleep(3)

    values = apart(spoiled(second_is_late), timeout=1.0)
    expected = together(spoiled(lambda: None))
    expected[4, 1:] = np.nan
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.slow
def test_a_record_that_takes_the_supervisor_down_counts_zero_alone(monkeypatch, number):
    monkeypatch.setattr(isolation, "_PATIENCE", 0.5)
    monkeypatch.setattr(isolation_worker, "_PATIENCE", 0.1)
    values = apart(spoiled(lambda: os.kill(os.getppid(), number)), timeout=0.5)
    expected = together(spoiled(lambda: None))
    expected[4] = np.nan
    np.testing.assert_array_equal(values, expected)


def test_a_supervisor_that_dies_once_costs_nobody_a_value(tmp_path):
    once = str(tmp_path / "once")

    def dies():
        if not os.path.exists(once):
            os.mkdir(once)
            os.kill(os.getppid(), signal.SIGKILL)

    assert np.array_equal(apart(spoiled(dies)), together(spoiled(lambda: None)))


def test_what_a_record_leaves_behind_is_gone_when_it_is_answered(tmp_path):
    left = str(tmp_path / "left")

    def leaves():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open(left, "a") as file:
                    file.write(f"{os.getpid()} ")
                signal.pause()
            os._exit(0)
        os.wait()
        while not os.path.exists(left):
            pass

    values = apart(spoiled(leaves))
    assert np.all(np.isfinite(values))
    with open(left) as file:
        pids = [int(pid) for pid in file.read().split()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_cells_draw_random_numbers_of_their_own():
    def draws(x, z):
        return np.random.random()  # noqa: NPY002

    assert len(np.unique(apart(draws)[:, 0])) == 10


def test_a_loss_remembers_nothing_from_record_to_record():
    seen = []

    def remembers(x, z):
        seen.append(1)
        return len(seen)

    assert np.array_equal(apart(remembers), np.tile([1.0, 2.0, 3.0, 4.0], (10, 1)))


def test_a_vectorised_loss_is_called_for_one_record_at_a_time():
    def rows(x, z):
        assert len(x) == len(z) == 4
        assert np.all(z == z[0])
        return np.sum((x - z) ** 2, axis=-1)

    assert np.array_equal(apart(rows, vectorized=True), together(spoiled(lambda: None)))
    for bad in (lambda x, z: 1.0, lambda x, z: None, lambda x, z: np.full(len(x), "a")):
        assert np.all(np.isnan(apart(bad, vectorized=True)))


def test_points_that_all_share_and_parameters_of_any_shape():
    def loss(p, z):
        return abs(float(p["w"][0] * z["a"] + p["b"] - z["b"]))

    space = ParameterSpace.of({"w": np.zeros(1, np.float32), "b": np.zeros(())})
    data = {"a": DATA[:10, 0], "b": DATA[:10, 1]}
    sealed = isolation.seal(loss, space.unflatten(START), {"a": DATA[:0, 0], "b": DATA[:0, 1]})
    one, two = (
        perform(Task(Work(how, space, False, limit), POINTS[:1], data, 10))
        for how, limit in ((sealed, 60.0), (loss, None))
    )
    assert np.array_equal(one, two)


def test_memory_of_a_cell_is_a_fair_share_of_what_there_is():
    def limits(x, z):
        import resource

        with open("/proc/self/oom_score_adj") as file:
            first_to_go = file.read().strip() == "1000"
        return resource.getrlimit(resource.RLIMIT_DATA)[0] if first_to_go else None

    share = isolation_worker._memory() // (len(os.sched_getaffinity(0)) + 1)
    found = apart(limits)
    assert np.all((share <= found) & (found < share + 2**31))  # and what the supervisor itself has


def test_the_user_s_interrupt_ends_a_run_with_a_limit_and_its_supervisor():
    main = threading.main_thread().ident

    def sleeps(x, z):
        import time

        time.sleep(60)

    timer = threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        apart(sleeps)
    timer.join()
    assert isolation._local.supervisor is None


def test_a_worker_s_output_is_silent_in_any_language(capfd):
    import ctypes

    with silence(worker=True):
        os.write(1, b"42.4242")
        os.write(2, b"42.4242")
        ctypes.CDLL(None).printf(b"42.4242")
    os.write(1, b"heard")
    said = capfd.readouterr()
    assert said.out == "heard"
    assert said.err == ""


# -- what is refused, before anything is charged --------------------------------------------------


def refused(tmp_path, said, loss=capped_distance_numpy, **how):
    with pytest.raises(bs.errors.InvalidArgument, match=said):
        run("host", tmp_path / "run", plan=SHORT, data=DATA, loss=loss, timeout=60.0, **how)
    assert not (tmp_path / "run").exists()


def joblib_threads(function, items):
    from joblib import Parallel, delayed

    return Parallel(n_jobs=2, backend="threading")(delayed(function)(item) for item in items)


def test_a_time_limit_with_threads_is_refused(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(2) as threads, ThreadPool(2) as others:
        for how in (
            {"executor": threads},
            {"executor": lambda: concurrent.futures.ThreadPoolExecutor(2)},
            {"map": threads.map},
            {"map": others.map},
            {"map": joblib_threads},
        ):
            refused(tmp_path, "share one interpreter", **how)


def test_a_time_limit_without_fork_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fork")
    refused(tmp_path, "leave `timeout` out")


def test_a_loss_that_cannot_be_sent_is_refused(tmp_path):
    lock = threading.Lock()

    def locked(x, z):
        with lock:
            return 0.0

    refused(tmp_path, "TypeError.*inside the loss", loss=locked)


class Unloadable:
    """Cannot be made again anywhere else."""

    def __call__(self, x, z):
        return 0.0

    def __reduce__(self):
        return int, ("no number",)


def test_a_loss_that_cannot_be_loaded_is_refused(tmp_path, pool):
    for how in ({}, {"executor": pool}):
        refused(
            tmp_path, "ValueError.*fresh process|fresh process.*ValueError", Unloadable(), **how
        )
