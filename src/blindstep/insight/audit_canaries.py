"""One run with a canary in every block: an audit for runs that are too long to be repeated.

Each block's canary is a worst-case record whose value, z = +1 or z = -1, is decided by a coin of its
own. The run is made once. From the releases of each block its coin is guessed, and the correct guesses
are counted (`audit_bounds.mu_from_guesses` says why that is sound).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blindstep.insight.audit_runs import measured_costs
from blindstep.insight.audit_scene import Scene

# Blocks handled at once, within this many numbers.
_NUMBERS = 2**25


@dataclass(frozen=True)
class Guesses:
    """What came of it.

    Attributes:
        scores: the likelihood-ratio score of each block, in units of its standard deviation.
        coins: whether each canary stood at z = +1. The guess is that the score is above 0.
        checks: exact checks of the releases (`Scene.exact_checks`).
    """

    scores: Float[np.ndarray, " n"]
    coins: np.ndarray
    checks: dict[str, bool]

    @property
    def correct(self) -> int:
        """Coins guessed."""
        return int(np.sum((self.scores > 0) == self.coins))


def run_with_canaries(
    scene: Scene, most: int, rng: np.random.Generator, key: np.ndarray
) -> Guesses:
    """One pass of the plan, at most `most` of its blocks, with a canary in each.

    The canary answers in the release where that costs most. The run is also made with every coin
    turned, under the same noise: the difference is where each canary pushes, which anyone can work
    out who knows the public key.
    """
    schedule, terms = scene.terms.schedule, scene.terms
    number = min(most, schedule.blocks_per_pass, schedule.blocks)
    # Parts of one size, so that one program serves all of them; what is left over is left out.
    parts = -(-number * (2 * schedule.period * terms.size + schedule.block_size) // _NUMBERS)
    size = max(1, number // parts)
    every = scene.blocks(0, number)
    worst = int(np.argmax(measured_costs(scene, every.some(slice(size)), key)))
    scores, coins, checks = [], [], {}
    for start in range(0, number - size + 1, size):
        blocks = every.some(slice(start, start + size))
        coin = rng.random(size) < 0.5
        signs = np.where(coin, 1.0, -1.0)
        releases = scene.watch(blocks, scene.batch(blocks, worst)[:, 0], key[None], z=signs)[0]
        push = (releases[0] - releases[1]) * signs[:, None, None]
        norms = np.linalg.norm(push, axis=(1, 2)) * float(terms.noise_std)
        scores.append(np.sum(releases[0] * push, axis=(1, 2)) / np.where(norms > 0, norms, 1.0))
        coins.append(coin)
        for name, good in scene.exact_checks(releases).items():
            checks[name] = checks.get(name, True) and good
    return Guesses(np.concatenate(scores), np.concatenate(coins), checks)
