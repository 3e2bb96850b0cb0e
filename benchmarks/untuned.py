"""What people would pick instead, with nothing tuned: Opacus and diffprivlib on the problems' records.

*Opacus*: the settings of its image tutorial, whatever the problem: RMSprop with rate 1e-3, 20 epochs
of Poisson batches of 512, clip 1.2; the noise is its own accountant's. Its epsilon is for a record that
is there or not. Here every epsilon is for a record that is *replaced*, which is two such changes: it is
asked for (epsilon / 2, delta / (1 + exp(epsilon / 2))), and group privacy makes (epsilon, delta) of it.

*diffprivlib*: `LogisticRegression` where there are classes, `LinearRegression` (least squares: it has
no absolute error) for a number. The norms and bounds that it asks for are those of the training
records, which counts as public and favours it, and a number that it predicts is cut at these bounds.
Its epsilon is for a replaced record, with delta 0. For a network it gets the linear classifier. It has
no model for a choice between described alternatives, and none for a vote.
"""

from __future__ import annotations

import importlib
import math
import warnings
from typing import Any

import jax
import numpy as np

import blindstep as bs
from benchmarks import problems, untouched, utility_problems
from benchmarks.baselines import Outcome
from benchmarks.data import Records
from benchmarks.problems import Problem

RATE, EPOCHS, BATCH, CLIP = 1e-3, 20, 512, 1.2
# A gradient counts as three evaluations of a loss.
GRADIENT = 3


def half_budget(privacy: bs.Privacy) -> tuple[float, float]:
    """What Opacus is asked for, such that a replaced record has `privacy`."""
    epsilon, delta = privacy.epsilon, privacy.delta
    return epsilon / 2, delta / (1.0 + math.exp(epsilon / 2))


def _answer(problem: Problem, params: Any, evaluations: float) -> Outcome:
    leaves = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(params)]
    return Outcome(params, np.concatenate(leaves)[None], np.array([float(evaluations)]))


def opacus(
    problem: Problem, records: Records, privacy: bs.Privacy | None, _: Any, seed: int
) -> Outcome:
    """One run of Opacus."""
    import torch
    from opacus import PrivacyEngine

    assert privacy is not None
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model, start = _module(problem, seed), problem.start(seed)
    tensors = [torch.tensor(np.asarray(records[name])) for name in ("features", "label")]
    epsilon, delta = half_budget(privacy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its generator, which is not meant for secrets
        private, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
            module=model.train(),
            optimizer=torch.optim.RMSprop(model.parameters(), lr=RATE),
            data_loader=torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(*tensors), batch_size=BATCH
            ),
            epochs=EPOCHS,
            target_epsilon=epsilon,
            target_delta=delta,
            max_grad_norm=CLIP,
        )
        for _ in range(EPOCHS):
            for features, label in loader:
                optimizer.zero_grad()
                _torch_loss(problem, private(features), label).backward()
                optimizer.step()
    found = [weight.detach().numpy() for weight in model.parameters()]
    if isinstance(start, dict):
        names = ("first", "first_bias", "second", "second_bias")
        params: Any = {name: each.T for name, each in zip(names, found, strict=True)}
    else:
        params = found[0][0]
    return _answer(problem, params, GRADIENT * EPOCHS)


def _module(problem: Problem, seed: int) -> Any:
    """The model of a problem in PyTorch, with the problem's own start."""
    import torch

    start = problem.start(seed)
    if isinstance(start, dict):
        inputs, hidden = start["first"].shape
        model = torch.nn.Sequential(
            torch.nn.Linear(inputs, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, start["second"].shape[1]),
        )
        begun = [start[name].T for name in ("first", "first_bias", "second", "second_bias")]
    else:
        model, begun = torch.nn.Linear(len(start), 1, bias=False), [start[None]]
    with torch.no_grad():
        for weight, value in zip(model.parameters(), begun, strict=True):
            weight.copy_(torch.tensor(np.ascontiguousarray(value)))
    return model


def _torch_loss(problem: Problem, scores: Any, label: Any) -> Any:
    """The mean of the problem's loss (or of what it follows where there is no slope), from scores."""
    from torch.nn.functional import cross_entropy, l1_loss, relu, softplus

    loss = problem.reference_loss
    if loss is problems.cross_entropy:
        return cross_entropy(scores, label.long())
    scores = scores.squeeze(-1)
    if loss is untouched.choice:
        return cross_entropy(scores, label.long())
    if loss is utility_problems.absolute:
        return l1_loss(scores, label)
    margins = (2.0 * label - 1.0) * scores
    if loss is utility_problems.logistic:
        return softplus(-margins).mean()
    assert loss is problems.capped_svm
    return relu(1.0 - margins).mean()  # the penalty of 1e-5 moves nothing at these rates


def finds_diffprivlib() -> bool:
    """Whether it is here, with a scikit-learn that it can be imported with: 1.5, not 1.6 and later."""
    try:
        importlib.import_module("diffprivlib.models")
    except ImportError:
        return False
    return True


def has_diffprivlib(problem: Problem) -> bool:
    """Whether diffprivlib has a model for the problem."""
    return problem.reference_loss is not untouched.choice


def diffprivlib_points(
    problem: Problem, records: Records, privacy: bs.Privacy | None, judged: Records, seed: int
) -> float:
    """Train an estimator of diffprivlib, and its points on other records."""
    from diffprivlib import models

    assert privacy is not None
    features, label = np.asarray(records["features"], float), np.asarray(records["label"])
    others, truth = np.asarray(judged["features"], float), np.asarray(judged["label"])
    varying = features.min(0) < features.max(0)  # it has an intercept of its own
    features, others = features[:, varying], others[:, varying]
    if problem.reference_loss is utility_problems.absolute:
        model = models.LinearRegression(
            epsilon=privacy.epsilon,
            bounds_X=(features.min(0), features.max(0)),
            bounds_y=(label.min(), label.max()),
            random_state=seed,
        )
        guess = np.clip(model.fit(features, label).predict(others), label.min(), label.max())
        constant = np.mean(np.abs(truth - np.median(truth)))
        return float(100.0 * (1.0 - np.mean(np.abs(guess - truth)) / constant))
    model = models.LogisticRegression(
        epsilon=privacy.epsilon,
        data_norm=float(np.linalg.norm(features, axis=1).max()),
        max_iter=1_000,
        random_state=seed,
    )
    return 100.0 * float(np.mean(model.fit(features, label).predict(others) == truth))
