"""Which statements does a random person agree with? Real votes, people as units.

    python examples/polis.py ../shared/data/polis --epsilon 1 --seeds 5

The data are the votes of the vTaiwan conversation about Uber on pol.is (CC BY 4.0: `votes.csv`,
`comments.csv`). One person is one record: all of their votes. A model of two numbers for each
statement, a score and a factor, ranks statements for a person whose other votes are known. The loss
is a ranking metric, which has no useful gradient: of all pairs of a statement that the person agrees
with and one that they do not, the share that is in the wrong order.

Four fifths of the people are learned from, and one fifth is for testing. Beside the private answer
stand the start, the best model without privacy, and what a statistician would do first: noisy counts.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import blindstep as bs

# Votes of a person that count: so many known ones, and so many of each side that are to be ranked.
_KNOWN, _RANKED = 32, 16
_DELTA = 1e-5


class People(NamedTuple):
    """A record for each person, padded: what is known of them, and what is to be ranked."""

    known: np.ndarray  # people x _KNOWN: statements
    votes: np.ndarray  # people x _KNOWN: 1, 0, -1; 0 where padded
    liked: np.ndarray  # people x _RANKED: statements that they agree with
    others: np.ndarray  # people x _RANKED: statements that they do not agree with
    has_liked: np.ndarray  # people x _RANKED: whether there is one
    has_others: np.ndarray


def read(folder: Path) -> tuple[People, int]:
    """The people, and how many statements: those that moderators let stand, which is public."""
    with open(folder / "comments.csv", encoding="utf-8") as file:
        shown = sorted(
            int(row["comment-id"]) for row in csv.DictReader(file) if row["moderated"] == "1"
        )
    number = {statement: place for place, statement in enumerate(shown)}
    votes: dict[int, dict[int, int]] = {}
    with open(folder / "votes.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):  # in the order of time: the last vote counts
            if int(row["comment-id"]) in number:
                mine = votes.setdefault(int(row["voter-id"]), {})
                mine[number[int(row["comment-id"])]] = int(row["vote"])
    each = [_person(who, votes[who]) for who in sorted(votes)]
    return People(*(np.stack(column) for column in zip(*each, strict=True))), len(shown)


def _person(who: int, votes: dict[int, int]) -> People:
    """One person's record: every other vote of theirs is known, the rest is to be ranked."""
    order = np.random.default_rng(who).permutation(sorted(votes))
    known, asked = order[::2][:_KNOWN], order[1::2]
    liked = [statement for statement in asked if votes[statement] == 1][:_RANKED]
    others = [statement for statement in asked if votes[statement] != 1][:_RANKED]

    def padded(values: Any, size: int) -> np.ndarray:
        return np.pad(np.asarray(values, np.int32), (0, size - len(values)))

    return People(
        padded(known, _KNOWN),
        padded([votes[statement] for statement in known], _KNOWN),
        *(padded(side, _RANKED) for side in (liked, others)),
        *(padded([1] * len(side), _RANKED).astype(bool) for side in (liked, others)),
    )


def scores(params: dict[str, Any], person: People) -> Any:
    """The score of every statement for one person."""
    leaning = jnp.sum(person.votes * params["factor"][person.known]) / jnp.sqrt(float(_KNOWN))
    return params["score"] + leaning * params["factor"]


def misordered(params: dict[str, Any], person: People) -> Any:
    """The share of pairs in the wrong order; 1/2 where there is no pair. A tie is half wrong."""
    score = scores(params, person)
    gap = score[person.liked][:, None] - score[person.others][None, :]
    counts = person.has_liked[:, None] & person.has_others[None, :]
    wrong = jnp.sum(counts * jnp.where(gap == 0, 0.5, gap < 0))
    return jnp.where(jnp.any(counts), wrong / jnp.maximum(1, jnp.sum(counts)), 0.5)


def softened(params: dict[str, Any], person: People) -> Any:
    """A loss with a gradient for the same pairs, for learning without privacy."""
    score = scores(params, person)
    gap = score[person.liked][:, None] - score[person.others][None, :]
    counts = person.has_liked[:, None] & person.has_others[None, :]
    return jnp.sum(counts * jax.nn.softplus(-gap)) / jnp.maximum(1, jnp.sum(counts))


def start(statements: int) -> dict[str, np.ndarray]:
    """All statements alike, and a factor that no record has been looked at for."""
    factor = 0.1 * np.random.default_rng(0).normal(size=statements)
    return {"score": np.zeros(statements, np.float32), "factor": factor.astype(np.float32)}


def right(params: dict[str, Any], people: People) -> float:
    """The share of pairs in the right order, a mean over the people who have a pair."""
    wrong = jax.vmap(misordered, (None, 0))(jax.tree.map(jnp.asarray, params), people)
    paired = people.has_liked.any(axis=1) & people.has_others.any(axis=1)
    return 1.0 - float(np.asarray(wrong)[paired].mean())


def without_privacy(people: People, statements: int, steps: int = 400) -> dict[str, Any]:
    """The best model by gradient descent on the softened pairs."""

    def mean(params: dict[str, Any]) -> Any:
        return jax.vmap(softened, (None, 0))(params, people).mean()

    @jax.jit
    def step(carry: Any, _: None) -> tuple[Any, None]:
        params, fast, slow = carry
        slope = jax.grad(mean)(params)
        fast = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, fast, slope)
        slow = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, slow, slope)
        moved = jax.tree.map(lambda p, m, v: p - 0.03 * m / (v**0.5 + 1e-8), params, fast, slow)
        return (moved, fast, slow), None

    begun = jax.tree.map(jnp.asarray, start(statements))
    still = jax.tree.map(jnp.zeros_like, begun)
    return jax.lax.scan(step, (begun, still, still), length=steps)[0][0]


def noisy_counts(people: People, statements: int, mu: float, seed: int) -> dict[str, Any]:
    """Scores from noisy sums of votes, the same privacy: each person adds at most sqrt(2 _RANKED).

    One person's vector has 1 for each ranked statement that they agree with and -1 for each other one,
    so replacing a person moves the sum by at most twice the root of their number.
    """
    total = np.zeros(statements)
    np.add.at(total, people.liked[people.has_liked], 1.0)
    np.add.at(total, people.others[people.has_others], -1.0)
    noise = 2.0 * np.sqrt(2 * _RANKED) / mu * np.random.default_rng(seed).normal(size=statements)
    return {"score": total + noise, "factor": np.zeros(statements)}


def rows(folder: Path, epsilon: float, seeds: int, evaluations: int | None) -> Iterator[str]:
    """One row of the table for each way of learning."""
    people, statements = read(folder)
    chosen = np.random.default_rng(0).permutation(len(people.known))
    cut = len(chosen) * 4 // 5
    train, test = (People(*(part[at] for part in people)) for at in (chosen[:cut], chosen[cut:]))
    privacy = bs.Privacy(epsilon=epsilon, delta=_DELTA)
    yield f"{len(people.known):,} people, {statements} statements, epsilon {epsilon:g}"
    yield f"start {right(start(statements), test):.3f}"
    yield f"without privacy {right(without_privacy(train, statements), test):.3f}"
    counted = [right(noisy_counts(train, statements, privacy.mu, s), test) for s in range(seeds)]
    yield f"noisy counts {np.mean(counted):.3f} (each {', '.join(f'{x:.3f}' for x in counted)})"
    found = []
    for _ in range(seeds):
        method = bs.Auto(evaluations=evaluations)
        result = bs.minimize(
            misordered, start(statements), train, privacy, method=method, progress=False
        )
        found.append(right(result.params, test))
        yield f"  blindstep {found[-1]:.3f}: {result.outcome.kind.value}"
    yield f"blindstep {np.mean(found):.3f} (each {', '.join(f'{x:.3f}' for x in found)})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where votes.csv and comments.csv are")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, help="evaluations of the loss in a run")
    given = parser.parse_args()
    for row in rows(given.folder, given.epsilon, given.seeds, given.evaluations):
        print(row, flush=True)


if __name__ == "__main__":
    main()
