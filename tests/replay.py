"""Record and replay: freeze what a run released on D, run again on a neighbour D', compare.

The releases are the only way from records to the public. So where they are frozen, everything public
must come out the same, bit for bit, on every data set: that is control flow that depends on public
configuration only. And each increment behind a release may move by its declared sensitivity at most,
at the one step of a pass whose batch holds the record that differs.

No production code knows of this: a plan whose `build` swaps the oracle for one with a tape goes
through the real drivers.
"""

from dataclasses import fields
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Float

from blindstep.optimize.conversion import Conversion, Released
from blindstep.optimize.plan import Plan
from blindstep.trusted.oracle import Oracle

_TAPE: list[tuple[int, int, np.ndarray, np.ndarray]] = []


def _write(block, step, increment, released):
    words = (np.ascontiguousarray(each) for each in (increment, released))
    _TAPE.append((int(block), int(step), *(each.view(np.float64).ravel() for each in words)))


class FrozenOracle(Oracle):
    """A frozen value takes the place of a release.

    `frozen` has one row for each step of the run; NaN stands for "not frozen". It is an argument of
    the compiled program, so that recording and replaying are the same program.
    """

    frozen: Float[Array, "steps n"] = eqx.field(default=None)

    def release(self, state, increment, block, step, key):
        state, released = super().release(state, increment, block, step, key)
        row = self.frozen[(jnp.asarray(block) * self.mechanism.steps + jnp.asarray(step)) - 1]
        return state, jnp.where(jnp.isnan(row), released, row)


class TapedOracle(FrozenOracle):
    """Writes increments and releases down as well."""

    def release(self, state, increment, block, step, key):
        state, released = super().release(state, increment, block, step, key)
        # As words: the thread that calls back is not in 64-bit mode, and would round.
        words = (jax.lax.bitcast_convert_type(each, jnp.uint32) for each in (increment, released))
        io_callback(_write, None, block, step, *words, ordered=True)
        return state, released


def freeze(oracle: Oracle, frozen: np.ndarray | None, kind: type[FrozenOracle]) -> FrozenOracle:
    """The same oracle with frozen releases; without any, it releases as ever."""
    if frozen is None:
        steps = oracle.schedule.blocks * oracle.schedule.period
        frozen = np.full((steps, oracle.estimator.release_dim), np.nan)
    parts = {name: getattr(oracle, name) for name in Oracle.__annotations__}
    return kind(**parts, frozen=jnp.asarray(frozen))


class TapedPlan(Plan):
    """A plan whose machine has a tape."""

    def build(self) -> Conversion:
        machine = super().build()
        oracle = freeze(machine.oracle, getattr(self, "frozen", None), TapedOracle)
        return Conversion(oracle, machine.learner, machine.horizon)


class Seen(Released):
    """The public quantities of a step and, for the test alone, what is behind them."""

    increment: Float[Array, " n"]
    released: Float[Array, " n"]


class SeenConversion(Conversion):
    """A machine that hands increments and releases out: where many cases run as one program."""

    def tell(self, state, increment, public, noise, frame=None):
        block = state.epoch * self.blocks_per_epoch + state.step // self.period
        in_block = state.step % self.period + 1
        _, released = self.oracle.release(state.oracle, increment, block, in_block, noise)
        after, seen = super().tell(state, increment, public, noise, frame)
        return after, Seen(seen.gradient_norm, seen.move_norm, increment, released)


class Tape(NamedTuple):
    """What a run computed (secret) and released (public), one row for each step."""

    increments: np.ndarray
    released: np.ndarray


def taped(plan: Plan, frozen: np.ndarray | None = None) -> Plan:
    """The same plan, with a tape, and with frozen releases if there are any."""
    made = TapedPlan(**{field.name: getattr(plan, field.name) for field in fields(Plan)})
    object.__setattr__(made, "frozen", frozen)
    return made


def read_tape() -> Tape:
    """What was written since the last reading; steps must have come in order."""
    jax.effects_barrier()
    where = [entry[:2] for entry in _TAPE]
    assert where == sorted(where)
    tape = Tape(*(np.stack([entry[i] for entry in _TAPE]) for i in (2, 3)))
    _TAPE.clear()
    return tape


def forget_tape() -> None:
    """After a run that did not end."""
    jax.effects_barrier()
    _TAPE.clear()


def sensitivities(machine: Conversion) -> np.ndarray:
    """The declared sensitivity of every step of the run."""
    return np.tile(machine.oracle.sensitivities(), machine.oracle.schedule.blocks)


def steps_with(machine: Conversion, public, record: int) -> list[int]:
    """The steps whose batches hold this record, by the trusted schedule alone."""
    schedule, found = machine.oracle.schedule, []
    for block in range(schedule.blocks):
        rows = schedule.rows(schedule.order(public, block // schedule.blocks_per_pass), block)
        first, diffs = schedule.split(rows)
        batches = [first, *diffs]
        found += [block * schedule.period + t for t, b in enumerate(batches) if record in b]
    return found


def check_tapes(one: Tape, two: Tape, limits: np.ndarray, allowed: list[int]) -> None:
    """The second run released what was frozen; only `allowed` steps moved, each within its limit."""
    assert np.array_equal(one.released, two.released)
    assert np.all(np.isfinite(one.increments))
    assert np.all(np.isfinite(two.increments))
    moved = np.linalg.norm(two.increments - one.increments, axis=-1)
    for step, distance in enumerate(moved):
        if step in allowed:
            assert distance <= limits[step], (
                f"step {step} moved by {distance / limits[step]} limits"
            )
        else:
            assert distance == 0, f"step {step} moved, and does not hold the record"


def public_outputs(result) -> dict[str, object]:
    """Everything of a result that anybody may see, the clock apart."""
    return {
        "params": np.asarray(result.params).tobytes(),
        "last": np.asarray(result.last).tobytes(),
        "final": np.asarray(result.final).tobytes(),
        "means": result.means.tobytes(),
        "gradient_norm": result.history.gradient_norm.tobytes(),
        "move_norm": result.history.move_norm.tobytes(),
        "clock ticks": result.history.seconds.shape,
        "words": str(result),
        "statement": result.privacy,
        "chosen": result.chosen_epoch,
    }
