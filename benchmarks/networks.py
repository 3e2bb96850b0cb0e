"""Small PyTorch networks on two cores: `blindstep.torch.minimize` with three clips, nothing else tuned.

    python -m benchmarks.networks             # makes the rows that are missing, ten minutes in all
    python -m benchmarks.networks --show

A network with 16 hidden units on the digits, on spam and on the bank's records, from PyTorch's own
start, two million forward passes of a record, delta 1e-5, eight runs each; with the default clip, and
with half and twice of it. Scored on validation rows. How the default was chosen is told in
docs/benchmarks.md: not by these rows alone.

What is counted beside means is the *worst* run: a user makes one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import blindstep as bs
import blindstep.torch
from benchmarks import data, summary, utility_problems
from blindstep.estimate.bounds import Bounds

RESULTS = summary.RESULTS / "networks.json"
EPSILONS = (8.0, 2.0, 0.5)
CLIPS = (0.5, 1.0, 2.0)  # times the default
RUNS, HIDDEN, EVALUATIONS, BATCH, DELTA = 8, 16, 2_000_000, 512, 1e-5

Row = dict[str, Any]


def _spam() -> data.Split:
    return utility_problems.split_table(*utility_problems.spam_table())


def _bank() -> data.Split:
    features, label, _ = utility_problems.bank_table()
    return utility_problems.split_table(features, label)


PROBLEMS: dict[str, Callable[[], data.Split]] = {
    "digits": data.digits,
    "spam": _spam,
    "bank": _bank,
}


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The cross-entropy of each record."""
    return cross_entropy(model(batch["features"]), batch["label"], reduction="none")


def one_run(
    split: data.Split, epsilon: float, clip: float, seed: int, most: int
) -> tuple[float, float]:
    """The validation loss and accuracy of a run whose clip is so many times the default."""
    torch.manual_seed(seed)
    inputs, classes = split.fit["features"].shape[1], int(split.fit["label"].max()) + 1
    model = torch.nn.Sequential(
        torch.nn.Linear(inputs, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, classes)
    )
    fit, validation = (
        {"features": torch.tensor(rows["features"]), "label": torch.tensor(rows["label"]).long()}
        for rows in (split.fit, split.validation)
    )
    privacy, number = bs.Privacy(epsilon, DELTA), len(fit["label"])
    plan = blindstep.torch.plan(model, number, privacy, bs.Auto(evaluations=most))
    plan = dataclasses.replace(plan, bounds=Bounds(clip=clip * plan.bounds.clip))
    blindstep.torch.minimize(model, loss, fit, method=plan, batch=BATCH, progress=False)
    with torch.inference_mode():
        right = model(validation["features"]).argmax(1) == validation["label"]
        return float(loss(model, validation).mean()), float(right.float().mean())


def row(
    problem: str, epsilon: float, clip: float, runs: int = RUNS, most: int = EVALUATIONS
) -> Row:
    """Mean and worst of some runs."""
    split = PROBLEMS[problem]()
    made = np.array([one_run(split, epsilon, clip, seed, most) for seed in range(runs)])
    losses, right = made.T
    return {
        "problem": problem,
        "epsilon": epsilon,
        "clip": clip,
        "runs": runs,
        "loss": float(losses.mean()),
        "worst_loss": float(losses.max()),
        "accuracy": float(right.mean()),
        "spread": float(right.std(ddof=1)) if runs > 1 else 0.0,
        "worst_accuracy": float(right.min()),
    }


def main() -> None:
    """Make the rows that are missing, and show all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--show", action="store_true", help="make nothing, show what there is")
    show = parser.parse_args().show
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    rows: list[Row] = found.get("rows", [])
    done = {(each["problem"], each["epsilon"], each["clip"]) for each in rows}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for key in [] if show else [(p, e, c) for p in PROBLEMS for e in EPSILONS for c in CLIPS]:
        if key not in done:
            rows.append(row(*key))
            print(json.dumps(rows[-1]), flush=True)
            text = json.dumps({"version": bs.__version__, "rows": rows}, indent=1)
            RESULTS.write_text(text + "\n")
    print(summary.networks())


if __name__ == "__main__":
    main()
