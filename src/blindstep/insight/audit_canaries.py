"""One run with a canary in every block: an audit for runs that are too long to be repeated.

Each block's canary is a worst-case record whose value, z = +1 or z = -1, is decided by a coin of its
own. The run is made once; from the releases of each block its coin is guessed, and the correct guesses
are counted (`audit_bounds.mu_from_guesses` says why that is sound).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from blindstep.insight.audit_scene import Blocks, Scene

# Blocks handled at once, within this many numbers.
_NUMBERS = 2**25


@dataclass(frozen=True)
class Guesses:
    """What came of it.

    Attributes:
        scores: the likelihood-ratio score of each block, in units of its standard deviation.
        coins: whether each canary stood at z = +1. The guess is that the score is above 0.
        finite: whether all releases were finite.
        moved: the largest move of an increment, as a share of its declared sensitivity.
    """

    scores: Float[np.ndarray, " n"]
    coins: np.ndarray
    finite: bool
    moved: float

    @property
    def correct(self) -> int:
        """Coins guessed."""
        return int(np.sum((self.scores > 0) == self.coins))


def run_with_canaries(
    scene: Scene, most: int, rng: np.random.Generator, key: np.ndarray
) -> Guesses:
    """One pass of the plan, at most `most` of its blocks, with a canary in each."""
    limit = min(most, scene.oracle.schedule.blocks_per_pass, scene.oracle.schedule.blocks)
    parts = list(_parts(scene, limit))
    worst = int(np.argmax(scene.costs(*parts[0].compact(), 1, key[None])))
    noise, strategy = scene.oracle.mechanism.factors()
    profile = strategy[:, worst]
    # Whitened by B, the canary moves the releases along column i of C.
    weights = solve_triangular(noise, profile, trans=1, lower=True) / np.linalg.norm(profile)
    sensitivity = scene.oracle.sensitivities()[worst]
    scores, coins, moves = [], [], []
    for blocks in parts:
        coin = rng.random(len(blocks)) < 0.5
        seen, delta = _attack(scene, blocks, worst, coin, key)
        scores.append(seen @ weights / scene.plan.noise_std)
        coins.append(coin)
        moves.append(np.linalg.norm(delta, axis=-1) / sensitivity)
    every = np.concatenate(scores)
    return Guesses(
        scores=every,
        coins=np.concatenate(coins),
        finite=bool(np.isfinite(every).all()),
        moved=float(np.max(moves)),
    )


def _parts(scene: Scene, limit: int) -> Iterator[Blocks]:
    """The first `limit` blocks, in parts of one size (fewer than one part is left out)."""
    taken, number = [], 0
    for epoch in scene.blocks():
        taken.append(epoch[: limit - number])
        number += len(taken[-1])
        if number >= limit:
            break
    blocks = Blocks.joined(taken)
    each = blocks.first.shape[1] + scene.plan.period * scene.plan.dim
    parts = -(-number // max(1, _NUMBERS // each))
    size = number // parts
    return (blocks[start : start + size] for start in range(0, parts * size, size))


def _attack(
    scene: Scene, blocks: Blocks, worst: int, coin: np.ndarray, key: np.ndarray
) -> tuple[Float[np.ndarray, "blocks steps"], Float[np.ndarray, "blocks release"]]:
    """What each block releases along its own canary's direction, and how far the canary moves it.

    The direction is public: it follows from the directions' key. It is found by running the blocks
    with every coin turned too, and comparing the oracle's sums.
    """
    compact, records = blocks.compact()
    data = np.zeros((2, records))
    for block, up in enumerate(coin):
        row = compact.batch(block, worst)[0]
        data[:, row] = (1.0, -1.0) if up else (-1.0, 1.0)
    nothing = jnp.zeros((len(blocks), 1, scene.plan.dim))
    _, sums = scene.watch(compact, data, nothing, key[None])
    delta = np.asarray(sums[0, 0] - sums[0, 1], dtype=np.float64) * np.where(coin, 1, -1)[:, None]
    norms = np.linalg.norm(delta, axis=-1, keepdims=True)
    lanes = delta / np.where(norms > 0, norms, 1.0)
    framed = scene.frame_lanes(lanes[:, None], blocks)
    seen, _ = scene.watch(compact, data[:1], framed, key[None])
    return seen[0, 0, :, :, 0], delta
