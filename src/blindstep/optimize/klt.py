"""Preset `klt`: the parameters of Kornowski, Liu & Talwar (arXiv 2410.05880), the paper's successor.

A GRAD batch of B1 = period records every `period` steps, DIFF batches of one record between, averaging
length N = radius / (4 D), period = (radius / (rho D))^(2/3) + radius / (D sqrt d), with D minimising
their bound

    gap / (D S) + 3 G1 / (2 sqrt N) + G0,    E|g~ - grad|^2 <= G0^2,  E|g~|^2 <= G1^2,  S steps.

Two differences, both said in the plan: their number of directions (up to 1e9) buys a sensitivity
that holds with high probability; here frames and enforced clipping buy it for certain, at q = d. And
the learner restarts every N steps, as in the conversion this package runs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.optimize.assemble import Layout, assemble, mechanism_norms
from blindstep.optimize.plan import Plan
from blindstep.optimize.request import Request
from blindstep.optimize.theory import oracle_errors
from blindstep.trusted.bounds import Clip


def layout_klt(request: Request, records: int) -> Plan:
    """The successor's plan for a number of records."""
    request.refuse(
        "klt",
        *("oracle", "horizon", "period", "epochs", "passes", "first_batch", "diff_batch"),
        *("directions", "evaluations", "mechanism", "sharing", "smoothing", "reach"),
    )
    if request.lipschitz is None or request.gap is None:
        raise InvalidArgument("preset klt chooses everything from lipschitz and gap: give both.")
    candidates = []
    for horizon in np.unique(np.round(2.0 ** np.arange(0, math.log2(records) + 1, 0.25))):
        layout = _layout(request, records, int(horizon))
        if layout is not None:
            candidates.append((_their_bound(layout, request), layout))
    if not candidates:
        raise InvalidArgument(f"{records} records do not hold one epoch of preset klt: bring more.")
    bound, layout = min(candidates, key=lambda pair: pair[0])
    made = assemble(
        layout,
        request.privacy,
        request.bounds & Clip(_first_clip(layout, request.lipschitz)),
        request.lipschitz,
        request.gap,
    )
    notes = (
        f"Parameters of Kornowski, Liu & Talwar; their own bound for them is {bound:.4g}.",
        "Enforced clipping and orthonormal frames stand in for their number of directions; the "
        "learner restarts every horizon.",
    )
    return replace(made, notes=(*notes, *made.notes))


def _layout(request: Request, records: int, horizon: int) -> Layout | None:
    reach = request.radius / (4 * horizon)
    ratio = request.radius / reach
    wanted = (ratio / request.privacy.rho) ** (2 / 3) + ratio / math.sqrt(request.dim)
    period = max(1, min(horizon, round(wanted)))
    horizon = max(1, round(horizon / period)) * period
    size = 2 * period - 1
    epochs = (records // size) * period // horizon
    if epochs < 1:
        return None
    return Layout(
        preset="klt",
        oracle="naive" if period == 1 else "variance-reduced",
        mechanism="tree",
        sampler=request.sampler or "structured",
        sharing="record",
        records=records,
        dim=request.dim,
        horizon=horizon,
        period=period,
        epochs=epochs,
        first_batch=period,
        diff_batch=1,
        directions=request.dim,
        smoothing=request.radius / 2,
        radius=request.radius,
        reach=request.radius / (4 * horizon),
        secure=request.secure,
    )


def _first_clip(layout: Layout, lipschitz: float) -> float:
    """Four times the root mean square of a record's GRAD estimate, where that is below the gain."""
    return lipschitz * min(math.sqrt(layout.dim), 4 * math.sqrt(layout.moments().grad))


def _their_bound(layout: Layout, request: Request) -> float:
    """gap / (D S) + 3 G1 / (2 sqrt N) + G0, with exact errors and noise."""
    assert request.lipschitz is not None
    assert request.gap is not None
    slope = request.lipschitz
    errors = oracle_errors(
        layout.moments(),
        lipschitz=slope,
        smoothing=layout.smoothing,
        reach=layout.reach,
        period=layout.period,
        first_batch=layout.first_batch,
        diff_batch=layout.diff_batch,
        shared=False,
    )
    columns, rows = mechanism_norms(layout.mechanism, layout.period)
    first = 2 * _first_clip(layout, slope) / layout.first_batch
    later = 4 * math.sqrt(layout.dim) * slope * layout.reach / layout.smoothing
    sensitivities = np.where(np.arange(layout.period) == 0, first, later)
    noise = np.max(sensitivities * columns) / request.privacy.rho * rows * math.sqrt(layout.dim)
    off = float(np.sqrt(np.max(errors**2 + noise**2)))
    size = math.hypot(slope, off)
    steps = layout.epochs * layout.horizon
    return request.gap / (layout.reach * steps) + 1.5 * size / math.sqrt(layout.horizon) + off
