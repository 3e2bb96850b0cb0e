"""Planning: from a problem and a privacy budget to every number of a run.

Preset `paper` takes the parameters of Theorem thm:convergence and Corollary cor:privacy, with the
errata of docs/errata.md. Any of them can be fixed by the user; the rest follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from blindstep.errors import InvalidArgument, VacuousPlan, count, positive
from blindstep.optimize.assemble import Layout, assemble
from blindstep.optimize.plan import Plan
from blindstep.optimize.theory import Problem
from blindstep.trusted.bounds import Bounds, Lipschitz
from blindstep.trusted.privacy import Privacy

ORACLES = ("variance-reduced", "naive")
PRESETS = ("paper",)
_MOST_RECORDS = 10**15


@dataclass(frozen=True)
class Request:
    """What the user asked for, checked. Unset choices are None."""

    dim: int
    privacy: Privacy
    radius: float
    lipschitz: float | None
    gap: float | None
    bounds: Bounds
    oracle: str
    horizon: int | None
    epochs: int | None
    first_batch: int | None
    diff_batch: int | None

    @property
    def smoothing(self) -> float:
        """Half the radius: running with delta certifies radius 2 delta (erratum 5)."""
        return self.radius / 2

    def problem(self, records: int) -> Problem:
        """The problem as the theorems see it. An unknown gap counts 0; callers check for that."""
        return Problem(
            dim=self.dim,
            records=records,
            lipschitz=self.lipschitz or 0.0,
            gap=self.gap or 0.0,
            smoothing=self.smoothing,
            rho=self.privacy.rho,
        )


def plan(
    *,
    dim: int,
    privacy: Privacy,
    radius: float,
    records: int | None = None,
    tolerance: float | None = None,
    lipschitz: float | None = None,
    gap: float | None = None,
    bounds: Bounds | None = None,
    preset: str = "paper",
    oracle: str = "variance-reduced",
    horizon: int | None = None,
    epochs: int | None = None,
    first_batch: int | None = None,
    diff_batch: int | None = None,
) -> Plan:
    """Plan a run: from `records` to the tolerance they buy, or from `tolerance` to records needed.

    Args:
        dim: number of parameters.
        privacy: the budget.
        radius: Goldstein radius to certify; preset `paper` runs with smoothing radius / 2.
        records: number of records there are.
        tolerance: the stationarity wanted; gives the smallest number of records that certifies it.
        lipschitz: Lipschitz bound of the loss. Enforced by clamping, so privacy does not rest on it.
        gap: bound on F(start) - inf F.
        bounds: further enforced bounds, combined with Lipschitz(lipschitz).
        preset: "paper".
        oracle: "variance-reduced", or "naive" (a fresh GRAD with one direction at each step).
        horizon: T, if fixed by the user.
        epochs: K, if fixed by the user.
        first_batch: B1, if fixed by the user.
        diff_batch: B2, if fixed by the user.

    Raises:
        VacuousPlan: the theorem was to choose the horizon, and its bound is no better than
            `lipschitz`. Fix `horizon` (or `epochs`) to run all the same: privacy does not depend on it.
    """
    if preset not in PRESETS:
        raise InvalidArgument(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}.")
    if oracle not in ORACLES:
        raise InvalidArgument(f"oracle must be one of {', '.join(ORACLES)}, got {oracle!r}.")
    given = bounds or Bounds()
    if lipschitz is not None:
        given = given & Lipschitz(lipschitz)
    request = Request(
        dim=count("dim", dim),
        privacy=privacy,
        radius=positive("radius", radius),
        lipschitz=None if lipschitz is None else positive("lipschitz", lipschitz),
        gap=None if gap is None else positive("gap", gap, "give a bound on F(start) - inf F"),
        bounds=given,
        oracle=oracle,
        horizon=None if horizon is None else count("horizon", horizon),
        epochs=None if epochs is None else count("epochs", epochs),
        first_batch=None if first_batch is None else count("first_batch", first_batch),
        diff_batch=None if diff_batch is None else count("diff_batch", diff_batch),
    )
    request.bounds.require_finite(needs_diff=oracle == "variance-reduced" and horizon != 1)
    if (records is None) == (tolerance is None):
        raise InvalidArgument(
            f"give either records or tolerance, got records={records!r} and "
            f"tolerance={tolerance!r}: records are turned into a tolerance, and back."
        )
    if tolerance is not None:
        return _for_tolerance(request, positive("tolerance", tolerance))
    return _for_records(request, count("records", records))


def _for_records(request: Request, records: int) -> Plan:
    """The paper's plan for a number of records."""
    made = _paper(request, records)
    if request.horizon is None and request.epochs is None and made.vacuous:
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


def _for_tolerance(request: Request, tolerance: float) -> Plan:
    """The smallest number of records, to 0.1%, whose plan certifies `tolerance`."""
    if request.lipschitz is None or request.gap is None:
        raise InvalidArgument("a tolerance needs lipschitz and gap: the bound is made of them.")
    if tolerance >= request.lipschitz:
        raise InvalidArgument(
            f"tolerance {tolerance:g} is not below lipschitz {request.lipschitz:g}: every point "
            "meets it. Ask for less."
        )
    if request.epochs is not None or request.horizon is not None:
        raise InvalidArgument(
            "a tolerance leaves horizon and epochs to the planner: do not fix them."
        )

    def certified(records: int) -> Plan | None:
        try:
            made = _paper(request, records)
        except InvalidArgument:  # fewer records than one epoch needs
            return None
        return made if made.tolerance is not None and made.tolerance <= tolerance else None

    high = 2
    while (best := certified(high)) is None:
        high *= 2
        if high > _MOST_RECORDS:
            raise VacuousPlan(
                f"no number of records up to {_MOST_RECORDS:.0e} certifies tolerance {tolerance:g}: "
                "ask for a larger tolerance, radius or budget."
            )
    low = high // 2
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        if (made := certified(middle)) is None:
            low = middle
        else:
            high, best = middle, made
    return best


def _paper(request: Request, records: int) -> Plan:
    """Theorem thm:convergence: B1 = T + 1, B2 = 1, D = delta / T, T the larger balancing value."""
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
        oracle=request.oracle,
        mechanism="independent" if naive else "tree",
        sampler="sphere",
        records=records,
        dim=request.dim,
        horizon=horizon,
        period=period,
        epochs=request.epochs or records // epoch_size,
        passes=1,
        first_batch=first_batch,
        diff_batch=diff_batch,
        directions=directions,
        smoothing=request.smoothing,
        radius=request.radius,
        reach=request.smoothing / horizon,
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
        f"Runs with smoothing {request.smoothing:g} and certifies radius {request.radius:g}: "
        "a run at delta certifies 2 delta."
    ]
    if request.lipschitz is not None and request.gap is not None and request.oracle != "naive":
        free = request.problem(records).free_rho()
        verb = "is" if request.privacy.rho >= free else "would be"
        notes.append(f"Privacy {verb} free, to the order of the theorem, from rho >= {free:.4g}.")
    return tuple(notes)
