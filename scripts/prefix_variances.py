"""Print how noisy running sums are: `.venv/bin/python scripts/prefix_variances.py`.

For each mechanism: the variance of the noise on a running sum at mu = 1 for increments of
sensitivity 1, its maximum and its mean over the T sums, and the lower bound (nuclear norm of A / T)^2
on the mean. `docs/prefix-sums.md` shows the table.
"""

from __future__ import annotations

import numpy as np

from blindstep.optimize.prefix import prefix_of
from blindstep.private.mechanisms import BLT, BinaryTree, Independent, Mechanism, SquareRoot

HORIZONS = (64, 1024, 16384, 2**20)


def max_and_mean(mechanism: Mechanism) -> str:
    """Both figures of one mechanism, as text: the longest column of C times the rows of B."""
    variances = (mechanism.column_norms().max() * prefix_of(mechanism).row_norms()) ** 2
    return f"{variances.max():.2f} / {variances.mean():.2f}"


def plain_square_root(steps: int) -> str:
    """The square root before its columns are scaled: B = C."""
    sums = np.cumsum(SquareRoot(steps).coefficients() ** 2)
    return f"{sums[-1] ** 2:.2f} / {sums[-1] * sums.mean():.2f}"


def lower_bound(steps: int) -> str:
    """From the singular values of A: 1 / (2 sin((2j - 1) pi / (4T + 2)))."""
    angles = (2 * np.arange(1, steps + 1) - 1) * np.pi / (4 * steps + 2)
    return f"- / {(np.sum(0.5 / np.sin(angles)) / steps) ** 2:.2f}"


def main() -> None:
    """Print the table in Markdown."""
    rows = [
        ("independent", lambda steps: max_and_mean(Independent(steps))),
        ("tree", lambda steps: max_and_mean(BinaryTree(steps))),
        ("square root, columns not scaled", plain_square_root),
        ("sqrt", lambda steps: max_and_mean(SquareRoot(steps))),
        ("blt", lambda steps: max_and_mean(BLT(steps))),
        ("lower bound on the mean", lower_bound),
    ]
    print("| max / mean | " + " | ".join(f"T = {steps}" for steps in HORIZONS) + " |")
    print("|---" * (len(HORIZONS) + 1) + "|")
    for name, figures in rows:
        print(f"| {name} | " + " | ".join(figures(steps) for steps in HORIZONS) + " |")
    print("| buffers of blt | " + " | ".join(f"{len(BLT(s).decays)}" for s in HORIZONS) + " |")


if __name__ == "__main__":
    main()
