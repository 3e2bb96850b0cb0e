"""One step of a run, whoever evaluates the loss: ask, probe, release through the gate, tell."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from blindstep.estimate.estimators import from_values
from blindstep.estimate.probing import probing_of_answers
from blindstep.estimate.vectors import Vectors
from blindstep.losses.pytrees import on_disk
from blindstep.optimize.machine import Machine, State, StepInfo
from blindstep.private.gate import Memory, Permit
from blindstep.private.schedule import Kind


def take_step(
    machine: Machine,
    vectors: Vectors,
    permit: Permit,
    memory: Memory,
    state: State,
    kind: Kind,
    public: Key[Array, ""],
) -> tuple[Memory, State, StepInfo]:
    """The next step of the machine. What the records say goes to the gate and nowhere else."""
    query = machine.ask(state, kind, public)
    vectors = vectors.ready(query.key)
    batch = permit.terms.schedule.batch_of(kind)
    memory, release = permit.release(memory, kind, vectors.contributions(query, batch))
    state, told = machine.tell(state, release, public, vectors.frame)
    return memory, state, told


def records_of(permit: Permit, data: PyTree) -> tuple[Permit, PyTree]:
    """The records for a permit, and the permit for them: all, or of a file the permit's alone."""
    if not on_disk(data):
        return permit, data
    rows, permit = permit.alone()
    return permit, jax.tree.map(lambda leaf: leaf[rows], data)


def traced(machine: Machine) -> Machine:
    """The machine with its floats as arrays: runs that differ in a step size share a program."""
    return jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, float) else v, machine)


@eqx.filter_jit
def release_answers(
    permit: Permit,
    memory: Memory,
    machine: Machine,
    state: State,
    kind: Kind,
    answers: Float[Array, "batch 2 q"],
    public: Key[Array, ""],
) -> tuple[Memory, tuple[State, StepInfo]]:
    """The next step from its answers, in the order of the batch's questions."""
    probing = probing_of_answers(from_values(machine.estimator), answers)
    memory, state, told = take_step(machine, probing, permit, memory, state, kind, public)
    return memory, (state, told)
