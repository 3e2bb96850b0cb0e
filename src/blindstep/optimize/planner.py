"""Planning: from a problem and a privacy budget to every number of a run.

Three presets, one interface: `tight` minimises the explicit bound (docs/planning.md), `paper` takes the
parameters of the paper's theorem, `klt` those of its successor. Whatever the user fixes stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blindstep.errors import InvalidArgument, VacuousPlan, count, positive
from blindstep.optimize.klt import layout_klt
from blindstep.optimize.paper import layout_paper, plan_paper
from blindstep.optimize.plan import Plan
from blindstep.optimize.request import Request
from blindstep.optimize.tight import plan_tight
from blindstep.trusted.bounds import Bounds, Lipschitz
from blindstep.trusted.privacy import Privacy

_PLANNERS: dict[str, Callable[[Request, int], Plan]] = {
    "tight": plan_tight,
    "paper": plan_paper,
    "klt": layout_klt,
}
# While records are searched for, a vacuous plan is an answer, not an error.
_SEARCHED = {**_PLANNERS, "paper": layout_paper}
PRESETS = tuple(_PLANNERS)
_MOST_RECORDS = 10**15


def plan(
    *,
    dim: int,
    privacy: Privacy,
    radius: float,
    records: int | None = None,
    tolerance: float | None = None,
    preset: str = "tight",
    lipschitz: float | None = None,
    gap: float | None = None,
    bounds: Bounds | None = None,
    **fixed: Any,
) -> Plan:
    """Plan a run: from `records` to the tolerance they buy, or from `tolerance` to records needed.

    Args:
        dim: number of parameters.
        privacy: the budget.
        radius: Goldstein radius of the answer.
        records: number of records there are.
        tolerance: the stationarity wanted; gives the smallest number of records that certifies it.
        preset: "tight", "paper" or "klt".
        lipschitz: Lipschitz bound of the loss. Enforced by clamping, so privacy does not rest on it.
        gap: bound on F(start) - inf F.
        bounds: further enforced bounds, combined with Lipschitz(lipschitz). Who does not know L
            plans by a clip norm instead: bounds=Clip(1.0).
        **fixed: choices that are not left to the preset, named as in `Plan`: oracle, horizon,
            period, epochs, passes, first_batch, diff_batch, directions, mechanism, sampler,
            sharing, smoothing, reach; `evaluations`, the most loss evaluations of the run; and
            `secure=True` for sums and noise that are exact on a lattice (docs/floating-point.md).

    Raises:
        VacuousPlan: the paper's theorem was to choose the horizon, and its bound is no better
            than `lipschitz`. Fix `horizon` (or `epochs`) to run all the same: privacy does not
            depend on it.
    """
    if preset not in _PLANNERS:
        raise InvalidArgument(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}.")
    enforced = bounds or Bounds()
    if lipschitz is not None:
        enforced = enforced & Lipschitz(lipschitz)
    try:
        request = Request(dim, privacy, radius, enforced, lipschitz, gap, **fixed)
    except TypeError as error:
        raise InvalidArgument(f"{error}: see the names of a Plan.") from None
    if (records is None) == (tolerance is None):
        raise InvalidArgument(
            f"give either records or tolerance, got records={records!r} and "
            f"tolerance={tolerance!r}: records are turned into a tolerance, and back."
        )
    if tolerance is not None:
        return _for_tolerance(_SEARCHED[preset], request, positive("tolerance", tolerance))
    return _PLANNERS[preset](request, count("records", records))


def _for_tolerance(
    planner: Callable[[Request, int], Plan], request: Request, tolerance: float
) -> Plan:
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
            made = planner(request, records)
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
