"""Baselines, written anew from their papers, all of one form and at equal exact privacy.

At each step every record of a batch contributes a vector v_i of k numbers, and

    released = sum_i clip_C(v_i) + N(0, sigma^2 I_k),    x <- x - rate_t lift(released / batch)

with rate_t falling linearly to 0 over the run (post-processing; free). They differ in v_i and lift:

- DP-SGD, with Poisson batches: v_i = grad f(x, z_i), k = d, lift the identity. (First order on disjoint
  batches is blindstep itself, `estimate="gradient"`.)
- DPZero (Zhang et al. 2024): one direction u, uniform on the sphere of radius sqrt(d), shared by the
  batch; v_i = (f(x + h u, z_i) - f(x - h u, z_i)) / 2h, k = 1, lift(r) = r u;
- DP-AggZO (USENIX Security 2025): K Gaussian directions shared by the batch, the K differences of a
  record clipped *jointly*; k = K, lift(r) = (1/K) sum_j r_j u_j.

Unlike peers' code, noise and directions come from separate keys, and the noise is calibrated for
what is released. Noise is from JAX's generator: good for benchmarks, not for releasing anything.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from benchmarks.calibration import ADD_REMOVE, REPLACE, disjoint_noise, poisson_noise
from benchmarks.data import Records
from benchmarks.problems import Loss, Problem
from blindstep.drivers.pytrees import ParameterSpace, count_records
from blindstep.errors import InvalidArgument
from blindstep.private.statement import Privacy

SAMPLING = ("disjoint", "Poisson, replace one", "Poisson, add or remove one")
# Losses held at once while differences are taken: records x directions.
_BUDGET = 2**17


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters of one baseline run.

    Attributes:
        passes: times the records are gone through (in expectation, if Poisson).
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
        path: parameters at the end of each pass (or round), flat.
        noise_std: sigma on the released sum (0 without privacy).
        relation: the neighbouring relation that the run's epsilon is for, or "none".
        evaluations: losses (or gradients) of one record that were computed.
        seconds: wall-clock time, with compilation.
    """

    params: PyTree
    path: Float[np.ndarray, "passes dim"]
    noise_std: float
    relation: str
    evaluations: int
    seconds: float


def run(
    problem: Problem,
    records: Records,
    privacy: Privacy | None,
    setting: Setting,
    seed: int,
    sampling: str = "disjoint",
) -> Outcome:
    """Train a baseline on `records` within `privacy`; None runs it without noise."""
    if sampling not in SAMPLING:
        raise InvalidArgument(f"sampling must be one of {', '.join(SAMPLING)}, got {sampling!r}.")
    began = time.perf_counter()
    number = count_records(records)
    rng = np.random.default_rng([seed, 1])
    if sampling == "disjoint":
        rows, weights = disjoint_rows(rng, number, setting.passes, setting.batches)
    else:
        rows, weights = poisson_rows(rng, number, setting.passes, setting.batches)
    noise_std, relation = noise_for(privacy, setting, sampling)
    start = problem.start(seed)
    vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)])
    space = ParameterSpace.of(start)
    path = np.asarray(
        _train(
            problem.loss,
            space,
            setting.directions,
            setting.adam,
            vector,
            jax.tree.map(jnp.asarray, records),
            rows,
            weights,
            (setting.clip, setting.rate, setting.smoothing, noise_std, number / setting.batches),
            jax.random.key(seed),
        )
    )
    return Outcome(
        params=space.unflatten(path[-1]),
        path=path,
        noise_std=noise_std,
        relation=relation,
        evaluations=int(weights.sum()) * max(1, 2 * setting.directions),
        seconds=time.perf_counter() - began,
    )


def noise_for(privacy: Privacy | None, setting: Setting, sampling: str) -> tuple[float, str]:
    """Sigma on the released sum, and the relation under which it meets `privacy`."""
    if privacy is None:
        return 0.0, "none"
    if sampling == "disjoint":
        return disjoint_noise(privacy.rho, setting.clip, setting.passes), REPLACE
    relation = REPLACE if sampling == SAMPLING[1] else ADD_REMOVE
    steps = setting.passes * setting.batches
    noise = poisson_noise(
        privacy.epsilon, privacy.delta, setting.clip, 1.0 / setting.batches, steps, relation
    )
    return noise, relation


def disjoint_rows(
    rng: np.random.Generator, number: int, passes: int, batches: int
) -> tuple[Int[np.ndarray, "passes batches size"], Float[np.ndarray, "passes batches size"]]:
    """In each pass a fresh order, cut into equal batches; leftover records sit the pass out."""
    size = number // batches
    orders = [rng.permutation(number)[: size * batches] for _ in range(passes)]
    rows = np.stack(orders).reshape(passes, batches, size)
    return rows, np.ones(rows.shape, np.float32)


def poisson_rows(
    rng: np.random.Generator, number: int, passes: int, batches: int
) -> tuple[Int[np.ndarray, "passes batches size"], Float[np.ndarray, "passes batches size"]]:
    """Each batch takes each record with probability 1 / batches, independently.

    A binomial count, then that many records of a random order: the same law. Batches are padded to
    equal size, and padding has weight 0.
    """
    counts = rng.binomial(number, 1.0 / batches, size=(passes, batches))
    size = int(counts.max())
    rows = np.stack([rng.permutation(number)[:size] for _ in range(passes * batches)])
    weights = np.arange(size) < counts[..., None]
    return rows.reshape(passes, batches, size), weights.astype(np.float32)


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
        losses = [
            jax.vmap(value, (None, 0))(point + sign * smoothing * direction, batch)
            for sign in (1.0, -1.0)
        ]
        return (losses[0] - losses[1]) / (2.0 * smoothing)

    size = jax.tree.leaves(batch)[0].shape[0]
    chunk = max(1, min(len(directions), _BUDGET // size))
    return jax.lax.map(along, directions, batch_size=chunk).T


def clipped_sum(
    values: Float[Array, "size k"], weights: Float[Array, " size"], clip: Float[Array, ""] | float
) -> Float[Array, " k"]:
    """sum_i w_i clip_C(v_i), with v_i counted 0 where it is not finite.

    Sensitivity with weights 0 or 1: 2 C if one record is replaced, C if one is added or removed.
    """
    norms = jnp.linalg.norm(values, axis=1)
    finite = jnp.isfinite(norms)
    scale = jnp.where(finite & (norms > clip), clip / jnp.where(norms > 0, norms, 1.0), 1.0)
    kept = jnp.where(finite[:, None], values, 0.0)
    return (weights * jnp.where(finite, scale, 0.0)) @ kept


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _train(
    loss: Loss,
    space: ParameterSpace,
    number: int,
    adam: bool,
    start: Float[Array, " dim"],
    records: PyTree,
    rows: Int[Array, "passes batches size"],
    weights: Float[Array, "passes batches size"],
    numbers: tuple[float, float, float, float, float],
    key: Key[Array, ""],
) -> Float[Array, "passes dim"]:
    """Parameters after each pass. `numbers` are clip, rate, smoothing, noise_std, mean batch."""
    clip, rate, smoothing, noise_std, size = numbers
    public, secret = jax.random.split(key)
    dim, steps = space.dim, rows.shape[0] * rows.shape[1]

    def step(state: tuple, chosen: tuple) -> tuple[tuple, None]:
        point, moments, time = state
        batch = jax.tree.map(lambda leaf: leaf[chosen[0]], records)
        directions = None
        if number:
            public_key = jax.random.fold_in(public, time)
            directions = directions_for(public_key, number, dim, point.dtype)
        values = contributions(loss, space, point, batch, directions, smoothing)
        total = clipped_sum(values, chosen[1].astype(point.dtype), clip)
        noise = jax.random.normal(jax.random.fold_in(secret, time), total.shape, total.dtype)
        released = total + noise_std * noise
        gradient = released / size
        if directions is not None:
            gradient = gradient @ directions / number
        if adam:
            moments, gradient = _adam(moments, gradient, time)
        point = point - rate * (1.0 - time / steps) * gradient
        return (point, moments, time + 1), None

    def one_pass(state: tuple, chosen: tuple) -> tuple[tuple, Float[Array, " dim"]]:
        state, _ = jax.lax.scan(step, state, chosen)
        return state, state[0]

    point = jnp.asarray(start)
    state = (point, (jnp.zeros_like(point), jnp.zeros_like(point)), jnp.asarray(0))
    return jax.lax.scan(one_pass, state, (rows, weights))[1]


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
