"""A cost model of a run with shared frames, fitted to the measurements, checked, and extrapolated.

    python -m benchmarks.speed_model [--results benchmarks/results/speed.json]

Per step of b records, q directions and d parameters, with evaluations E = 2 q b,

    seconds = a + p q + b0 E + b1 E d + c q d + n d

a: starting the step; p: starting the evaluation of a pair of points; b0, b1: evaluating the loss (a
fixed part, and one for each parameter); c: making and combining directions and points; n: the
learner. Coefficients are not negative, and fitted to relative errors. The three last networks, the
largest, are left out of the fit and predicted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

NAMES = ("a (step)", "p (q)", "b0 (evaluation)", "b1 (evaluation x parameter)", "c (q d)", "n (d)")


def features(shape: dict[str, int]) -> np.ndarray:
    """What each coefficient is multiplied with, for a whole round."""
    steps, q, d = shape["steps"], shape["directions"], shape["dim"]
    evaluations = shape["evaluations"]
    of_step = np.asarray([1, q, evaluations / steps, evaluations / steps * d, q * d, d])
    return steps * of_step


def observations(results: list[dict[str, Any]]) -> list[tuple[dict[str, int], float, bool]]:
    """(shape, seconds, held out) of the networks that were timed for it."""
    (result,) = [result for result in results if "model" in result]
    number = len(result["shapes"]) - result["held_out"]
    pairs = zip(result["shapes"], result["seconds"], strict=True)
    return [(shape, seconds, i >= number) for i, (shape, seconds) in enumerate(pairs)]


def fit(observed: list[tuple[dict[str, int], float, bool]]) -> np.ndarray:
    """Coefficients by non-negative least squares on relative errors, without those held out."""
    kept = [(features(shape), seconds) for shape, seconds, held in observed if not held]
    matrix = np.stack([row / seconds for row, seconds in kept])
    scale = matrix.max(axis=0)
    return nnls(matrix / scale, np.ones(len(kept)))[0] / scale


def told(results: list[dict[str, Any]]) -> str:
    """The coefficients, what they predict, and what they say about sizes that nobody measured."""
    observed = observations(results)
    coefficients = fit(observed)
    lines = [f"{name:30} {value:.3e} s" for name, value in zip(NAMES, coefficients, strict=True)]
    lines += ["", "   steps  records      dim    q   measured  predicted   error"]
    for shape, seconds, held in observed:
        predicted = float(features(shape) @ coefficients)
        lines.append(
            f"{shape['steps']:8} {shape['records']:8} {shape['dim']:8} {shape['directions']:4} "
            f"{seconds:9.4f}s {predicted:9.4f}s {predicted / seconds - 1:+7.1%}"
            f"{'  held out' if held else ''}"
        )
    lines += ["", "extrapolated, this machine:"]
    for records, dim, q, batch in ((10**9, 10**3, 256, 10**6), (10**6, 10**9, 64, 10**5)):
        steps = records // batch
        shape = {"steps": steps, "directions": q, "dim": dim, "evaluations": 2 * q * records}
        seconds = float(features(shape) @ coefficients)
        share = (features(shape) * coefficients) / seconds
        parts = ", ".join(f"{n.split()[0]} {s:.1%}" for n, s in zip(NAMES, share, strict=True))
        lines.append(
            f"{records:.0e} records, {dim:.0e} parameters, q {q}: {seconds:.2e} s ({parts})"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    results = Path(__file__).parent / "results" / "speed.json"
    parser.add_argument("--results", type=Path, default=results)
    print(told(json.loads(parser.parse_args().results.read_text())["results"]))


if __name__ == "__main__":
    main()
