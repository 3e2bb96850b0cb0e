"""Calibrations find the scales of a run before its first step, through a gate of their own.

They are a run of their own for the ledger, with their own noise key, in the folder `scales` of the run
directory. After a crash they go on like any other run: releases that may have been seen come out bit
for bit the same.

A loss in natural units, so that one plan fits every problem.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from blindstep.estimate.calibration import CalibrationQuery
from blindstep.estimate.comparison import ComparisonQuery
from blindstep.estimate.scales import NEARER, ScaleFinder, Scales, along
from blindstep.estimate.vectors import of_answers, of_records, together
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage, require_room
from blindstep.losses.error_checks import voiding
from blindstep.losses.pytrees import Loss, ParameterSpace
from blindstep.planning.plan import Plan
from blindstep.private.gate import Gate, Memory, Permit
from blindstep.private.noise import second_seed
from blindstep.private.schedule import Kind
from blindstep.processes.jax_group import JaxGroup
from blindstep.run.loop import records_of

Points = Float[np.ndarray, "evaluations dim"]
Answers = Float[np.ndarray, "batch evaluations"]
# What is asked of a record: a calibration, or a comparison with the start.
Asked = CalibrationQuery | ComparisonQuery
# Where a calibration evaluates, in the form that its driver uses.
Where = TypeVar("Where")
# The folder of the run directory in which calibrations are kept.
CALIBRATION = "scales"
# And that of the comparison with the start.
COMPARISON = "comparison"


def open_beside(
    folder: str,
    plan: Plan,
    storage: Storage,
    known: Callable[[], Fingerprints],
    seed: int | None,
    unit: str,
    group: JaxGroup | None = None,
) -> Session:
    """The session of a plan's calibrations or of its comparison, a run of its own in this folder.

    The first one is refused where all parts of the plan together break the budget.
    """
    if first := folder == CALIBRATION:
        terms, number, query = plan.calibration_terms, plan.calibrations, plan.calibration_query
        require_room(storage, plan.mu, group, secrecy=plan.secrecy)
    else:
        terms, number, query = plan.comparison_terms, plan.comparisons, plan.comparison_query
    assert terms is not None
    run = (terms, plan.to_dict(), jnp.zeros((number, query.size)), storage.part(folder), known)
    own = second_seed(seed) if first else second_seed(seed, folder)
    return Session(*run, seed=own, unit=unit, group=group)


open_calibration = functools.partial(open_beside, CALIBRATION)
open_comparison = functools.partial(open_beside, COMPARISON)


def scales_from(
    plan: Plan,
    session: Session,
    origin: Float[np.ndarray, " dim"],
    release: Callable[[Points, float], Float[np.ndarray, " size"]],
) -> Scales:
    """Take the calibrations that are still to come, and read all of them.

    `release` evaluates a calibration at these points and sends it through the session's gate.
    """
    calibration, noise = plan.calibration_query, float(session.gate.terms.noise_std)
    near = NEARER if plan.surveys else 1.0
    finder = ScaleFinder(calibration, float(np.linalg.norm(origin)), noise, near=near)

    def points(number: int) -> Points:
        return origin + along(finder.axes, calibration.offsets(finder.distance, seed=number))

    run_calibration(plan, session, finder, points, release)
    return finder.scales(origin)


def run_calibration(
    plan: Plan,
    session: Session,
    finder: ScaleFinder,
    points: Callable[[int], Where],
    release: Callable[[Where, float], Float[np.ndarray, " size"]],
) -> None:
    """Take the calibrations that are still to come, and let the finder read all of them.

    `points` says where the calibration of a number evaluates: in whatever form `release` takes it.
    """
    released = np.array(session.state)
    for number in range(plan.calibrations):
        if number >= session.position:
            released[number] = release(points(number), finder.asks)
            with jax.enable_x64(True):
                session.after(jnp.asarray(released), session.gate.position, dict)
        finder.take(released[number])


def calibrate_on_loss(
    gate: Gate, loss: Loss, space: ParameterSpace, data: PyTree, query: Asked
) -> Callable[[Points, Any], Float[np.ndarray, " size"]]:
    """Calibrations at a loss that JAX can trace, or comparisons of it."""

    def release(points: Points, distance: Any) -> Float[np.ndarray, " size"]:
        def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
            permit, records = records_of(permit, data)
            at = (jnp.asarray(points), jnp.asarray(distance))
            return _release(permit, memory, query, loss, space, records, *at)

        return np.asarray(gate.through(program))

    return release


@eqx.filter_jit
def _release(
    permit: Permit,
    memory: Memory,
    query: Asked,
    loss: Loss,
    space: ParameterSpace,
    data: PyTree,
    points: Float[Array, "evaluations dim"],
    distance: Any,
) -> tuple[Memory, Float[Array, " size"]]:
    checked = voiding(loss)

    def values(record: PyTree) -> Float[Array, " evaluations"]:
        return jax.vmap(lambda point: checked(space.unflatten(point), record))(points)

    def vector(records: PyTree) -> Float[Array, "some size"]:
        return query.vector(jax.vmap(values)(records), distance)

    size = together(permit.terms, Kind.GRAD, query.evaluations)
    return permit.release(memory, Kind.GRAD, of_records(data, vector, size))


def calibrate_on_answers(
    session: Session, query: Asked, answer: Callable[[Where, Int[np.ndarray, " batch"]], Answers]
) -> Callable[[Where, Any], Float[np.ndarray, " size"]]:
    """The same at values that come from elsewhere: saved before they are released, and used again."""

    def release(points: Where, distance: Any) -> Float[np.ndarray, " size"]:
        gate = session.gate
        if "answers" in session.saved and int(session.saved["step"]) == gate.position:
            answers = session.saved["answers"]
        else:
            answers = answer(points, gate.rows(gate.position))
            kept = {"answers": answers, "step": np.asarray(gate.position)}
            session.save(session.state, kept)

        def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
            placed = gate.in_places(gate.position, answers)
            given = (jnp.asarray(placed), jnp.asarray(distance))
            return _release_answers(permit, memory, query, *given)

        return np.asarray(gate.through(program, answers=answers.ravel()))

    return release


@eqx.filter_jit
def _release_answers(
    permit: Permit,
    memory: Memory,
    query: Asked,
    answers: Float[Array, "batch evaluations"],
    distance: Any,
) -> tuple[Memory, Float[Array, " size"]]:
    size = together(permit.terms, Kind.GRAD, query.evaluations)
    given = of_answers(answers, lambda own: query.vector(own, distance), size)
    return permit.release(memory, Kind.GRAD, given)


class ScaledLoss(eqx.Module):
    """The loss of natural coordinates v: loss(origin + A v) / unit.

    Its arrays are traced, so that runs with other scales share a compiled program.
    """

    loss: Any
    space: ParameterSpace = eqx.field(static=True)
    scales: Scales

    def __call__(self, natural: Float[Array, " dim"], record: PyTree) -> Any:
        """The loss of one record."""
        value = self.loss(self.space.unflatten(self.scales.place(natural)), record)
        return value / self.scales.unit


def scaled_start(space: ParameterSpace) -> Float[np.ndarray, " dim"]:
    """The start in natural coordinates: 0, in the precision of the user's parameters."""
    return np.zeros(space.dim, np.result_type(np.float32, *space.dtypes))
