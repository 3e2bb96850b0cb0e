"""How often does the comparison with the start take what is better, and what is worse?

    python -m benchmarks.start_comparison
    python -m benchmarks.start_comparison --only "logistic, start already good" --draws 400

One run of `minimize` for each problem (of `benchmarks.battery`, epsilon 1) gives candidates: means
of rounds, a part of the way to the last one and more than all of it, points in random directions.
What each record would hand to the gate is known here, so the releases can be drawn again and again,
at the noise of the plans for epsilon 0.3, 1 and 8. The table shows the share of draws in which a
candidate is taken: the mean over candidates that are better than the start by more than a hundredth
of what is expected, and the mean over those that are worse. A column is a factor of the least limit
(`blindstep.estimate.comparison`): 1 is what ships.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import blindstep as bs
from benchmarks.battery import DELTA
from benchmarks.battery_problems import PROBLEMS
from blindstep.estimate.comparison import ComparisonQuery, read
from blindstep.run.choice import felt_of

SHOWN = (
    "logistic, start already good",
    "logistic, log-normal features",
    "logistic, 100 columns",
    "Poisson regression",
    "counts, negative binomial",
    "portfolio of eight",
    "expected shortfall",
    "k-means, 5 centres",
    "0/1 loss, linear",
)
EPSILONS, FACTORS, DRAWS = (0.3, 1.0, 8.0), (0.2, 1.0, 2.0), 100
# Candidates beyond the means of rounds: shares of the way to the last, and lengths at random.
_SHARES, _LENGTHS, _BETTER = (-0.5, 0.3, 0.5, 2.0), (0.3, 1.0, 3.0), 0.01


@dataclass(frozen=True)
class Candidate:
    """A point, by what it changes for each record."""

    values: Float[np.ndarray, "records 2"]
    expected: float

    @property
    def gain(self) -> float:
        """By how much it is better than the start, as a share of what is expected."""
        return -float(np.mean(self.values[:, 1] - self.values[:, 0])) / self.expected


def candidates_of(name: str) -> tuple[list[Candidate], int, int]:
    """Candidates of one run on this problem, its number of parameters and that of its records."""
    case = PROBLEMS[name].case()
    privacy = bs.Privacy(epsilon=1.0, delta=DELTA)
    found = bs.minimize(case.loss, case.start, case.data, privacy, progress=False)
    assert found.scales is not None
    start, last = np.asarray(found.space.flatten(case.start), float), found.means[-1]
    points = [found.means[k] for k in np.linspace(0, len(found.means) - 1, 4).astype(int)]
    points += [start + share * (last - start) for share in _SHARES]
    chance = np.random.default_rng(0)
    for length in _LENGTHS:
        way = chance.standard_normal(len(start))
        points.append(np.asarray(found.scales.place(length * way / np.linalg.norm(way))))
    with jax.enable_x64(True):
        loss, space = case.loss, found.space
        every = jax.jit(lambda at: jax.vmap(lambda one: loss(space.unflatten(at), one))(case.data))
        before = np.asarray(every(jnp.asarray(start)), float)
        made = []
        for point in points:
            away = float(np.linalg.norm(found.scales.natural(point[None])))
            after = np.asarray(every(jnp.asarray(point)), float)
            expected = float(found.scales.unit) * felt_of(len(start)) * away
            made.append(Candidate(np.stack([before, after], axis=1), expected))
    return made, len(start), len(before)


def taken(candidate: Candidate, noise: float, factor: float, draws: int) -> float:
    """The share of draws in which this candidate is taken."""
    query, chance = ComparisonQuery(1), np.random.default_rng(0)
    expected = np.array([factor * candidate.expected])
    means: dict[bytes, Float[np.ndarray, " size"]] = {}

    def release(limits: Float[np.ndarray, " 1"]) -> Float[np.ndarray, " size"]:
        with jax.enable_x64(True):
            if limits.tobytes() not in means:
                vectors = query.vector(jnp.asarray(candidate.values), jnp.asarray(limits))
                means[limits.tobytes()] = np.asarray(jnp.mean(vectors, axis=0))
        return means[limits.tobytes()] + noise * chance.standard_normal(query.size)

    kept = 0
    for _ in range(draws):
        first = release(np.zeros(1))
        limits, seen = query.limits(first, noise, expected)
        releases = np.stack([first, release(limits), release(limits)])
        kept += read(query, releases, limits, noise, (0,), seen).best is not None
    return kept / draws


def shares_of(name: str, draws: int) -> dict[float, list[str]]:
    """For each epsilon, how often better and worse candidates are taken, for each factor."""
    made, dim, records = candidates_of(name)
    better = [each for each in made if each.gain > _BETTER]
    worse = [each for each in made if each.gain < 0]
    rows: dict[float, list[str]] = {}
    for epsilon in EPSILONS:
        privacy = bs.Privacy(epsilon=epsilon, delta=DELTA)
        plan = bs.plan(bs.Auto(), dim=dim, records=records, privacy=privacy)
        assert plan.comparison_terms is not None
        noise = float(plan.comparison_terms.noise_std)
        rows[epsilon] = [
            " / ".join(
                f"{np.mean([taken(each, noise, factor, draws) for each in some]):.2f}"
                if some
                else "-"
                for some in (better, worse)
            )
            for factor in FACTORS
        ]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, problem by problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_comparison")
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=SHOWN, metavar="PROBLEM")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each candidate")
    options = parser.parse_args(arguments)
    print("| problem | epsilon |" + "".join(f" {factor:g} |" for factor in FACTORS))
    print("| --- " * (2 + len(FACTORS)) + "|")
    for name in options.only:
        for epsilon, cells in shares_of(name, options.draws).items():
            print(f"| {name} | {epsilon:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
