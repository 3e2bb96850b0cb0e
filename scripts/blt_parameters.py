"""Make the table of BLT parameters: `.venv/bin/python scripts/blt_parameters.py`.

For each horizon T = 2^k the time constants 1 / (1 - theta_b) and scales omega_b minimise

    (mean_t V_t^4)^(1/4),   V_t the variance of the noise on running sum t at mu = 1.

Why the fourth power: the explicit bound of an optimizer depends on the mean of V, users look at its
maximum, and this mean of order 4 is smooth and loses at most 0.3% of either against optimising it
alone (at T = 64, 1024 and 16384). Privacy does not depend on what is found here. Takes half an hour;
then format the table with ruff.

A horizon starts from its neighbour's answer; a weak pull towards that start makes the answer unique
where a short horizon has fewer coefficients than there are parameters.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from blindstep.optimize.prefix import prefix_of
from blindstep.private import mechanisms
from blindstep.private.mechanisms import BLT

TARGET = Path(mechanisms.__file__)
# Number of buffers, first and last exponent of T. One more buffer gains at most 0.4% of the
# variance at the last horizon of a group (measured at 64, 2048 and 32768).
RANGES = ((2, 0, 6), (3, 6, 11), (4, 11, 15), (5, 15, 20))
ORDER = 4
SHORTEST_TIME = 1.1  # a buffer with theta = 0 has no logarithm, and gains nothing measurable
PULL = 1e-7


def unpack(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Time constants and scales of a point of the search."""
    first, second = np.split(np.exp(point), 2)
    return SHORTEST_TIME + first, second


def pack(times: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The point of the search for given time constants and scales."""
    return np.log(np.concatenate([times - SHORTEST_TIME, scales]))


def variances(steps: int, times: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """V_t of the mechanism with these parameters."""
    made = BLT(steps)
    object.__setattr__(made, "decays", tuple(1 - 1 / times))
    object.__setattr__(made, "scales", tuple(scales))
    return prefix_of(made).row_norms() ** 2


def stable(times: np.ndarray, scales: np.ndarray) -> bool:
    """Whether the buffers of T^-1 fade: diag(theta) - 1 omega^T has its spectrum inside (-1, 1)."""
    root = np.sqrt(scales)
    return bool(np.abs(np.linalg.eigvalsh(np.diag(1 - 1 / times) - np.outer(root, root))).max() < 1)


def objective(point: np.ndarray, start: np.ndarray, steps: int) -> float:
    """Mean of order 4 of the variances, with the pull; large where T^-1 is not stable."""
    times, scales = unpack(point)
    if not stable(times, scales):
        return 1e6
    found = variances(steps, times, scales)
    top = found.max()
    mean = top * np.mean((found / top) ** ORDER) ** (1 / ORDER)
    return mean + PULL * np.sum((point - start) ** 2)


def optimise(steps: int, start: np.ndarray) -> np.ndarray:
    """The parameters for one horizon, as a point of the search."""
    answer = minimize(
        objective,
        start,
        args=(start, steps),
        method="BFGS",
        jac="3-point",
        options={"gtol": 1e-4, "finite_diff_rel_step": 1e-4},
    )
    times, scales = unpack(answer.x)
    found = variances(steps, times, scales)
    print(
        f"T {steps:8d} buffers {len(times)} max {found.max():.4f} mean {found.mean():.4f} "
        f"times {np.round(times, 3)} scales {np.round(scales, 5)}, {answer.nfev} evaluations",
        flush=True,
    )
    return answer.x


def group(buffers: int, first: int, last: int) -> dict[int, np.ndarray]:
    """Rows of one number of buffers: from a middle horizon up, then down."""
    middle = min(last, max(first, 10))
    spread = np.geomspace(3.0, 0.6 * 2**middle, buffers)
    points = {middle: optimise(2**middle, pack(spread, 0.5 / np.sqrt(spread)))}
    for k in range(middle + 1, last + 1):
        before = points.get(k - 2)
        start = points[k - 1] if before is None else 2 * points[k - 1] - before
        points[k] = optimise(2**k, start)
    for k in range(middle - 1, first - 1, -1):
        points[k] = optimise(2**k, points[k + 1])
    return points


def table_of(groups: list[dict[int, np.ndarray]]) -> str:
    """The table as text, six digits each: a line for each horizon, groups apart."""
    parts = []
    for points in groups:
        rows = [(k, [v for part in unpack(points[k]) for v in part]) for k in sorted(points)]
        parts.append("".join(f"{2**k} {' '.join(f'{v:.6g}' for v in row)}\n" for k, row in rows))
    return "\n".join(parts)


def with_table(source: str, table: str) -> str:
    """The module's text with another table in it; all the rest stays."""
    opening = '_TEXT = """\n'
    start = source.index(opening) + len(opening)
    end = source.index('"""', start)
    return source[:start] + table + source[end:]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    table = table_of([group(*choice) for choice in RANGES])
    TARGET.write_text(with_table(TARGET.read_text(), table))
    print(f"Wrote {TARGET}.")
