"""Preset `tight`: the layout that minimises the explicit bound, or good defaults where L is unknown.

Frames instead of independent directions, BLT noise instead of a tree, exact calibration, clipping,
the period decoupled from the horizon: same guarantee, far less noise. With exact constants the
variance-reduced oracle does not always win, so the search decides: period 1 is the naive oracle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.optimize.assemble import (
    Layout,
    assemble,
    bound_terms,
    gain_of,
    mechanism_norms,
    snapping_of,
)
from blindstep.optimize.plan import Plan
from blindstep.optimize.request import Request
from blindstep.trusted.bounds import Bounds, Clip
from blindstep.trusted.privacy import Privacy

_SAMPLER = "structured"
# Of the radius: a smaller smoothing gains nothing any more, and loses digits.
_LEAST_SMOOTHING = 1e-3
# Clip norms that are tried, in units of the root mean square of a record's |estimate|.
_CLIPS = (math.inf, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0)


def _mechanism(period: int, secure: bool) -> str:
    """The most accurate noise; of the kinds made of whole numbers, that is a tree's."""
    if period == 1:
        return "independent"
    return "tree" if secure else "blt"


@dataclass(frozen=True)
class Choice:
    """A point of the search: logarithms to base 2, so that a step is a factor."""

    period: float
    blocks_per_epoch: float
    diff_batch: float
    first_ratio: float
    directions: float
    smoothing: float
    sharing: str
    clip: int


def plan_tight(request: Request, records: int) -> Plan:
    """The plan of least bound, or by clip norm and radius where L or the gap is not known."""
    if not request.certifiable:
        return _by_clip_norm(request, records)
    best = search(request, records)
    if best is None:
        raise InvalidArgument(
            f"{records} records do not hold one epoch of what was fixed (horizon "
            f"{request.horizon}, period {request.period}, first_batch {request.first_batch}, "
            f"diff_batch {request.diff_batch}): fix less, or bring more records."
        )
    made = assemble(best.layout, request.privacy, best.bounds, request.lipschitz, request.gap)
    more = _marginal(request, made, best.choice)
    return replace(made, notes=(*_notes(best.layout), *made.notes, *more))


def _notes(layout: Layout) -> tuple[str, ...]:
    certified = layout.smoothing + layout.reach * layout.horizon
    return (
        f"Certifies radius {certified:.4g} = smoothing {layout.smoothing:.4g} + reach x horizon "
        f"{layout.reach * layout.horizon:.4g}, in expectation.",
    )


def _marginal(request: Request, made: Plan, choice: Choice) -> tuple[str, ...]:
    """What a little more of each resource would buy, by planning again from where we are."""
    assert made.tolerance is not None
    more = max(1, made.records // 10)
    privacy = Privacy(made.epsilon + 1.0, made.delta)
    asked = [("record", request, made.records + more, more)]
    if request.directions is None and made.directions < made.dim:
        another = replace(request, directions=made.directions + 1, evaluations=None)
        asked.append(("direction", another, made.records, 1))
    asked.append(("unit of epsilon", replace(request, privacy=privacy), made.records, 1))
    parts = []
    for name, richer, records, number in asked:
        if (found := _descend(richer, records, choice, _FINE)) is not None:
            parts.append(f"one more {name} {max(made.tolerance - found.bound, 0) / number:.2g}")
    return ("The tolerance would fall by: " + "; ".join(parts) + ".",) if parts else ()


# -- search -----------------------------------------------------------------------------------

_COARSE, _FINE = (4.0, 2.0, 1.0), (0.5, 0.25, 0.1, 0.03)
# Batches to start from, as logarithms: small ones alone can end where a strong clip hides a better one.
_STARTS = (0.0, 3.0, 7.0)
# Longer blocks than this never won in benchmarks/auto_grid.py; a user can still fix one.
_LONGEST_PERIOD = 12


@dataclass(frozen=True)
class Found:
    """A point of the search with its layout and bound."""

    bound: float
    choice: Choice
    layout: Layout
    bounds: Bounds


def search(request: Request, records: int) -> Found | None:
    """Coordinate descent on the explicit bound: coarsely from all starts, finely from the best."""
    found = [
        rough
        for period in _periods(request, records)
        for sharing in _sharings(request, period)
        for batch in _STARTS
        if (rough := _descend(request, records, _start(period, sharing, batch), _COARSE))
        is not None
    ]
    found.sort(key=lambda f: f.bound)
    fine = (_descend(request, records, rough.choice, _FINE) for rough in found[:3])
    return min((f for f in fine if f is not None), key=lambda f: f.bound, default=None)


def _start(period: float, sharing: str, batch: float) -> Choice:
    return Choice(period, 3.0, batch, 0.0, 0.0, -1.0, sharing, 0)


def _periods(request: Request, records: int) -> list[float]:
    """Logarithms of the periods to try."""
    if request.period is not None:
        return [math.log2(request.period)]
    if request.oracle == "naive":
        return [0.0]
    longest = min(_LONGEST_PERIOD, int(math.log2(records)))
    periods = [float(k) for k in range(longest + 1)]
    if request.horizon is not None:
        periods = [p for p in periods if request.horizon % round(2**p) == 0]
        periods.append(math.log2(request.horizon))
    return periods[1:] if request.oracle == "variance-reduced" else periods


def _sharings(request: Request, period: float) -> list[str]:
    if request.sharing is not None:
        return [request.sharing]
    # Shared directions do not average over records: only where errors are divided by sqrt(T).
    return (
        ["record", "block"] if period == 0.0 and request.directions != request.dim else ["record"]
    )


def _descend(
    request: Request, records: int, choice: Choice, sizes: tuple[float, ...]
) -> Found | None:
    """The lowest bound near `choice`, moving one coordinate at a time by ever smaller factors."""

    def value(candidate: Choice) -> Found | None:
        built = layout_of(request, records, candidate)
        return built and Found(bound_of(*built, request), candidate, *built)

    # Nothing may fit at first: shrink until something does.
    tries = (replace(choice, blocks_per_epoch=b, first_ratio=-f) for b in (0, 3) for f in (0, 4, 9))
    best = value(choice) or next((f for t in tries if (f := value(t)) is not None), None)
    if best is None:
        return None
    for size in sizes:
        improved = True
        while improved:
            improved = False
            for trial in _neighbours(request, best.choice, size):
                found = value(trial)
                if found is not None and found.bound < best.bound * (1 - 1e-5):
                    best, improved = found, True
    return best


def _neighbours(request: Request, choice: Choice, size: float) -> Iterator[Choice]:
    """Choices one step away in each coordinate that the user left open and that matters."""
    free = {
        "blocks_per_epoch": request.horizon is None,
        "diff_batch": request.diff_batch is None,
        "first_ratio": request.first_batch is None and choice.period > 0,
        "directions": request.directions is None,
        "smoothing": request.smoothing is None,
    }
    for name in (name for name, open_ in free.items() if open_):
        for sign in (size, -size):
            yield replace(choice, **{name: getattr(choice, name) + sign})
    # All of them: clip norms above the gain change nothing, and a step of one could not cross them.
    for clip in range(len(_CLIPS)):
        yield replace(choice, clip=clip)


def layout_of(request: Request, records: int, choice: Choice) -> tuple[Layout, Bounds] | None:
    """The layout of a point of the search, in whole numbers; None if it does not fit."""
    period = max(1, round(2**choice.period))
    if request.horizon is not None:
        horizon = request.horizon
        if horizon % period:
            return None
    else:
        horizon = period * max(1, round(2 ** min(choice.blocks_per_epoch, 40.0)))
    diff_batch = request.diff_batch or max(1, round(2 ** min(choice.diff_batch, 50.0)))
    first_batch = request.first_batch or max(
        1, round(diff_batch * period * 2 ** min(choice.first_ratio, 30.0))
    )
    if period == 1:
        diff_batch = 1  # there are no DIFFs
    size = first_batch + diff_batch * (period - 1)
    if size > records:
        return None
    directions = request.directions or min(
        request.dim, max(1, round(request.dim * 2 ** min(choice.directions, 0.0)))
    )
    blocks = records // size * (request.passes or 1)
    if request.evaluations is not None:
        blocks = min(blocks, request.evaluations // (2 * directions * size))
    epochs = request.epochs or blocks * period // horizon
    if epochs < 1 or epochs * horizon // period > blocks:
        return None
    smoothing = request.smoothing or request.radius * min(
        0.9, max(_LEAST_SMOOTHING, 2**choice.smoothing)
    )
    reach = request.reach or (request.radius - smoothing) / horizon
    if reach <= 0:
        return None
    layout = Layout(
        preset="tight",
        oracle="naive" if period == 1 else "variance-reduced",
        mechanism=request.mechanism or _mechanism(period, request.secure),
        sampler=request.sampler or _SAMPLER,
        sharing=choice.sharing,
        records=records,
        dim=request.dim,
        horizon=horizon,
        period=period,
        epochs=epochs,
        first_batch=first_batch,
        diff_batch=diff_batch,
        directions=directions,
        smoothing=smoothing,
        radius=request.radius,
        reach=reach,
        secure=request.secure,
    )
    clip = _CLIPS[choice.clip]
    if math.isinf(clip):
        return layout, request.bounds
    return layout, request.bounds & Clip(request.slope * clip * math.sqrt(layout.moments().grad))


def bound_of(layout: Layout, bounds: Bounds, request: Request) -> float:
    """The explicit bound of a layout: what `assemble` will state, without building anything."""
    assert request.lipschitz is not None
    assert request.gap is not None
    gain = gain_of(layout.sampler, layout.directions, layout.dim)
    clamp = min(2 * layout.smoothing * bounds.lipschitz, bounds.width)
    first = 2 * min(gain * clamp / (2 * layout.smoothing), bounds.first_clip) / layout.first_batch
    clamp = min(2 * layout.reach * bounds.lipschitz, bounds.width)
    later = 2 * min(gain * clamp / layout.smoothing, bounds.diff_clip) / layout.diff_batch
    columns, rows = mechanism_norms(layout.mechanism, layout.period)
    cost = first * columns[0]
    if layout.period > 1:
        cost = max(cost, later * float(np.max(columns[1:])))
    blocks = layout.epochs * layout.horizon // layout.period
    size = layout.first_batch + layout.diff_batch * (layout.period - 1)
    passes = -(-blocks // (layout.records // size))
    # What is left of rho after snapping; `assemble` refuses below half, and this never prefers it.
    snapping = snapping_of(layout.secure, layout.release_dim)
    left = request.privacy.rho - snapping * float(np.max(columns)) * math.sqrt(passes)
    if left < request.privacy.rho / 2:
        return math.inf
    release = cost * math.sqrt(passes) / left * rows
    return bound_terms(layout, bounds, request.lipschitz, request.gap, release).total


# -- without a Lipschitz bound ----------------------------------------------------------------

_CLIP_HORIZON = 10
_CLIP_DIRECTIONS = 256


def _by_clip_norm(request: Request, records: int) -> Plan:
    """Defaults for who knows a clip norm and a radius, but not L or the gap.

    The naive oracle with one shared frame for each step, adaptive steps, batches as large as the
    number of passes allows; measured in benchmarks/ on digits and on a9a.
    """
    horizon = request.horizon or _CLIP_HORIZON
    period = request.period or 1
    directions = min(request.dim, request.directions or _CLIP_DIRECTIONS)
    passes = request.passes or 1
    if period > 1 and request.first_batch is None and request.diff_batch is None:
        raise InvalidArgument(
            "without lipschitz and gap, a period above 1 needs batches: fix them."
        )
    diff_batch = request.diff_batch or 1
    steps = horizon * (request.epochs or max(1, round(math.sqrt(passes * 20) / horizon * 4)))
    first_batch = request.first_batch or max(1, min(records, passes * records // steps))
    size = first_batch + diff_batch * (period - 1)
    if size > records:
        raise InvalidArgument(
            f"a block of {size} records does not fit into {records}: use smaller batches."
        )
    blocks = records // size * passes
    if request.evaluations is not None:
        blocks = min(blocks, request.evaluations // (2 * directions * size))
    epochs = request.epochs or blocks * period // horizon
    if epochs < 1 or epochs * horizon > blocks * period:
        raise InvalidArgument(
            f"{records} records in {passes} pass(es) hold {blocks * period} steps with batches of "
            f"{first_batch}, not {epochs or 1} epoch(s) of {horizon}: use a smaller first_batch, a "
            "shorter horizon or more passes."
        )
    smoothing = request.smoothing or _LEAST_SMOOTHING * request.radius
    layout = Layout(
        preset="tight",
        oracle="naive" if period == 1 else "variance-reduced",
        mechanism=request.mechanism or _mechanism(period, request.secure),
        sampler=request.sampler or _SAMPLER,
        sharing=request.sharing or "block",
        records=records,
        dim=request.dim,
        horizon=horizon,
        period=period,
        epochs=epochs,
        first_batch=first_batch,
        diff_batch=diff_batch,
        directions=directions,
        smoothing=smoothing,
        radius=request.radius,
        reach=request.reach or (request.radius - smoothing) / horizon,
        secure=request.secure,
    )
    return assemble(layout, request.privacy, request.bounds, request.lipschitz, request.gap)
