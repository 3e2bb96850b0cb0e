"""DPZero and DP-AggZO in Poisson batches, with exact accounting: what their papers' figures rest on.

A step takes each record with probability `rate_of_records`, by itself. Neighbours are zero-out: one
record is there or not, which is what these papers mean by epsilon. The noise is the least that
dp-accounting's privacy loss distributions allow for all steps together. What is released is divided by
the public number that is expected, as blindstep does it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.pld import PLDAccountant
from jaxtyping import Array, Float, Key, PyTree

from benchmarks.baselines import clipped_sum, contributions, directions_for
from benchmarks.data import Records
from benchmarks.problems import Loss, Problem
from blindstep.losses.pytrees import ParameterSpace, count_records


@dataclass(frozen=True)
class PoissonSetting:
    """One run.

    Attributes:
        steps: T.
        rate_of_records: the probability that a record is in a step.
        directions: K; 1 is DPZero, more is DP-AggZO.
        clip: of a record's differences together.
        length: the first rate times the steps; rates fall linearly to 0.
        smoothing: h.
    """

    steps: int
    rate_of_records: float
    directions: int
    clip: float
    length: float
    smoothing: float

    @property
    def evaluations(self) -> float:
        """Losses of a record that are expected."""
        return 2 * self.directions * self.rate_of_records * self.steps


@functools.lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The least noise, in clips, of so many Poisson-sampled Gaussian sums; zero-out neighbours."""

    def event(noise: float) -> dp_accounting.DpEvent:
        step = dp_accounting.GaussianDpEvent(noise)
        if rate < 1.0:
            step = dp_accounting.PoissonSampledDpEvent(rate, step)
        return dp_accounting.SelfComposedDpEvent(step, steps)

    # Losses of a step are about rate / noise; a coarser grid would be paid for in noise.
    grid = min(1e-4, epsilon / 100 / math.sqrt(steps))
    top = 2.0 * math.sqrt(steps) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    found = dp_accounting.calibrate_dp_mechanism(
        lambda: PLDAccountant(value_discretization_interval=grid),
        event,
        epsilon,
        delta,
        bracket_interval=dp_accounting.ExplicitBracketInterval(max(0.3, 0.3 * rate * top), top),
        tol=2e-3,
    )
    return float(found)


def run(
    problem: Problem,
    records: Records,
    epsilon: float,
    delta: float,
    setting: PoissonSetting,
    seed: int,
) -> PyTree:
    """Train on the records; gives the last parameters."""
    number, start = count_records(records), problem.start(seed)
    rate, steps = setting.rate_of_records, setting.steps
    chance = np.random.default_rng([seed, 3])
    taken = [np.flatnonzero(chance.random(number) < rate) for _ in range(steps)]
    places = max(1, *(len(rows) for rows in taken))
    rows = np.stack([np.pad(each, (0, places - len(each))) for each in taken])
    held = np.array([len(each) for each in taken])
    noise = setting.clip * noise_multiplier(epsilon, delta, rate, steps)
    space = ParameterSpace.of(start)
    vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)])
    numbers = (setting.clip, setting.length / steps, setting.smoothing, noise, rate * number)
    data = jax.tree.map(jnp.asarray, records)
    point = _train(
        problem.loss, space, setting.directions, vector, data, rows, held, numbers,
        jax.random.key(seed),
    )  # fmt: skip
    return space.unflatten(np.asarray(point))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _train(
    loss: Loss,
    space: ParameterSpace,
    number: int,
    start: Float[Array, " dim"],
    records: PyTree,
    rows: Any,
    held: Any,
    numbers: tuple[float, float, float, float, float],
    key: Key[Array, ""],
) -> Float[Array, " dim"]:
    clip, rate, smoothing, noise_std, expected = numbers
    public, secret = jax.random.split(key)
    steps = len(held)

    def step(point: Array, given: tuple[Array, Array, Array]) -> tuple[Array, None]:
        chosen, several, time = given
        directions = directions_for(
            jax.random.fold_in(public, time), number, space.dim, point.dtype
        )
        batch = jax.tree.map(lambda leaf: leaf[chosen], records)
        values = contributions(loss, space, point, batch, directions, smoothing)
        inside = jnp.arange(len(chosen)) < several
        total = clipped_sum(jnp.where(inside[:, None], values, 0.0), clip)
        noise = jax.random.normal(jax.random.fold_in(secret, time), total.shape, total.dtype)
        gradient = (total + noise_std * noise) / expected @ directions / number
        return point - rate * (1.0 - time / steps) * gradient, None

    return jax.lax.scan(step, jnp.asarray(start), (rows, held, jnp.arange(steps)))[0]
