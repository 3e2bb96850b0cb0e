"""Planning: from a problem and a privacy budget to every number of a run, by a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from blindstep.errors import InvalidArgument, VacuousPlan, answers_typos, count, positive
from blindstep.ledger.budget import Privacy
from blindstep.planning.checks import check_delta
from blindstep.planning.method import Method, Problem
from blindstep.planning.plan import PastTheMost, Plan
from blindstep.private.schedule import MOST_RELEASES, MOST_RELEASES_IN_A_BLOCK

_MOST_RECORDS = 10**15


@answers_typos
def plan(
    method: Method,
    *,
    dim: int,
    privacy: Privacy,
    records: int | None = None,
    tolerance: float | None = None,
    leaves: tuple[int, ...] | None = None,
) -> Plan:
    """Plan a run: from `records` to the tolerance they buy, or from `tolerance` to records needed.

        privacy = bs.Privacy(epsilon=1, delta=1e-6)
        print(bs.plan(bs.Auto(), dim=100, records=50_000, privacy=privacy))
        theorem = bs.Paper(radius=0.1, lipschitz=1.0, gap=1.0)
        print(bs.plan(theorem, dim=100, tolerance=0.5, privacy=bs.Privacy(mu=1)).records)

    A certificate is about a mean loss F that `Plan.certifies` names. One pass: the mean over the
    population, if the records are independent draws from it. Every step on all records: the mean
    over the records. Several passes of smaller batches: nothing is certified.

    Args:
        method: how to plan: `Auto()`, `Tight(...)`, `Paper(...)`, `Klt(...)`, `Questions(...)`, or a
            method of your own.
        dim: number of parameters.
        privacy: the budget, such as Privacy(epsilon=4, delta=1e-5).
        records: number of records there are.
        tolerance: the stationarity wanted; gives the smallest number of records that certifies it.
        leaves: sizes of the arrays that the parameters are made of: layers of very different slopes get
            units of their own.

    Raises:
        InvalidArgument: an argument that no run can use, records that are too few, or a budget whose
            delta is 1 / records or more. Above 0.1 / records it warns (`LargeDelta`).
        VacuousPlan: the paper's theorem was to choose the horizon, and its bound is no better
            than `lipschitz`. Fix `horizon` (or `rounds`) to run all the same: privacy does not
            depend on it. Or no number of records certifies `tolerance`.
    """
    require_method(method)
    if records is None and tolerance is None:
        enough = method.enough(Problem(dim, 1, privacy, leaves))
        if enough is not None:
            raise InvalidArgument(
                f"give records, the number that there are. How many does it take? For {dim:,} "
                f"parameters at this budget learning begins at about {enough // 2:,} records, and from "
                f"about {enough:,} on no step drowns in noise. Noise falls as 1 / records."
            )
    if (records is None) == (tolerance is None):
        raise InvalidArgument(
            f"give either records or tolerance, got records={records!r} and "
            f"tolerance={tolerance!r}: records are turned into a tolerance, and back."
        )
    problem = Problem(dim, 1 if records is None else count("records", records), privacy, leaves)
    if tolerance is not None:
        wanted = positive("tolerance", tolerance)
        method.require_tolerance(wanted)
        enough = _records_for(lambda some: method.trial(replace(problem, records=some)), wanted)
        problem = replace(problem, records=enough)
    check_delta(privacy, problem.records)
    return method.plan(problem)


def require_method(method: object) -> None:
    """Raise unless this is a method."""
    if isinstance(method, type) and issubclass(method, Method):
        raise InvalidArgument(
            f"method is the class {method.__name__}: make one, {method.__name__}(...)."
        )
    if not isinstance(method, Method):
        raise InvalidArgument(
            f"method must be a method such as Auto() or Tight(radius=0.1, ...), got {method!r}."
        )


def _records_for(trial: Callable[[int], Plan], tolerance: float) -> int:
    """The smallest number of records, to 0.1%, whose plan certifies `tolerance`."""
    past: PastTheMost | None = None

    def certified(records: int) -> bool | None:
        """Whether so many records certify it; None past the most releases that are planned for."""
        nonlocal past
        try:
            made = trial(records)
        except PastTheMost as error:
            past = error
            return None
        except InvalidArgument:  # fewer records than one round needs
            return False
        return made.tolerance is not None and made.tolerance <= tolerance

    low, high = 1, 2
    while (enough := certified(high)) is False:
        low, high = high, 2 * high
        if high > _MOST_RECORDS:
            raise VacuousPlan(
                f"no number of records up to {_MOST_RECORDS:.0e} certifies tolerance {tolerance:g} "
                f"in blocks of at most {MOST_RELEASES_IN_A_BLOCK} and runs of at most "
                f"{MOST_RELEASES} releases: ask for a larger tolerance, radius or budget."
            )
    found = enough is True
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        enough = certified(middle)
        if enough is False:
            low = middle
        else:
            high, found = middle, found or enough is True
    if not found:
        raise VacuousPlan(
            f"up to {low:.3g} records do not certify tolerance {tolerance:g}, and more cannot be "
            f"planned for. Records are not what is missing: {past} Or ask for a larger tolerance, "
            "radius or budget."
        )
    return high
