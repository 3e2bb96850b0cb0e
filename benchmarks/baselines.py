"""Baselines, written anew from their papers, all of one form and at equal exact privacy.

At each step every record of a batch contributes a vector v_i of k numbers, and

    released = sum_i clip_C(v_i) + N(0, sigma^2 I_k),    x <- x - rate_t lift(released / batch)

with rate_t falling linearly to 0 over the run (post-processing; free). They differ in v_i and lift:

- DPZero (Zhang et al. 2024): one direction u, uniform on the sphere of radius sqrt(d), shared by the
  batch; v_i = (f(x + h u, z_i) - f(x - h u, z_i)) / 2h, k = 1, lift(r) = r u;
- DP-AggZO (USENIX Security 2025): K Gaussian directions shared by the batch, the K differences of a
  record clipped *jointly*; k = K, lift(r) = (1/K) sum_j r_j u_j;
- gradients: v_i = grad f(x, z_i), k = d, lift the identity; for the reference without privacy. (First
  order with privacy is blindstep itself, `estimate="gradient"`.)

Unlike peers' code, noise and directions come from separate keys, and the noise is calibrated for
what is released. Noise is from JAX's generator: good for benchmarks, not for releasing anything.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from benchmarks.data import Records
from benchmarks.problems import Loss, Problem
from blindstep.errors import count, positive
from blindstep.ledger.budget import Privacy
from blindstep.losses.pytrees import ParameterSpace, count_records

# Losses held at once while differences are taken: records x directions.
_BUDGET = 2**19


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters of one baseline run.

    Attributes:
        passes: times the records are gone through.
        batches: batches in a pass.
        clip: C; infinite without privacy.
        rate: initial step size.
        directions: K; 0 means gradients, 1 is DPZero, more is DP-AggZO.
        smoothing: h, in units of a direction of length about sqrt(d).
        adam: scale steps as Adam does (references without privacy only).
    """

    passes: int
    batches: int
    clip: float
    rate: float
    directions: int = 0
    smoothing: float = 0.0
    adam: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        params: the answer.
        path: parameters along the run, flat, the last at its end.
        evaluations: losses of each record that were computed until each point of the path.
    """

    params: PyTree
    path: Float[np.ndarray, "points dim"]
    evaluations: Float[np.ndarray, " points"]


def run(
    problem: Problem, records: Records, privacy: Privacy | None, setting: Setting, seed: int
) -> Outcome:
    """Train a baseline on `records` within `privacy`; None runs it without noise."""
    number = count_records(records)
    rows = None  # everybody, in any order
    if setting.batches > 1:
        rng = np.random.default_rng([seed, 1])
        rows = disjoint_rows(rng, number, setting.passes, setting.batches)
    start = problem.start(seed)
    vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)])
    space = ParameterSpace.of(start)
    path = np.asarray(
        _train(
            problem.loss,
            space,
            dataclasses.replace(setting, clip=0.0, rate=0.0, smoothing=0.0),
            vector,
            jax.tree.map(jnp.asarray, records),
            rows,
            (setting.clip, setting.rate, setting.smoothing, noise_for(privacy, setting)),
            jax.random.key(seed),
        )
    )
    each = max(1, 2 * setting.directions)
    return Outcome(space.unflatten(path[-1]), path, each * np.arange(1.0, len(path) + 1))


def noise_for(privacy: Privacy | None, setting: Setting) -> float:
    """Sigma on the released sum; 0 without privacy."""
    return 0.0 if privacy is None else disjoint_noise(privacy.mu, setting.clip, setting.passes)


def disjoint_noise(mu: float, clip: float, passes: int) -> float:
    """Sigma on the sum for `passes` passes over disjoint batches: 2 C sqrt(passes) / mu.

    Replacing one record moves the sum by at most 2 C. Within a pass a record is in one batch only, so
    one pass is (2 C / sigma)-Gaussian-DP however many batches it has, and passes compose as the root of
    the sum of squares (private.accounting). Exact; the relation is blindstep's own, replace one record.
    """
    return 2.0 * positive("clip", clip) * math.sqrt(count("passes", passes)) / positive("mu", mu)


def disjoint_rows(
    rng: np.random.Generator, number: int, passes: int, batches: int
) -> Int[np.ndarray, "passes batches size"]:
    """In each pass a fresh order, cut into equal batches; leftover records sit the pass out."""
    size = number // batches
    orders = [rng.permutation(number)[: size * batches] for _ in range(passes)]
    return np.stack(orders).reshape(passes, batches, size)


def directions_for(
    key: Key[Array, ""], number: int, dim: int, dtype: type
) -> Float[Array, "k dim"]:
    """K Gaussian directions (DP-AggZO); a single one is scaled to length sqrt(d) (DPZero)."""
    drawn = jax.random.normal(key, (number, dim), dtype)
    if number == 1:
        return drawn * (jnp.sqrt(dim) / jnp.linalg.norm(drawn))
    return drawn


def contributions(
    loss: Loss,
    space: ParameterSpace,
    point: Float[Array, " dim"],
    batch: PyTree,
    directions: Float[Array, "k dim"] | None,
    smoothing: Float[Array, ""] | float,
) -> Float[Array, "size k"]:
    """v_i of every record: its gradient, or its differences along the directions."""

    def value(x: Float[Array, " dim"], record: PyTree) -> Float[Array, ""]:
        return loss(space.unflatten(x), record)

    if directions is None:
        return jax.vmap(jax.grad(value), (None, 0))(point, batch)

    def along(direction: Float[Array, " dim"]) -> Float[Array, " size"]:
        sides = jnp.stack([point + smoothing * direction, point - smoothing * direction])
        losses = jax.vmap(jax.vmap(value, (None, 0)), (0, None))(sides, batch)
        return (losses[0] - losses[1]) / (2.0 * smoothing)

    size = jax.tree.leaves(batch)[0].shape[0]
    chunk = max(1, min(len(directions), _BUDGET // size))
    return jax.lax.map(along, directions, batch_size=chunk).T


@jax.jit
def clipped_sum(
    values: Float[Array, "size k"], clip: Float[Array, ""] | float
) -> Float[Array, " k"]:
    """sum_i clip_C(v_i), v_i counted 0 where it is not finite; replacing a record moves it by 2 C."""
    norms = jnp.linalg.norm(values, axis=1)
    finite = jnp.isfinite(norms)
    scale = jnp.where(finite & (norms > clip), clip / jnp.where(norms > 0, norms, 1.0), 1.0)
    kept = jnp.where(finite[:, None], values, 0.0)
    return jnp.where(finite, scale, 0.0) @ kept


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _train(
    loss: Loss,
    space: ParameterSpace,
    shape: Setting,
    start: Float[Array, " dim"],
    records: PyTree,
    rows: Int[Array, "passes batches size"] | None,
    numbers: tuple[float, float, float, float],
    key: Key[Array, ""],
) -> Float[Array, "passes dim"]:
    """Parameters after each pass. `numbers`: clip, rate, smoothing, sigma; `shape` has the rest."""
    clip, rate, smoothing, noise_std = numbers
    public, secret = jax.random.split(key)
    number, steps = shape.directions, shape.passes * shape.batches

    def step(state: tuple, chosen: Int[Array, " size"] | None) -> tuple[tuple, None]:
        point, moments, time = state
        batch = records
        if chosen is not None:
            batch = jax.tree.map(lambda leaf: leaf[chosen], records)
        directions = None
        if number:
            public_key = jax.random.fold_in(public, time)
            directions = directions_for(public_key, number, space.dim, point.dtype)
        values = contributions(loss, space, point, batch, directions, smoothing)
        total = clipped_sum(values, clip)
        noise = jax.random.normal(jax.random.fold_in(secret, time), total.shape, total.dtype)
        gradient = (total + noise_std * noise) / len(values)
        if directions is not None:
            gradient = gradient @ directions / number
        if shape.adam:
            moments, gradient = _adam(moments, gradient, time)
        point = point - rate * (1.0 - time / steps) * gradient
        return (point, moments, time + 1), None

    def one_pass(state: tuple, chosen: Any) -> tuple[tuple, Float[Array, " dim"]]:
        state, _ = jax.lax.scan(step, state, chosen, length=shape.batches)
        return state, state[0]

    point = jnp.asarray(start)
    state = (point, (jnp.zeros_like(point), jnp.zeros_like(point)), jnp.asarray(0))
    return jax.lax.scan(one_pass, state, rows, length=shape.passes)[1]


def _adam(
    moments: tuple[Float[Array, " dim"], Float[Array, " dim"]],
    gradient: Float[Array, " dim"],
    time: Int[Array, ""],
) -> tuple[tuple[Float[Array, " dim"], Float[Array, " dim"]], Float[Array, " dim"]]:
    """Kingma & Ba's step with decay 0.9 and 0.999, bias-corrected."""
    first = 0.9 * moments[0] + 0.1 * gradient
    second = 0.999 * moments[1] + 0.001 * gradient**2
    mean = first / (1.0 - 0.9 ** (time + 1))
    scale = jnp.sqrt(second / (1.0 - 0.999 ** (time + 1))) + 1e-8
    return (first, second), mean / scale
