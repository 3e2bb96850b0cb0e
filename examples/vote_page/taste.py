"""A made-up world: items with features, and people who share a taste that nobody has written down.

A recommender shows each visitor the best of ten random items, as ranked by its weights. The visitor
votes up with probability sigmoid(2 utility), where utility is the item's product with the taste.
"""

from __future__ import annotations

import numpy as np

# The features of a film, and the weights that its editors have guessed: where the study starts.
GUESSES = {
    "comedy": 0.5,
    "drama": 0.4,
    "action": -0.3,
    "romance": 0.4,
    "science": 0.3,
    "music": -0.2,
}
FEATURES = tuple(GUESSES)
WEIGHTS = [
    {"name": name, "low": -1.0, "high": 1.0, "start": start} for name, start in GUESSES.items()
]
ITEMS = 10


class World:
    """The hidden taste, and what follows from it."""

    def __init__(self, seed: int = 0) -> None:
        taste = np.random.default_rng(seed).normal(size=len(FEATURES))
        self.taste = taste / np.linalg.norm(taste)

    def item(self, weights: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        """What the recommender shows: the best of ten by its weights."""
        items = chance.normal(size=(ITEMS, len(FEATURES)))
        return items[np.argmax(items @ weights)]

    def vote(self, weights: np.ndarray, chance: np.random.Generator) -> int:
        """1 for up, 0 for down, by one person on one item."""
        utility = self.item(weights, chance) @ self.taste
        return int(chance.random() < 1.0 / (1.0 + np.exp(-2.0 * utility)))

    def satisfaction(self, weights: np.ndarray, people: int = 20_000) -> float:
        """The share of votes up among other people, the same ones each time."""
        chance = np.random.default_rng([1, people])
        items = chance.normal(size=(people, ITEMS, len(FEATURES)))
        shown = items[np.arange(people), np.argmax(items @ weights, axis=1)]
        return float(np.mean(1.0 / (1.0 + np.exp(-2.0 * shown @ self.taste))))


def vector(parameters: dict[str, float]) -> np.ndarray:
    """Weights in the order of the features."""
    return np.array([parameters[name] for name in FEATURES])
