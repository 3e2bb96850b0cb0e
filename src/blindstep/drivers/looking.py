"""The looks of a run that finds its own scales: before its first step, through a gate of their own.

Looks are a run of their own for the ledger, with their own noise key, in the folder `scales` of the run
directory. After a crash they go on like any other run: releases that may have been seen come out bit
for bit the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from blindstep.drivers.error_checks import voiding
from blindstep.drivers.pytrees import Loss, ParameterSpace
from blindstep.drivers.step import records_of
from blindstep.errors import InvalidArgument
from blindstep.estimate.looks import Look
from blindstep.estimate.scales import Finder, Scales, along
from blindstep.ledger.budgets import require_room
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.processes import Company
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.optimize.plan import Plan
from blindstep.private.gate import Contributions, Gate, Memory, Permit
from blindstep.private.schedule import Kind

Points = Float[np.ndarray, "evaluations dim"]
Answers = Float[np.ndarray, "batch evaluations"]
# Where a look evaluates, in the form that its driver uses.
Where = TypeVar("Where")
# The folder of the run directory in which looks are kept.
LOOKS = "scales"
# Losses, or entries of vectors, held at once: 2^20 float64 are 8 MiB.
_AT_ONCE = 2**20


def open_looks(
    plan: Plan,
    storage: Storage,
    known: Callable[[], Fingerprints],
    seed: int | None,
    unit: str,
    company: Company | None = None,
) -> Session:
    """The session of a plan's looks; refused where looks and steps together break the budget."""
    assert plan.look_terms is not None
    require_room(storage, plan.mu, company)
    start = jnp.zeros((plan.looks, plan.look.size))
    run = (plan.look_terms, plan.to_dict(), start, storage.part(LOOKS), known)
    return Session(*run, seed=other_seed(seed), unit=unit, company=company)


def other_seed(seed: object) -> int | None:
    """Another seed for a second gate of one call: two gates must not draw the same noise."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"blindstep looks {seed}".encode()).digest()[:16], "big")


def scales_from(
    plan: Plan,
    session: Session,
    origin: Float[np.ndarray, " dim"],
    release: Callable[[Points, float], Float[np.ndarray, " size"]],
) -> Scales:
    """Take the looks that are still to come, and read all of them.

    `release` evaluates a look at these points and sends it through the session's gate.
    """
    look, noise = plan.look, float(session.gate.terms.noise_std)
    finder = Finder(look, float(np.linalg.norm(origin)), noise)

    def points(number: int) -> Points:
        return origin + along(finder.axes, look.offsets(finder.distance, seed=number))

    take_looks(plan, session, finder, points, release)
    return finder.scales(origin)


def take_looks(
    plan: Plan,
    session: Session,
    finder: Finder,
    points: Callable[[int], Where],
    release: Callable[[Where, float], Float[np.ndarray, " size"]],
) -> None:
    """Take the looks that are still to come, and let the finder read all of them.

    `points` says where the look of a number evaluates: in whatever form `release` takes it.
    """
    released = np.array(session.state)
    for number in range(plan.looks):
        if number >= session.position:
            released[number] = release(points(number), finder.distance)
            with jax.enable_x64(True):
                session.after(jnp.asarray(released), session.gate.position, dict)
        finder.take(released[number])


def look_at_loss(
    gate: Gate, loss: Loss, space: ParameterSpace, data: PyTree, plan: Plan
) -> Callable[[Points, float], Float[np.ndarray, " size"]]:
    """Looks at a loss that JAX can trace."""

    def release(points: Points, distance: float) -> Float[np.ndarray, " size"]:
        def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
            permit, records = records_of(permit, data)
            at = (jnp.asarray(points), jnp.asarray(distance))
            return _release(permit, memory, plan.look, loss, space, records, *at)

        return np.asarray(gate.through(program))

    return release


@eqx.filter_jit
def _release(
    permit: Permit,
    memory: Memory,
    look: Look,
    loss: Loss,
    space: ParameterSpace,
    data: PyTree,
    points: Float[Array, "evaluations dim"],
    distance: Any,
) -> tuple[Memory, Float[Array, " size"]]:
    checked = voiding(loss)

    def values(record: PyTree) -> Float[Array, " evaluations"]:
        return jax.vmap(lambda point: checked(space.unflatten(point), record))(points)

    def of(rows: Int[Array, " some"], _: Any) -> Float[Array, "some size"]:
        records = jax.tree.map(lambda leaf: leaf[rows], data)
        return look.vector(jax.vmap(values)(records), distance)

    together = _together(permit.terms.schedule.first_batch, look.evaluations, look.size)
    return permit.release(memory, Kind.GRAD, Contributions(together, of))


def look_at_answers(
    session: Session, plan: Plan, answer: Callable[[Where, Int[np.ndarray, " batch"]], Answers]
) -> Callable[[Where, float], Float[np.ndarray, " size"]]:
    """Looks at values that come from elsewhere: saved before they are released, and used again."""

    def release(points: Where, distance: float) -> Float[np.ndarray, " size"]:
        gate = session.gate
        if "answers" in session.saved and int(session.saved["step"]) == gate.position:
            answers = session.saved["answers"]
        else:
            answers = answer(points, gate.rows(gate.position))
            kept = {"answers": answers, "step": np.asarray(gate.position)}
            session.save(session.state, kept)

        def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
            given = (jnp.asarray(answers), jnp.asarray(distance))
            return _release_answers(permit, memory, plan.look, *given)

        return np.asarray(gate.through(program, answers=answers.ravel()))

    return release


@eqx.filter_jit
def _release_answers(
    permit: Permit,
    memory: Memory,
    look: Look,
    answers: Float[Array, "batch evaluations"],
    distance: Any,
) -> tuple[Memory, Float[Array, " size"]]:
    return release_of_answers(permit, memory, answers, lambda own: look.vector(own, distance))


def release_of_answers(
    permit: Permit,
    memory: Memory,
    answers: Float[Array, "batch *each"],
    vector: Callable[[Float[Array, "some *each"]], Float[Array, "some size"]],
) -> tuple[Memory, Float[Array, " size"]]:
    """A release from answers, one row for each record of the batch, in its order.

    Guarantee: as many answers as the batch has records, or nothing is released. JAX would take the last
    row for every place past the end, and one record would count many times.
    """
    batch = permit.terms.schedule.first_batch
    if len(answers) != batch:
        raise InvalidArgument(f"{len(answers)} answers for a batch of {batch} records: give all.")
    together = _together(batch, answers[0].size, permit.terms.size)
    contributions = Contributions(together, lambda _, places: vector(answers[places]))
    return permit.release(memory, Kind.GRAD, contributions)


def _together(batch: int, evaluations: int, size: int) -> int:
    """How many records of a batch are held at once, each with so many values and entries."""
    return max(1, min(batch, _AT_ONCE // max(evaluations, size)))
