"""Record and replay: freeze what a run released on D, run again on a neighbour D', compare.

The releases are the only way from records to the public. So where they are frozen, everything public
must come out the same, bit for bit, on every data set: that is control flow that depends on public
configuration only. And each increment behind a release may move by its declared sensitivity at most,
at the one step of a pass whose batch holds the record that differs.

No production code knows of this: the gate's permit is patched, inside the real drivers. A program that
was compiled with a tape keeps it, so take a plan that no other test takes.
"""

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from blindstep.private.gate import Permit
from blindstep.private.noise import fresh_keys

_TAPE: list[tuple[int, np.ndarray, np.ndarray]] = []
_FROZEN: dict[str, np.ndarray | None] = {"releases": None}


class Tape(NamedTuple):
    """What a run computed (secret) and released (public), one row for each step."""

    increments: np.ndarray
    released: np.ndarray


# Numbers cross as words: the thread that calls back is not in 64-bit mode, and would round.


def _words(array):
    return jax.lax.bitcast_convert_type(array, jnp.uint32)


def _read(position, size):
    rows = _FROZEN["releases"]
    row = np.full(int(size), np.nan) if rows is None else rows[int(position)]
    return np.ascontiguousarray(row).view(np.uint32).reshape(-1, 2)


def _write(position, increment, released):
    both = (np.ascontiguousarray(each).view(np.float64).ravel() for each in (increment, released))
    _TAPE.append((int(position), *both))


@contextlib.contextmanager
def taped(frozen=None):
    """Inside, permits write down what they release; with `frozen`, they release its rows instead."""
    real_mean, real_release, increments = Permit._mean, Permit.release, []

    def mean(permit, rows, held, kind, contributions):
        increments.append(real_mean(permit, rows, held, kind, contributions))
        return increments[-1]

    def release(permit, memory, kind, contributions):
        after, y = real_release(permit, memory, kind, contributions)
        size = permit.terms.size
        shape = jax.ShapeDtypeStruct((size, 2), jnp.uint32)
        row = io_callback(_read, shape, memory.position, size, ordered=True)
        row = jax.lax.bitcast_convert_type(row, jnp.float64)
        y = jnp.where(jnp.isnan(row), y, row)
        increment = _words(increments.pop())
        io_callback(_write, None, memory.position, increment, _words(y), ordered=True)
        return after, y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Permit, "_mean", mean)
        patch.setattr(Permit, "release", release)
        patch.setitem(_FROZEN, "releases", frozen)
        try:
            yield
        finally:
            jax.effects_barrier()
            _TAPE.clear()


def read_tape() -> Tape:
    """What was written; steps must have come in order."""
    jax.effects_barrier()
    assert [entry[0] for entry in _TAPE] == list(range(len(_TAPE)))
    return Tape(*(np.stack([entry[i] for entry in _TAPE]) for i in (1, 2)))


def steps_with(plan, public, record: int) -> list[int]:
    """The steps whose batches hold this record, by the schedule alone."""
    schedule = plan.schedule
    found = []
    for release in range(schedule.releases):
        order = schedule.order(public, fresh_keys(0).noise, release // schedule.releases_per_pass)
        if record in schedule.rows(order, release):
            found.append(release)
    return found


def check_tapes(one: Tape, two: Tape, limits: np.ndarray, allowed: list[int]) -> None:
    """The second run released what was frozen; only `allowed` steps moved, each within its limit."""
    assert np.array_equal(one.released, two.released)
    assert np.all(np.isfinite(one.increments))
    assert np.all(np.isfinite(two.increments))
    moved = np.linalg.norm(two.increments - one.increments, axis=-1)
    for step, distance in enumerate(moved):
        if step in allowed:
            limit = limits[step % len(limits)]
            assert distance <= limit, f"step {step} moved by {distance / limit} limits"
        else:
            assert distance == 0, f"step {step} moved, and does not hold the record"


def public_outputs(result) -> dict[str, object]:
    """Everything of a result that anybody may see."""
    return {
        "params": np.asarray(result.params).tobytes(),
        "means": result.means.tobytes(),
        "gradient_norm": result.history.gradient_norm.tobytes(),
        "move_norm": result.history.move_norm.tobytes(),
        "words": str(result),
        "statement": result.privacy,
        "random round": result.random_round,
    }
