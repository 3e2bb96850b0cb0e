"""What a study can expect: what simulated studies of its size closed of the gap from start to best.

The table is made by `python -m benchmarks.serve_forecast`, with this package's own plans and gate, in
the two worlds that docs/serve.md describes. Between its cells the forecast is interpolated, in people
and epsilon by their logarithms; beyond them it is that of the nearest cell. It follows from the plan
alone, so it is public.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from blindstep.errors import InvalidArgument

# Below this share of the gap in both worlds, noise wins.
_HOPELESS = 0.1
_WORLDS = ("ranking", "bowl")


class NoiseWins(InvalidArgument):
    """A study of this size would end where noise leads it."""


class Forecast(NamedTuple):
    """The share of the gap from the start to the best that such studies closed in simulation."""

    ranking: float  # where only the proportions of parameters matter
    bowl: float  # where there is an ideal point, and what is far off is disliked alike

    @property
    def hopeless(self) -> bool:
        """Whether noise wins in both worlds."""
        return max(self) < _HOPELESS


@cache
def _table() -> dict[str, Any]:
    text = files("blindstep.serve").joinpath("forecast.json").read_text(encoding="utf-8")
    return json.loads(text)


def forecast(dim: int, people: int, epsilon: float) -> Forecast:
    """What a study of so many parameters and people can expect at this epsilon."""
    table = _table()
    places = [
        _place(table["epsilons"], epsilon),
        _place(table["dims"], dim),
        _place(table["people"], people),
    ]
    return Forecast(*(max(0.0, _between(table[each], places)) for each in _WORLDS))


def _place(known: Sequence[int | float], wanted: int | float) -> float:
    """Where a number is among the known ones, by logarithms."""
    logs = [math.log(each) for each in known]
    return float(np.interp(math.log(wanted), logs, range(len(logs))))


def _between(table: Any, places: Sequence[float]) -> float:
    """Linear interpolation, one axis after the other."""
    if not places:
        return float(table)
    low = math.floor(places[0])
    high, share = min(low + 1, len(table) - 1), places[0] - low
    rest = [_between(table[at], places[1:]) for at in (low, high)]
    return rest[0] * (1.0 - share) + rest[1] * share


def require_hope(dim: int, people: int, epsilon: float) -> None:
    """Refuse a study in which noise would win, with what would help."""
    if not forecast(dim, people, epsilon).hopeless:
        return
    ways = []
    tried: list[tuple[str, Sequence[float]]] = [
        ("people", [people * 2**step for step in range(1, 16)]),
        ("epsilon", [epsilon * 1.5**step for step in range(1, 12)]),
        ("parameters", range(dim - 1, 0, -1)),
    ]
    for name, values in tried:
        for value in values:
            changed = {"people": people, "epsilon": epsilon, "parameters": dim, name: value}
            if not forecast(changed["parameters"], changed["people"], changed["epsilon"]).hopeless:
                ways.append(f"{value:,.0f} people" if name == "people" else f"{name} {value:.3g}")
                break
    raise NoiseWins(
        f"noise would win: studies of {dim} parameters and {people:,} people at epsilon {epsilon:g} "
        f"closed less than a tenth of the gap in simulation. Any of these would do better: "
        f"{', '.join(ways)}. To run it all the same say despite_noise."
    )
