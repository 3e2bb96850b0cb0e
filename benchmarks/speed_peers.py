"""What people have today, on the same problems: the NumPy twin, and DPZero's step in eager PyTorch."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed_problems import Problem
from blindstep.estimate.directions import Sphere
from blindstep.losses.pytrees import ParameterSpace

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))


def numpy_twin(problem: Problem, records: int = 8) -> float:
    """Seconds for a record of the slow, readable twin (tests/support/reference.py): its GRAD.

    Drawing directions is part of the work, as it is of ours: with NumPy's generator.
    """
    import reference

    space = ParameterSpace.of(problem.params)
    start = np.asarray(space.flatten(problem.params), np.float64)
    rng, plan = np.random.default_rng(0), problem.plan
    batch = [tuple(leaf[i] for leaf in problem.data) for i in range(records)]
    began = time.perf_counter()
    directions = rng.standard_normal((records, plan.directions, plan.dim))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    reference.grad(problem.numpy_loss, start, batch, directions, plan.smoothing)
    return (time.perf_counter() - began) / records


def twin_and_ours_agree(problem: Problem) -> float:
    """Largest difference of the two losses at one point: the twin evaluates the same function."""
    space = ParameterSpace.of(problem.params)
    point = Sphere().sample(jax.random.key(0), None, 1, space.dim)[0]
    record = tuple(leaf[0] for leaf in problem.data)
    ours = problem.loss(space.unflatten(point), jax.tree.map(jnp.asarray, record))
    return abs(float(ours) - float(problem.numpy_loss(np.asarray(point), record)))


def torch_step(problem: Problem, directions: int = 8) -> float:
    """Seconds for an evaluation of a DPZero step in eager PyTorch (Zhang et al. 2024).

    As people write it: one Gaussian direction for the whole batch, the loss of each record at both
    ends, the difference clipped for each record, averaged, one scalar of noise, the direction taken.
    """
    import torch

    torch.manual_seed(0)
    batch = min(problem.plan.first_batch, len(problem.data[0]))
    features, labels = (torch.from_numpy(np.asarray(leaf[:batch])) for leaf in problem.data)
    params = _leaves(problem, torch)
    losses = _svm_losses if len(params) == 1 else _network_losses
    smoothing = problem.plan.smoothing

    def step() -> None:
        with torch.no_grad():
            moves = [torch.randn_like(leaf) for leaf in params]
            ends = []
            for sign in (1.0, -2.0):  # there, and twice as far back
                for leaf, move in zip(params, moves, strict=True):
                    leaf.add_(move, alpha=sign * smoothing)
                ends.append(losses(torch, params, features, labels))
            difference = (ends[0] - ends[1]) / (2.0 * smoothing)
            slope = torch.clamp(difference, -1.0, 1.0).mean() + torch.randn(()) / batch
            for leaf, move in zip(params, moves, strict=True):
                leaf.add_(move, alpha=smoothing - 1e-3 * float(slope))

    step()
    began = time.perf_counter()
    for _ in range(directions):
        step()
    return (time.perf_counter() - began) / (2 * directions * batch)


def _leaves(problem: Problem, torch):
    if isinstance(problem.params, dict):
        names = ("w1", "b1", "w2", "b2")
        return [torch.from_numpy(problem.params[name].copy()) for name in names]
    return [torch.from_numpy(problem.params.copy())]


def _svm_losses(torch, params, features, labels):
    (x,) = params
    hinge = torch.relu(1.0 - labels * (features @ x))
    return hinge + 1e-5 * torch.clamp(x.abs(), max=2.0).sum()


def _network_losses(torch, params, features, labels):
    w1, b1, w2, b2 = params
    logits = torch.relu(features @ w1 + b1) @ w2 + b2
    losses = torch.logsumexp(logits, dim=1) - logits[torch.arange(len(labels)), labels.long()]
    return torch.clamp(losses, max=5.0)


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The power of size that fits the times best, by least squares on logarithms."""
    slope = np.polyfit([math.log(size) for size in sizes], [math.log(s) for s in seconds], 1)[0]
    return float(slope)
