"""The problems of `benchmarks.utility`: seven on public data; the votes are in `utility_votes`.

Features are scaled by constants that anybody can write down without looking at a record: category
lists from the data sets' descriptions, round numbers for ages, balances and frequencies. The digits'
principal axes and the centre of the 0/1 problem's features count as public preprocessing, equally for
every method (`benchmarks.data`, `benchmarks.problems`).

All scores are *points*, higher is better: 100 times the accuracy, or for the regression
100 (1 - MAE / MAE of the best constant).
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from benchmarks import problems
from benchmarks.data import Records, Split
from benchmarks.problems import Loss, Problem
from blindstep.errors import InvalidArgument

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
_TEST = _VALIDATION = 0.2

_CATEGORIES = {
    "job": (
        "admin. blue-collar entrepreneur housemaid management retired self-employed services student "
        "technician unemployed unknown"
    ),
    "marital": "divorced married single",
    "education": "primary secondary tertiary unknown",
    "default": "no yes",
    "housing": "no yes",
    "loan": "no yes",
    "contact": "cellular telephone unknown",
    "month": "jan feb mar apr may jun jul aug sep oct nov dec",
    "poutcome": "failure other success unknown",
}


@dataclasses.dataclass(frozen=True)
class Units:
    """Other units for the same problem: each factor multiplies what it names.

    Attributes:
        features: of the records' features.
        loss: of the loss.
        parameters: f'(p) = f(parameters p), started at start / parameters.
    """

    features: float = 1.0
    loss: float = 1.0
    parameters: float = 1.0


UNITS = {
    "original": Units(),
    "features x 100": Units(features=100.0),
    "loss x 1000": Units(loss=1000.0),
    "parameters x 0.01": Units(parameters=0.01),
}


# Reading: `bank.csv` and `spambase.csv`.


def _existing(name: str) -> Path:
    path = FOLDER / name
    if not path.is_file():
        raise InvalidArgument(f"{path} is not there: put the public data set {name} into {FOLDER}.")
    return path


@functools.cache
def bank_table() -> tuple[Float[np.ndarray, "rows columns"], np.ndarray, np.ndarray]:
    """Features, whether a deposit was made, and age / 10, of the bank marketing records.

    Categories become 0/1 columns. `duration`, the length of the call, is left out: it is known only
    when the answer is. The last seven columns are age, balance, day, campaign, whether there was an
    earlier contact, previous contacts, and 1.
    """
    with _existing("bank.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    columns = []
    for name, listed in _CATEGORIES.items():
        known = listed.split()
        codes = np.array([known.index(row[name]) for row in rows])
        columns.append(np.eye(len(known))[codes] if len(known) > 2 else codes[:, None])

    def number(name: str) -> Float[np.ndarray, " rows"]:
        return np.array([float(row[name]) for row in rows])

    columns += [
        column[:, None]
        for column in (
            number("age") / 50 - 1,
            np.clip(number("balance") / 2000, -2, 5),
            number("day") / 31,
            np.minimum(number("campaign"), 10) / 10,
            number("pdays") > 0,
            np.minimum(number("previous"), 10) / 5,
            np.ones(len(rows)),
        )
    ]
    label = np.array([row["y"] == "yes" for row in rows], np.int32)
    age = (number("age") / 10).astype(np.float32)
    return np.concatenate(columns, axis=1).astype(np.float32), label, age


@functools.cache
def spam_table() -> tuple[Float[np.ndarray, "rows columns"], np.ndarray]:
    """Features and label of spambase: frequencies cut at 5 and 2 percent, logarithms of lengths, 1."""
    rows = np.loadtxt(_existing("spambase.csv"), delimiter=",", skiprows=1)
    words, marks, lengths = rows[:, :48], rows[:, 48:54], rows[:, 54:57]
    ones = np.ones((len(rows), 1))
    columns = [np.minimum(words, 5), np.minimum(marks, 2), np.log10(1 + lengths), ones]
    return np.concatenate(columns, axis=1).astype(np.float32), rows[:, -1].astype(np.int32)


def split_table(features: np.ndarray, label: np.ndarray) -> Split:
    """A fixed random order; the first fifth is test, a fifth of the rest is validation."""
    order = np.random.default_rng(0).permutation(len(features))
    test = int(len(order) * _TEST)
    fit = test + int((len(order) - test) * _VALIDATION)

    def rows(which: np.ndarray) -> Records:
        return {"features": features[which], "label": label[which]}

    return Split(
        fit=rows(order[fit:]),
        validation=rows(order[test:fit]),
        train=rows(order[test:]),
        test=rows(order[:test]),
    )


# Losses and scores.


def logistic(params: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
    """log(1 + exp(-y <a, x>)) with y = -1 or +1."""
    return jax.nn.softplus(-problems.margin(params, record))


def absolute(params: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
    """|<a, x> - target|."""
    return jnp.abs(record["features"] @ params - record["label"])


def network_start(inputs: int, classes: int) -> Callable[[int], PyTree]:
    """The digits' start, for other numbers of inputs and for at most 10 classes."""

    def start(seed: int) -> PyTree:
        made = problems.network_start(seed, inputs)
        return {
            **made,
            "second": made["second"][:, :classes],
            "second_bias": np.zeros(classes, "f4"),
        }

    return start


def absolute_points(params: Float[Array, " dim"], records: Records) -> float:
    """100 (1 - MAE / MAE of the best constant), the best constant being the records' own median."""
    target = records["label"].astype(np.float64)
    guess = records["features"].astype(np.float64) @ np.asarray(params, np.float64)
    constant = np.mean(np.abs(target - np.median(target)))
    return float(100.0 * (1.0 - np.mean(np.abs(guess - target)) / constant))


# The problems.


def _problem(
    name: str,
    loss: Loss,
    start: Callable[[int], PyTree],
    score: Callable[[Any, Records], float],
    split: Split,
) -> Problem:
    return Problem(name, loss, loss, start, score, split)


def _bank_logistic() -> Problem:
    features, label, _ = bank_table()
    start = problems.zeros(features.shape[1])
    return _problem("bank", logistic, start, problems.linear_points, split_table(features, label))


def _bank_network() -> Problem:
    features, label, _ = bank_table()
    start = network_start(features.shape[1], 2)
    split = split_table(features, label)
    return _problem("bank network", problems.cross_entropy, start, problems.network_points, split)


def _bank_age() -> Problem:
    """Age / 10 by all other columns, without the label."""
    features, _, age = bank_table()
    others = np.delete(features, features.shape[1] - 7, axis=1)
    start = problems.zeros(others.shape[1])
    return _problem("bank age", absolute, start, absolute_points, split_table(others, age))


def _spam() -> Problem:
    features, label = spam_table()
    start = problems.zeros(features.shape[1])
    return _problem("spam", logistic, start, problems.linear_points, split_table(features, label))


_MAKERS: dict[str, Callable[[], Problem]] = {
    "a9a": lambda: problems.a9a(FOLDER),
    "a9a 0/1": lambda: problems.zero_one(FOLDER),
    "digits": problems.digits,
    "bank": _bank_logistic,
    "bank network": _bank_network,
    "bank age": _bank_age,
    "spam": _spam,
}
NAMES = tuple(_MAKERS)


@functools.cache
def made(name: str) -> Problem:
    """The problem of this name, in its own units; the same object each time, so it compiles once."""
    return _MAKERS[name]()


def in_units(problem: Problem, units: Units) -> Problem:
    """The same problem with features, loss and parameters in other units; scores stay points.

    What multiplies the features starts smaller by as much as they are larger: a network that started
    from the same numbers would be another network, with outputs 100 times as large.
    """

    def inside(params: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: units.parameters * leaf, params)

    def records(given: Records) -> Records:
        scaled = (units.features * given["features"]).astype(np.float32)
        return {**given, "features": scaled}

    def start(seed: int) -> PyTree:
        made = problem.start(seed)
        if isinstance(made, dict):
            made = {**made, "first": made["first"] / units.features}
        else:
            made = made / units.features
        return jax.tree.map(lambda leaf: (leaf / units.parameters).astype(leaf.dtype), made)

    return dataclasses.replace(
        problem,
        loss=lambda params, record: units.loss * problem.loss(inside(params), record),
        reference_loss=lambda p, record: units.loss * problem.reference_loss(inside(p), record),
        start=start,
        score=lambda params, given: problem.score(inside(params), given),
        split=Split(**{part: records(getattr(problem.split, part)) for part in _PARTS}),
    )


_PARTS = tuple(field.name for field in dataclasses.fields(Split))


def delta_for(records: int) -> float:
    """1e-5 up to 10,000 records, 1e-6 beyond: below 0.1 / records for every problem here."""
    return 1e-5 if records <= 10_000 else 1e-6
