"""What a newcomer gets wrong is answered in words: the argument, what it was, and what helps."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs

DATA = np.random.default_rng(0).normal(size=(200, 2))
PRIVACY = bs.Privacy(epsilon=1, delta=1e-4)
FAST = bs.Auto(evaluations=2**12)


def loss(params, record):
    return jnp.abs(params - record).sum()


def minimize(loss=loss, params=None, data=DATA, privacy=PRIVACY, **rest):
    params = np.zeros(2) if params is None else params
    return bs.minimize(loss, params, data, privacy, **{"method": FAST, **rest})


@pytest.mark.parametrize("evaluate", [None, bs.Host()])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"loss": lambda p: 0.0},
            r"the loss takes \(p\), but it is called as loss\(params, record\)",
        ),
        (
            {"loss": lambda p, r: np.abs(p - r["aeg"]).sum(), "data": {"age": DATA}},
            r"the loss raises KeyError: 'aeg'.*\{age: float64\[2\]\}",
        ),
        ({"params": np.zeros(3)}, "the loss raises .*shapes"),
    ],
)
def test_a_loss_that_cannot_be_called_is_answered_with_what_it_is_called_with(
    given, said, evaluate
):
    with pytest.raises(bs.errors.InvalidArgument, match=said):
        minimize(**given, evaluate=evaluate)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"loss": lambda p, r: jnp.abs(p - r).sum(axis=1)},
            r"params, which are float64\[2\], and with one record at a time, which is float64\[2\]",
        ),
        ({"params": [0.0, 0.0]}, r"give np.array\(params\)"),
        ({"epsilon": 1}, r"no argument 'epsilon': give privacy=Privacy\(epsilon=1, delta=1e-5\)"),
        ({"params": DATA, "data": np.zeros(2)}, "are the two swapped"),
        ({"loss": lambda p, r: jnp.abs(r).sum()}, "does not change with the parameters"),
        ({"method": bs.Auto(evaluations=2**12, passes=8), "progres": True}, "mean 'progress'"),
        ({"callbacks": [1]}, r"callbacks must be a list of functions, such as \[print\]"),
    ],
)
@pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan")
def test_a_wrong_argument_is_answered_with_what_helps(given, said):
    with pytest.raises(bs.errors.InvalidArgument, match=said):
        minimize(**given)


def unchecked(function):
    """A function without the tests' own type checks, as users call it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def test_paths_and_candidates_of_another_kind_are_named():
    from blindstep.ledger.storage import Storage

    with pytest.raises(bs.errors.InvalidArgument, match="checkpoint must be a path, such as 'run'"):
        unchecked(Storage.__post_init__)(_Given(directory=5, ledger=None, budget=None))
    from blindstep.run.tune import _candidates

    with pytest.raises(bs.errors.InvalidArgument, match="candidates must be a list of methods"):
        unchecked(_candidates)(PRIVACY, loss, np.zeros(2), None)


class _Given:
    def __init__(self, **fields):
        vars(self).update(fields)


def test_a_misspelt_budget_is_answered_with_the_nearest_name():
    make = bs.Privacy.__init__
    while make.__code__.co_name != "answering":  # the tests' own type checks stand before it
        make = make.__wrapped__
    with pytest.raises(bs.errors.InvalidArgument, match="did you mean 'epsilon'"):
        make(object.__new__(bs.Privacy), epsilonn=1)


def test_a_million_may_be_written_as_1e6():
    assert bs.Auto(evaluations=1e6) == bs.Auto(evaluations=10**6)
    with pytest.raises(bs.errors.InvalidArgument, match="must be a whole number"):
        bs.Auto(evaluations=1.5)


def test_a_constant_of_numpy_in_float64_is_no_obstacle():
    """It was, with single-precision records: a constant of another dtype than all else."""
    weights = np.array([[1.0, 2.0]])

    def with_constants(params, record):
        return jnp.abs(weights @ (params - record)).sum() * np.float64(0.5)

    for dtype in (np.float32, np.float64):
        found = minimize(with_constants, np.zeros(2, dtype), DATA.astype(dtype))
        assert np.isfinite(found.params).all()


def test_few_records_are_answered_with_the_number_that_it_takes():
    plan = bs.plan(FAST, dim=2, records=9, privacy=bs.Privacy(epsilon=1, delta=1e-2))
    (advice,) = [note for note in plan.notes if "9 records are few" in note]
    with pytest.raises(bs.errors.InvalidArgument, match="How many does it take") as asked:
        bs.plan(FAST, dim=2, privacy=bs.Privacy(epsilon=1, delta=1e-2))
    begins = str(asked.value).split("learning begins at about ")[1].split(" ")[0]
    assert f"learning begins at about {begins}," in advice
    enough = bs.plan(FAST, dim=2, records=1000, privacy=PRIVACY)
    assert not [note for note in enough.notes if "few" in note]


def test_a_range_of_three_is_named_before_anything_is_sent():
    from blindstep.serve import Client

    client, create = Client("http://nowhere.invalid", "no token"), unchecked(Client.create)
    with pytest.raises(ValueError, match=r"the range of 'price' must be \(low, high\), got"):
        create(client, "Prices", {"price": (1, 2, 3)}, people=100, epsilon=1)


def test_what_a_study_is_made_of_is_written_out_and_a_typo_is_answered(monkeypatch):
    from blindstep.serve import Client

    sent = {}

    def call(self, method, path, body, again):
        sent.update(body)
        return {}

    monkeypatch.setattr(Client, "call", call)
    client = Client("http://nowhere.invalid", "no token")
    traffic = {"visitors_per_day": 800, "response_rate": 0.2, "days": 30}
    client.create("Prices", {"price": (1, 2)}, epsilon=1, traffic=traffic, window_seconds=60)
    (price,) = sent.pop("parameters")
    assert price == {"name": "price", "low": 1, "high": 2}
    assert sent == {"name": "Prices", "epsilon": 1, "traffic": traffic, "window_seconds": 60}
    create: Any = client.create
    with pytest.raises(bs.errors.InvalidArgument, match="did you mean 'people'"):
        create("Prices", {"price": (1, 2)}, epsilon=1, poeple=100)


@pytest.mark.parametrize(
    ("provoke", "category"),
    [
        (lambda: minimize(privacy=bs.Privacy(epsilon=1, delta=1e-3)), bs.errors.LargeDelta),
        (lambda: minimize(data=DATA[:3]), bs.errors.HopelessPlan),
        (lambda: minimize(lambda p, r: jnp.nan * p.sum()), bs.errors.LossNotFinite),
    ],
)
@pytest.mark.filterwarnings("always::blindstep.errors.HopelessPlan")
def test_a_warning_stands_once_at_the_line_that_can_be_changed(provoke, category):
    with pytest.warns(category) as told:
        provoke()
    (place,) = {(each.filename, each.lineno) for each in told if each.category is category}
    assert place[0] == __file__


def test_a_report_is_of_a_result():
    from blindstep.insight.report_content import of_result

    with pytest.raises(
        bs.errors.InvalidArgument, match="a report is of the result of a run, got None"
    ):
        unchecked(of_result)(None, "", None, None, None)
