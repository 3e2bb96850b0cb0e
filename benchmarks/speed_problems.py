"""The three problems of the speed benchmark: loss, parameters, records and plan.

Parameters and records are float32, as JAX users have them. Data are synthetic: speed does not depend
on what they say. The SVM's records look like a9a's, 14 ones among 123 features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

import blindstep as bs
from blindstep.estimate.directions import Directions, Parts, Sphere
from blindstep.planning.plan import Plan


@dataclass(frozen=True)
class Problem:
    """What is run.

    Attributes:
        name: how the results call it.
        loss: of parameters and one record, in JAX.
        params: where to start.
        data: records, one row each; as many as one round needs.
        plan: of a run; its first round is timed.
        numpy_loss: the same loss of a flat vector and one record, for the NumPy twin.
        sampler: directions that replace the plan's.
    """

    name: str
    loss: Callable[..., Any]
    params: Any
    data: tuple[np.ndarray, np.ndarray]
    plan: Plan
    numpy_loss: Callable[..., float]
    sampler: Directions | None = None

    @property
    def records(self) -> int:
        """Records of one round."""
        blocks = self.plan.horizon // self.plan.period
        return blocks * (self.plan.first_batch + self.plan.diff_batch * (self.plan.period - 1))

    @property
    def evaluations(self) -> int:
        """Loss evaluations of one round."""
        return 2 * self.records * self.plan.directions


_REGULAR, _CAP = 1e-5, 2.0
_PRIVACY = bs.Privacy(mu=1.0)


def svm_loss(x: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Hinge loss with the capped l1 penalty of the zeroth-order literature."""
    features, label = record
    hinge = jnp.maximum(0.0, 1.0 - label * jnp.dot(features, x))
    return hinge + _REGULAR * jnp.sum(jnp.minimum(jnp.abs(x), _CAP))


def _svm_numpy(x: np.ndarray, record: tuple[np.ndarray, float]) -> float:
    features, label = record
    hinge = max(0.0, 1.0 - label * float(features @ x))
    return hinge + _REGULAR * float(np.minimum(np.abs(x), _CAP).sum())


class PlainSphere(Sphere):
    """Independent directions from `jax.random.normal`, as people draw them.

    The first version of this library did so too, in float64.
    """

    drawn_in: str = eqx.field(static=True)

    def rows(
        self,
        prepared: tuple[Key[Array, ""], Float[Array, "0"]],
        which: Int[Array, " some"] | None,
        directions: int,
        dim: int,
    ) -> Parts:
        """Normalised Gaussian vectors, one key for each."""
        key, like = prepared
        which = jnp.arange(directions) if which is None else which
        keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(which)
        normal = jax.vmap(lambda k: jax.random.normal(k, (dim,), self.drawn_in))(keys)
        unit = normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
        return (unit.astype(like.dtype),)


def svm(horizon: int = 1024, method: str = "tight", sampler: Directions | None = None) -> Problem:
    """Capped-l1 SVM, d = 123: full frames for each record, variance reduction, B1 = T + 1, B2 = 1.

    Method `paper` is the same run with independent directions and the tree.
    """
    rng, dim, records = np.random.default_rng(0), 123, 2 * horizon
    features = (rng.uniform(size=(records, dim)) < 14 / dim).astype(np.float32)
    labels = np.sign(rng.normal(size=records)).astype(np.float32)
    known: dict[str, Any] = {"radius": 0.1, "lipschitz": 4.0, "gap": 1.0, "horizon": horizon}
    how = bs.Paper(**known)
    if method == bs.Tight.name:
        how = bs.Tight(
            **known,
            oracle="variance-reduced",
            period=horizon,
            first_batch=horizon + 1,
            diff_batch=1,
            directions=dim,
            sharing="record",
        )
    plan = bs.plan(how, records=records, dim=dim, privacy=_PRIVACY)
    params = np.zeros(dim, np.float32)
    data = (features, labels)
    return Problem(f"svm-{method}", svm_loss, params, data, plan, _svm_numpy, sampler)


def network_loss(params: dict[str, jax.Array], record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Cross entropy of a network with one hidden layer of ReLUs, capped at 5."""
    features, label = record
    hidden = jax.nn.relu(features @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return jnp.minimum(jax.nn.logsumexp(logits) - logits[label], 5.0)


def network(inputs: int, hidden: int, *, directions: int, batch: int, steps: int) -> Problem:
    """A ReLU network for 10 classes: a fresh gradient every step, along a frame that its batch shares.

    As the planner would have it: a block is one release, in the coordinates of its frame.
    """
    rng, classes = np.random.default_rng(0), 10
    shapes = {"w1": (inputs, hidden), "b1": (hidden,), "w2": (hidden, classes), "b2": (classes,)}
    params = {
        name: (rng.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }
    features = rng.normal(size=(batch * steps, inputs)).astype(np.float32)
    labels = rng.integers(0, classes, batch * steps).astype(np.int32)
    dim = sum(math.prod(shape) for shape in shapes.values())
    plan = bs.plan(
        bs.Tight(
            radius=0.1,
            bounds=bs.Bounds(clip=1.0, diff_clip=1.0),
            oracle="naive",
            period=1,
            horizon=steps,
            first_batch=batch,
            directions=directions,
            sharing="block",
        ),
        records=batch * steps,
        dim=dim,
        privacy=_PRIVACY,
    )

    def numpy_loss(x: np.ndarray, record: tuple[np.ndarray, int]) -> float:
        # The leaves of a dictionary are in the order of its names: b1, b2, w1, w2.
        sizes = np.cumsum([math.prod(shapes[name]) for name in sorted(shapes)])[:-1]
        b1, b2, w1, w2 = (
            part.reshape(shapes[name])
            for name, part in zip(sorted(shapes), np.split(x, sizes), strict=True)
        )
        logits = np.maximum(record[0] @ w1 + b1, 0.0) @ w2 + b2
        top = logits.max()
        return min(float(top + np.log(np.exp(logits - top).sum()) - logits[record[1]]), 5.0)

    return Problem(f"network-{dim}", network_loss, params, (features, labels), plan, numpy_loss)


def small_network(directions: int = 256, batch: int = 1000, steps: int = 8) -> Problem:
    """d = 826: 40 inputs, 16 hidden units."""
    return network(40, 16, directions=directions, batch=batch, steps=steps)


def large_network(directions: int = 64, batch: int = 512, steps: int = 4) -> Problem:
    """d = 100,180: 784 inputs, 126 hidden units."""
    return network(784, 126, directions=directions, batch=batch, steps=steps)
