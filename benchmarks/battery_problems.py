"""The problems of `benchmarks.battery`: small ones of the kinds that strangers bring.

Nobody scaled them, nobody tuned on them, and some are unkind on purpose: an optimum a thousand units
away, losses that are negative, 0 at the start or in the millions, columns in millimetres and years,
staircases, plateaus, outliers, a start that is already good.

Each is one function, which gets a random generator of its own (fixed by the problem's name) and the
number of records, and gives a `Case`: loss, start, data, and what helps to find the optimum *without*
privacy. What is in a case beside the first three never reaches the library that is judged.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import PyTree
from scipy import stats

Loss = Callable[[PyTree, PyTree], Any]
Keyed = Callable[[PyTree, PyTree, Any], Any]

RECORDS = 5_000
# Records of the sample on which a stochastic loss is judged.
FRESH = 20_000

KINDS = {
    "smooth": "has a gradient everywhere",
    "nonsmooth": "has kinks",
    "staircase": "is flat between jumps: its slopes say nothing",
    "stochastic": "draws noise of its own at every evaluation",
    "flat": "hardly changes around the start",
    "far": "has its optimum tens to thousands of units away",
    "heavy-tailed": "has records whose losses or slopes are huge",
    "raw-features": "has columns as they come: unscaled, skewed, sparse or far from 0",
    "small": "has 1,000 records or fewer",
    "negative-loss": "is negative",
    "zero-at-start": "is 0 for everybody at the start",
    "non-convex": "has valleys, saddles or several optima",
    "ill-conditioned": "is far steeper along some directions than along others",
    "likelihood": "is the negative logarithm of a likelihood",
    "units": "has a loss or parameters of another size than 1",
    "one-parameter": "has one parameter",
    "many-parameters": "has 20 parameters or more",
    "already-there": "starts at its optimum",
    "nearly-there": "starts so near to its optimum that there is little to gain",
    "people": "is the README's meeting point",
}
# Kinds whose slopes do not lead to the optimum from the start.
WITHOUT_GRADIENT = ("staircase", "stochastic", "flat")


@dataclass(frozen=True)
class Case:
    """A problem with its data.

    Attributes:
        loss: of parameters and one record, in JAX.
        start: where to start.
        data: the records.
        known: the best parameters, where a formula gives them.
        hints: points near which the optimum may be; the optimizer begins at each of them too.
        box: lowest and highest value of all parameters, for an optimizer that searches everywhere.
        restarts: further points, random ones around the start, at which the optimizer begins.
        judged: the loss and the records that answers are judged on, if not those above: for a
            stochastic loss its draws are part of the record, and the records are fresh.
        keyed: a stochastic loss with the random key as a third argument.
        usual: of a problem that starts at its optimum: where one would usually start.
    """

    loss: Loss
    start: PyTree
    data: PyTree
    known: PyTree | None = None
    hints: tuple[PyTree, ...] = ()
    box: tuple[float, float] | None = None
    restarts: int = 0
    judged: tuple[Loss, PyTree] | None = None
    keyed: Keyed | None = None
    usual: PyTree | None = None


Make = Callable[[np.random.Generator, int], Case]


@dataclass(frozen=True)
class Problem:
    """One problem of the battery.

    Attributes:
        name: what it is called on the command line and in results.
        kinds: of the `KINDS`.
        make: its case, from a generator and the number of records.
        fixed: its number of records; None where it is the user's choice.
    """

    name: str
    kinds: tuple[str, ...]
    make: Make
    fixed: int | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether slopes around the start lead to the optimum."""
        return not set(self.kinds) & set(WITHOUT_GRADIENT)

    def records(self, wanted: int = RECORDS) -> int:
        """How many records it has."""
        return wanted if self.fixed is None else self.fixed

    def case(self, wanted: int = RECORDS) -> Case:
        """Loss, start and data: the same at each call. Numbers are float32, as JAX users have them."""
        number = self.records(wanted)
        made = self.make(np.random.default_rng([zlib.crc32(self.name.encode()), number]), number)
        data, start = _float32(made.data), _float32(made.start)
        judged = made.judged and (made.judged[0], _float32(made.judged[1]))
        return Case(**{**vars(made), "data": data, "start": start, "judged": judged})

    def definition(self, wanted: int = RECORDS) -> str:
        """A hash of all that it is made of: its function, what that calls in this file, its size."""
        functions = _with_helpers(self.make)
        text = "\n".join(inspect.getsource(each) for each in functions)
        text += f"\n{self.name} {self.records(wanted)} {FRESH}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


PROBLEMS: dict[str, Problem] = {}


def problem(name: str, kinds: str, fixed: int | None = None) -> Callable[[Make], Make]:
    """Take a function into the battery under this name."""

    def taken(make: Make) -> Make:
        PROBLEMS[name] = Problem(name, tuple(kinds.split()), make, fixed)
        return make

    return taken


def _float32(tree: PyTree) -> PyTree:
    def leaf(value: Any) -> np.ndarray:
        value = np.asarray(value)
        return value.astype(np.float32 if value.dtype.kind == "f" else np.int32)

    return jax.tree.map(leaf, tree)


def _with_helpers(function: Any) -> list[Any]:
    """A function and the functions of this file that it names, and so on."""
    found: dict[str, Any] = {}

    def visit(code: types.CodeType) -> None:
        for name in code.co_names:
            named = globals().get(name)
            ours = isinstance(named, types.FunctionType) and named.__module__ == __name__
            if ours and name not in found:
                found[name] = named
                visit(named.__code__)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                visit(constant)

    # What makes a problem of parameters, as the meeting points do, stands in a closure.
    inner = [cell.cell_contents for cell in function.__closure__ or ()]
    for each in (function, *(value for value in inner if isinstance(value, types.FunctionType))):
        found[each.__name__] = each
        visit(each.__code__)
    return [found[name] for name in sorted(found)]


# Losses of linear models, and tables for them.


def score(params: PyTree, record: PyTree) -> Any:
    """<w, x> + b."""
    return record["x"] @ params["w"] + params["b"]


def squared(params: PyTree, record: PyTree) -> Any:
    """(score - y)^2."""
    return (score(params, record) - record["y"]) ** 2


def absolute(params: PyTree, record: PyTree) -> Any:
    """|score - y|."""
    return jnp.abs(score(params, record) - record["y"])


def logistic(params: PyTree, record: PyTree) -> Any:
    """log(1 + exp(-y score)) with y = -1 or 1."""
    return jax.nn.softplus(-record["y"] * score(params, record))


def weights(w: Any, b: float = 0.0) -> PyTree:
    """Parameters of a linear model."""
    return {"w": np.asarray(w, float), "b": np.asarray(b, float)}


def linear(loss: Loss, x: np.ndarray, y: np.ndarray, *hints: PyTree, **more: Any) -> Case:
    """A linear model that starts at 0."""
    return Case(loss, weights(np.zeros(x.shape[1])), {"x": x, "y": y}, hints=hints, **more)


def least_squares(x: np.ndarray, y: np.ndarray) -> PyTree:
    """The best linear model for squares."""
    mean, size = x.mean(axis=0), x.std(axis=0)
    columns = np.concatenate([(x - mean) / size, np.ones((len(x), 1))], axis=1)
    found = np.linalg.lstsq(columns, y, rcond=None)[0]
    return weights(found[:-1] / size, found[-1] - mean @ (found[:-1] / size))


def signs(rng: np.random.Generator, score_: np.ndarray) -> np.ndarray:
    """Labels -1 and 1 of the logistic model."""
    return np.where(rng.random(len(score_)) < 1.0 / (1.0 + np.exp(-score_)), 1.0, -1.0)


def distance(place: Any, other: Any) -> Any:
    """The distance of two points; its slope at 0 is 0."""
    square = jnp.sum((place - other) ** 2)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


# Tidy ones: nothing is wrong with them.


@problem("mean of one number", "smooth one-parameter")
def _mean(rng: np.random.Generator, n: int) -> Case:
    z = rng.normal(3.0, 2.0, n)
    return Case(lambda x, z: (x - z) ** 2, np.zeros(()), z, known=z.mean())


@problem("least squares, 5 columns", "smooth")
def _least_squares(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 5))
    y = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.5]) + 0.7 + 0.5 * rng.standard_normal(n)
    return linear(squared, x, y, known=least_squares(x, y))


@problem("least squares, 50 columns", "smooth many-parameters")
def _least_squares_50(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 50))
    y = x @ rng.normal(0.0, 0.3, 50) + rng.standard_normal(n)
    return linear(squared, x, y, known=least_squares(x, y))


@problem("logistic, 5 columns", "smooth")
def _logistic(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 5))
    return linear(logistic, x, signs(rng, x @ np.array([1.5, -1.0, 0.5, 0.0, 2.0]) - 0.5))


@problem("logistic, 100 columns", "smooth many-parameters")
def _logistic_100(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 100))
    return linear(logistic, x, signs(rng, x @ rng.normal(0.0, 0.3, 100)))


@problem("hinge, 10 columns", "nonsmooth")
def _hinge(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 10)), rng.normal(0.0, 0.6, 10)

    def loss(params: PyTree, record: PyTree) -> Any:
        return jax.nn.relu(1.0 - record["y"] * score(params, record))

    return linear(loss, x, signs(rng, 2.0 * (x @ truth) + 0.5), weights(truth, 0.2))


@problem("softmax, 5 classes", "smooth many-parameters")
def _softmax(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 8)), rng.normal(0.0, 0.8, (8, 5))
    y = np.argmax(x @ truth + rng.gumbel(size=(n, 5)), axis=1)

    def loss(params: PyTree, record: PyTree) -> Any:
        scores = record["x"] @ params["w"] + params["b"]
        return jax.nn.logsumexp(scores) - jax.nn.one_hot(record["y"], 5) @ scores

    return Case(loss, {"w": np.zeros((8, 5)), "b": np.zeros(5)}, {"x": x, "y": y})


@problem("quantile regression, 0.9", "nonsmooth")
def _quantile(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 4))
    spread = np.exp(0.3 * x[:, 0]) * rng.standard_normal(n)
    y = 2.0 + x @ np.array([1.0, 0.5, -0.5, 0.0]) + spread

    def loss(params: PyTree, record: PyTree) -> Any:
        short = record["y"] - score(params, record)
        return jnp.maximum(0.9 * short, -0.1 * short)

    return linear(loss, x, y, weights([1.3, 0.5, -0.5, 0.0], 3.3))


@problem("largest of five errors", "nonsmooth")
def _minimax(rng: np.random.Generator, n: int) -> Case:
    centre = np.array([2.0, -1.0, 0.5, 3.0, -2.0])
    z = centre + rng.standard_normal((n, 5))

    def loss(x: Any, record: Any) -> Any:
        return jnp.max(jnp.abs(x - record))

    return Case(loss, np.zeros(5), z, hints=(centre,))


# The README's meeting point.


def walk(place: Any, home: Any) -> Any:
    """The README's loss: how far somebody walks, at most 3."""
    return jnp.minimum(distance(place, home), 3.0)


def homes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Where the README's people live."""
    return np.array([1.0, -0.5]) + 0.3 * rng.standard_normal((n, 2))


def _meeting(rng: np.random.Generator, n: int) -> Case:
    return Case(walk, np.zeros(2), homes(rng, n), hints=(np.array([1.0, -0.5]),))


for _people in (500, 1_000, 2_000, 5_000, 20_000):
    _kinds = "nonsmooth people small" if _people <= 1_000 else "nonsmooth people"
    problem(f"meeting point, {_people:,} people", _kinds, fixed=_people)(_meeting)


# Far, flat, or already there.


@problem("median, 1,000 away", "nonsmooth far")
def _far_median(rng: np.random.Generator, n: int) -> Case:
    z = np.array([500.0, -500.0, 500.0, -500.0]) + rng.standard_normal((n, 4))

    def loss(x: Any, record: Any) -> Any:
        return jnp.sum(jnp.abs(x - record))

    return Case(loss, np.zeros(4), z, known=np.median(z, axis=0))


@problem("meeting point, 300 away", "nonsmooth far")
def _far_meeting(rng: np.random.Generator, n: int) -> Case:
    centre = np.array([200.0, -100.0, 200.0])
    z = centre + rng.standard_normal((n, 3))
    return Case(distance, np.zeros(3), z, hints=(centre, z.mean(axis=0)))


@problem("logarithm of the distance, 2,000 away", "smooth far non-convex")
def _far_logarithm(rng: np.random.Generator, n: int) -> Case:
    centre = np.array([1000.0, -1000.0, 1000.0, -1000.0])
    z = centre + rng.standard_normal((n, 4))

    def loss(x: Any, record: Any) -> Any:
        return jnp.log1p(distance(x, record))

    return Case(loss, np.zeros(4), z, hints=(centre, z.mean(axis=0), np.median(z, axis=0)))


@problem("least squares, target 10,000", "smooth far units")
def _far_target(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 3))
    y = 10_000.0 + x @ np.array([2.0, -1.0, 0.5]) + 0.49 * rng.standard_normal(n)
    return linear(squared, x, y, known=least_squares(x, y))


@problem("plateau: a well 5 away", "smooth flat non-convex")
def _well(rng: np.random.Generator, n: int) -> Case:
    centre = np.array([4.0, 3.0])
    z = centre + 0.5 * rng.standard_normal((n, 2))

    def loss(x: Any, record: Any) -> Any:
        return 1.0 - jnp.exp(-0.5 * jnp.sum((x - record) ** 2))

    return Case(loss, np.zeros(2), z, hints=(centre,))


@problem("meeting point out of sight", "nonsmooth flat")
def _out_of_sight(rng: np.random.Generator, n: int) -> Case:
    centre = np.array([8.0, 6.0])
    return Case(walk, np.zeros(2), centre + 0.3 * rng.standard_normal((n, 2)), hints=(centre,))


@problem("logistic, start already good", "smooth nearly-there")
def _nearly_there(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 4)), np.array([3.0, -2.0, 2.0, 1.0])
    data = {"x": x, "y": signs(rng, x @ truth - 1.5)}
    return Case(logistic, weights(0.86 * truth, -1.3), data, hints=(weights(truth, -1.5),))


@problem("least squares, starts at its optimum", "smooth already-there")
def _there(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 5))
    y = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.5]) + 0.7 + rng.standard_normal(n)
    best = least_squares(x, y)
    return Case(squared, best, {"x": x, "y": y}, known=best, usual=weights(np.zeros(5)))


@problem("meeting point, starts at its optimum", "nonsmooth already-there")
def _meeting_there(rng: np.random.Generator, n: int) -> Case:
    best = np.array([1.0, -0.5])
    half = 0.3 * rng.standard_normal((n - n // 2, 2))
    around = np.concatenate([half, -half[: n // 2]])  # on both sides, so that the middle is best
    return Case(walk, best, best + around, hints=(best,), usual=np.zeros(2))


@problem("0/1 loss, starts at its optimum", "staircase already-there one-parameter")
def _threshold_there(rng: np.random.Generator, n: int) -> Case:
    made = threshold_case(rng, n)
    return Case(made.loss, made.known, made.data, known=made.known, usual=np.zeros(()))


# Losses of unusual sizes.


@problem("profit of about 1,000", "smooth negative-loss")
def _profit(rng: np.random.Generator, n: int) -> Case:
    z = np.array([0.6, -0.6, 0.5]) + 0.816 * rng.standard_normal((n, 3))

    def loss(x: Any, record: Any) -> Any:
        return jnp.sum((x - record) ** 2) - 1000.0

    return Case(loss, np.zeros(3), z, known=z.mean(axis=0))


@problem("linear reward, 0 at the start", "nonsmooth negative-loss zero-at-start")
def _reward(rng: np.random.Generator, n: int) -> Case:
    z = np.array([0.6, -0.3, 0.3, 0.15]) + rng.standard_normal((n, 4))

    def loss(x: Any, record: Any) -> Any:
        inside = x / jnp.maximum(1.0, distance(x, 0.0))  # the ball, whatever x is
        return -(inside @ record)

    mean = z.mean(axis=0)
    return Case(loss, np.zeros(4), z, known=2.0 * mean / np.linalg.norm(mean))


@problem("loss times a million", "smooth units")
def _million(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 5))
    y = signs(rng, x @ np.array([1.5, -1.0, 0.5, 0.0, 2.0]) - 0.5)
    return linear(lambda params, record: 1e6 * logistic(params, record), x, y)


@problem("loss times a millionth", "smooth units")
def _millionth(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 5))
    y = signs(rng, x @ np.array([1.5, -1.0, 0.5, 0.0, 2.0]) - 0.5)
    return linear(lambda params, record: 1e-6 * logistic(params, record), x, y)


@problem("parameters of size 0.001", "smooth units raw-features")
def _small_parameters(rng: np.random.Generator, n: int) -> Case:
    x = 1000.0 * rng.standard_normal((n, 5))
    truth = 1e-3 * np.array([1.5, -1.0, 0.5, 0.0, 2.0])
    return linear(logistic, x, signs(rng, x @ truth - 0.5), weights(truth, -0.5))


@problem("parameters of size 10,000", "nonsmooth units far")
def _large_parameters(rng: np.random.Generator, n: int) -> Case:
    x = 1e-4 * rng.standard_normal((n, 5))
    y = x @ (1e4 * np.array([1.5, -1.0, 0.5, 0.0, 2.0])) + 0.5 * rng.standard_normal(n)
    return linear(absolute, x, y, least_squares(x, y))


@problem("gamma likelihood", "smooth likelihood far heavy-tailed")
def _gamma(rng: np.random.Generator, n: int) -> Case:
    z = rng.gamma(3.0, 5000.0, n)

    def loss(params: Any, record: Any) -> Any:
        shape, scale = jnp.exp(params[0]), jnp.exp(params[1])
        fit = record / scale + shape * params[1] - (shape - 1.0) * jnp.log(record)
        return fit + gammaln(shape)

    return Case(loss, np.zeros(2), z, hints=(np.log([3.0, 5000.0]),))


@problem("normal likelihood, spread as it is", "smooth likelihood far")
def _normal(rng: np.random.Generator, n: int) -> Case:
    z = rng.normal(30.0, 5.0, n)

    def loss(params: Any, record: Any) -> Any:  # no number where the spread is negative
        return jnp.log(params[1]) + 0.5 * ((record - params[0]) / params[1]) ** 2

    return Case(loss, np.array([0.0, 1.0]), z, known=np.array([z.mean(), z.std()]))


# Columns as they come.


@problem("logistic, log-normal features", "smooth raw-features heavy-tailed")
def _lognormal(rng: np.random.Generator, n: int) -> Case:
    x = rng.lognormal(0.0, 1.5, (n, 6))
    truth = np.array([0.2, -0.1, 0.05, 0.0, -0.15, 0.1])
    return linear(logistic, x, signs(rng, np.clip(x @ truth, -4, 4)), weights(0.3 * truth))


@problem("line through years, absolute", "nonsmooth raw-features ill-conditioned")
def _years(rng: np.random.Generator, n: int) -> Case:
    year = rng.integers(1960, 2021, n)[:, None].astype(float)
    y = 50.0 + 0.7 * (year[:, 0] - 1990.0) + 5.0 * rng.standard_normal(n)
    return linear(absolute, year, y, least_squares(year, y))


@problem("millimetres and years, squares", "smooth raw-features ill-conditioned")
def _millimetres(rng: np.random.Generator, n: int) -> Case:
    length, year = rng.normal(1200.0, 300.0, n), rng.normal(1985.0, 20.0, n)
    share = rng.random(n)
    y = 0.02 * length + 0.3 * (year - 1985.0) + 15.0 * share + 4.0 * rng.standard_normal(n)
    x = np.stack([length, year, share], axis=1)
    return linear(squared, x, y, known=least_squares(x, y))


@problem("logistic, sparse features", "smooth raw-features many-parameters")
def _sparse(rng: np.random.Generator, n: int) -> Case:
    often = 1.0 / np.arange(2, 42)
    x = (rng.random((n, 40)) < often).astype(float)
    return linear(logistic, x, signs(rng, x @ rng.normal(0.0, 1.5, 40)))


@problem("correlated columns", "smooth ill-conditioned")
def _correlated(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 1)) + 0.15 * rng.standard_normal((n, 8))
    y = x @ np.array([3.0, -2.0, 1.0, 0.0, -1.0, 2.0, -3.0, 1.0]) + 0.3 * rng.standard_normal(n)
    return linear(squared, x, y, known=least_squares(x, y))


@problem("ill-conditioned quadratic", "smooth ill-conditioned")
def _ill_conditioned(rng: np.random.Generator, n: int) -> Case:
    turn = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    steep = (np.geomspace(1.0, 1e-2, 6)[:, None] * turn).astype(np.float32)  # Hessian: up to 10^4
    z = 1.0 + 0.5 * rng.standard_normal((n, 6))
    slopes = jnp.asarray(steep)

    def loss(x: Any, record: Any) -> Any:
        return jnp.sum((slopes @ x - record) ** 2)

    return Case(loss, np.zeros(6), z, known=np.linalg.solve(steep.astype(float), z.mean(axis=0)))


@problem("quadratic, steep along the axes", "smooth ill-conditioned")
def _steep_axes(rng: np.random.Generator, n: int) -> Case:
    steep = np.geomspace(1.0, 1e-3, 8)
    z = 1.0 + 0.5 * rng.standard_normal((n, 8))
    slopes = jnp.asarray(steep, jnp.float32)

    def loss(x: Any, record: Any) -> Any:
        return jnp.sum((slopes * x - record) ** 2)

    return Case(loss, np.zeros(8), z, known=z.mean(axis=0) / steep.astype(np.float32))


# Outliers and heavy tails.


@problem("Huber, 5% outliers", "smooth heavy-tailed")
def _huber(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 5)), np.array([1.0, -2.0, 0.5, 0.0, 1.5])
    noise = np.where(rng.random(n) < 0.05, 100.0, 0.5) * rng.standard_normal(n)

    def loss(params: PyTree, record: PyTree) -> Any:
        off = jnp.abs(score(params, record) - record["y"])
        return jnp.where(off < 1.0, 0.5 * off**2, off - 0.5)

    return linear(loss, x, x @ truth + 0.7 + noise, weights(truth, 0.7))


@problem("absolute loss, outliers of a million", "nonsmooth heavy-tailed")
def _huge_outliers(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 4)), np.array([2.0, -1.0, 0.5, 1.0])
    noise = np.where(rng.random(n) < 0.01, 1e6, 0.5) * rng.standard_normal(n)
    # 10,000 of the mean loss is the outliers', whatever the answer.
    return linear(absolute, x, x @ truth + 3.0 + noise, weights(truth, 3.0))


@problem("squares, 1% outliers on one side", "smooth heavy-tailed")
def _one_sided(rng: np.random.Generator, n: int) -> Case:
    """The mean is 8; without the outliers, as clipped slopes see it, it is 5."""
    z = np.where(rng.random(n) < 0.01, 305.0, 5.0) + rng.standard_normal(n)
    return Case(lambda x, z: (x - z) ** 2, np.zeros(()), z, known=z.mean())


@problem("Cauchy noise, squares cut at 9", "nonsmooth heavy-tailed non-convex")
def _cauchy(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 4)), np.array([1.0, -1.0, 0.5, 0.5])
    y = x @ truth + 1.0 + 0.5 * rng.standard_cauchy(n)

    def loss(params: PyTree, record: PyTree) -> Any:
        return jnp.minimum(squared(params, record), 9.0)

    return linear(loss, x, y, weights(truth, 1.0), weights(0.5 * truth, 0.5))


@problem("99% quantile of log-normal numbers", "nonsmooth heavy-tailed far one-parameter")
def _high_quantile(rng: np.random.Generator, n: int) -> Case:
    z = rng.lognormal(1.0, 1.0, n)

    def loss(x: Any, record: Any) -> Any:
        short = record - x
        return jnp.maximum(0.99 * short, -0.01 * short)

    return Case(loss, np.zeros(()), z, known=np.quantile(z, 0.99))


# Likelihoods of counts, times and choices.


@problem("Poisson regression", "smooth likelihood")
def _poisson(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 5)), np.array([0.5, -0.4, 0.3, 0.0, 0.2])
    y = rng.poisson(np.exp(x @ truth + 1.5)).astype(float)

    def loss(params: PyTree, record: PyTree) -> Any:
        at = score(params, record)
        return jnp.exp(at) - record["y"] * at

    return linear(loss, x, y, weights(truth, 1.5))


@problem("counts, negative binomial", "smooth likelihood heavy-tailed")
def _counts(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 3)), np.array([0.6, -0.4, 0.2])
    mean = np.exp(x @ truth + 1.5) * rng.gamma(1.5, 1 / 1.5, n)
    data = {"x": x, "y": rng.poisson(mean).astype(float)}

    def loss(params: PyTree, record: PyTree) -> Any:
        at, r, y = score(params, record), jnp.exp(params["log_r"]), record["y"]
        total = jnp.logaddexp(params["log_r"], at)
        counted = gammaln(r) + gammaln(y + 1.0) - gammaln(y + r)
        return counted - r * (params["log_r"] - total) - y * (at - total)

    start = {**weights(np.zeros(3)), "log_r": np.zeros(())}
    return Case(loss, start, data, hints=({**weights(truth, 1.5), "log_r": np.array(0.4)},))


@problem("survival times in days, censored", "smooth likelihood far")
def _survival(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 3)), np.array([0.5, -0.3, 0.2])
    time = np.exp(x @ truth + 5.5 + 0.6 * np.log(rng.exponential(size=n)))
    data = {"x": x, "t": np.minimum(time, 365.0), "seen": (time < 365.0).astype(float)}

    def loss(params: PyTree, record: PyTree) -> Any:
        off = (jnp.log(record["t"]) - score(params, record)) * jnp.exp(-params["log_s"])
        return jnp.exp(off) - record["seen"] * (off - params["log_s"])

    start = {**weights(np.zeros(3)), "log_s": np.zeros(())}
    hint = {**weights(truth, 5.5), "log_s": np.log(0.6)}
    return Case(loss, start, data, hints=(hint,))


@problem("mixture of two normals", "smooth likelihood non-convex")
def _mixture(rng: np.random.Generator, n: int) -> Case:
    first = rng.random(n) < 0.3
    z = np.where(first, rng.normal(-3.0, 1.0, n), rng.normal(4.0, 2.0, n))

    def loss(params: PyTree, record: Any) -> Any:
        off = (record - params["mean"]) * jnp.exp(-params["log_s"])
        weigh = jax.nn.log_softmax(jnp.stack([params["log_odds"], 0.0 * params["log_odds"]]))
        return -jax.nn.logsumexp(weigh - params["log_s"] - 0.5 * off**2)

    start = {"mean": np.array([-1.0, 1.0]), "log_s": np.zeros(2), "log_odds": np.zeros(())}
    hint = {
        "mean": np.array([-3.0, 4.0]),
        "log_s": np.log([1.0, 2.0]),
        "log_odds": np.array(-0.85),
    }
    return Case(loss, start, z, hints=(hint,))


@problem("logistic, 2% of one class", "smooth")
def _unbalanced(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 5)), np.array([1.0, -0.8, 0.5, 0.0, 0.6])
    return linear(logistic, x, signs(rng, x @ truth - 4.7), weights(truth, -4.7))


@problem("logistic, classes far apart", "smooth")
def _separable(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 4)), np.array([12.0, -8.0, 6.0, 4.0])
    return linear(logistic, x, signs(rng, x @ truth), weights(truth))


@problem("preferences among 20", "smooth likelihood many-parameters")
def _preferences(rng: np.random.Generator, n: int) -> Case:
    worth = rng.normal(0.0, 1.2, 20)
    pair = np.stack([rng.choice(20, 2, replace=False) for _ in range(n)])
    gap = worth[pair[:, 0]] - worth[pair[:, 1]]
    first = rng.random(n) < 1.0 / (1.0 + np.exp(-gap))
    data = {"won": np.where(first, *pair.T), "lost": np.where(first, *pair.T[::-1])}

    def loss(params: Any, record: PyTree) -> Any:
        return jax.nn.softplus(params[record["lost"]] - params[record["won"]])

    return Case(loss, np.zeros(20), data)


@problem("an epidemic: three logarithms", "smooth likelihood non-convex", fixed=6_000)
def _epidemic(rng: np.random.Generator, n: int) -> Case:
    """A patient is the day they fell ill, and for how many days: of an SIR model, day by day."""

    def daily(params: Any) -> Any:
        spread, recovery, first = jnp.exp(params)

        def day(state: Any, _: None) -> Any:
            well, ill = state
            new = well * (1.0 - jnp.exp(-spread * ill))
            return (well - new, ill + new - ill * (1.0 - jnp.exp(-recovery))), new

        return jax.lax.scan(day, (jnp.ones_like(first), first), length=120)[1]

    def loss(params: Any, record: PyTree) -> Any:
        new = daily(params)
        chance = new[record["day"]] / (jnp.sum(new) + 1e-9)
        return -jnp.log(chance + 1e-6) - params[1] + jnp.exp(params[1]) * record["days"]

    truth = np.log([0.35, 0.1, 2e-5])
    chances = np.asarray(daily(jnp.asarray(truth)), float)
    day = rng.choice(120, n, p=chances / chances.sum())
    data = {"day": day, "days": rng.exponential(10.0, n)}
    return Case(loss, np.log([0.6, 0.25, 1e-4]), data, hints=(truth,), box=(-14.0, 1.0))


@problem("dose and response", "smooth non-convex")
def _dose(rng: np.random.Generator, n: int) -> Case:
    dose = rng.choice([0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0], n)
    y = 5.0 + 20.0 * dose / (dose + 80.0) + 3.0 * rng.standard_normal(n)

    def loss(params: Any, record: PyTree) -> Any:
        effect = params[1] * record["dose"] / (record["dose"] + jnp.exp(params[2]))
        return (params[0] + effect - record["y"]) ** 2

    hints = (np.array([5.0, 20.0, np.log(80.0)]),)
    return Case(loss, np.zeros(3), {"dose": dose, "y": y}, hints=hints)


# Money.


@problem("newsvendor", "nonsmooth negative-loss zero-at-start far one-parameter")
def _newsvendor(rng: np.random.Generator, n: int) -> Case:
    demand = rng.lognormal(4.7, 0.4, n)

    def loss(order: Any, record: Any) -> Any:
        return 3.0 * order - 5.0 * jnp.minimum(order, record)

    return Case(loss, np.zeros(()), demand, known=np.quantile(demand, 0.4))


@problem("two prices", "staircase negative-loss units")
def _prices(rng: np.random.Generator, n: int) -> Case:
    """A customer buys what leaves most over, if anything: the loss falls with a price, then jumps."""
    worth = rng.lognormal(np.log([30.0, 45.0]), 0.5, (n, 2))

    def loss(price: Any, record: Any) -> Any:
        over = record - price
        chosen = jnp.argmax(over)
        return jnp.where(over[chosen] >= 0.0, -price[chosen], 0.0)

    return Case(loss, np.array([5.0, 5.0]), worth, box=(0.0, 100.0))


@problem("portfolio of eight", "smooth negative-loss")
def _portfolio(rng: np.random.Generator, n: int) -> Case:
    shared = 0.03 * rng.standard_normal((n, 1))
    own = rng.normal(np.linspace(-0.01, 0.03, 8), np.linspace(0.02, 0.12, 8), (n, 8))
    returns = np.maximum(shared + own, -0.9)

    def loss(params: Any, record: Any) -> Any:
        return -jnp.log1p(jax.nn.softmax(params) @ record)

    return Case(loss, np.zeros(8), returns, restarts=4)


@problem("expected shortfall", "nonsmooth heavy-tailed")
def _shortfall(rng: np.random.Generator, n: int) -> Case:
    returns = np.array([0.01, 0.02, 0.015, 0.03]) * rng.standard_t(4, (n, 4))

    def loss(params: PyTree, record: Any) -> Any:
        lost = -(jax.nn.softmax(jnp.append(params["mix"], 0.0 * params["line"])) @ record)
        return params["line"] + jax.nn.relu(lost - params["line"]) / 0.05

    start = {"mix": np.zeros(3), "line": np.zeros(())}
    hint = {"mix": np.array([1.5, 0.3, 0.8]), "line": np.array(0.015)}
    return Case(loss, start, returns, hints=(hint,))


# Valleys, saddles, several optima.


@problem("k-means, 5 centres", "nonsmooth non-convex")
def _k_means(rng: np.random.Generator, n: int) -> Case:
    angle = 2.0 * np.pi * np.arange(5) / 5.0
    centres = 1.4 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    z = centres[rng.integers(0, 5, n)] + 0.5 * rng.standard_normal((n, 2))

    def loss(params: Any, record: Any) -> Any:
        return jnp.min(jnp.sum((params - record) ** 2, axis=1))

    start = 0.3 * rng.standard_normal((5, 2))
    return Case(loss, start, z, hints=(centres,), restarts=4)


@problem("three depots", "nonsmooth non-convex far")
def _depots(rng: np.random.Generator, n: int) -> Case:
    towns = np.array([[30.0, 10.0], [-20.0, 25.0], [5.0, -35.0]])
    z = towns[rng.choice(3, n, p=[0.5, 0.3, 0.2])] + 4.0 * rng.standard_normal((n, 2))

    def loss(params: Any, record: Any) -> Any:
        square = jnp.sum((params - record) ** 2, axis=1)
        return jnp.sqrt(jnp.min(square) + 1e-12)

    start = np.array([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]])
    return Case(loss, start, z, hints=(towns,))


@problem("a curved valley", "smooth non-convex ill-conditioned")
def _valley(rng: np.random.Generator, n: int) -> Case:
    data = {"a": 1.0 + 0.2 * rng.standard_normal(n), "b": 0.1 * rng.standard_normal(n)}

    def loss(params: Any, record: PyTree) -> Any:
        across = params[1] - params[0] ** 2 + record["b"]
        return (params[0] - record["a"]) ** 2 + 20.0 * across**2

    return Case(loss, np.array([-1.2, 1.0]), data, hints=(np.ones(2),))


@problem("a wave", "smooth non-convex")
def _wave(rng: np.random.Generator, n: int) -> Case:
    time = 6.0 * rng.random(n)
    y = 2.0 * np.sin(1.6 * time + 0.4) + 0.3 * rng.standard_normal(n)

    def loss(params: Any, record: PyTree) -> Any:
        return (params[0] * jnp.sin(params[1] * record["time"] + params[2]) - record["y"]) ** 2

    truth = np.array([2.0, 1.6, 0.4])
    return Case(loss, np.array([1.0, 1.3, 0.0]), {"time": time, "y": y}, hints=(truth,))


@problem("ratings: factors of rank 2", "smooth non-convex many-parameters")
def _factors(rng: np.random.Generator, n: int) -> Case:
    people, films = rng.standard_normal((12, 2)), rng.standard_normal((12, 2))
    data = {"person": rng.integers(0, 12, n), "film": rng.integers(0, 12, n)}
    exact = np.sum(people[data["person"]] * films[data["film"]], axis=1)
    data = {**data, "rating": exact + 0.5 * rng.standard_normal(n)}

    def loss(params: PyTree, record: PyTree) -> Any:
        guess = params["people"][record["person"]] @ params["films"][record["film"]]
        return (guess - record["rating"]) ** 2

    start = {name: 0.3 * rng.standard_normal((12, 2)) for name in ("people", "films")}
    return Case(loss, start, data, hints=({"people": people, "films": films},))


def network(params: PyTree, x: Any) -> Any:
    """The number that a network with one hidden layer gives."""
    hidden = jnp.tanh(x @ params["first"] + params["bias"])
    return hidden @ params["second"] + params["offset"]


def network_start(rng: np.random.Generator, inputs: int, hidden: int) -> PyTree:
    """Usual starting weights."""
    return {
        "first": rng.standard_normal((inputs, hidden)) / math.sqrt(inputs),
        "bias": np.zeros(hidden),
        "second": rng.standard_normal(hidden) / math.sqrt(hidden),
        "offset": np.zeros(()),
    }


@problem("network: a ring", "smooth non-convex many-parameters")
def _ring(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 2))
    y = signs(rng, 6.0 * (np.linalg.norm(x, axis=1) - 1.1))

    def loss(params: PyTree, record: PyTree) -> Any:
        return jax.nn.softplus(-record["y"] * network(params, record["x"]))

    return Case(loss, network_start(rng, 2, 8), {"x": x, "y": y}, restarts=12)


@problem("network: a surface", "smooth non-convex many-parameters")
def _surface(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 6))
    y = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.3 * x[:, 3]

    def loss(params: PyTree, record: PyTree) -> Any:
        return (network(params, record["x"]) - record["y"]) ** 2

    data = {"x": x, "y": y + 0.3 * rng.standard_normal(n)}
    return Case(loss, network_start(rng, 6, 10), data, restarts=12)


# Staircases.


def threshold_case(rng: np.random.Generator, n: int) -> Case:
    """A 0/1 loss with one threshold, 5% of labels wrong; the best of all thresholds is counted out."""
    z = np.sort(rng.uniform(0.0, 10.0, n).astype(np.float32))
    above = (z > 3.5) != (rng.random(n) < 0.05)
    # With the threshold at record k those up to it are called low, all others high.
    wrong = np.cumsum(above) + np.sum(~above) - np.cumsum(~above)
    best = int(np.argmin(wrong))

    def loss(threshold: Any, record: PyTree) -> Any:
        called = record["z"] > threshold
        return jnp.where(called != (record["above"] > 0), 1.0, 0.0)

    between = 0.5 * (z[best].astype(float) + z[min(best + 1, n - 1)].astype(float))
    return Case(loss, np.zeros(()), {"z": z, "above": above.astype(int)}, known=between)


@problem("0/1 loss, one threshold", "staircase one-parameter")
def _threshold(rng: np.random.Generator, n: int) -> Case:
    return threshold_case(rng, n)


@problem("0/1 loss, linear", "staircase")
def _zero_one(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 3)), np.array([1.0, 2.0, -1.0])
    y = signs(rng, 6.0 * (x @ truth + 0.8))

    def loss(params: PyTree, record: PyTree) -> Any:
        return jnp.where(record["y"] * score(params, record) > 0, 0.0, 1.0)

    start = weights([1.0, 0.0, 0.0])
    return Case(loss, start, {"x": x, "y": y}, hints=(weights(truth, 0.8),), box=(-3.0, 3.0))


@problem("pairs in the wrong order", "staircase")
def _order(rng: np.random.Generator, n: int) -> Case:
    gap, truth = rng.standard_normal((n, 6)), np.array([1.0, -0.5, 1.5, 0.0, 0.8, -1.0])
    gap = gap * signs(rng, 3.0 * (gap @ truth))[:, None]  # the better one less the worse one

    def loss(params: Any, record: Any) -> Any:
        return jnp.where(record @ params > 0, 0.0, 1.0)

    start = np.array([0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    return Case(loss, start, gap, hints=(truth,), box=(-2.0, 2.0))


@problem("a ranking by NDCG", "staircase")
def _ndcg(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 10, 5)), np.array([0.3, 1.0, -0.8, 0.5, 0.0])
    grade = np.clip(np.round(x @ truth + 0.5 * rng.standard_normal((n, 10))), 0, 3)

    def loss(params: Any, record: PyTree) -> Any:
        scores, worth = record["x"] @ params, 2.0 ** record["grade"] - 1.0
        before = jnp.sum(scores[None, :] > scores[:, None], axis=1)
        best = jnp.sum(-jnp.sort(-worth) / jnp.log2(2.0 + jnp.arange(10)))
        found = jnp.sum(worth / jnp.log2(2.0 + before))
        return 1.0 - found / jnp.maximum(best, 1e-3)

    start = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    return Case(loss, start, {"x": x, "grade": grade}, hints=(truth,), box=(-1.5, 1.5))


@problem("a thermostat", "staircase far")
def _thermostat(rng: np.random.Generator, n: int) -> Case:
    """Heat below one temperature by day, below another by night; a house is cold or warm, and open."""
    data = {"outside": rng.normal(5.0, 4.0, n), "open": rng.uniform(0.05, 0.2, n)}

    def loss(params: Any, record: PyTree) -> Any:
        def hour(state: Any, at: Any) -> Any:
            inside, cost = state
            day = (at >= 7) & (at < 23)
            on = jnp.where(inside < jnp.where(day, params[0], params[1]), 1.0, 0.0)
            outside = record["outside"] - 4.0 * jnp.cos(2.0 * math.pi * (at - 3) / 24.0)
            inside = inside + record["open"] * (outside - inside) + 3.5 * on
            wanted = jnp.where(day, 20.5, 17.0)
            cost = cost + (jnp.abs(inside - wanted) + 0.4 * on) / 24.0
            return (inside.astype(state[0].dtype), cost.astype(state[1].dtype)), None

        begin = (0.0 * record["outside"] + 15.0, 0.0 * record["outside"])
        return jax.lax.scan(hour, begin, jnp.arange(24))[0][1]

    return Case(loss, np.array([10.0, 10.0]), data, box=(5.0, 30.0))


@problem("whole numbers of seats", "staircase")
def _seats(rng: np.random.Generator, n: int) -> Case:
    z = rng.poisson([4.0, 9.0], (n, 2)).astype(float)

    def loss(params: Any, record: Any) -> Any:
        return jnp.sum(jnp.abs(jnp.round(params) - record))

    return Case(loss, np.ones(2), z, known=np.round(np.median(z, axis=0)))


# Losses that draw noise of their own.


def with_own_noise(keyed: Keyed) -> Loss:
    """A loss that draws anew at every point: its key is made of the bits of the point and the record.

    So it is a function, as `minimize` needs, and yet no two evaluations share their noise.
    """

    def loss(params: PyTree, record: PyTree) -> Any:
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves((params, record))]
        words = jnp.concatenate([leaf.astype(jnp.float32) for leaf in leaves])
        words = jax.lax.bitcast_convert_type(words, jnp.uint32)
        odd = jnp.uint32(2_654_435_761) * (2 * jnp.arange(len(words), dtype=jnp.uint32) + 1)
        return keyed(params, record, jax.random.fold_in(jax.random.key(0), jnp.sum(words * odd)))

    return loss


def simulated(keyed: Keyed, start: PyTree, data: PyTree, fresh: PyTree, **more: Any) -> Case:
    """A stochastic loss: judged on fresh records with one fixed draw for each."""
    number = len(jax.tree.leaves(fresh)[0])

    def judged(params: PyTree, record: PyTree) -> Any:
        return keyed(params, record["of"], jax.random.key(record["draw"]))

    drawn = {"of": fresh, "draw": np.arange(number)}
    return Case(with_own_noise(keyed), start, data, judged=(judged, drawn), keyed=keyed, **more)


@problem("a simulator with noise of its own", "stochastic nonsmooth")
def _simulator(rng: np.random.Generator, n: int) -> Case:
    def people(number: int) -> PyTree:
        x = rng.uniform(-1.0, 1.0, number)
        return {"x": x, "y": 2.0 + 1.0 * x + 0.4 * rng.standard_normal(number)}

    def keyed(params: Any, record: PyTree, key: Any) -> Any:
        made = params[0] + params[1] * record["x"] + 0.5 * jax.random.normal(key)
        return jnp.abs(made - record["y"])

    hints = (np.array([2.0, 1.0]),)
    return simulated(keyed, np.zeros(2), people(n), people(FRESH), hints=hints)


@problem("stocks of a shop", "stochastic nonsmooth far")
def _stocks(rng: np.random.Generator, n: int) -> Case:
    """Order up to a + b times the usual demand, for a week of days that nobody knows beforehand."""

    def keyed(params: Any, record: Any, key: Any) -> Any:
        demand = record * jnp.exp(0.4 * jax.random.normal(key, (7,)))
        stock = params[0] + params[1] * record
        return jnp.mean(jax.nn.relu(stock - demand) + 5.0 * jax.nn.relu(demand - stock))

    usual, fresh = rng.gamma(4.0, 5.0, n), rng.gamma(4.0, 5.0, FRESH)
    factor = float(np.exp(0.4 * stats.norm.ppf(5 / 6)))
    return simulated(keyed, np.zeros(2), usual, fresh, hints=(np.array([0.0, factor]),))


@problem("a coin for every answer", "stochastic staircase")
def _coin(rng: np.random.Generator, n: int) -> Case:
    """0 or 1, by chance: only the mean over many has a slope."""

    def people(number: int) -> np.ndarray:
        return np.array([1.0, -1.0, 0.5]) + 0.5 * rng.standard_normal((number, 3))

    def chance(params: Any, record: Any) -> Any:
        return 0.9 - 0.8 * jnp.exp(-0.3 * jnp.sum((params - record) ** 2))

    def keyed(params: Any, record: Any, key: Any) -> Any:
        return jnp.where(jax.random.uniform(key) < chance(params, record), 1.0, 0.0)

    made = simulated(keyed, np.zeros(3), people(n), people(FRESH))
    return Case(**{**vars(made), "judged": (chance, people(FRESH)), "hints": (np.ones(3),)})


# Few records.


@problem("logistic, 300 records", "smooth small", fixed=300)
def _few(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 8)), np.array([1.0, -0.5, 0.5, 0.0, 0.8, 0.0, -1.0, 0.3])
    return linear(logistic, x, signs(rng, x @ truth))


@problem("absolute loss, 1,000 records", "nonsmooth small", fixed=1_000)
def _few_absolute(rng: np.random.Generator, n: int) -> Case:
    x, truth = rng.standard_normal((n, 11)), 0.1 * rng.standard_normal(11)
    y = 5.6 + x @ truth + 0.6 * rng.standard_normal(n)
    return linear(absolute, x, y, least_squares(x, y))


@problem("least squares, 600 records", "smooth small many-parameters", fixed=600)
def _few_squares(rng: np.random.Generator, n: int) -> Case:
    x = rng.standard_normal((n, 20))
    y = x @ rng.normal(0.0, 0.4, 20) + 0.5 * rng.standard_normal(n)
    return linear(squared, x, y, known=least_squares(x, y))


NAMES = tuple(PROBLEMS)


@functools.lru_cache(maxsize=4)
def case_of(name: str, records: int = RECORDS) -> Case:
    """The case of a problem: the same object each time, so its loss compiles once."""
    return PROBLEMS[name].case(records)
