"""Gates for tests: terms of any shape, a port that writes down what it is charged, whole blocks."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from blindstep.estimate.vectors import of_answers, of_records, together
from blindstep.private.gate import Contributions, Gate
from blindstep.private.mechanisms import MECHANISMS
from blindstep.private.noise import STD, fresh_keys
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms


class Till:
    """A port that takes every charge and remembers it, or refuses the charge of one release."""

    def __init__(self, refuse=None):
        self.charges, self.refuse = [], refuse

    def charge(self, first, count, answers):
        if self.refuse == first:
            raise PermissionError("no budget")
        self.charges.append((first, count, answers))


def make_terms(
    mechanism="tree",
    period=4,
    size=3,
    *,
    batches=(3, 2),
    blocks=2,
    records=None,
    clips=(1.0, 0.5),
    noise_std=0.7,
):
    """Terms; without `records`, just enough people for all blocks in one pass."""
    block = batches[0] + batches[1] * (period - 1)
    schedule = Schedule(records or blocks * block, *batches, period, blocks)
    return Terms(schedule, MECHANISMS[mechanism](period), size, *clips, noise_std)


def make_gate(terms, seed=0, port=None, **more):
    """A gate of a seeded run."""
    return Gate(terms, fresh_keys(seed), port or Till(), **more)


def of_rows(data, together):
    """A record's vector is its row of the data."""
    return Contributions(together, lambda rows, places: jnp.asarray(data)[rows])


def release_records(permit, memory, kind, data, vector, held):
    """A release from rows of the data, as drivers make it; a record holds so many numbers."""
    given = of_records(data, vector, together(permit.terms, kind, held))
    return permit.release(memory, kind, given)


def release_answers(permit, memory, kind, answers, vector):
    """A release from answers that came from outside, as drivers make it."""
    given = of_answers(answers, vector, together(permit.terms, kind, answers[:1].size))
    return permit.release(memory, kind, given)


def one_block(permit, memory, data, together=2):
    """All releases of the next block, a row for each. Give `data` one axis more to run many cases."""

    def block(data):
        give = of_rows(data, together)
        after, first = permit.release(memory, Kind.GRAD, give)

        def later(memory, _):
            return permit.release(memory, Kind.DIFF, give)

        if permit.terms.schedule.period == 1:
            return after, first[None]
        after, rest = jax.lax.scan(later, after, length=permit.terms.schedule.period - 1)
        return after, jnp.concatenate([first[None], rest])

    if data.ndim == 2:
        return block(data)
    after, released = jax.vmap(block)(data)
    return jax.tree.map(lambda leaf: leaf[0], after), released


_compiled = eqx.filter_jit(one_block)


def block_of(gate, data, together=2):
    """The releases of the gate's next block; for an axis of many cases, all under the same noise."""
    program = lambda permit, memory: _compiled(permit, memory, jnp.asarray(data), together)  # noqa: E731
    return np.asarray(gate.through(program, gate.terms.schedule.period))


@eqx.filter_jit
def one_release(permit, memory, kind, data, together):
    """A compiled release: what is not permitted is NaN there."""
    return permit.release(memory, kind, of_rows(data, together))


def releases_of(data, kinds, together=2):
    """A program that makes releases of these kinds, one after the other, each compiled."""

    def program(permit, memory):
        found = []
        for kind in kinds:
            memory, y = one_release(permit, memory, kind, jnp.asarray(data), together)
            found.append(np.asarray(y))
        return memory, np.stack(found)

    return program


class _Taken(Exception):
    pass


def permit_of(gate, count=1):
    """Permit and memory for the next releases, which the gate then believes not to have made."""
    held = []

    def program(permit, memory):
        held.extend([permit, memory])
        raise _Taken

    with contextlib.suppress(_Taken):
        gate.through(program, count)
    return held


def lattice(terms, released):
    """Releases as numbers of lattice steps. They must be whole: y is a function of that number."""
    width = terms.noise_std / STD
    steps = np.rint(released / width)
    np.testing.assert_array_equal(released, width * steps)
    return steps


def batches_of(gate, block=0):
    """Row numbers of each release of a block."""
    period = gate.terms.schedule.period
    return [gate.rows(number) for number in range(block * period, (block + 1) * period)]
