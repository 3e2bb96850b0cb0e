"""The host driver: NumPy losses through any map or executor; a record that fails fails alone."""

import concurrent.futures
import random
import time

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import host
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.drivers.tasks import Task, Work, perform
from losses import capped_distance

DATA = np.random.default_rng(0).normal(size=(60, 3))
ONE = int(np.argmin(np.linalg.norm(DATA[:50], axis=1)))  # its loss is not flat at the start
BUDGET = {"privacy": bs.Privacy(rho=1.0), "radius": 0.5}
OWN = {
    **BUDGET,
    "bounds": bs.Lipschitz(1.0) & bs.Clip(1.0, 0.5),
    "horizon": 2,
    "period": 2,
    "first_batch": 7,
    "diff_batch": 3,
    "directions": 2,
    "sharing": "record",
    "epochs": 2,
}
SHARED = {
    **BUDGET,
    "bounds": bs.Clip(1.0),
    "horizon": 2,
    "first_batch": 7,
    "directions": 2,
    "sharing": "block",
    "epochs": 2,
}
PLANS = {"own": OWN, "shared": SHARED}
START = np.zeros(3)


def plain(x, z):
    return min(float(np.sqrt(np.sum((x - z) ** 2))), 1.5)


def rows(x, z):
    return np.minimum(np.sqrt(np.sum((x - z) ** 2, axis=-1)), 1.5)


def run(loss=plain, data=DATA, plan="own", **how):
    return host.minimize(loss, START, data, **PLANS[plan], seed=1, **how)


@pytest.mark.parametrize("plan", PLANS)
def test_the_iterates_are_those_of_the_compiled_driver(plan):
    compiled = bs.minimize(capped_distance, jnp.zeros(3), DATA, **PLANS[plan], seed=1)
    assert np.any(compiled.means != 0)
    for result in (run(plan=plan), run(rows, plan=plan, vectorized=True)):
        np.testing.assert_allclose(result.means, compiled.means, rtol=0, atol=1e-12)
        assert result.privacy == compiled.privacy


def test_pytrees_of_parameters_and_records():
    start = {"w": np.zeros((2, 1), np.float32), "b": np.zeros(())}
    data = {"x": DATA[:, :2].astype(np.float32), "y": DATA[:, 2]}

    def one(p, r):
        assert p["w"].shape == (2, 1)
        assert r["x"].shape == (2,)
        return abs(float((r["x"] @ p["w"])[0]) + p["b"] - r["y"])

    def many(p, r):
        assert p["w"].shape[1:] == (2, 1)
        return np.abs(np.einsum("ni,nij->n", r["x"], p["w"]) + p["b"] - r["y"])

    a = bs.host.minimize(one, start, data, **OWN, seed=1)
    b = bs.host.minimize(many, start, data, **OWN, seed=1, vectorized=True)
    np.testing.assert_allclose(a.means, b.means, rtol=0, atol=1e-6)  # float32 parameters
    assert a.params["w"].dtype == np.float32
    assert np.any(a.means != 0)


def test_any_map_and_any_executor_in_any_order():
    def shuffled(function, tasks):
        answers = [None] * len(tasks)
        for place in random.Random(3).sample(range(len(tasks)), len(tasks)):
            answers[place] = function(tasks[place])
        return answers

    alone = run()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        ways = [
            {"map": shuffled},
            {"map": pool.map},
            {"executor": pool},
            {"executor": lambda: concurrent.futures.ThreadPoolExecutor(2)},
            {"timeout": 60.0},
        ]
        for way in ways:
            np.testing.assert_array_equal(run(**way).means, alone.means)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("batch", [5, 200])
@pytest.mark.parametrize("memory", [2**20, 400])
def test_a_step_is_cut_into_pieces_that_make_it_up(monkeypatch, plan, batch, memory):
    monkeypatch.setattr(host, "_POINTS", memory)
    choices = {**PLANS[plan], "first_batch": batch, "epochs": 1}
    data = np.random.default_rng(0).normal(size=(5000, 3))
    query = bs.Optimizer(bs.plan(records=5000, dim=3, **choices), START, seed=1).ask()
    tasks = list(host.tasks_of(query, data, Work(plain, query.space, False, None)))
    assert np.array_equal(np.concatenate([task.records for task in tasks]), data[query.rows])
    sizes = [task.number for task in tasks]
    assert sizes == sorted(sizes, reverse=True)  # the large ones first
    assert max(sizes) <= 2 * -(-batch // 64)
    assert all(task.points.size <= memory or task.number <= 2 for task in tasks)
    points = [np.broadcast_to(t.points, (t.number, *t.points.shape[1:])) for t in tasks]
    assert np.array_equal(np.concatenate(points).reshape(-1, 3), query.points)


def spoiled(how):
    """A loss that goes wrong for one record, in one of many ways."""

    def loss(x, z):
        if z[0] == DATA[ONE, 0]:
            return how()
        return plain(x, z)

    return loss


def fails():
    raise ValueError("the record says 42.4242")


WRONG = {
    "raises": fails,
    "exits": lambda: exit(1),
    "nan": lambda: np.nan,
    "infinite": lambda: -np.inf,
    "nothing": lambda: None,
    "text": lambda: "1.0",
    "array": lambda: np.zeros(3),
    "late": lambda: time.sleep(2.0) or 0.0,
}


def everybody():
    """A plan in which record ONE certainly answers: two steps of 30 take all 60."""
    return {**SHARED, "first_batch": 30, "epochs": 1, "horizon": 2}


def test_a_record_that_fails_counts_zero_and_nobody_hears_of_it(capfd, caplog):
    results = {}
    for name, how in WRONG.items():
        limit = 0.2 if name == "late" else None
        results[name] = host.minimize(
            spoiled(how), START, DATA, **everybody(), seed=1, timeout=limit
        )
    for result in results.values():
        np.testing.assert_array_equal(result.means, results["nan"].means)
    healthy = host.minimize(plain, START, DATA, **everybody(), seed=1)
    assert np.any(healthy.means != results["nan"].means)
    said = capfd.readouterr()
    assert "42.4" not in said.out + said.err + caplog.text
    assert not said.err


def test_a_vectorised_call_that_fails_is_taken_apart():
    """Or one record could void the values of its neighbours: more than its sensitivity."""

    def fragile(x, z):
        if np.any(z[:, 0] == DATA[ONE, 0]):
            raise ValueError
        return rows(x, z)

    space = ParameterSpace.of(START)
    points = np.random.default_rng(1).normal(size=(10, 4, 3))
    task = Task(Work(fragile, space, True, None), points, DATA[ONE : ONE + 10], 10)
    whole = Task(Work(rows, space, True, None), points, DATA[ONE : ONE + 10], 10)
    values, honest = perform(task), perform(whole)
    assert np.all(np.isnan(values[0]))
    np.testing.assert_allclose(values[1:], honest[1:], rtol=1e-14)

    for bad in (lambda x, z: 1.0, lambda x, z: None, lambda x, z: np.full(len(x), "a")):
        assert np.all(
            np.isnan(perform(Task(Work(bad, space, True, None), points, DATA[ONE : ONE + 10], 10)))
        )
    single = perform(Task(Work(plain, space, False, None), points, DATA[ONE : ONE + 10], 10))
    np.testing.assert_allclose(single, honest, rtol=1e-14)


class Dying(concurrent.futures.Executor):
    """An executor that breaks for good at the first task that the record ONE is in, or at any."""

    def __init__(self, *, everything=False, times=10**9):
        self.everything, self.times, self.broken = everything, times, False

    def submit(self, function, task):
        future = concurrent.futures.Future()
        doomed = self.everything or (task.number and np.any(task.records[:, 0] == DATA[ONE, 0]))
        if doomed and DEATHS[0] < self.times:
            DEATHS[0] += 1
            self.broken = True
        if self.broken:
            future.set_exception(concurrent.futures.BrokenExecutor("value 42.4242"))
        else:
            future.set_result(function(task))
        return future


DEATHS = [0]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_lost_tasks_are_repeated_on_a_fresh_executor(times):
    DEATHS[0] = 0
    result = host.minimize(
        plain, START, DATA, **everybody(), seed=1, executor=lambda: Dying(times=times)
    )
    assert DEATHS[0] == times
    healthy = host.minimize(plain, START, DATA, **everybody(), seed=1)
    np.testing.assert_array_equal(result.means, healthy.means)


def test_a_record_that_always_kills_its_worker_counts_zero_alone():
    result = host.minimize(plain, START, DATA, **everybody(), seed=1, executor=Dying)
    void = host.minimize(spoiled(lambda: np.nan), START, DATA, **everybody(), seed=1)
    np.testing.assert_array_equal(result.means, void.means)


def test_an_engine_that_is_gone_is_an_error_that_tells_nothing():
    def gone(function, tasks):
        raise RuntimeError("value 42.4242")

    for how in (
        {"executor": lambda: Dying(everything=True)},
        {"executor": Dying()},  # broken for good, and no way to make another
        {"map": gone},
    ):
        DEATHS[0] = 0
        with pytest.raises(host.EngineLost, match="not released") as caught:
            host.minimize(plain, START, DATA, **everybody(), seed=1, **how)
        assert "42.4" not in str(caught.value)
        assert caught.value.__suppress_context__


def test_arguments_are_checked_before_anything_is_evaluated():
    with pytest.raises(bs.InvalidArgument, match=r"loss\(params, record\)"):
        run(lambda x: 0.0)
    for how, said in (
        ({"executor": Dying(), "map": map}, "not both"),
        ({"timeout": -1.0}, "timeout"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(bs.InvalidArgument, match=said):
            host.minimize(plain, START, DATA, **{**OWN, **how})
    with pytest.raises(bs.InvalidArgument, match="privacy and radius"):
        host.minimize(plain, START, DATA)
    plan = bs.plan(records=60, dim=3, **OWN)
    with pytest.raises(bs.InvalidArgument, match="not both"):
        host.minimize(plain, START, DATA, plan=plan, radius=0.5)
    with pytest.raises(bs.InvalidArgument, match="plan again"):
        host.minimize(plain, START, DATA[:50], plan=plan)
    assert host.minimize(max, np.zeros(3), DATA, plan=plan, progress=False).means.shape == (2, 3)


def test_data_on_disk_and_bars(tmp_path, capfd):
    np.save(tmp_path / "data.npy", DATA)
    on_disk = np.load(tmp_path / "data.npy", mmap_mode="r")
    np.testing.assert_array_equal(run(data=on_disk).means, run().means)
    run(progress=True)
    assert "epsilon" in capfd.readouterr().err
