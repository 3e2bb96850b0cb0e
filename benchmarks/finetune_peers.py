"""Private zeroth-order fine-tuning as others do it, written anew: DPZero (K = 1) and DP-AggZO.

Every step each of b records gives its differences along K random directions, scaled to norm at most C:

    c_k = (f(w + h u_k) - f(w - h u_k)) / 2h,      y = (1/b) sum_i clip_C(c_i) + N(0, sigma^2 I_K)
    w <- w - rate (1/K) sum_k y_k d u_k,           sigma = 2 C sqrt(P) / (b mu)

with u_k = signs / sqrt(d). In so many dimensions signs and Gaussian draws are alike. Records take turns
in fixed parts, so that each is in exactly P steps, and all steps are exactly mu-Gaussian-DP. There is
one part, of all records, unless that leaves fewer than 16 steps. Their published code draws noise from
seeds that it publishes; here it comes from the operating system.

Evaluations go through blindstep's own evaluator, so that a forward pass costs all methods the same.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

import blindstep as bs
from blindstep.torch.evaluate import Loss, ModelEvaluator, Shift
from blindstep.torch.records import Records
from blindstep.torch.weights import Move, Weights

# How far out they probe along each parameter, in their code and in that of MeZO.
PROBE = 1e-3
_BITS = 23
_FEWEST_STEPS = 16


@dataclass(frozen=True)
class Setting:
    """What a user of these methods has to choose.

    Attributes:
        clip: C, as a multiple of the median norm of a record's differences at the start. That median is
            taken without noise: a favour to these methods.
        rate: how far the first step moves every parameter, if no record is clipped and noise is 0.
    """

    clip: float
    rate: float


SETTINGS = tuple(
    Setting(clip, rate) for clip in (0.1, 1.0) for rate in (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
)


def train(
    model: torch.nn.Module,
    loss: Loss,
    data: Mapping[str, torch.Tensor],
    *,
    directions: int,
    setting: Setting,
    privacy: bs.Privacy,
    evaluations: int,
    batch: int,
) -> dict[str, float]:
    """Tune the model in place in at most so many evaluations, or one pass; says what it took."""
    weights, records = Weights(model), Records(data)
    chance = np.random.default_rng(secrets.randbits(128))
    number, dim, tensors = records.number, weights.dim, len(weights.tensors)
    passes = max(1, evaluations // (2 * directions * number))
    parts = np.array_split(np.arange(number), -(-_FEWEST_STEPS // passes))
    # Parts of one size: the rest of the records is left out, as in batches that are dropped.
    size, steps = len(parts[-1]), passes * len(parts)
    evaluator = ModelEvaluator(weights, loss, records, min(batch, size))
    distance = PROBE * math.sqrt(dim)
    clip = scale = 0.0
    for step in range(steps):
        seeds = chance.integers(-(2**63), 2**63 - 1, size=(directions + 1, tensors))
        amounts = np.full(tensors, PROBE)
        shifts = [Shift(own, sign * amounts) for sign in (1.0, -1.0) for own in seeds[:-1]]
        rows = parts[step % len(parts)][:size]
        values = np.concatenate(
            [
                evaluator.values(rows[start : start + batch], shifts)
                for start in range(0, size, batch)
            ]
        ).reshape(size, 2, directions)
        slopes = (values[:, 0] - values[:, 1]) / (2 * distance)
        norms = np.linalg.norm(slopes, axis=1)
        if step == 0:
            clip = setting.clip * float(np.median(norms))
            unclipped = min(clip, float(np.median(norms)))
            scale = setting.rate / max(unclipped, 1e-12)
        slopes *= np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]
        noise = 2 * clip * math.sqrt(passes) / (size * privacy.mu)
        released = slopes.mean(axis=0) + noise * chance.standard_normal(directions)
        # The rate falls to 0, as that of all others here.
        rate = scale * (1 - step / steps)
        weights.move(_move(seeds, -rate * released / math.sqrt(directions), tensors))
    return {"steps": steps, "clip_norm": clip, "evaluations": steps * 2 * directions * size}


def _move(seeds: np.ndarray, amounts: np.ndarray, tensors: int) -> Move:
    """Each parameter moves by amounts_k s_k."""
    size = float(np.sum(np.abs(amounts)))
    unit = 2.0 ** (math.frexp(size)[1] - _BITS)
    whole = np.broadcast_to(np.rint(amounts / unit)[:, None], (len(amounts), tensors))
    return Move(seeds[:-1], whole, np.full(tensors, unit), seeds[-1])
