"""One step of a run, whoever evaluates the loss: ask, probe, release through the gate, tell.

One statement for several runs on the same records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from blindstep.errors import InvalidArgument
from blindstep.estimate.estimators import from_values
from blindstep.estimate.probing import probing_of_answers
from blindstep.estimate.vectors import Vectors
from blindstep.losses.pytrees import on_disk
from blindstep.optimize.machine import Machine, State, StepInfo
from blindstep.planning.plan import Plan
from blindstep.private import accounting
from blindstep.private.gate import Memory, Permit
from blindstep.private.schedule import Kind
from blindstep.private.statement import RECORD, Statement, statement


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


def of_plan(plan: Plan, *, seeded: bool, unit: str = RECORD) -> Statement:
    """The statement of a whole run: its looks, if it has any, and its steps."""
    parts = (plan.calibration_terms, plan.terms)
    said = [statement(terms, plan.delta, seeded=seeded, unit=unit) for terms in parts if terms]
    return together(said)


def together(statements: Sequence[Statement]) -> Statement:
    """What several runs on the same records guarantee together.

    Guarantee: runs that are mu_1-, .., mu_k-Gaussian-DP, each whatever the others released, are
    sqrt(sum mu_i^2)-Gaussian-DP together; what holds up to total variations slack_i holds up to their
    sum. What is enforced is listed part by part: a number of releases is that of its part alone.
    """
    first = statements[0]
    if len(statements) == 1:
        return first
    units = {each.unit for each in statements}
    if len(units) > 1:
        raise InvalidArgument(f"runs about different units do not add up: {', '.join(units)}.")
    mu = accounting.compose(each.mu for each in statements)
    slack = sum(each.slack for each in statements)
    epsilon = accounting.epsilon(mu, first.delta, slack)
    return replace(
        first,
        mu=mu,
        epsilon=epsilon,
        exceeds=accounting.exceeds(mu, epsilon),
        released="; ".join(dict.fromkeys(each.released for each in statements)),
        enforced=tuple(f"in part {at}, {line}" for at, line in enumerate(_parts(statements), 1)),
        slack=slack,
        seeded=any(each.seeded for each in statements),
    )


def _parts(statements: Sequence[Statement]) -> list[str]:
    """What is enforced in each run, and in each part of a run that has several."""
    parts = []
    for each in statements:
        several = [line.partition(", ")[2] for line in each.enforced if line.startswith("in part ")]
        parts += several or [", ".join(each.enforced)]
    return parts
