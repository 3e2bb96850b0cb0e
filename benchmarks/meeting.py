"""The README's first example with other numbers of people and other budgets: how far off is the answer?

    python -m benchmarks.meeting                                  # all of the table: about ten minutes
    python -m benchmarks.meeting --people 500 20000 --epsilon 1 --runs 4

Four arguments, delta 1e-6. Distances are from the best place for the very people of the run, and the
noise is the operating system's.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import blindstep as bs

PEOPLE, EPSILONS, RUNS = (500, 1_000, 2_000, 5_000, 20_000, 100_000), (0.1, 0.3, 1.0, 3.0, 10.0), 20
CENTRE, SPREAD = np.array([1.0, -0.5]), 0.3
# Weiszfeld's rounds for the place with the least mean distance.
_ROUNDS = 200


def walk(place: Any, home: Any) -> Any:
    """The README's loss."""
    return jnp.minimum(jnp.linalg.norm(place - home), 3.0)


def best_place(homes: Float[np.ndarray, "people 2"]) -> Float[np.ndarray, "2"]:
    """The place with the least mean distance from all homes."""
    place = homes.mean(axis=0)
    for _ in range(_ROUNDS):
        near = 1.0 / np.maximum(np.linalg.norm(homes - place, axis=1), 1e-9)
        place = near @ homes / near.sum()
    return place


def off(people: int, epsilon: float, runs: int) -> tuple[Float[np.ndarray, " runs"], float]:
    """How far each run's answer is from the best place, and how far the start is."""
    random = np.random.default_rng(people)
    homes = CENTRE + SPREAD * random.standard_normal((people, 2))
    best, budget = best_place(homes), bs.Privacy(epsilon=epsilon, delta=1e-6)
    answers = [
        bs.minimize(walk, jnp.zeros(2), homes, budget, progress=False).params for _ in range(runs)
    ]
    distances = [float(np.linalg.norm(np.asarray(answer) - best)) for answer in answers]
    return np.array(distances), float(np.linalg.norm(best))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number of people and each epsilon."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.meeting", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--people", nargs="+", type=int, default=PEOPLE)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args(arguments)
    print("people  epsilon  median  farthest  start", flush=True)
    for people in options.people:
        for epsilon in options.epsilon:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, start = off(people, epsilon, options.runs)
            row = f"{people:6d}  {epsilon:7g}  {np.median(found):6.4f}  {found.max():8.4f}"
            print(f"{row}  {start:.4f}", flush=True)


if __name__ == "__main__":
    main()
