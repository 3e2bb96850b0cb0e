"""How good a study gets: the share of the gap from its start to the best there is that it closes.

    python -m benchmarks.serve_quality                  # make missing rows, then show the tables
    python -m benchmarks.serve_quality --show           # show the tables

The studies are those of the service, planned by it and released through its gate, without HTTP. People
are simulated in two worlds, in both of which a parameter goes from -1 to 1:

- *ranking*: the weights of a recommender, which shows the best of ten random items. A person votes
  up with probability sigmoid(2 utility), where utility is the item's product with a hidden taste. The
  start is a guess. Only the direction of the weights matters.
- *bowl*: an ideal point. A person votes up with probability sigmoid(2 - |x - ideal|^2). With many
  parameters nearly nobody likes the start, and all that is far off is disliked alike.

Coordinated voters want the opposite of what the others like, know where the study stands, and vote for
whatever is nearer to that. The gap is in the votes of the others. SPSA is what one would do without
privacy: the same votes, two for each person, 100 steps with the usual gains, its step length the best
of five on other seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from blindstep.private.noise import fresh_keys
from blindstep.serve.design import Design, new_public_key
from blindstep.serve.keys import number_of
from blindstep.serve.spec import StudySpec

RESULTS = Path(__file__).parent / "results" / "serve_quality.jsonl"
PEOPLE, DIMS, EPSILONS = (10_000, 100_000), (6, 20), (1.0, 0.3)
SHARES, SEEDS = (0.0, 0.1, 0.3), 10
_ITEMS, _SPSA_STEPS, _GRID = 10, 100, (0.03, 0.1, 0.3, 1.0, 3.0)
Points = Float[np.ndarray, "people dim"]


class World:
    """People who like what is shown to them with some probability."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, chance = dim, np.random.default_rng([seed, dim])
        self.start, self.best = self.places(chance)

    def places(self, chance: np.random.Generator) -> tuple[Points, Points]:
        """Where a study starts, and the best there is."""
        raise AssertionError("each world has its own")

    def liked(self, points: Points, chance: np.random.Generator) -> Float[np.ndarray, " people"]:
        """The probability that a person likes what they see at each point."""
        raise AssertionError("each world has its own")

    def content(self, point: Float[np.ndarray, " dim"]) -> float:
        """How much people like a point: the same people each time."""
        return float(np.mean(self.liked(np.tile(point, (20_000, 1)), np.random.default_rng(7))))

    def gap(self, point: Float[np.ndarray, " dim"]) -> float:
        """The share of the gap from the start to the best that is closed there."""
        start, best = self.content(self.start), self.content(self.best)
        return (self.content(point) - start) / (best - start)


class Ranking(World):
    """The weights of a recommender."""

    def places(self, chance: np.random.Generator) -> tuple[Points, Points]:
        """A guess, and the hidden taste."""
        taste = chance.normal(size=self.dim)
        return np.clip(0.5 * chance.normal(size=self.dim), -1, 1), taste / np.linalg.norm(taste)

    def liked(self, points: Points, chance: np.random.Generator) -> Float[np.ndarray, " people"]:
        """The best of ten random items is shown."""
        items = chance.standard_normal((len(points), _ITEMS, self.dim), np.float32)
        scores = np.matmul(items, points.astype(np.float32)[:, :, None])[:, :, 0]
        shown = items[np.arange(len(points)), np.argmax(scores, axis=1)]
        return 1.0 / (1.0 + np.exp(-2.0 * shown @ self.best))


class Bowl(World):
    """An ideal point."""

    def places(self, chance: np.random.Generator) -> tuple[Points, Points]:
        """The middle, and the ideal point."""
        return np.zeros(self.dim), chance.uniform(-0.8, 0.8, size=self.dim)

    def liked(self, points: Points, chance: np.random.Generator) -> Float[np.ndarray, " people"]:
        """The nearer, the better."""
        return 1.0 / (1.0 + np.exp(np.sum((points - self.best) ** 2, axis=1) - 2.0))


WORLDS: dict[str, type[World]] = {"ranking": Ranking, "bowl": Bowl}


class NoPort:
    """A ledger that takes every charge: these people are simulated."""

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Nothing is written down."""


def study_of(start: Float[np.ndarray, " dim"], people: int, epsilon: float, **more: Any) -> Design:
    """A study as the service plans it."""
    parameters = [
        {"name": f"p{place}", "low": -1.0, "high": 1.0, "start": float(at)}
        for place, at in enumerate(start)
    ]
    asked = {"name": "simulated", "parameters": parameters, "people": people, "epsilon": epsilon}
    spec = StudySpec.model_validate(asked | more)
    row = {"id": "simulated", "attempt": "0", "public_key": new_public_key()}
    return Design(row | {"spec": spec.model_dump_json(), "plan": spec.plan().to_json()})


def run(
    design: Design,
    people: int,
    losses: Callable[[Float[np.ndarray, "people 2 dim"]], Float[np.ndarray, "people 2"]],
    chance: np.random.Generator,
) -> tuple[Float[np.ndarray, " dim"], list[dict[str, Any]]]:
    """A study to its end, to which so many people come; gives the answer and what was released."""
    history: list[dict[str, Any]] = []
    state, shown = None, {p.name: p.begins for p in design.spec.parameters}
    for release in range(design.releases):
        step = design.step(release, state, shown)
        who = [chance.bytes(16) for _ in range(people // design.releases)]
        own = losses(step.points(who))
        numbers = [[number_of(each), design.role(each, release)] for each in who]
        votes = np.concatenate([np.array(numbers, float).reshape(-1, 2), own], axis=1)
        gate = design.gate(fresh_keys().noise, NoPort(), release)
        made = design.release(gate, design.state(state), votes, history)
        state, shown = made.state, made.outcome["parameters"]
        history.append(made.outcome)
    return np.array(list(shown.values())), history


def closed(kind: str, dim: int, people: int, epsilon: float, seed: int, pushed: float) -> float:
    """The share of the gap that one study closes, with this share of coordinated voters."""
    world, chance = WORLDS[kind](dim, seed), np.random.default_rng([seed, people])
    target = -world.best

    def losses(points: Float[np.ndarray, "people 2 dim"]) -> Float[np.ndarray, "people 2"]:
        flat = points.reshape(-1, dim)
        liked = world.liked(flat, chance).reshape(-1, 2)
        honest = (chance.random(liked.shape) > liked).astype(float)
        far = np.linalg.norm(points - target, axis=2)
        nearer = np.stack([far[:, 0] > far[:, 1], far[:, 0] <= far[:, 1]], axis=1).astype(float)
        return np.where(chance.random((len(points), 1)) < pushed, nearer, honest)

    return world.gap(run(study_of(world.start, people, epsilon), people, losses, chance)[0])


def spsa(world: World, people: int, seed: int, length: float) -> float:
    """The share of the gap that SPSA closes without privacy (Spall's gains, signs as directions)."""
    chance, point, each = np.random.default_rng([seed, 1]), world.start, people // _SPSA_STEPS
    for step in range(_SPSA_STEPS):
        apart = 0.5 / (step + 1) ** 0.101
        signs = chance.choice([-1.0, 1.0], (each, world.dim))
        down = []
        for side in (apart, -apart):
            seen = np.clip(point + side * signs, -1, 1)
            down.append(chance.random(each) > world.liked(seen, chance))
        slope = np.mean((down[0].astype(float) - down[1])[:, None] * signs, axis=0) / (2 * apart)
        point = np.clip(point - length / (step + 1 + _SPSA_STEPS / 10) ** 0.602 * 10 * slope, -1, 1)
    return world.gap(point)


def best_spsa(kind: str, dim: int, people: int, seed: int) -> float:
    """SPSA with the step length that is best on other seeds."""
    tried = {
        length: np.mean([spsa(WORLDS[kind](dim, 100 + s), people, s, length) for s in range(2)])
        for length in _GRID
    }
    return spsa(WORLDS[kind](dim, seed), people, seed, max(tried, key=lambda each: tried[each]))


def cells() -> Iterator[dict[str, Any]]:
    """All that is measured, what matters most first."""
    for seed, pushed in itertools.product(range(SEEDS), SHARES):
        for kind, dim, people, epsilon in itertools.product(WORLDS, DIMS, PEOPLE, EPSILONS):
            yield {
                **{"world": kind, "dim": dim, "people": people, "epsilon": epsilon},
                **{"seed": seed, "pushed": pushed},
            }
    for kind, dim, people, seed in itertools.product(WORLDS, DIMS, PEOPLE, range(3)):
        yield {"world": kind, "dim": dim, "people": people, "epsilon": None, "seed": seed}


def measure(cell: dict[str, Any]) -> float:
    """The share of the gap that is closed in one cell."""
    where = cell["world"], cell["dim"], cell["people"]
    if cell["epsilon"] is None:
        return best_spsa(*where, cell["seed"])
    return closed(*where, cell["epsilon"], cell["seed"], cell["pushed"])


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of results."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and worst share of the gap, over seeds: one line for each world, size and epsilon."""
    lines = [
        "| world, parameters, people | epsilon | not private | honest | 10% coordinated | 30% |",
        "|---|---|---|---|---|---|",
    ]
    for kind, dim, people, epsilon in itertools.product(WORLDS, DIMS, PEOPLE, EPSILONS):
        where = {"world": kind, "dim": dim, "people": people}
        shown = [_of(rows, where | {"epsilon": None})]
        shown += [_of(rows, where | {"epsilon": epsilon, "pushed": share}) for share in SHARES]
        name = f"{kind}, {dim}, {people:,}"
        lines.append(f"| {name} | {epsilon:g} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _of(rows: list[dict[str, Any]], wanted: dict[str, Any]) -> str:
    found = [
        row["closed"]
        for row in rows
        if all(row.get(name, 0.0) == value for name, value in wanted.items())
    ]
    return f"{np.mean(found):.2f} ({min(found):.2f})" if found else "-"


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="How good a study gets.")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--part", default="0/1", help="this part of the rows, such as 2/8")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    rows = read(given.out)
    done = [{name: value for name, value in row.items() if name != "closed"} for row in rows]
    if not given.show:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        for number, cell in enumerate(cells()):
            if number % parts == part and cell not in done:
                rows.append(cell | {"closed": round(measure(cell), 4)})
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                assert math.isfinite(rows[-1]["closed"])
    print(table(rows))


if __name__ == "__main__":
    main()
