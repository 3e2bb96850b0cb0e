"""Many short runs under fresh noise: the attack that knows everything but which record it was.

A *trial* is what one noise key adds in one direction (a lane) over the releases of a block. In lane 0
the two data sets differ, and both are really run. The other lanes are orthogonal to it: the noise
there is that of the same real releases, and the trial asks what a record that pushes that way would
have caused. Coordinates are promised independent noise, so lanes are independent trials.

The adversary does not believe the covariance that the code claims. From a first part of the keys it
learns the covariance of all that it sees, in the block of the changed record and in two others; its
score is the best linear one for *that* noise. So it profits from noise that is used again in another
step, block or epoch, or that is missing somewhere. The score is then fixed; the rest of the keys is
counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from blindstep.errors import InvalidArgument
from blindstep.insight.audit_scene import Blocks, Scene
from blindstep.optimize.plan import Plan
from blindstep.trusted.oracle import Oracle

_LANES = 64
_MOST_STEPS = 4096
# Time profiles that are kept of the changed record's block, and of each other block.
_PROFILES, _OTHERS = 48, 16
_MEMORY = 2**28
# Most noise draws: 10 to 20 seconds on an idle core.
_DRAWS = 1.2e8
# Below this mu an attack on one record is mostly luck: see `group_size`.
_CLEAR = 0.5


@dataclass(frozen=True)
class Trials:
    """Scores of all counted trials in both worlds, in units of their standard deviation.

    Attributes:
        scores: with the changed record at z = -1.
        neighbour_scores: with it at z = +1. The adversary says +1 above 0.
        group: records that count as changed.
        blocks: blocks that were run under each key.
        keys: noise keys, of which two thirds were counted.
        finite: whether all releases were finite.
        fixed: whether the two worlds differed by the same under every key.
        moved: the largest factor by which an increment moved beyond its declared sensitivity.
    """

    scores: Float[np.ndarray, " n"]
    neighbour_scores: Float[np.ndarray, " n"]
    group: int
    blocks: int
    keys: int
    finite: bool
    fixed: bool
    moved: float


def group_size(plan: Plan, mu: float, batch: int) -> int:
    """How many records of one batch are taken as changed: one, unless its mu is small.

    Where one record is mu-Gaussian-DP, k are (k mu)-Gaussian-DP (Dong, Roth and Su 2022, Theorem
    2.14), and a larger mu is measured more precisely. One record is really changed; k times its
    shift is what k such records cause whose directions coincide.
    """
    mu_pass = mu / math.sqrt(plan.passes)
    return 1 if mu_pass >= _CLEAR else min(batch, math.ceil(2 * _CLEAR / mu_pass))


def run_trials(
    scene: Scene, mu: float, pairs: int, rng: np.random.Generator, entropy: np.ndarray
) -> Trials:
    """Attack the plan of `scene`, whose claim is `mu`, with about `pairs` counted trials."""
    blocks, records = _stage(scene)
    chunk = min(_keys_at_once(scene, len(blocks)), -(-len(entropy) // 8))
    number = min(_LANES, scene.oracle.estimator.release_dim)
    costs = scene.costs(blocks, records, number, entropy[:chunk])
    worst = int(np.argmax(costs))
    group = group_size(scene.plan, mu, blocks.batch(0, worst).size)
    data = np.zeros((2, records))
    data[:, _costliest(blocks, costs)] = (-1.0, 1.0)
    lanes = _lanes(scene, blocks, data, rng, entropy[:chunk])
    compress = _Compression(scene.oracle, worst, len(blocks), rng)
    seen_lanes = scene.frame_lanes(np.stack([lanes] * len(blocks)), blocks)
    parts, moved, finite = [], 0.0, True
    for start in range(0, len(entropy), chunk):
        keys = entropy[start : start + chunk]
        # One shape, one compilation: the last part is filled up and cut.
        filled = np.resize(keys, (chunk, 8))
        seen, _ = scene.watch(blocks, data, seen_lanes, filled)
        seen = seen[: len(keys)]
        finite = finite and bool(np.isfinite(seen).all())
        if start == 0:
            moved = _moved(scene, seen[0, :, 0, :, 0])
        parts.append(compress(seen))
    features = np.concatenate(parts)
    counted = _score(features, pairs, group) if finite else None
    scores, neighbour_scores, fixed = counted or (np.zeros(1), np.zeros(1), False)
    return Trials(
        scores=scores,
        neighbour_scores=neighbour_scores,
        group=group,
        blocks=len(blocks),
        keys=len(entropy),
        finite=finite,
        fixed=fixed,
        moved=moved,
    )


def keys_needed(plan: Plan, oracle: Oracle, pairs: int) -> int:
    """Noise keys for `pairs` counted trials and half as many to learn from, within the budget."""
    if plan.period > _MOST_STEPS:
        raise InvalidArgument(
            f"a block of {plan.period} releases is longer than an audit can whiten "
            f"({_MOST_STEPS}): audit the same plan with a shorter period."
        )
    size = oracle.estimator.release_dim
    lanes = min(_LANES, size)
    wanted = math.ceil(1.5 * pairs / lanes)
    return max(2, min(wanted, int(_DRAWS / (3 * plan.period * size))))


def _stage(scene: Scene) -> tuple[Blocks, int]:
    """Block 0, its neighbour in the epoch, and the next epoch's first; and their records."""
    epochs = scene.blocks()
    first = next(epochs)
    second = next(epochs, None)
    return Blocks.joined([first[:2]] if second is None else [first[:2], second[:1]]).compact()


def _costliest(blocks: Blocks, costs: Float[np.ndarray, " period"]) -> int:
    """The row of block 0 whose change costs most.

    Counted on the rows as they are, so that a record in several batches comes first.
    """
    cost = np.zeros(int(max(blocks.first.max(), blocks.diffs.max(initial=0))) + 1)
    for step, each in enumerate(costs):
        np.add.at(cost, blocks.batch(0, step), each**2)
    return int(np.argmax(cost))


def _lanes(
    scene: Scene,
    blocks: Blocks,
    data: Float[np.ndarray, "2 records"],
    rng: np.random.Generator,
    keys: np.ndarray,
) -> Float[np.ndarray, "lanes release"]:
    """Orthonormal directions; the first is the one in which the two worlds differ.

    One key would do; as many as later are given, so that nothing is compiled twice.
    """
    number = min(_LANES, scene.oracle.estimator.release_dim)
    nothing = jnp.zeros((len(blocks), number, scene.plan.dim))
    _, sums = scene.watch(blocks, data, nothing, keys)
    shift = np.asarray(sums[0, 1, 0] - sums[0, 0, 0], dtype=np.float64)
    columns = np.column_stack([shift, rng.standard_normal((shift.size, number - 1))])
    return np.linalg.qr(columns)[0].T


def _keys_at_once(scene: Scene, blocks: int) -> int:
    """Keys whose transcripts, noise states and draws fit into memory together."""
    size = scene.oracle.estimator.release_dim
    lanes = min(_LANES, size)
    slots = scene.oracle.mechanism.init(1).shape[0]
    each = 8 * (2 * blocks * scene.plan.period * lanes + (slots + 24) * size + 4 * scene.plan.dim)
    return max(1, _MEMORY // each)


def _moved(scene: Scene, seen: Float[np.ndarray, "2 steps"]) -> float:
    """By how much the increments moved in lane 0, as a share of their declared sensitivities."""
    increments = np.diff(seen[1] - seen[0], prepend=0.0)
    return float(np.max(np.abs(increments) / np.asarray(scene.oracle.sensitivities())))


class _Compression:
    """From releases to a few numbers that say as much: whitened by B, then some time profiles.

    The first profile is the changed record's own, column i of C: under the claim it is all there is
    to know. The others are random and orthogonal to it: they see noise that is not as claimed.
    """

    def __init__(self, oracle: Oracle, worst: int, blocks: int, rng: np.random.Generator) -> None:
        noise, strategy = oracle.mechanism.factors()
        steps = len(noise)
        number = min(steps, _PROFILES)
        columns = np.column_stack([strategy[:, worst], rng.standard_normal((steps, number - 1))])
        profiles = np.linalg.qr(columns)[0]
        own = solve_triangular(noise, profiles, trans=1, lower=True).T
        self._matrices = [own] + [own[:_OTHERS]] * (blocks - 1)

    def __call__(
        self, seen: Float[np.ndarray, "keys 2 blocks steps lanes"]
    ) -> Float[np.ndarray, "keys 2 lanes features"]:
        each = [
            np.einsum("kt,nwtl->nwlk", matrix, seen[:, :, block], optimize=True)
            for block, matrix in enumerate(self._matrices)
        ]
        return np.concatenate(each, axis=-1)


def _score(
    features: Float[np.ndarray, "keys 2 lanes features"], pairs: int, group: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], bool]:
    """Learn the noise from a third of the keys; score the others. Also: was the shift constant?"""
    shifts = features[:, 1, 0] - features[:, 0, 0]
    shift = shifts.mean(axis=0)
    # All other records count 0 and the changed one is symmetric: the middle is the noise alone.
    noise = features.mean(axis=1)
    learned = max(1, len(noise) // 3)
    train, test = (part.reshape(-1, part.shape[-1]) for part in (noise[:learned], noise[learned:]))
    covariance = train.T @ train / len(train)
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + 1e-300
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), shift)
    scale = math.sqrt(np.mean((train @ weights) ** 2) + 1e-300)
    middle, half = (test @ weights)[:pairs] / scale, group * (weights @ shift) / 2 / scale
    spread = float(np.sqrt(np.mean(noise**2)))
    fixed = bool(np.max(np.abs(shifts - shift)) <= 1e-6 * (np.max(np.abs(shift)) + spread))
    return middle - half, middle + half, fixed
