"""Time of drawing whole frames in float32, as ratios to independent directions of the same shape.

    python -m benchmarks.frames_speed

Every sampler draws the same shape in turn, again and again, in one process; the table gives the
median over repetitions, wall clock and processor time, and its ratio to the sphere's median. The
processor time of all threads is the one to read on a machine that others use too.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from blindstep.estimate.directions import Directions, Sphere
from blindstep.estimate.frames import Haar, Structured

# (keys, directions, dim, repetitions): a frame for each record, and one frame for a whole batch.
CASES = [
    (64, 123, 123, 41),
    (64, 128, 128, 41),
    (1, 256, 826, 101),
    (1, 826, 826, 41),
    (1, 64, 100_000, 11),
    (1, 256, 100_000, 7),
]


def compiled(sampler: Directions, number: int, dim: int, keys: jax.Array):
    def draw(keys):
        return jax.vmap(lambda key: sampler.sample(key, None, number, dim, jnp.float32))(keys)

    program = jax.jit(draw).lower(keys).compile()
    return lambda: program(keys).block_until_ready()


def measure(programs: dict, repetitions: int) -> dict[str, tuple[float, float]]:
    """Median wall-clock and processor seconds of each program, run in turn."""
    seconds = {name: [] for name in programs}
    for program in programs.values():
        program()
    for _ in range(repetitions):
        for name, program in programs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            program()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: tuple(np.median(values, axis=0)) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--haar", action="store_true", help="time QR too, in 5 repetitions")
    options = parser.parse_args()
    samplers = [Sphere(), Structured(), *([Haar()] if options.haar else [])]
    head = f"{'keys':>5} {'q':>5} {'d':>7} {'directions':11}"
    print(f"{head} {'wall ms':>10} {'ratio':>7} {'cpu ms':>10} {'ratio':>7}")
    with jax.enable_x64(True):
        for number_of_keys, number, dim, repetitions in CASES:
            keys = jax.random.split(jax.random.key(0), number_of_keys)
            programs = {s.name: compiled(s, number, dim, keys) for s in samplers}
            medians = measure(programs, min(repetitions, 5) if options.haar else repetitions)
            base = medians["sphere"]
            for name, (wall, cpu) in medians.items():
                print(
                    f"{number_of_keys:5} {number:5} {dim:7} {name:11} {1e3 * wall:10.2f} "
                    f"{wall / base[0]:7.3f} {1e3 * cpu:10.2f} {cpu / base[1]:7.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
