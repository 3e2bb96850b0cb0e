"""What secure mode costs: time of one noise draw, and noise, against plain float64.

    .venv/bin/python scripts/secure_cost.py

Times are the median of interleaved repetitions of compiled draws on this machine.
"""

from __future__ import annotations

import math
import statistics
import time

import jax

from blindstep.trusted.discrete_gaussian import STD, alias_table, discrete_gaussian
from blindstep.trusted.randomness import fresh_keys, gaussian

DIMS = (20, 826, 100_000)


def draw_times(dim: int, repetitions: int = 15) -> tuple[float, float]:
    """Seconds of one draw: plain, discrete."""
    key = fresh_keys(1).noise
    draws = [jax.jit(f, static_argnums=3) for f in (gaussian, discrete_gaussian)]
    times: list[list[float]] = [[], []]
    number = max(3, 20_000 // dim)
    for draw in draws:
        draw(key, 0, 0, dim).block_until_ready()
    for _ in range(repetitions):
        for draw, taken in zip(draws, times, strict=True):
            began = time.perf_counter()
            for step in range(number):
                draw(key, 0, step, dim).block_until_ready()
            taken.append((time.perf_counter() - began) / number)
    plain, discrete = (statistics.median(taken) for taken in times)
    return plain, discrete


def main() -> None:
    """Print both tables."""
    began = time.perf_counter()
    alias_table()
    print(f"table, once in a process: {time.perf_counter() - began:.2f} s")
    print("| coordinates | float64, us | secure, us | ratio |\n|---|---|---|---|")
    with jax.enable_x64(True):
        for dim in DIMS:
            plain, secure = draw_times(dim)
            print(f"| {dim:,} | {plain * 1e6:,.0f} | {secure * 1e6:,.0f} | {secure / plain:.1f} |")
    print("| noise grows by | rho = 1, 1 pass | rho = 1, 20 passes | rho = 0.1, 20 passes |")
    print("|---|---|---|---|")
    for dim in DIMS:
        shares = (
            math.sqrt(dim * passes) / STD / rho for rho, passes in ((1, 1), (1, 20), (0.1, 20))
        )
        cells = (f"{share / (1 - share):.1e}" if share < 0.5 else "refused" for share in shares)
        print(f"| {dim:,} coordinates | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
