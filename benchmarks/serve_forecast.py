"""What a study can expect: simulated studies of many sizes, as the table that the service ships.

    python -m benchmarks.serve_forecast        # a few minutes; writes src/blindstep/serve/forecast.json

The worlds are those of `benchmarks.serve_quality`. A cell is the mean share of the gap from start to
best that a study closes, over seeds. The plans are the service's own; what a window comes to is worked
out in NumPy here, with normal noise, since a program would have to be compiled for each of the sizes
(`tests/benchmarks/test_serve_quality.py` compares the two).
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
from jaxtyping import Float

from benchmarks.serve_quality import WORLDS, World, study_of
from blindstep.estimate.comparison import BETTER
from blindstep.planning.plan import Plan
from blindstep.run.outcome import is_coherent
from blindstep.run.result import History

TABLE = Path(__file__).parents[1] / "src" / "blindstep" / "serve" / "forecast.json"
PEOPLE = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
DIMS, EPSILONS, SEEDS = (2, 6, 20, 60), (0.3, 1.0, 3.0), 8
_SIMULATED = 3_000  # people of a window at most: more differ by their number and their noise alone


def closed(kind: str, dim: int, people: int, epsilon: float, seed: int) -> float:
    """The share of the gap that one study closes."""
    world, chance = WORLDS[kind](dim, seed), np.random.default_rng([seed, people])
    plan = study_of(world.start, people, epsilon).plan
    return world.gap(answer(world, plan, chance))


def answer(world: World, plan: Plan, chance: np.random.Generator) -> Float[np.ndarray, " dim"]:
    """Where a study of this plan ends, if as many come as were planned."""
    assert plan.watch is not None
    steps, dim, many = plan.rounds, plan.dim, plan.first_batch
    clip, width = plan.clips[0] / plan.watch.longer, plan.heard
    asked = max(1, min(_SIMULATED, round(many * (1.0 - plan.watch.control))))
    point, points, norms, moves = world.start, [], [], []
    frame = np.eye(dim)
    for step in range(steps - 1):
        points.append(point)
        if step % -(-dim // width) == 0:
            frame = np.linalg.qr(chance.normal(size=(dim, dim)))[0]
        first = min(step % -(-dim // width) * width, dim - width)
        rows = frame[first : first + width]
        along = chance.normal(size=(asked, width)) @ rows
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        apart = plan.smoothing * max(1.0 - step / steps, 0.1)
        up, down = (
            chance.random(asked) > world.liked(np.clip(point + side * along, -1, 1), chance)
            for side in (apart, -apart)
        )
        slopes = dim * (up.astype(float) - down) / (2.0 * apart)
        slopes = np.clip(slopes, -clip, clip)
        mean = (slopes @ along) / asked * (1.0 - plan.watch.control)
        noise = plan.noise_std * chance.normal(size=dim)
        gradient = mean + (noise @ rows.T) @ rows
        norms.append(float(np.linalg.norm(gradient)))
        moves.append(plan.reach * (1.0 - step / steps))
        point = point - moves[-1] * gradient / norms[-1]
    points.append(point)
    history = History(np.array([*norms, 1.0])[:, None], np.array([*moves, 0.0])[:, None])
    trusted = is_coherent(history, np.array(points) - world.start)
    half = math.sqrt((1.0 + plan.watch.weight**2) / 2.0)
    std = math.hypot(plan.noise_std / clip / half / math.sqrt(2.0), math.sqrt(0.5 / many))
    found = np.clip(point, -1, 1)
    gained = _share(world, found, asked, chance) - _share(world, world.start, asked, chance)
    gained += plan.noise_std / clip / half / math.sqrt(2.0) * chance.normal()
    keep = gained > BETTER * std or (trusted and gained > -BETTER * std)
    return found if keep else world.start


def _share(
    world: World, point: Float[np.ndarray, " dim"], people: int, chance: np.random.Generator
) -> float:
    liked = world.liked(np.tile(point, (people, 1)), chance)
    return float(np.mean(chance.random(people) < liked))


def main() -> None:
    """Simulate all cells and write the table."""
    made: dict[str, object] = {"people": PEOPLE, "dims": DIMS, "epsilons": EPSILONS}
    for kind in WORLDS:
        table = np.zeros((len(EPSILONS), len(DIMS), len(PEOPLE)))
        for place in itertools.product(*map(range, table.shape)):
            at = DIMS[place[1]], PEOPLE[place[2]], EPSILONS[place[0]]
            table[place] = np.mean([closed(kind, *at, seed) for seed in range(SEEDS)])
            print(kind, at, f"{table[place]:.2f}", flush=True)
        made[kind] = np.round(table, 2).tolist()
    TABLE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
