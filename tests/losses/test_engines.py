"""Real engines, with several numbers of workers, and with a worker killed in the middle of a step.

The losses are made inside functions, so that they travel by value: workers need not know this file.
"""

import logging
import os
import signal
import warnings

import numpy as np
import pytest

import attack
import blindstep as bs
from blindstep.ledger.ledger import read_ledger
from driver_runs import DATA, SHORT, run, same


def make_loss(kill=None, row=None):
    """A distance; with `kill`, the worker that first gets `row` dies there, leaving its number."""
    victim = None if row is None else DATA[row]

    def loss(x, z):
        if kill is not None and np.array_equal(z, victim):
            try:
                with open(kill, "x") as file:
                    file.write(str(os.getpid()))
                    file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return min(float(np.sqrt(np.sum((x - z) ** 2))), 1.5)

    return loss


def through(loss=None, **options):
    return run("host", plan=SHORT, data=DATA, loss=loss or make_loss(), **options)


@pytest.fixture(scope="module")
def alone():
    return through()


def in_the_middle():
    """A record in the second step's batch: who answers when is public."""
    opt = bs.Optimizer(SHORT, np.zeros(2), seed=7)
    opt.tell(opt.ask(), np.zeros(len(opt.ask())))
    return int(opt.ask().rows[1])


def check_killed(tmp_path, alone, **engine):
    """One worker dies: the same bits, and nothing is charged twice."""
    kill = str(tmp_path / "killed")
    loss = make_loss(kill, in_the_middle())
    result = through(loss, checkpoint=tmp_path / "run", **engine)
    with open(kill) as file:
        assert int(file.read()) != os.getpid()  # a worker really died
    assert same(result, alone)
    account = read_ledger(tmp_path / "run" / "ledger.jsonl")
    ((told,), entries) = account.runs.values(), (tmp_path / "run" / "ledger.jsonl").read_text()
    assert told.next_step == entries.count('"kind":"intent"') == SHORT.schedule.releases
    assert len(told.charges) == 1
    assert account.spent() == result.privacy.mu == SHORT.mu


# -- local processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_loky_with_a_killed_worker(tmp_path, alone, workers):
    from loky import get_reusable_executor

    check_killed(tmp_path, alone, executor=lambda: get_reusable_executor(max_workers=workers))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_loky(alone, workers):
    from loky import get_reusable_executor

    assert same(through(executor=lambda: get_reusable_executor(max_workers=workers)), alone)


@pytest.mark.slow
def test_joblib_with_a_killed_worker(tmp_path, alone):
    from joblib import Parallel, delayed

    def joblib_map(function, items):
        return Parallel(n_jobs=2)(delayed(function)(item) for item in items)

    check_killed(tmp_path, alone, map=joblib_map)


# -- Dask -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


@pytest.mark.slow
def test_dask_with_one_worker(client, alone):
    some = list(client.scheduler_info(n_workers=-1)["workers"])[:1]
    assert same(through(executor=client.get_executor(workers=some)), alone)


@pytest.mark.slow
def test_dask_with_a_killed_worker(client, tmp_path, alone):
    check_killed(tmp_path, alone, executor=client.get_executor())


@pytest.mark.slow
def test_no_record_reaches_another_on_dask(client):
    attack.check(executor=client.get_executor())


@pytest.mark.slow
def test_a_record_that_kills_dask_s_workers_counts_zero_alone(client):
    attack.check(["exits"], None, (19,), executor=client.get_executor())


# -- Ray ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray():
    with warnings.catch_warnings():
        # Ray starts its servers by fork and exec, which JAX warns of; only a fork that stays could
        # deadlock. And it announces a change to its environment variables.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        warnings.filterwarnings("ignore", ".*accelerator", FutureWarning)
        import ray

        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            object_store_memory=100 * 2**20,
        )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ray(ray, alone, workers):
    from ray.util.multiprocessing import Pool

    with Pool(workers) as pool:
        assert same(through(map=pool.map), alone)


@pytest.mark.slow
def test_ray_with_a_killed_worker(ray, tmp_path, alone):
    check_killed(tmp_path, alone, map=bs.Host.ray)


@pytest.mark.slow
def test_no_record_reaches_another_on_ray(ray):
    attack.check(map=bs.Host.ray)


@pytest.mark.slow
def test_a_record_that_kills_ray_s_workers_counts_zero_alone(ray):
    attack.check(["exits", "interrupts"], None, (19,), map=bs.Host.ray)


@pytest.mark.slow
def test_a_loss_that_ray_s_workers_cannot_load_is_refused(ray):
    class Unloadable:
        def __reduce__(self):
            return int, ("no number",)

        def __call__(self, x, z):
            return 0.0

    with pytest.raises(bs.errors.InvalidArgument, match=r"fresh process \(ValueError\)"):
        through(Unloadable(), map=bs.Host.ray, timeout=60.0)
