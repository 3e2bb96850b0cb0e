"""Whether two versions of blindstep give the same bits under the same keys.

    git worktree add /tmp/before v0.2.0
    python scripts/same_bits.py /tmp/before .

Three problems go through five drivers in each version (JAX, any Python callable, ask/tell, all on a
fixed plan and on one that finds its scales; PyTorch where it is installed), seeded. Every array of the
results is compared. Exits with 1 if an array differs, and says by how much.

Before version 0.3 a plan was described by keywords of `minimize`; both ways of asking are in here.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

SEED = 5
_CHANCE = np.random.default_rng(0)
_X = _CHANCE.normal(size=(300, 4))
_Y = np.where(_X @ [1.0, -1.0, 0.5, 0.0] > 0, 1.0, -1.0)
_HOMES = np.array([1.0, -0.5]) + 0.3 * _CHANCE.standard_normal((400, 2))
_LABELLED = {"x": _X, "y": _Y}


def logistic(np_: Any) -> Callable[[Any, Any], Any]:
    """A smooth loss, in NumPy or JAX."""
    return lambda w, z: np_.log1p(np_.exp(-z["y"] * np_.dot(z["x"], w)))


def walk(np_: Any) -> Callable[[Any, Any], Any]:
    """A nonsmooth and nonconvex loss."""
    return lambda place, home: np_.minimum(np_.linalg.norm(place - home), 3.0)


def mistakes(np_: Any) -> Callable[[Any, Any], Any]:
    """A staircase."""
    return lambda w, z: 1.0 * (z["y"] * np_.dot(z["x"], w) <= 0)


PROBLEMS = {
    "logistic": (logistic, np.zeros(4), _LABELLED),
    "walk": (walk, np.zeros(2), _HOMES),
    "mistakes": (mistakes, 0.1 * np.ones(4), _LABELLED),
}
_FIXED = {"lipschitz": 2.0, "horizon": 4, "period": 4, "rounds": 3, "first_batch": 20}
_FIXED |= {"diff_batch": 5, "directions": 2, "mechanism": "tree", "sharing": "record"}
_FIXED |= {"sampler": "haar"}


class Asked:
    """How one version is asked for a run."""

    def __init__(self) -> None:
        import blindstep as bs

        self.bs, self.typed = bs, hasattr(bs, "Auto")

    def privacy(self, **budget: float) -> Any:
        """The budget; before 0.3 `mu` was called `rho`."""
        if not self.typed and "mu" in budget:
            budget["rho"] = budget.pop("mu")
        return self.bs.Privacy(**budget)

    def fixed(self, dim: int, records: int) -> Any:
        """A plan in which every kind of step takes part."""
        bs, size = self.bs, {"dim": dim, "records": records, "privacy": self.privacy(mu=1.0)}
        if self.typed:
            bounds = bs.Bounds(clip=1.0, diff_clip=0.5)
            return bs.plan(bs.Tight(radius=0.5, bounds=bounds, **_FIXED), **size)
        return bs.plan(radius=0.5, bounds=bs.Clip(1.0, 0.5), **_FIXED, **size)

    def minimize(self, loss: Any, start: Any, data: Any, *, plan: Any, host: bool) -> Any:
        """A run on a plan, or, where it is a number, on one of at most that many evaluations."""
        bs, options = self.bs, {"seed": SEED, "progress": False}
        budget = self.privacy(epsilon=2, delta=1e-4)
        if self.typed:
            options |= {"evaluate": bs.Host()} if host else {}
            if isinstance(plan, int):
                method = {"privacy": budget, "method": bs.Auto(evaluations=plan)}
            else:
                method = {"method": plan}
            return bs.minimize(loss, start, data, **method, **options)
        run = bs.host.minimize if host else bs.minimize
        if isinstance(plan, int):
            return run(loss, start, data, privacy=budget, evaluations=plan, **options)
        return run(loss, start, data, plan=plan, **options)

    def tune(self, model: Any, loss: Any, data: Any, evaluations: int) -> Any:
        """A run on a network."""
        import blindstep.torch

        budget = self.privacy(epsilon=4, delta=1e-4)
        options: dict[str, Any] = {"privacy": budget, "seed": SEED, "progress": False}
        if self.typed:
            options["method"] = self.bs.Auto(evaluations=evaluations)
        else:
            options["evaluations"] = evaluations
        return blindstep.torch.minimize(model, loss, data, **options)


def runs() -> dict[str, dict[str, Any]]:
    """All runs of the version that is imported."""
    import jax
    import jax.numpy as jnp

    asked, found = Asked(), {}
    for name, (loss, start, data) in PROBLEMS.items():
        plan = asked.fixed(len(start), len(jax.tree.leaves(data)[0]))
        for host, math in ((False, jnp), (True, np)):
            driver = "host" if host else "compiled"
            for kind, given in (("fixed", plan), ("scales", 20_000)):
                result = asked.minimize(loss(math), start, data, plan=given, host=host)
                found[f"{driver} {kind} {name}"] = _arrays(result)
        opt, evaluate = asked.bs.Optimizer(plan, start, seed=SEED), loss(np)
        while not opt.done:
            query = opt.ask()
            points = map(query.parameters, query.points)
            rows = [jax.tree.map(lambda leaf, r=r: leaf[r], data) for r in query.record]
            opt.tell(query, [float(evaluate(*pair)) for pair in zip(points, rows, strict=True)])
        found[f"ask/tell fixed {name}"] = _arrays(opt.result())
    if importlib.util.find_spec("torch"):
        found |= _networks(asked)
    return found


def _networks(asked: Asked) -> dict[str, dict[str, Any]]:
    import torch

    def loss(model: Any, batch: Any) -> Any:
        scores = model(batch["x"].to(next(model.parameters()).dtype)).float()
        return torch.nn.functional.cross_entropy(scores, batch["y"], reduction="none")

    def network(width: int, act: Any) -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, width), act, torch.nn.Linear(width, 2))

    torch.manual_seed(0)
    models = {
        "linear": torch.nn.Linear(4, 2),
        "ReLU": network(8, torch.nn.ReLU()),
        "bfloat16": network(16, torch.nn.Tanh()).to(torch.bfloat16),
    }
    data = {"x": torch.tensor(_X, dtype=torch.float32), "y": torch.tensor(_Y > 0).long()}
    found = {}
    for name, model in models.items():
        result = asked.tune(model, loss, data, 30_000)
        weights = torch.cat([p.detach().double().flatten() for p in model.parameters()])
        found[f"torch {name}"] = _arrays(result) | {"weights": weights.tolist()}
    return found


def _arrays(result: Any) -> dict[str, Any]:
    """All arrays of a result, as lists."""
    history = result.history
    found = {"gradient_norm": history.gradient_norm, "move_norm": history.move_norm}
    if history.loss is not None:
        found["loss"] = history.loss
    for name in ("means", "params"):
        if hasattr(result, name):
            found[name] = getattr(result, name)
    return {name: np.asarray(each, np.float64).tolist() for name, each in found.items()}


def main(trees: list[str]) -> int:
    """Run both versions, each in a process of its own, and compare."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, tree in enumerate(trees):
            out = pathlib.Path(folder) / f"{number}.json"
            source = pathlib.Path(tree).resolve() / "src"
            command = [sys.executable, "-W", "ignore", __file__, "--child", str(out)]
            environment = {**os.environ, "PYTHONPATH": str(source)}
            subprocess.run(command, check=True, env=environment, cwd=folder)
            found.append(json.loads(out.read_text()))
    wrong = 0
    for run, arrays in found[0].items():
        for name, before in arrays.items():
            one, two = np.asarray(before), np.asarray(found[1][run][name])
            if one.shape != two.shape:
                print(f"{run}: {name} has another shape, {one.shape} and {two.shape}")
                wrong = 1
            elif not np.array_equal(one, two, equal_nan=True):
                off = np.nanmax(np.abs(one - two) / np.maximum(np.abs(one), 1e-300))
                print(f"{run}: {name} differs by up to {off:.2g} of its size")
                wrong = 1
    print(f"{len(found[0])} runs compared; {'some bits differ' if wrong else 'all bits agree'}")
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        # From version 0.3 on a seed's noise hangs on what a run is about: here on the seed alone.
        session = importlib.import_module("blindstep.ledger.session")
        made = session.fresh_keys
        session.fresh_keys = lambda seed=None, *_: made(seed)
        pathlib.Path(sys.argv[2]).write_text(json.dumps(runs()))
    else:
        sys.exit(main(sys.argv[1:]))
