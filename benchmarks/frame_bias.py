"""Bias and spread of gradient estimates from sphere, Haar and structured directions.

    python -m benchmarks.frame_bias

The losses are nonsmooth or discontinuous, and the gradient of their uniform smoothing is known in
closed form. For n estimates with mean m and total variance v of that gradient g the table gives

    bias   |m - g| / |g|;
    floor  sqrt(v / n) / |g|, what an unbiased estimator shows on average;
    mse    mean |e - g|^2 over that of Haar;
    worst  the largest variance along any one direction, over that of Haar;
    spread standard deviation of |e|^2 over its mean: what clipping sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from blindstep.estimate.directions import Directions, Sphere
from blindstep.estimate.frames import Haar, Structured

SMOOTHING = 0.1


class Problem(NamedTuple):
    name: str
    loss: Callable
    point: np.ndarray
    gradient: np.ndarray


def ball_coordinate(dim: int):
    """Law of one coordinate of a uniform point of the unit ball: Beta on [-1, 1]."""
    return stats.beta((dim + 1) / 2, (dim + 1) / 2, loc=-1, scale=2)


def problems(dim: int) -> list[Problem]:
    """Losses, points near their kinks, and gradients of the smoothed losses there."""
    rng = np.random.default_rng(dim)
    law, typical = ball_coordinate(dim), 1 / np.sqrt(dim)
    dense = rng.standard_normal(dim)
    dense /= np.linalg.norm(dense)
    first = np.eye(dim)[0]
    near = 0.5 * typical  # distance from the kink, in smoothing radii
    offsets = typical * rng.standard_normal(dim)
    kink = 2 * law.cdf(near) - 1
    step = 2 * law.pdf(near) / SMOOTHING
    return [
        Problem("|a.x|, a dense", lambda x: abs(x @ dense), near * SMOOTHING * dense, kink * dense),
        Problem("|x_1|", lambda x: abs(x[0]), near * SMOOTHING * first, kink * first),
        Problem(
            "sum |x_i|",
            lambda x: jnp.sum(jnp.abs(x)),
            SMOOTHING * offsets,
            2 * law.cdf(offsets) - 1,
        ),
        Problem("max x_i", jnp.max, np.zeros(dim), np.full(dim, 1 / dim)),
        Problem(
            "sign(a.x)",
            lambda x: jnp.sign(x @ dense),
            near * SMOOTHING * dense,
            step * dense,
        ),
    ]


def estimates(
    sampler: Directions, problem: Problem, number: int, dim: int, count: int
) -> np.ndarray:
    """`count` independent two-sided estimates, each from its own frame."""

    @jax.jit
    def batch(keys):
        def one(key):
            directions = sampler.sample(key, jnp.arange(number), number, dim)
            ahead = jax.vmap(problem.loss)(problem.point + SMOOTHING * directions)
            behind = jax.vmap(problem.loss)(problem.point - SMOOTHING * directions)
            return dim / number * ((ahead - behind) / (2 * SMOOTHING)) @ directions

        return jax.vmap(one)(keys)

    keys = jax.random.split(jax.random.key(count), (-(-count // 100), 100))
    return np.concatenate([np.asarray(batch(k)) for k in keys])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimates", type=int, default=20_000)
    parser.add_argument(
        "--sizes", nargs="+", default=["8/8", "7/24", "64/64", "32/123"], help="directions/dim"
    )
    options = parser.parse_args()
    print(f"{'q/d':>8} {'loss':14} {'directions':11} {'bias':>8} {'floor':>8}", end="")
    print(f" {'mse':>7} {'worst':>7} {'spread':>7}")
    with jax.enable_x64(True):
        for size in options.sizes:
            number, dim = (int(part) for part in size.split("/"))
            for problem in problems(dim):
                reference = ()
                for sampler in (Haar(), Structured(), Sphere()):
                    e = estimates(sampler, problem, number, dim, options.estimates)
                    length = np.linalg.norm(problem.gradient)
                    bias = np.linalg.norm(e.mean(axis=0) - problem.gradient) / length
                    floor = np.sqrt(e.var(axis=0).sum() / len(e)) / length
                    error = np.mean(np.sum((e - problem.gradient) ** 2, axis=1))
                    squares = np.sum(e**2, axis=1)
                    worst = np.linalg.eigvalsh(np.cov(e.T))[-1]
                    reference = reference or (error, worst)
                    print(
                        f"{size:>8} {problem.name:14} {sampler.name:11} {bias:8.4f} {floor:8.4f} "
                        f"{error / reference[0]:7.3f} {worst / reference[1]:7.3f} "
                        f"{squares.std() / squares.mean():7.3f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
