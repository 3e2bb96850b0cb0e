"""The benchmark problems: a loss of one record, a start, the data, and how an answer is judged.

All losses are JAX functions `loss(params, record)` of a pytree of parameters and one record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from benchmarks import data
from benchmarks.data import Records, Split

Loss = Callable[[PyTree, PyTree], Float[Array, ""]]

HIDDEN, CLASSES = 16, 10
PENALTY, CAP = 1e-5, 2.0


@dataclass(frozen=True)
class Problem:
    """One problem, as every method of the benchmarks sees it.

    Attributes:
        name: what it is called on the command line and in results.
        loss: of parameters and one record.
        reference_loss: what first order follows the gradient of: the loss itself, or a surrogate where
            it has no gradient.
        start: initial parameters from a seed: public, independent of the data.
        score: points of parameters on (public) records, higher is better.
        split: the data.
    """

    name: str
    loss: Loss
    reference_loss: Loss
    start: Callable[[int], PyTree]
    score: Callable[[PyTree, Records], float]
    split: Split

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.start(0)))


# Digits: a small ReLU network. d = 40 x 16 + 16 + 16 x 10 + 10 = 826.


def network_start(seed: int, inputs: int = 40) -> PyTree:
    """Independent normal weights of variance 2 / inputs and 1 / hidden, biases 0."""
    rng = np.random.default_rng([seed, 826])
    first = rng.standard_normal((inputs, HIDDEN)) * np.sqrt(2.0 / inputs)
    second = rng.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN)
    return {
        "first": first.astype(np.float32),
        "first_bias": np.zeros(HIDDEN, np.float32),
        "second": second.astype(np.float32),
        "second_bias": np.zeros(CLASSES, np.float32),
    }


def network_scores(
    params: PyTree, features: Float[Array, "*rows inputs"]
) -> Float[Array, "*rows classes"]:
    """Class scores of the network inputs - 16 - 10."""
    hidden = jax.nn.relu(features @ params["first"] + params["first_bias"])
    return hidden @ params["second"] + params["second_bias"]


def cross_entropy(params: PyTree, record: PyTree) -> Float[Array, ""]:
    """log sum exp(scores) - score of the label, for as many classes as the network has."""
    scores = network_scores(params, record["features"])
    # A product with a one-hot vector, because a lookup by label is slow under vmap on a CPU.
    label = jax.nn.one_hot(record["label"], scores.shape[-1], dtype=scores.dtype)
    return jax.nn.logsumexp(scores) - scores @ label


@jax.jit
def _network_accuracy(
    params: PyTree, features: Float[Array, "rows inputs"], label: Int[Array, " rows"]
) -> Float[Array, ""]:
    return jnp.mean(jnp.argmax(network_scores(params, features), axis=-1) == label)


def network_points(params: PyTree, records: Records) -> float:
    """100 times the share that the network classifies correctly."""
    return 100.0 * float(_network_accuracy(params, records["features"], records["label"]))


def digits() -> Problem:
    """4,000 MNIST digits, 40 principal components, ReLU network with 826 parameters."""
    return Problem(
        name="digits",
        loss=cross_entropy,
        reference_loss=cross_entropy,
        start=network_start,
        score=network_points,
        split=data.digits(),
    )


# The peers' support vector machine with a capped l1 penalty: nonsmooth and nonconvex.


def zeros(dim: int) -> Callable[[int], PyTree]:
    """Start at 0 whatever the seed."""
    return lambda seed: np.zeros(dim, np.float32)


def margin(params: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
    """y <a, x> with y = -1 or +1."""
    return (2.0 * record["label"] - 1.0) * (record["features"] @ params)


def capped_svm(params: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
    """hinge(1 - y <a, x>) + 1e-5 sum_j min(|x_j|, 2)."""
    penalty = PENALTY * jnp.sum(jnp.minimum(jnp.abs(params), CAP))
    return jnp.maximum(0.0, 1.0 - margin(params, record)) + penalty


def linear_points(params: Float[Array, " dim"], records: Records) -> float:
    """100 times the share on the right side; a margin of exactly 0 is read as class 0."""
    guess = np.asarray(records["features"], np.float64) @ np.asarray(params, np.float64) > 0
    return 100.0 * float(np.mean(guess == (records["label"] == 1)))


def a9a(folder: Path | None = None) -> Problem:
    """Capped-l1 support vector machine on a9a, d = 123."""
    return Problem(
        name="a9a",
        loss=capped_svm,
        reference_loss=capped_svm,
        start=zeros(123),
        score=linear_points,
        split=data.a9a(folder),
    )


# The 0/1 loss itself: no gradient anywhere.


def centred(records: Records, centre: Float[np.ndarray, " features"]) -> Records:
    """The records less `centre`, with a feature that is always 1: a classifier with an offset."""
    features = records["features"] - centre
    ones = np.ones((len(features), 1), features.dtype)
    return {**records, "features": np.concatenate([features, ones], axis=1)}


def zero_one_loss(params: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
    """1 for a record on the wrong side, 0 otherwise; piecewise constant in the parameters."""
    wrong = (record["features"] @ params > 0) != (record["label"] == 1)
    return wrong.astype(params.dtype)


def zero_one(folder: Path | None = None) -> Problem:
    """The 0/1 loss of a linear classifier with offset on a9a, d = 124. No gradient to follow.

    Features are centred at the training means: without that, "always class 0" is a plateau that few
    runs leave, with or without privacy. The means count as public preprocessing, as the digits'
    principal axes do. First order is trained on the hinge instead.
    """
    split = data.a9a(folder)
    centre = split.train["features"].mean(axis=0)
    return Problem(
        name="a9a 0/1",
        loss=zero_one_loss,
        reference_loss=capped_svm,
        start=zeros(124),
        score=linear_points,
        split=Split(
            fit=centred(split.fit, centre),
            validation=centred(split.validation, centre),
            train=centred(split.train, centre),
            test=centred(split.test, centre),
        ),
    )
