"""Networks that people train from scratch, in PyTorch: blindstep, Opacus untuned, and no privacy.

    python -m benchmarks.networks                          # makes the rows that are missing
    python -m benchmarks.networks --models MLP --seeds 5   # five seeds, of one model
    python -m benchmarks.networks --show

An MLP, a CNN, a transformer and an LSTM on 4,000 digits, and a network with 16 hidden units on the
36,169 records of the bank (`networks_problems`), from PyTorch's own start, delta 1e-5, one thread;
points are accuracy on test records. *Neighbours are "zero-out"*, what Opacus means by its epsilon.
Nothing is tuned for anybody:

- gradients: `blindstep.torch.minimize` with `Auto(estimate="gradient")`, and nothing else said;
- values: with `Auto(evaluations=)`, forward passes of a record: 500,000, and 2,000,000 at the bank;
- 0.2: version 0.2 with as many, which knew values alone and replace-one alone: it gets twice the mu;
- Opacus: the settings of its image tutorial: RMSprop with rate 1e-3, 20 epochs of batches of 512,
  clip 1.2;
- Adam: no privacy, rate 1e-3, 20 epochs of batches of 64.

The rows of 0.2 are made with its code, where it is checked out:

    PYTHONPATH=../blindstep-0.2/src python -m benchmarks.networks --methods 0.2

Each line of `benchmarks/results/networks.jsonl` is one run; a later call goes on from that file.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import blindstep as bs
import blindstep.torch
from benchmarks import networks_problems as problems
from benchmarks.networks_problems import MODELS, Split

RESULTS = Path(__file__).parent / "results" / "networks.jsonl"
EPSILONS, DELTA = (1.0, 2.0, 8.0), 1e-5
EPOCHS, RATE = 20, 1e-3

Row = dict[str, Any]


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The cross-entropy of each record."""
    return cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def gradients(model: torch.nn.Module, split: Split, epsilon: float) -> Row:
    """Training with blindstep, on gradients."""
    return _blindstep(model, split, epsilon, bs.Auto(estimate="gradient"))


def values(model: torch.nn.Module, split: Split, epsilon: float) -> Row:
    """Training with blindstep, on values."""
    return _blindstep(model, split, epsilon, bs.Auto(evaluations=split.evaluations))


def _blindstep(model: torch.nn.Module, split: Split, epsilon: float, method: bs.Auto) -> Row:
    privacy = bs.Privacy(epsilon, DELTA, neighbours="zero-out")
    made = blindstep.torch.minimize(
        model, loss, split.train, privacy, method=method, progress=False
    )
    return {"evaluations": made.plan.evaluations, "outcome": made.outcome.kind.value}


def earlier(model: torch.nn.Module, split: Split, epsilon: float) -> Row:
    """Training with version 0.2, on values; its replace-one mu is twice what zero-out asks."""
    if not bs.__version__.startswith("0.2."):
        raise SystemExit(f"this is version {bs.__version__}: put that of 0.2 on PYTHONPATH")
    old: Any = bs
    privacy = old.Privacy(rho=2.0 * old.Privacy(epsilon=epsilon, delta=DELTA).rho, delta=DELTA)
    about = {"privacy": privacy, "evaluations": split.evaluations, "progress": False}
    made = old.torch.minimize(model, loss, split.train, **about)
    return {"evaluations": made.plan.evaluations, "outcome": str(made.outcome)}


def opacus(model: torch.nn.Module, split: Split, epsilon: float) -> Row:
    """Training with Opacus, as its tutorial has it."""
    from opacus import PrivacyEngine

    rows = torch.utils.data.TensorDataset(split.train["x"], split.train["y"])
    engine: Any = PrivacyEngine()
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model.train(),
        optimizer=torch.optim.RMSprop(model.parameters(), lr=RATE),
        data_loader=torch.utils.data.DataLoader(rows, batch_size=512),
        epochs=EPOCHS,
        target_epsilon=epsilon,
        target_delta=DELTA,
        max_grad_norm=1.2,
    )
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(private(x), y).backward()
            optimizer.step()
    private.remove_hooks()
    return {}


def adam(model: torch.nn.Module, split: Split, epsilon: float) -> Row:
    """Training without privacy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(split.train["y"])).split(64):
            optimizer.zero_grad()
            loss(model, {name: each[rows] for name, each in split.train.items()}).mean().backward()
            optimizer.step()
    return {}


METHODS: dict[str, Callable[..., Row]] = {
    "Adam": adam,
    "gradients": gradients,
    "Opacus": opacus,
    "values": values,
    "0.2": earlier,
}


def row(model: str, method: str, epsilon: float, seed: int) -> Row:
    """One run: points before and after it, and its time."""
    torch.manual_seed(seed)
    made, split = MODELS[model](), split_of(model)
    before, began = points(made, split), time.perf_counter()
    about = METHODS[method](made, split, epsilon)
    seconds = time.perf_counter() - began
    key = {"model": model, "method": method, "epsilon": epsilon, "seed": seed}
    scores = {"start": before, "points": points(made, split), "seconds": round(seconds, 1)}
    return key | scores | about


@functools.cache
def split_of(model: str) -> Split:
    """The records that a model is trained on."""
    return problems.bank() if model == problems.BANK else problems.digits()


def points(model: torch.nn.Module, split: Split) -> float:
    """100 times the accuracy on the test records."""
    model.eval()
    with torch.no_grad():
        right = model(split.test["x"]).argmax(1) == split.test["y"]
    return round(100.0 * float(right.float().mean()), 2)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, if there is one."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the rows that are missing, and show all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--show", action="store_true", help="make nothing, show what there is")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    ours = [name for name in METHODS if name != "0.2"]
    parser.add_argument("--methods", nargs="+", default=ours, choices=list(METHODS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    names = ("model", "method", "epsilon", "seed")
    done = {tuple(each[name] for name in names) for each in read_rows(given.results)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds = range(given.first, given.first if given.show else given.first + given.seeds)
    keys = [
        (model, method, 0.0 if method == "Adam" else epsilon, seed)
        for seed in seeds
        for epsilon in given.epsilon
        for model in given.models
        for method in given.methods
    ]
    for key in keys:
        if key not in done:
            done.add(key)
            made = json.dumps(row(*key))
            print(made, flush=True)
            given.results.parent.mkdir(parents=True, exist_ok=True)
            with given.results.open("a") as file:
                file.write(made + "\n")
    if given.show:
        from benchmarks import summary  # of today's version alone

        print(summary.networks())


if __name__ == "__main__":
    main()
