"""Real engines, with 1, 2 and 4 workers, and with a worker killed in the middle of a step.

The losses are made inside functions, so that they travel by value: workers need not know this file.
"""

import functools
import logging
import os
import signal
import warnings

import numpy as np
import pytest
from joblib import Parallel, delayed
from loky import get_reusable_executor

import blindstep as bs
from blindstep.drivers import host
from blindstep.trusted.ledger import read_ledger

DATA = np.random.default_rng(0).normal(size=(64, 3))
START = np.zeros(3)
WORKERS = (1, 2, 4)


@functools.cache
def make_plan():
    return bs.plan(
        records=64,
        dim=3,
        privacy=bs.Privacy(rho=1.0),
        radius=0.5,
        bounds=bs.Lipschitz(1.0) & bs.Clip(1.0, 0.5),
        horizon=4,
        period=2,
        first_batch=10,
        diff_batch=6,
        directions=2,
        sharing="record",
        epochs=2,
    )


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


@functools.cache
def alone():
    return host.minimize(make_loss(), START, DATA, plan=make_plan(), seed=1)


def in_the_middle():
    """A record in the middle of the second step's batch: who answers when is public."""
    opt = bs.Optimizer(make_plan(), START, seed=1)
    opt.tell(opt.ask(), np.zeros(len(opt.ask())))
    return int(opt.ask().rows[3])


def check_through(**engine):
    result = host.minimize(make_loss(), START, DATA, plan=make_plan(), seed=1, **engine)
    np.testing.assert_array_equal(result.means, alone().means)


def check_killed(tmp_path, **engine):
    kill = str(tmp_path / "killed")
    loss = make_loss(kill, in_the_middle())
    result = host.minimize(
        loss, START, DATA, plan=make_plan(), seed=1, checkpoint=tmp_path / "run", **engine
    )
    with open(kill) as file:
        assert int(file.read()) != os.getpid()  # a worker really died
    np.testing.assert_array_equal(result.means, alone().means)
    # Nothing was charged twice: each planned step was begun once, at the planned price.
    account = read_ledger(tmp_path / "run" / "ledger.jsonl")
    ((run,), entries) = account.runs.values(), (tmp_path / "run" / "ledger.jsonl").read_text()
    assert run.next_step == entries.count('"kind":"intent"') == 2 * 4
    assert len(run.charges) == run.identity.passes
    assert account.spent() == result.privacy.mu == make_plan().mu
    assert result.privacy == alone().privacy


# -- local processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_loky(workers):
    check_through(executor=lambda: get_reusable_executor(max_workers=workers))


def test_loky_with_a_killed_worker(tmp_path):
    check_killed(tmp_path, executor=lambda: get_reusable_executor(max_workers=2))


def joblib_map(function, items):
    return Parallel(n_jobs=2)(delayed(function)(item) for item in items)


def test_joblib_with_a_killed_worker(tmp_path):
    check_killed(tmp_path, map=joblib_map)


# -- Dask -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


@pytest.mark.parametrize("workers", WORKERS)
def test_dask(client, workers):
    some = list(client.scheduler_info(n_workers=-1)["workers"])[:workers]
    assert len(some) == workers
    check_through(executor=client.get_executor(workers=some))


def test_dask_with_a_killed_worker(client, tmp_path):
    check_killed(tmp_path, executor=client.get_executor())


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
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            object_store_memory=100 * 2**20,
        )
    yield ray
    ray.shutdown()


@pytest.mark.parametrize("workers", WORKERS)
def test_ray(ray, workers):
    from ray.util.multiprocessing import Pool

    with Pool(workers) as pool:
        check_through(map=pool.map)


def test_ray_with_a_killed_worker(ray, tmp_path):
    check_killed(tmp_path, map=host.ray_map)
