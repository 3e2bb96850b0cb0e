"""A table of 24 people, as many as the plans of `driver_runs` have records; one has 50 rows."""

import numpy as np

RNG = np.random.default_rng(3)
TOTALS = RNG.integers(1, 12, 24)
TOTALS[[5, 9]] = 50, 1
PEOPLE = RNG.permutation(np.repeat(np.arange(24), TOTALS))
TABLE = RNG.normal(size=(len(PEOPLE), 2))
NAMES = np.asarray([f"person {number:02}" for number in PEOPLE])


def distances(params, rows):
    """`losses.capped_distance` of many rows at once."""
    return np.minimum(np.linalg.norm(params - rows, axis=1), 1.5)
