"""Losses that do their worst, and values that are hard on clamps, clips and sums."""

import contextlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

HUGE, TINY = sys.float_info.max, 5e-324


def palette(limit):
    """Values that break careless code; `limit` is where differences are clamped."""
    edges = [limit, np.nextafter(limit, np.inf), np.nextafter(limit, 0), limit * (1 + 1e-9)]
    edges += [limit / 2, 3 * limit, 1.0, 0.1, 1e16, 1e-300, 2.2250738585072014e-308]
    ends = [np.nan, np.inf, -np.inf, HUGE, -HUGE, 1e308, -1e308, TINY, -TINY, 0.0, -0.0]
    return np.array([*edges, *(-edge for edge in edges), *ends, HUGE, -HUGE, 1e160, -1e160])


def tables(rng, shape, limit):
    """Records that answer anything: each is a table of values from a mood of its own."""
    values = palette(limit)
    finite = values[np.isfinite(values)]
    records = shape[:-1]
    anything = rng.choice(values, shape)
    bounded = rng.choice(finite, shape)
    two = rng.choice(finite, (*records, 2))
    alternating = np.take_along_axis(two, rng.integers(0, 2, shape), -1)
    around = limit * rng.integers(-2, 3, shape) * (1 + rng.integers(-3, 4, shape) * 2.0**-52)
    spread = rng.normal(size=shape) * 10.0 ** rng.uniform(-320, 306, shape)
    moods = np.stack([anything, bounded, alternating, around, spread])
    mood = rng.integers(0, len(moods), records)
    return np.take_along_axis(moods, mood[None, ..., None], 0)[0]


def table_loss(x, table):
    """Discontinuous everywhere: the bits of the point choose an entry of the record's table."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).ravel()
    odd = jnp.arange(1, 2 * words.size, 2, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    mixed = jnp.sum(words * odd, dtype=jnp.uint32)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA6B)
    return table[(mixed >> 7) % table.shape[0]]


class HostileLoss:
    """A Python loss of one kind that remembers where it was called.

    What it answers may depend on its record, the point and how often it was called: never on the
    records of earlier calls, for a loss with a memory is no loss of one record.
    """

    def __init__(self, kind):
        self.answer, self.points = KINDS[kind], []

    def __call__(self, x, z):
        self.points.append(np.array(x))
        return self.answer(len(self.points), np.asarray(x), float(z))


def _raise(number, x, z):
    if z > 0:
        raise ValueError(f"secret {z} at {x}")
    return x @ x


def _leave(number, x, z):
    if z > 0:
        sys.exit(f"secret {z}")
    return 0.0


KINDS = {
    "honest": lambda number, x, z: np.tanh(z) * x[0] / 2,
    "nan": lambda number, x, z: np.nan if z > 0 else x[0] + z,
    "infinite": lambda number, x, z: np.inf * z,
    "huge": lambda number, x, z: np.sign(z) * 1e308 * (-1) ** number,
    "denormal": lambda number, x, z: 5e-324 * round(10 * z),
    "call order": lambda number, x, z: z * number,
    "discontinuous": lambda number, x, z: z * 1e3 * (np.floor(1e9 * x[0]) % 2),
    "overflowing difference": lambda number, x, z: HUGE * (1 if number % 2 else -1),
    "at the clamp": lambda number, x, z: (1 + z * 2.0**-52) * x[0],
}
# A compiled program has numbers only; any Python function can do these as well.
PYTHON_KINDS = {
    "exception": _raise,
    "exit": _leave,
    "text": lambda number, x, z: f"secret {z}" if z > 0 else z,
    "nothing": lambda number, x, z: None if z > 0 else z,
    "complex": lambda number, x, z: complex(z, z),
    "whole array": lambda number, x, z: x * z,
    "far too large": lambda number, x, z: 10**400 if z > 0 else -(10**400),
}
KINDS |= PYTHON_KINDS


_CURRENT = []


@contextlib.contextmanager
def traceable(loss):
    """The loss for a compiled program, which calls back: one function, so that it compiles once."""
    _CURRENT.append(loss)
    try:
        yield _traced
    finally:
        jax.effects_barrier()
        _CURRENT.pop()


def _traced(x, z):
    # As words: the thread that calls back is not in 64-bit mode, and would round.
    words = (jax.lax.bitcast_convert_type(each, jnp.uint32) for each in (x, z))
    shape = jax.ShapeDtypeStruct((2,), jnp.uint32)
    found = jax.pure_callback(_call, shape, *words, vmap_method="sequential")
    return jax.lax.bitcast_convert_type(found, jnp.float64)


def _call(*words):
    x, z = (
        np.ascontiguousarray(each).view(np.float64).reshape(np.shape(each)[:-1]) for each in words
    )
    return np.asarray([_CURRENT[-1](x, z)], np.float64).view(np.uint32)
