"""Speed, memory and growth of a private run, against the bare limit: ratios measured in one run.

    python -m benchmarks.speed [--repetitions 7] [--out benchmarks/results/speed.json]

On a quiet machine with 2 cores about 6 minutes. Every measurement has a process of its own; what is
compared is run in turn, again and again, and a ratio is the median of the ratios of neighbours. On
an accelerator (`--device`) the problems are larger, and the peers and the streamed records are left
out. `benchmarks/speed_programs.py` says what the bare limit is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import blindstep as bs
from benchmarks import speed_peers, speed_problems, speed_programs
from benchmarks.speed_problems import Problem
from blindstep.private import noise

RESULTS = Path(__file__).parent / "results"
PROBLEMS = {
    "svm": lambda: speed_problems.svm(),
    "network-826": lambda: speed_problems.small_network(),
    "network-100180": lambda: speed_problems.large_network(),
}
# On an accelerator: rounds of more steps, as starting a program takes as long as a few of them; then
# batches that fill the machine.
ON_DEVICE = {
    "svm": PROBLEMS["svm"],
    "network-826": lambda: speed_problems.small_network(steps=64),
    "network-100180": lambda: speed_problems.large_network(steps=64),
    "network-826-wide": lambda: speed_problems.small_network(batch=50_000),
    "network-100180-wide": lambda: speed_problems.large_network(batch=16_384),
}
# The SVM at method `tight`, and at `paper` with independent directions: from this library's generator,
# and from `jax.random.normal` (in float64, as its first version drew them).
PRESETS = {
    "tight": lambda: speed_problems.svm(),
    "paper": lambda: speed_problems.svm(method="paper"),
    "paper, jax.random.normal in float32": lambda: speed_problems.svm(
        method="paper", sampler=speed_problems.PlainSphere("float32")
    ),
    "paper, jax.random.normal in float64": lambda: speed_problems.svm(
        method="paper", sampler=speed_problems.PlainSphere("float64")
    ),
}
GROWTH = {
    "records, svm": [(n, lambda n=n: speed_problems.svm(n)) for n in (512, 1024, 2048, 4096)],
    "records, network-826": [
        (n, lambda n=n: speed_problems.small_network(steps=n)) for n in (2, 4, 8, 16)
    ],
    "directions, network-826": [
        (q, lambda q=q: speed_problems.small_network(directions=q, steps=4))
        for q in (64, 128, 256, 512)
    ],
    "directions, network-100180": [
        (q, lambda q=q: speed_problems.large_network(directions=q, steps=2))
        for q in (64, 128, 256, 512)
    ],
    "dimension, network": [
        (h, lambda h=h: speed_problems.network(784, h, directions=64, batch=512, steps=2))
        for h in (16, 32, 63, 126)
    ],
}
# (inputs, hidden units, directions, batch, steps): what the cost model is fitted to, all in turn in one
# process; the last three are held out of the fit.
MODEL = [
    (40, 16, 64, 250, 4),
    (40, 16, 256, 250, 4),
    (40, 16, 128, 1000, 4),
    (196, 40, 32, 64, 4),
    (196, 40, 128, 512, 2),
    (784, 32, 32, 256, 2),
    (784, 63, 64, 64, 2),
    (784, 126, 32, 64, 2),
    (784, 126, 64, 256, 2),
    (40, 16, 512, 1000, 4),
    (784, 63, 128, 512, 2),
    (784, 126, 64, 1024, 2),
]


def timed(problem: Problem, repetitions: int) -> dict[str, Any]:
    """The full program and every layout of the bare limit, in turn."""
    full, layouts = speed_programs.full(problem), speed_programs.bare(problem)
    seconds = in_turn([full, *layouts], repetitions)
    medians = np.median(seconds, axis=0)
    best = 1 + int(np.argmin(medians[1:]))
    bare = layouts[best - 1]
    return {
        "problem": problem.name,
        **shape(problem),
        "efficiency": float(np.median(seconds[:, best] / seconds[:, 0])),
        "bare_seconds": float(medians[best]),
        "full_seconds": float(medians[0]),
        "bare_layout": bare.layout,
        "evaluations_per_second": problem.evaluations / float(medians[0]),
        "bare_evaluations_per_second": problem.evaluations / float(medians[best]),
        "microseconds_per_record": 1e6 * float(medians[0]) / problem.records,
        "compile_seconds": full.compile_seconds,
        "full_bytes": full.bytes,
        "bare_bytes": bare.bytes,
        "all_seconds": seconds.tolist(),
    }


def presets(repetitions: int) -> dict[str, Any]:
    """The methods in turn: microseconds for a record, and how many times as long as `tight`."""
    problems = [make() for make in PRESETS.values()]
    seconds = in_turn([speed_programs.full(problem) for problem in problems], repetitions)
    records = [problem.records for problem in problems]
    of_record = 1e6 * seconds / np.asarray(records)
    return {
        "presets": list(PRESETS),
        "records": records,
        "microseconds_per_record": np.median(of_record, axis=0).tolist(),
        "times_as_long_as_tight": np.median(of_record / of_record[:, :1], axis=0).tolist(),
    }


def cipher() -> dict[str, Any]:
    """Whether the kernel for the cipher gives the words of the plain loop on this device."""
    key, tail = (jax.random.bits(jax.random.key(0), shape, "uint32") for shape in (8, (4, 100_003)))
    same = jax.jit(noise.by_kernel)(key, tail) == jax.jit(noise.by_loop)(key, tail)
    return {"cipher": "chacha20", "same": bool(same.all())}


def shape(problem: Problem) -> dict[str, int]:
    """What the cost model (`benchmarks.speed_model`) knows of a problem."""
    return {
        "dim": problem.plan.dim,
        "directions": problem.plan.directions,
        "records": problem.records,
        "steps": problem.plan.horizon,
        "first_batch": problem.plan.first_batch,
        "evaluations": problem.evaluations,
    }


def in_turn(programs: list[speed_programs.Program], repetitions: int) -> np.ndarray:
    """Seconds of (repetition, program); every program has run once before."""
    for program in programs:
        program.run()
    rows = []
    for _ in range(repetitions):
        row = []
        for program in programs:
            began = time.perf_counter()
            program.run()
            row.append(time.perf_counter() - began)
        rows.append(row)
    return np.asarray(rows)


def grown(name: str, repetitions: int) -> dict[str, Any]:
    """Times of the full program at growing sizes, in turn, and the exponent that fits them."""
    sizes = [size for size, _ in GROWTH[name]]
    problems = [make() for _, make in GROWTH[name]]
    programs = [speed_programs.full(problem) for problem in problems]
    seconds = np.median(in_turn(programs, repetitions), axis=0).tolist()
    if name.startswith("dimension"):
        sizes = [problem.plan.dim for problem in problems]
    return {
        "growth": name,
        "sizes": sizes,
        "seconds": seconds,
        "exponent": speed_peers.exponent(sizes, seconds),
        "shapes": [shape(problem) for problem in problems],
        "full_bytes": [program.bytes for program in programs],
        "bare_bytes": [speed_programs.bare(problem)[0].bytes for problem in problems],
    }


def modelled(repetitions: int) -> dict[str, Any]:
    """Times of networks of all shapes, in turn, for `benchmarks.speed_model`."""
    problems = [
        speed_problems.network(inputs, hidden, directions=q, batch=b, steps=steps)
        for inputs, hidden, q, b, steps in MODEL
    ]
    seconds = in_turn([speed_programs.full(problem) for problem in problems], repetitions)
    return {
        "model": "networks",
        "shapes": [shape(problem) for problem in problems],
        "seconds": np.median(seconds, axis=0).tolist(),
        "held_out": 3,
    }


def peers(name: str) -> dict[str, Any]:
    """The NumPy twin and eager PyTorch on one problem, in seconds for an evaluation."""
    problem = PROBLEMS[name]()
    large = problem.plan.dim > 10_000
    twin = speed_peers.numpy_twin(problem, records=1 if large else 8)
    return {
        "peers": name,
        "numpy_twin_microseconds_per_record": 1e6 * twin,
        "torch_evaluations_per_second": 1.0 / speed_peers.torch_step(problem),
        "difference_of_losses": speed_peers.twin_and_ours_agree(problem),
    }


def child(task: list[str], repetitions: int) -> dict[str, Any]:
    """One measurement, in this process."""
    with jax.enable_x64(True):
        if task[0] == "time":
            return timed(PROBLEMS[task[1]](), repetitions)
        if task[0] == "device":
            return timed(ON_DEVICE[task[1]](), repetitions)
        if task[0] == "cipher":
            return cipher()
        if task[0] == "presets":
            return presets(repetitions)
        if task[0] == "growth":
            return grown(task[1], repetitions)
        if task[0] == "model":
            return modelled(repetitions)
        if task[0] == "peers":
            return peers(task[1])
        from benchmarks import speed_stream

        return speed_stream.streamed(int(task[1]))


def run_child(task: list[str], repetitions: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed", "--repetitions", str(repetitions)]
    done = subprocess.run([*command, "--child", *task], stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    summary = {k: v for k, v in result.items() if not isinstance(v, list) or len(v) < 6}
    print(" ".join(task), json.dumps(summary), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7, help="of every program, in turn")
    parser.add_argument("--out", type=Path, default=RESULTS / "speed.json")
    parser.add_argument("--device", action="store_true", help="the tasks for an accelerator")
    parser.add_argument("--child", nargs="+", help="one task, its result on the last line")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.repetitions)))
        return
    tasks = [["device", name] for name in ON_DEVICE] + [["cipher"]]
    if not options.device:
        tasks = [["time", name] for name in PROBLEMS]
        tasks += [["presets"], *(["growth", name] for name in GROWTH)]
        tasks += [["model", "networks"]]
        tasks += [["peers", name] for name in ("svm", "network-826", "network-100180")]
        tasks += [["stream", str(n)] for n in (100_000, 1_000_000)]
    machine = {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
    }
    results = kept(options.out, tasks)
    for task in tasks:
        if task not in [result["task"] for result in results]:
            results.append({"task": task, **run_child(task, options.repetitions)})
            results[-1]["load"] = os.getloadavg()[0]
            found = {"version": bs.__version__, "machine": machine, "results": results}
            found["whole"] = len(results) == len(tasks)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


def kept(target: Path, tasks: list[list[str]]) -> list[dict[str, Any]]:
    """What an earlier run of this version that was stopped has measured; of a whole one, nothing."""
    found = json.loads(target.read_text()) if target.is_file() else {}
    if found.get("version") != bs.__version__ or found["whole"]:
        return []
    return [result for result in found["results"] if result["task"] in tasks]


if __name__ == "__main__":
    main()
