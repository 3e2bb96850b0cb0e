"""The models: layers of weights with ReLU between them, and the losses of one record.

A model is a list of layers (W, b). Training evaluates it in JAX, one record at a time; predictions
are plain NumPy in float64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from blindstep.errors import InvalidArgument, count, positive
from blindstep.losses.pytrees import Loss

Layers = list[tuple[Any, Any]]


def start(sizes: Sequence[int]) -> Layers:
    """Public starting weights, a function of the layer sizes: 0 for one layer, else as if random.

    Hidden weights are normal with variance 2 / inputs (He et al., 2015), the last layer's with
    variance 1 / inputs; biases are 0. No seed of a user enters: it makes the noise, which is secret.
    """
    chance, layers = np.random.default_rng(0), []
    for depth, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = depth == len(sizes) - 2
        spread = np.sqrt((1.0 if last else 2.0) / inputs) if len(sizes) > 2 else 0.0
        weights = spread * chance.standard_normal((inputs, outputs))
        layers.append((weights.astype(np.float32), np.zeros(outputs, np.float32)))
    return layers


def outputs(layers: Layers, features: Any, maximum: Callable[..., Any] = jnp.maximum) -> Any:
    """What the last layer says: features @ W + b, with ReLU after all layers but the last."""
    for weights, bias in layers[:-1]:
        features = maximum(features @ weights + bias, 0.0)
    weights, bias = layers[-1]
    return features @ weights + bias


def class_scores(given: Float[Array, " outputs"]) -> Float[Array, " classes"]:
    """One score for each class; of two classes the first has score 0."""
    return jnp.concatenate([jnp.zeros_like(given), given]) if given.shape[0] == 1 else given


def logistic(scores: Float[Array, " classes"], label: Int[Array, ""]) -> Float[Array, ""]:
    """Cross entropy: log sum exp(scores) - score of the label."""
    return jax.nn.logsumexp(scores) - _of_label(scores, label)


def hinge(scores: Float[Array, " classes"], label: Int[Array, ""]) -> Float[Array, ""]:
    """max(0, 1 + best other score - score of the label) (Crammer and Singer, 2001)."""
    own = jax.nn.one_hot(label, scores.shape[0], dtype=scores.dtype)
    others = jnp.max(jnp.where(own > 0, -jnp.inf, scores))
    return jnp.maximum(0.0, 1.0 + others - _of_label(scores, label))


def zero_one(scores: Float[Array, " classes"], label: Int[Array, ""]) -> Float[Array, ""]:
    """1 if another class would be predicted, else 0: no gradient anywhere."""
    return (jnp.argmax(scores) != label).astype(scores.dtype)


def absolute(prediction: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """|prediction - target|."""
    return jnp.abs(prediction - target)


def squared(prediction: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """(prediction - target)^2 / 2."""
    return (prediction - target) ** 2 / 2


CLASSIFICATION = {"logistic": logistic, "hinge": hinge, "zero-one": zero_one}
REGRESSION = {"absolute": absolute, "squared": squared}


@functools.lru_cache(maxsize=64)
def record_loss(
    judge: Callable[[Any, Any], Any], classifies: bool, weights: tuple[float, ...] = ()
) -> Loss:
    """The loss of a model on one record; the same object each time, so nothing compiles twice.

    `weights` are those of the classes; none: each weighs 1.
    """

    def loss(layers: PyTree, record: PyTree) -> Any:
        given = outputs(layers, record["features"])
        found = judge(class_scores(given) if classifies else given[0], record["target"])
        if not weights:
            return found
        return found * _of_label(jnp.asarray(weights, given.dtype), record["target"])

    return loss


def itself(_: PyTree, record: Any) -> Any:
    """A record that is a loss already."""
    return record


# What is said of a column that is not one of numbers.
WORDS = (
    "X has a column of words: give categories={'column': ['one', 'another']}, a public list of those "
    "that there may be, and scales={'column': (centre, size)} for columns of numbers. (An encoder that "
    "is fitted on private rows would be a release of its own.)"
)


def weights_of(given: object, classes: np.ndarray) -> tuple[float, ...]:
    """The weight of each class, checked; none if all weigh 1."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"class_weight must be a mapping such as {{'no': 1, 'yes': 5}}, got {given!r}: weights "
            "that follow from how often a label occurs would be a release of its own."
        )
    known = classes.tolist()
    if unknown := [label for label in given if label not in known]:
        raise InvalidArgument(
            f"class_weight has {unknown[0]!r}, which is not a class: there are {known}."
        )
    return tuple(positive(f"class_weight[{label!r}]", given.get(label, 1.0)) for label in known)


def chosen_loss(loss: object, known: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The loss that a user named, or the function that they gave."""
    if callable(loss):
        return loss
    if not isinstance(loss, str) or loss not in known:
        names = ", ".join(repr(name) for name in known)
        raise InvalidArgument(f"loss must be one of {names} or a function, got {loss!r}.")
    return known[loss]


def layer_sizes(features: int, hidden: object, out: int) -> list[int]:
    """Sizes of all layers, the hidden ones checked."""
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise InvalidArgument(
            f"hidden must be a tuple of layer sizes, got {hidden!r}: (16,) is one hidden layer of 16 "
            "units, () is a linear model."
        )
    return [features, *(count("hidden", size) for size in hidden), out]


def _of_label(scores: Float[Array, " classes"], label: Int[Array, ""]) -> Float[Array, ""]:
    # A product with a one-hot vector, because a lookup by label is slow under vmap on a CPU.
    return scores @ jax.nn.one_hot(label, scores.shape[0], dtype=scores.dtype)
