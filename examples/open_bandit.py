"""Which item to recommend to whom, from clicks that real people made, privately.

    python examples/open_bandit.py ../shared/data/openbandit --epsilon 1 --seeds 5

The data are 10,000 recommendations of the Open Bandit Dataset (CC BY 4.0: `men.csv`), in which one of
34 items was shown at random. A policy is a softmax over items whose scores depend on what is known of
the person. What it would have earned is estimated by inverse propensity: a click counts with how
likely the policy would have shown that item, over how likely it was shown. That is linear in a rare
click, so a mean over 10,000 records is noisy even without privacy: 46 clicks decide.

Half of the records are learned from and half are for testing, split several times. Beside the private
policy stand the uniform one, the best single item by noisy counts, and the best policy without
privacy.
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

ITEMS = 34
_DELTA = 1e-5
# Groups of people, by a public hash of their first trait.
_TRAITS = 4


class Shown(NamedTuple):
    """What was shown to whom, and whether they clicked."""

    traits: np.ndarray  # records x (1 + _TRAITS): a constant, and groups of people
    item: np.ndarray
    click: np.ndarray
    propensity: np.ndarray


def read(path: Path) -> Shown:
    """The records, a row each."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    groups = [int(row["user_feature_0"][:8], 16) % _TRAITS for row in rows]
    traits = np.concatenate([np.ones((len(rows), 1)), np.eye(_TRAITS)[groups]], axis=1)
    columns = (
        np.array([float(row[name]) for row in rows]) for name in ("click", "propensity_score")
    )
    item = np.array([int(row["item_id"]) for row in rows], np.int32)
    return Shown(traits.astype(np.float32), item, *(c.astype(np.float32) for c in columns))


def policy(params: Any, traits: Any) -> Any:
    """How likely each item is to be shown."""
    return jax.nn.softmax(traits @ params)


def lost(params: Any, shown: Shown) -> Any:
    """Minus what the policy earns from one record, by inverse propensity, in clicks per 100 shown."""
    return -100.0 * shown.click * policy(params, shown.traits)[shown.item] / shown.propensity


def earned(params: Any, shown: Shown) -> float:
    """Clicks per 100 shown, as estimated from these records, self-normalised."""
    chances = np.asarray(jax.vmap(policy, (None, 0))(jnp.asarray(params), shown.traits))
    weight = chances[np.arange(len(shown.item)), shown.item] / shown.propensity
    return 100.0 * float(np.sum(weight * shown.click) / np.sum(weight))


def without_privacy(shown: Shown, steps: int = 300) -> Any:
    """The best policy by gradient ascent, held back by a penalty that was not tuned."""

    def mean(params: Any) -> Any:
        return jax.vmap(lost, (None, 0))(params, shown).mean() + 0.01 * jnp.sum(params**2)

    def step(params: Any, _: None) -> tuple[Any, None]:
        return params - 0.5 * jax.grad(mean)(params), None

    return jax.lax.scan(step, jnp.zeros((1 + _TRAITS, ITEMS)), length=steps)[0]


def noisy_counts(shown: Shown, mu: float, seed: int) -> Any:
    """The item with the most clicks by a noisy count; replacing a record moves it by at most sqrt 2."""
    clicks = np.bincount(shown.item, shown.click, minlength=ITEMS)
    noise = np.sqrt(2.0) / mu * np.random.default_rng(seed).normal(size=ITEMS)
    params = np.zeros((1 + _TRAITS, ITEMS))
    params[0, int(np.argmax(clicks + noise))] = 50.0
    return params


def rows(path: Path, epsilon: float, seeds: int, evaluations: int | None) -> Iterator[str]:
    """One row of the table for each way of learning: mean and standard error over the splits."""
    everybody, privacy = read(path), bs.Privacy(epsilon=epsilon, delta=_DELTA)
    names = ("uniform", "without privacy", "noisy counts", "blindstep")
    found: dict[str, list[float]] = {name: [] for name in names}
    yield f"{len(everybody.item):,} records, {int(everybody.click.sum())} clicks; epsilon {epsilon:g}"
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(everybody.item))
        half = len(order) // 2
        train, test = (
            Shown(*(part[at] for part in everybody)) for at in (order[:half], order[half:])
        )
        start = np.zeros((1 + _TRAITS, ITEMS), np.float32)
        result = bs.minimize(
            lost, start, train, privacy, method=bs.Auto(evaluations=evaluations), progress=False
        )
        answers = (
            start,
            without_privacy(train),
            noisy_counts(train, privacy.mu, seed),
            result.params,
        )
        for name, params in zip(names, answers, strict=True):
            found[name].append(earned(params, test))
        yield f"  split {seed + 1}: blindstep {found['blindstep'][-1]:.3f}, {result.outcome.kind.value}"
    for name, values in found.items():
        error = np.std(values) / np.sqrt(max(1, len(values) - 1))
        yield f"{name} {np.mean(values):.3f} ± {error:.3f} clicks per 100"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where men.csv is")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, help="evaluations of the loss in a run")
    given = parser.parse_args()
    for row in rows(given.folder / "men.csv", given.epsilon, given.seeds, given.evaluations):
        print(row, flush=True)


if __name__ == "__main__":
    main()
