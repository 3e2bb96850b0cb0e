"""20,000 neighbouring data sets with hostile losses, replayed: nothing moves that may not.

Each case is a pair of data sets that differ in one record, with values from the palette of the worst.
Cases are data of one compiled program, the drivers' own: `run_epoch` (compiled) and `release` (host
driver and ask/tell).
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers.answers import release
from blindstep.drivers.compiled import run_epoch
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.trusted.estimators import Estimator, Kind
from blindstep.trusted.randomness import fresh_keys
from hostile import table_loss, tables
from replay import FrozenOracle, SeenConversion, freeze, sensitivities

CASES = 2_500
DIM, TABLE, PERIOD, BLOCKS, FIRST, LATER = 4, 16, 4, 2, 3, 2
RECORDS = BLOCKS * (FIRST + LATER * (PERIOD - 1))
COMMON = {"records": RECORDS, "dim": DIM, "privacy": bs.Privacy(rho=1.0), "radius": 0.5}
COMMON |= {"oracle": "variance-reduced", "horizon": PERIOD * BLOCKS, "period": PERIOD}
COMMON |= {"passes": 1, "first_batch": FIRST, "diff_batch": LATER, "smoothing": 0.1, "reach": 0.1}
CLIPPED = bs.Clip(1.0, 0.1)
PLANS = {
    "lipschitz": {"sampler": "sphere", "mechanism": "tree", "directions": 4, "sharing": "record"},
    "clip": {"sampler": "haar", "mechanism": "blt", "directions": 2, "sharing": "record"},
    "range": {"sampler": "structured", "mechanism": "sqrt", "directions": 2, "sharing": "batch"},
    "block": {"sampler": "structured", "mechanism": "blt", "directions": 2, "sharing": "block"},
}
PLANS["lipschitz"] |= {"lipschitz": 1.0}
PLANS["clip"] |= {"bounds": CLIPPED}
PLANS["range"] |= {"bounds": bs.Range(-1, 1)}
PLANS["block"] |= {"bounds": CLIPPED, "lipschitz": 3.0}
LIMITS = {"lipschitz": 0.2, "clip": 1.0, "range": 2.0, "block": 0.6}


class Believing(Estimator):
    """An estimator that believes what a record says."""

    def enforce(self, kind, estimate, valid):
        return jnp.where(valid[..., None], estimate, 0.0)


def machine_of(name, estimator=Estimator):
    built = bs.plan(**COMMON, **PLANS[name]).build()
    parts = {part: getattr(built.oracle.estimator, part) for part in Estimator.__annotations__}
    oracle = eqx.tree_at(lambda o: o.estimator, built.oracle, estimator(**parts))
    oracle = freeze(oracle, None, FrozenOracle)
    return SeenConversion(oracle, built.learner, built.horizon)


def neighbours(name, shape, seed):
    """Data sets, the same with one record replaced, and which: `shape` is that of a record."""
    rng = np.random.default_rng([seed, *name.encode()])
    data = tables(rng, (CASES, RECORDS, int(np.prod(shape))), LIMITS[name])
    other = tables(rng, (CASES, int(np.prod(shape))), LIMITS[name])
    replaced = rng.integers(0, RECORDS, CASES)
    neighbour = data.copy()
    neighbour[np.arange(CASES), replaced] = other
    return (each.reshape(CASES, RECORDS, *shape) for each in (data, neighbour)), replaced


def rows_by_step(machine, public):
    schedule, order = machine.oracle.schedule, machine.oracle.schedule.order(public, 0)
    blocks = [schedule.split(schedule.rows(order, block)) for block in range(BLOCKS)]
    first, diffs = (np.stack(rows) for rows in zip(*blocks, strict=True))
    return first, diffs, [b for block in blocks for b in (block[0], *block[1])]


def compiled_program(machine):
    """All cases through the compiled driver's epoch."""
    keys = fresh_keys(11)
    first, diffs, _ = rows_by_step(machine, keys.public)
    space = ParameterSpace.of(np.zeros(DIM))

    def case(frozen, data):
        taped = eqx.tree_at(lambda m: m.oracle.frozen, machine, frozen)
        state = taped.begin(jnp.zeros(DIM))
        state, mean, seen = run_epoch(
            taped, table_loss, space, state, data, first, diffs, keys.public, keys.noise
        )
        public = (state.position, mean, seen.gradient_norm, seen.move_norm)
        rows = (BLOCKS * PERIOD, -1)
        return seen.increment.reshape(rows), seen.released.reshape(rows), public

    return jax.jit(jax.vmap(case)), (TABLE,)


def answers_program(machine):
    """All cases through the step of host driver and ask/tell."""
    keys = fresh_keys(11)
    *_, batches = rows_by_step(machine, keys.public)
    number = machine.oracle.estimator.number

    def step(kind, frozen, state, answers):
        taped = eqx.tree_at(lambda m: m.oracle.frozen, machine, frozen)
        return release(taped, state, kind, answers, keys.public, keys.noise)

    steps = {kind: jax.jit(jax.vmap(functools.partial(step, kind))) for kind in Kind}

    def program(frozen, data):
        state, tape = jax.vmap(machine.begin)(jnp.zeros((CASES, DIM))), []
        for place, rows in enumerate(batches):
            # Another part of the record's table answers at another step.
            answers = np.roll(data[:, rows], place, axis=-1)
            kind = Kind.DIFF if place % PERIOD else Kind.GRAD
            state, seen = steps[kind](frozen, state, answers)
            tape.append((seen.increment, seen.released, (state.point, seen.move_norm)))
        return jax.tree.map(lambda *each: np.stack(each, axis=1), *tape)

    return program, (2, number)


PROGRAMS = {"compiled": compiled_program, "answers": answers_program}


def replayed(name, make_program, seed, **changes):
    """Increments on both data sets, and which steps may differ; public outputs are compared here."""
    machine = machine_of(name, **changes)
    program, shape = make_program(machine)
    (data, neighbour), replaced = neighbours(name, shape, seed)
    nothing = np.broadcast_to(machine.oracle.frozen, (CASES, *machine.oracle.frozen.shape))
    increments, released, public = program(nothing, data)
    assert np.all(np.isfinite(released))
    moved, again, public_again = program(released, neighbour)
    pairs = zip(*map(jax.tree.leaves, ((released, public), (again, public_again))), strict=True)
    assert all(np.asarray(one).tobytes() == np.asarray(two).tobytes() for one, two in pairs)
    *_, batches = rows_by_step(machine, fresh_keys(11).public)
    holds = np.stack([np.isin(replaced, rows) for rows in batches], axis=1)
    assert np.all(holds.sum(axis=1) == 1)
    return np.asarray(increments), np.asarray(moved), holds, sensitivities(machine)


def check(increments, moved, holds, limits):
    assert np.all(np.isfinite(increments))
    assert np.all(np.isfinite(moved))
    ratios = np.linalg.norm(moved - increments, axis=-1) / limits
    assert np.all(ratios[~holds] == 0)
    assert np.all(ratios[holds] <= 1)
    return ratios[holds].max()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", PLANS)
def test_hostile_neighbours_move_one_increment_within_its_sensitivity(name, program):
    worst = check(*replayed(name, PROGRAMS[program], seed=5))
    # Not for want of trying: with orthonormal frames the worst case is among the cases.
    assert worst > (0.99 if name != "lipschitz" else 0.5)


def test_the_cases_find_an_estimate_that_is_not_enforced():
    """The power twin: without its last line of defence the same check fails."""
    # Lengths that are not enforced may be too long for a float.
    with pytest.raises(AssertionError), np.errstate(over="ignore"):
        check(*replayed("clip", answers_program, seed=6, estimator=Believing))
