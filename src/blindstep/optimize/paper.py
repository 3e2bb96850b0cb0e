"""Preset `paper`: Theorem thm:convergence and Corollary cor:privacy, with the errata."""

from __future__ import annotations

import math
from dataclasses import replace

from blindstep.errors import InvalidArgument, VacuousPlan
from blindstep.optimize.assemble import Layout, assemble
from blindstep.optimize.plan import Plan
from blindstep.optimize.request import Request


def plan_paper(request: Request, records: int) -> Plan:
    """The paper's plan for a number of records; refused where the theorem promises nothing."""
    made = layout_paper(request, records)
    if request.horizon is not None or request.epochs is not None or not made.vacuous:
        return made
    problem = request.problem(records)
    order = problem.naive_order_bound if request.oracle == "naive" else problem.order_bound
    if order(made.horizon) > problem.lipschitz:
        raise VacuousPlan(
            f"the theorem promises nothing here: with {records} records in dimension "
            f"{request.dim} at rho = {request.privacy.rho:g} its bound is "
            f"{order(made.horizon):.3g} with every constant set to 1, and {made.tolerance:.3g} "
            f"with its real constants, where L = {problem.lipschitz:g} is known beforehand. "
            "Bring more records, a larger radius or a larger budget (plan with a tolerance to "
            "see how many records it takes), or fix horizon to run all the same: the privacy "
            "guarantee does not depend on the bound."
        )
    return made


def layout_paper(request: Request, records: int) -> Plan:
    """Theorem thm:convergence: B1 = T + 1, B2 = 1, D = delta / T, T the larger balancing value."""
    request.refuse(
        "paper",
        *("period", "passes", "directions", "evaluations", "mechanism", "sampler", "sharing"),
        *("smoothing", "reach"),
    )
    naive = request.oracle == "naive"
    diff_batch = request.diff_batch or 1
    horizon = request.horizon or _theorem_horizon(request, records, diff_batch)
    if naive:
        period, directions = 1, 1
        first_batch = request.first_batch or 1
        epoch_size = first_batch * horizon
    else:
        period, directions = horizon, request.dim
        # cor:privacy asks for B1 >= T B2 / 2; the theorem's T + 1 is this at B2 = 1.
        first_batch = request.first_batch or horizon * diff_batch + 1
        epoch_size = first_batch + diff_batch * (horizon - 1)
    if epoch_size > records:
        raise InvalidArgument(
            f"one epoch of horizon {horizon} needs {epoch_size} records (first_batch {first_batch}"
            + (")" if naive else f", diff_batch {diff_batch})")
            + f", got {records}: use a shorter horizon, smaller batches or more records."
        )
    layout = Layout(
        preset="paper",
        oracle=request.oracle or "variance-reduced",
        mechanism="independent" if naive else "tree",
        sampler="sphere",
        sharing="record",
        records=records,
        dim=request.dim,
        horizon=horizon,
        period=period,
        epochs=request.epochs or records // epoch_size,
        first_batch=first_batch,
        diff_batch=diff_batch,
        directions=directions,
        smoothing=request.radius / 2,
        radius=request.radius,
        reach=request.radius / 2 / horizon,
        secure=request.secure,
    )
    if layout.epochs * epoch_size > records:
        raise InvalidArgument(
            f"{layout.epochs} epochs of {epoch_size} records need {layout.epochs * epoch_size} "
            f"records, got {records}: preset paper goes through them once. Use fewer epochs, a "
            "shorter horizon, smaller batches or more records."
        )
    made = assemble(layout, request.privacy, request.bounds, request.lipschitz, request.gap)
    return replace(made, notes=(*_theorem_notes(request, records), *made.notes))


def _theorem_horizon(request: Request, records: int, diff_batch: int) -> int:
    """The larger of the balancing horizons (erratum 2), as far as one epoch fits the records."""
    if request.epochs is not None:
        size = records // request.epochs
        if request.oracle == "naive":
            return max(1, size // (request.first_batch or 1))
        if request.first_batch is not None:
            return max(1, 1 + (size - request.first_batch) // diff_batch)
        return max(1, (size - 1 + diff_batch) // (2 * diff_batch))
    if request.lipschitz is None or request.gap is None:
        raise InvalidArgument(
            "the theorem chooses the horizon from lipschitz and gap: give both, or fix horizon."
        )
    problem = request.problem(records)
    if request.oracle == "naive":
        wanted = max(problem.naive_balancing_horizons())
        most = records // (request.first_batch or 1)
    else:
        wanted = max(problem.balancing_horizons())
        first = request.first_batch
        if first is None:
            most = (records - 1 + diff_batch) // (2 * diff_batch)
        else:
            most = 1 + (records - first) // diff_batch
    return max(1, min(math.ceil(wanted), most))


def _theorem_notes(request: Request, records: int) -> tuple[str, ...]:
    """What the theorem says beside the numbers."""
    notes = [
        f"Runs with smoothing {request.radius / 2:g} and certifies radius {request.radius:g}: "
        "a run at delta certifies 2 delta."
    ]
    if request.lipschitz is not None and request.gap is not None and request.oracle != "naive":
        free = request.problem(records).free_rho()
        verb = "is" if request.privacy.rho >= free else "would be"
        notes.append(f"Privacy {verb} free, to the order of the theorem, from rho >= {free:.4g}.")
    return tuple(notes)
