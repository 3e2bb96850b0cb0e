"""Networks that people train from scratch, in PyTorch: blindstep, Opacus untuned, and no privacy.

    python -m benchmarks.networks               # makes the rows that are missing
    python -m benchmarks.networks --seeds 5     # five seeds of each, not one
    python -m benchmarks.networks --show

An MLP, a CNN, a transformer and an LSTM on 4,000 digits (`networks_problems`), from PyTorch's own
start, delta 1e-5, one thread; points are accuracy on 1,000 test records. *Neighbours are "zero-out"*,
what Opacus means by its epsilon. Nothing is tuned for anybody:

- gradients: `blindstep.torch.minimize` with `Auto(estimate="gradient")`, and nothing else said;
- values: with `Auto(evaluations=500_000)`, forward passes of a record;
- Opacus: the settings of its image tutorial: RMSprop with rate 1e-3, 20 epochs of batches of 512,
  clip 1.2;
- Adam: no privacy, rate 1e-3, 20 epochs of batches of 64.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import blindstep as bs
import blindstep.torch
from benchmarks import networks_problems, summary
from benchmarks.networks_problems import MODELS, Digits

RESULTS = summary.RESULTS / "networks.json"
EPSILONS, DELTA = (1.0, 8.0, 2.0), 1e-5
EVALUATIONS, EPOCHS, RATE = 500_000, 20, 1e-3

Row = dict[str, Any]


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The cross-entropy of each record."""
    return cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def blindsteps(method: bs.Auto) -> Callable[..., Row]:
    """Training with blindstep."""

    def train(model: torch.nn.Module, digits: Digits, epsilon: float) -> Row:
        privacy = bs.Privacy(epsilon, DELTA, neighbours="zero-out")
        made = blindstep.torch.minimize(
            model, loss, digits.train, privacy, method=method, progress=False
        )
        return {"evaluations": made.plan.evaluations, "outcome": made.outcome.kind.value}

    return train


def opacus(model: torch.nn.Module, digits: Digits, epsilon: float) -> Row:
    """Training with Opacus, as its tutorial has it."""
    from opacus import PrivacyEngine

    rows = torch.utils.data.TensorDataset(digits.train["x"], digits.train["y"])
    private, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
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


def adam(model: torch.nn.Module, digits: Digits, epsilon: float) -> Row:
    """Training without privacy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(digits.train["y"])).split(64):
            optimizer.zero_grad()
            loss(model, {name: each[rows] for name, each in digits.train.items()}).mean().backward()
            optimizer.step()
    return {}


METHODS: dict[str, Callable[..., Row]] = {
    "Adam": adam,
    "gradients": blindsteps(bs.Auto(estimate="gradient")),
    "Opacus": opacus,
    "values": blindsteps(bs.Auto(evaluations=EVALUATIONS)),
}


def row(model: str, method: str, epsilon: float, seed: int, digits: Digits) -> Row:
    """One run: points before and after it, and its time."""
    torch.manual_seed(seed)
    made = MODELS[model]()
    before, began = points(made, digits), time.perf_counter()
    about = METHODS[method](made, digits, epsilon)
    seconds = time.perf_counter() - began
    key = {"model": model, "method": method, "epsilon": epsilon, "seed": seed}
    scores = {"start": before, "points": points(made, digits), "seconds": round(seconds, 1)}
    return key | scores | about


def points(model: torch.nn.Module, digits: Digits) -> float:
    """100 times the accuracy on the test records."""
    model.eval()
    with torch.no_grad():
        right = model(digits.test["x"]).argmax(1) == digits.test["y"]
    return 100.0 * float(right.float().mean())


def main() -> None:
    """Make the rows that are missing, and show all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--show", action="store_true", help="make nothing, show what there is")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    given = parser.parse_args()
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else []
    done = {(each["model"], each["method"], each["epsilon"], each["seed"]) for each in rows}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    keys = [
        (model, method, epsilon, seed)
        for seed in range(0 if given.show else given.seeds)
        for epsilon in (0.0, *EPSILONS)
        for method in given.methods
        if (method == "Adam") == (epsilon == 0.0)
        for model in MODELS
    ]
    digits = networks_problems.digits() if set(keys) - done else None
    for key in keys:
        if key not in done and digits is not None:
            rows.append(row(*key, digits))
            print(json.dumps(rows[-1]), flush=True)
            text = json.dumps({"version": bs.__version__, "rows": rows}, indent=1)
            RESULTS.write_text(text + "\n")
    print(summary.networks())


if __name__ == "__main__":
    main()
