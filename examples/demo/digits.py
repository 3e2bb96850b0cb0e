"""Digits: a ReLU network trained from loss values alone, on a small public data set.

64 pixels - 16 hidden units - 10 classes, 1,210 parameters; 1,437 images to train on, which play the
people, and 360 to test on. The data are described in DATA.md beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from blindstep.estimate.bounds import Bounds
from blindstep.ledger.budget import Privacy
from blindstep.planning.planner import plan
from blindstep.planning.tight import Tight
from blindstep.run.minimize import minimize
from blindstep.run.result import Result

from .story import NO_PRIVACY, Row, Say, Story, rows_of

EPSILONS = (1.0, 3.0, 8.0)
PASSES = 320
_TRAIN, _HIDDEN, _CLASSES = 1_437, 16, 10
_BRIGHTEST = 16.0
# Chosen by hand on these (public) digits; benchmarks/ shows a choice by validation.
_HORIZON, _DIRECTIONS, _SMOOTHING, _REACH, _CLIP = 10, 32, 0.01, 0.3, 0.5


class Images(NamedTuple):
    """Pixels scaled to [-1, 1], and what digit each image is."""

    pixels: Float[np.ndarray, "rows 64"]
    label: Int[np.ndarray, " rows"]


def load() -> tuple[Images, Images]:
    """Images to train on and to test on, in a fixed random order."""
    with (Path(__file__).parent / "digits.npz").open("rb") as file:
        stored = np.load(file)
        pixels, labels = stored["pixels"], stored["labels"]
    order = np.random.default_rng(0).permutation(len(labels))
    scaled = (2.0 * pixels[order] / _BRIGHTEST - 1.0).astype(np.float32)
    label = labels[order].astype(np.int32)
    return Images(scaled[:_TRAIN], label[:_TRAIN]), Images(scaled[_TRAIN:], label[_TRAIN:])


def initial() -> PyTree:
    """Independent normal weights of variance 2 / inputs and 1 / hidden, biases 0: public."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((64, _HIDDEN), np.float32) * np.float32(np.sqrt(2.0 / 64))
    second = rng.standard_normal((_HIDDEN, _CLASSES), np.float32) / np.float32(np.sqrt(_HIDDEN))
    zeros = (np.zeros(size, np.float32) for size in (_HIDDEN, _CLASSES))
    return {"first": first, "first_bias": next(zeros), "second": second, "second_bias": next(zeros)}


def scores(
    params: PyTree, pixels: Float[Array | np.ndarray, "*rows 64"]
) -> Float[Array, "*rows classes"]:
    """Class scores of the network."""
    hidden = jax.nn.relu(pixels @ params["first"] + params["first_bias"])
    return hidden @ params["second"] + params["second_bias"]


def cross_entropy(params: PyTree, image: Images) -> Float[Array, ""]:
    """log sum exp(scores) - score of the right digit: only its values are ever used."""
    given = scores(params, image.pixels)
    # A product with a one-hot vector, because a lookup by label is slow under vmap on a CPU.
    right = jax.nn.one_hot(image.label, _CLASSES, dtype=given.dtype)
    return jax.nn.logsumexp(given) - given @ right


def accuracy(params: PyTree, images: Images) -> float:
    """Share of images that get their own digit."""
    guess = np.argmax(np.asarray(scores(params, images.pixels)), axis=-1)
    return float(np.mean(guess == images.label))


def train(images: Images, privacy: Privacy, passes: int, progress: bool) -> Result:
    """One private run: all images in each step, along one frame of 32 directions."""
    params = initial()
    made = plan(
        Tight(
            radius=_SMOOTHING + _HORIZON * _REACH,
            bounds=Bounds(clip=_CLIP),
            horizon=_HORIZON,
            passes=passes,
            first_batch=len(images.label),
            directions=_DIRECTIONS,
            smoothing=_SMOOTHING,
            reach=_REACH,
        ),
        records=len(images.label),
        dim=sum(leaf.size for leaf in params.values()),
        privacy=privacy,
    )
    return minimize(cross_entropy, params, images, method=made, progress=progress)


def tell(say: Say | None = None, passes: int | None = None) -> Story:
    """Run the story: before, each epsilon, without privacy."""
    passes = PASSES if passes is None else passes
    images, unseen = load()

    def trained(privacy: Privacy) -> tuple[float, Result]:
        result = train(images, privacy, passes, progress=say is not None)
        return accuracy(result.params, unseen), result

    budgets = (Privacy(epsilon=epsilon) for epsilon in (*EPSILONS, NO_PRIVACY))
    rows = [Row("before", accuracy(initial(), unseen)), *rows_of("Digits", say, budgets, trained)]
    return Story(
        f"Digits: a ReLU network on {len(images.label):,} images, from loss values alone",
        "test accuracy",
        f"Accuracy on {len(unseen.label)} images that were not trained on; the settings were chosen by "
        "hand on these digits, which flatters it a little. No privacy: the same run with little "
        f"noise (epsilon {NO_PRIVACY:g}).",
        tuple(rows),
    )
