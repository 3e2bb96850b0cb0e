"""Callbacks get what is released and nothing else; one that gives True ends the run with its round."""

import contextlib
import dataclasses
import re
from importlib.util import find_spec

import numpy as np
import pytest
from test_progress import SCALED

import blindstep as bs
from blindstep.ledger.ledger import read_ledger
from blindstep.run.callbacks import Log, Released
from driver_runs import NAIVE_PLAN, run, same

DRIVERS = ("compiled", "host")


@pytest.fixture(scope="module", params=DRIVERS)
def told(request):
    """What a run told, with the run's result and its driver."""
    steps = []
    return steps, run(request.param, plan=SCALED, callbacks=[steps.append]), request.param


def test_every_step_is_told_in_order_with_what_the_result_says_of_it(told):
    steps, result, _ = told
    history, plan = result.history, SCALED
    assert [each.step for each in steps] == [*range(1, plan.schedule.releases + 1)]
    for name in ("gradient_norm", "move_norm", "loss"):
        found = [getattr(each, name) for each in steps]
        np.testing.assert_allclose(found, getattr(history, name).ravel(), rtol=1e-12)
    assert {each.loss_std for each in steps} == {history.loss_std}
    ends = [each for each in steps if each.ends_round]
    assert len(ends) == plan.rounds == ends[-1].round
    for each, mean in zip(ends, result.round_means, strict=True):
        np.testing.assert_allclose(each.params, mean, rtol=1e-12)
    spent = [each.mu for each in steps]
    assert spent == sorted(spent)
    assert spent[-1] < plan.mu  # the comparison with the start comes after the last step
    assert steps[0].epsilon < steps[-1].epsilon <= plan.epsilon
    assert steps[0].numbers().keys() == {"gradient_norm", "move_norm", "loss", "mu", "epsilon"}


def test_a_callback_gets_numbers_that_are_released_and_no_other_field():
    """Whoever adds a field has to say here that it is a function of releases or of the plan."""
    of_the_plan = {"step", "steps", "round", "rounds", "loss_std", "mu", "epsilon"}
    of_releases = {"gradient_norm", "move_norm", "loss", "params"}
    assert {each.name for each in dataclasses.fields(Released)} == of_the_plan | of_releases


def test_callbacks_change_no_bit_of_a_run(told):
    _, result, driver = told
    assert same(result, run(driver, plan=SCALED))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_that_is_stopped_ends_with_its_round_and_spends_what_it_released(driver, tmp_path):
    def at_once(released):
        return released.step == 1  # of the two steps of the first round

    whole = run(driver, plan=NAIVE_PLAN)
    made = {"plan": NAIVE_PLAN, "callbacks": [at_once]}
    stopped = run(driver, tmp_path / "run", **made)
    assert len(stopped.means) == 1 < NAIVE_PLAN.rounds
    np.testing.assert_array_equal(stopped.means, whole.means[:1])
    np.testing.assert_array_equal(stopped.history.gradient_norm, whole.history.gradient_norm[:1])
    assert f"1 of {NAIVE_PLAN.rounds} rounds (ended early)" in str(stopped)
    # When a run stops depends on what it released: the statement stays that of the whole plan.
    assert stopped.privacy == whole.privacy
    spent = read_ledger(tmp_path / "run" / "ledger.jsonl").spent()
    assert 0 < spent < NAIVE_PLAN.mu
    again = run(driver, tmp_path / "run", **made)
    assert same(again, stopped)
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").spent() == spent
    # Without the callback the same call goes on to the end.
    assert same(run(driver, tmp_path / "run", plan=NAIVE_PLAN), whole)


def test_a_run_that_is_stopped_is_compared_with_its_start():
    stopped = run("compiled", plan=SCALED, callbacks=[lambda released: released.ends_round])
    assert stopped.comparison is not None
    assert set(stopped.comparison.rounds) == {0}
    assert len(stopped.means) == len(stopped.history.loss) == 1


def test_a_run_that_goes_on_tells_every_step_again(tmp_path):
    first, second = [], []
    run("host", tmp_path / "run", plan=NAIVE_PLAN, callbacks=[first.append])
    run("host", tmp_path / "run", plan=NAIVE_PLAN, callbacks=[second.append])
    assert first[0].params is None  # no round has ended
    assert [each.numbers() for each in first] == [each.numbers() for each in second]


def falling(*losses, horizon=2, std=0.1):
    """The steps of a run whose rounds have these losses."""
    rounds = len(losses)
    for step in range(1, rounds * horizon + 1):
        loss = losses[(step - 1) // horizon]
        where = {"step": step, "steps": rounds * horizon, "rounds": rounds}
        norms = {"round": 1, "gradient_norm": 1.0, "move_norm": 1.0}
        mu = np.sqrt((step - 1) // horizon + 1)
        yield Released(**where, **norms, loss=loss, loss_std=std, mu=float(mu), epsilon=1.0)


def test_a_run_has_settled_when_its_loss_has_not_fallen_for_some_rounds():
    stop = bs.callbacks.StopWhenSettled(patience=2)
    steps = [*falling(3.0, 2.0, 1.0, 0.95, 0.99, 0.2)]
    assert [stop(each) for each in steps].index(True) == 9  # the end of the fifth round
    assert not any(stop(each) for each in falling(3.0, 2.0, 1.0, 0.5, 0.1))
    assert not any(stop(each) for each in [dataclasses.replace(steps[-1], loss=None)] * 9)


def test_a_run_ends_before_the_round_that_would_spend_too_much():
    stop = bs.callbacks.StopWhenSpent(bs.Privacy(mu=1.8))
    assert [stop(each) for each in falling(1, 1, 1, 1)].index(True) == 5  # sqrt(3) < 1.8 < sqrt(4)


def test_a_log_passes_each_step_on():
    lines = []
    log = bs.callbacks.Log(lambda numbers, step: lines.append((step, numbers["loss"])))
    for each in falling(3.0, 2.0):
        log(each)
    assert lines == [(1, 3.0), (2, 3.0), (3, 2.0), (4, 2.0)]


class FakeMlflow:
    """`mlflow.start_run` and `mlflow.log_metrics` by their documentation, for where MLflow is not.

    Signature and rules are those of mlflow.org/docs/latest/api_reference/python_api/mlflow.html:
    metrics by name, floats alone; names of letters, digits, _ - . / and spaces; a whole step.
    """

    def __init__(self):
        self.stored, self._runs = {}, 0

    @contextlib.contextmanager
    def start_run(self):
        self._runs += 1
        yield
        self._runs -= 1

    def log_metrics(
        self, metrics: dict[str, float], step=None, synchronous=None, run_id=None, timestamp=None
    ):
        assert self._runs == 1
        assert type(step) is int
        for name, value in metrics.items():
            assert re.fullmatch(r"[/\w.\- ]{1,250}", name)
            assert type(value) is float
            self.stored.setdefault(name, []).append((step, value))

    def history(self, name):
        return self.stored[name]


class RealMlflow:
    """MLflow itself, with a file below `folder` for its store."""

    def __init__(self, folder):
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        mlflow.set_experiment("private runs")
        self._mlflow, self.log_metrics = mlflow, mlflow.log_metrics

    @contextlib.contextmanager
    def start_run(self):
        with self._mlflow.start_run() as run:
            self._run = run.info.run_id
            yield

    def history(self, name):
        every = self._mlflow.MlflowClient().get_metric_history(self._run, name)
        return [(each.step, each.value) for each in every]


@pytest.fixture
def mlflow(tmp_path):
    """MLflow where it is installed, else a stand-in that keeps to its documentation."""
    if find_spec("mlflow") is None:
        return FakeMlflow()
    return RealMlflow(tmp_path)


@pytest.mark.filterwarnings("ignore")  # what MLflow's own dependencies say of each other
def test_mlflow_gets_what_was_released(mlflow):
    steps = []
    with mlflow.start_run():
        run("compiled", plan=SCALED, callbacks=[Log(mlflow.log_metrics), steps.append])
    for name in steps[0].numbers():
        found = mlflow.history(name)
        assert [step for step, _ in found] == [each.step for each in steps]
        np.testing.assert_allclose([v for _, v in found], [each.numbers()[name] for each in steps])


def test_what_a_callback_raises_ends_the_run_and_the_run_can_go_on(tmp_path):
    def wrong(released):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run("host", tmp_path / "run", plan=NAIVE_PLAN, callbacks=[wrong])
    assert same(run("host", tmp_path / "run", plan=NAIVE_PLAN), run("host", plan=NAIVE_PLAN))
