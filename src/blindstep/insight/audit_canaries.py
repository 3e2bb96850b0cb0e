"""One run with a canary in every block: an audit for runs that are too long to be repeated.

Each block's canary is a worst-case record whose value, z = +1 or z = -1, is decided by a coin of its
own. The run is made once. From the releases of each block its coin is guessed, and the correct guesses
are counted (`audit_bounds.mu_from_guesses` says why that is sound).
"""

from __future__ import annotations

import numpy as np

from blindstep.insight.audit_runs import Trials, measured_costs
from blindstep.insight.audit_scene import Scene

# Blocks handled at once, within this many numbers.
_NUMBERS = 2**25


def run_with_canaries(scene: Scene, most: int, rng: np.random.Generator, key: np.ndarray) -> Trials:
    """One pass of the plan, at most `most` of its blocks, with a canary in each.

    Scores of the canaries at z = -1, and of those at z = +1: the guess is +1 above 0. A canary
    answers in the release where that costs most. The run is also made with every coin turned, under
    the same noise: the difference is where each canary pushes, which anyone can work out who knows
    the public key.
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
    scored, plus = np.concatenate(scores), np.concatenate(coins)
    return Trials(scored[~plus], scored[plus], 1, checks)
