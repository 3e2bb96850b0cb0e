"""Whether a budget's delta is small enough for the number of records."""

from __future__ import annotations

import math
import warnings
from decimal import Decimal

from blindstep.errors import InvalidArgument, LargeDelta
from blindstep.private.statement import Privacy


def check_delta(privacy: Privacy | None, records: int, name: str = "privacy") -> None:
    """Raise if delta >= 1 / records; warn (`LargeDelta`) if delta > 0.1 / records.

    A program that publishes one record, chosen at random, with probability p is (0, p / records)-DP.
    So delta = 1 / records forbids nothing, and 0.1 / records allows it one time in ten.

    Only a delta that is spent counts: that of a budget given as epsilon. A budget given as rho is met
    exactly, for every delta at once, and its delta is merely where epsilon is quoted. `name` is the
    argument that the budget came in.

    The warning is attributed to this line, not to the caller's: so Python shows it once for the same
    numbers, although plan, driver and ledger all check.
    """
    if not isinstance(privacy, Privacy) or not privacy.spends_delta:
        return
    # As people write them: 1e-5 for 10,000 records is 0.1 / records, and not a rounding above it.
    share = Decimal(repr(privacy.delta)) * records
    if share <= Decimal("0.1"):
        return
    given = f"{name} has delta {privacy.delta:g} for {records:,} records"
    remedy = f"Give a delta of {fitting_delta(records):g} or less, or a budget in rho."
    if share >= 1:
        raise InvalidArgument(
            f"{given}, which is not below 1 / records = {1 / records:.3g}: publishing one record at "
            f"random would meet it, so it protects nobody. {remedy}"
        )
    warnings.warn(
        f"{given}, which is above 0.1 / records = {0.1 / records:.3g}: publishing one record at random "
        f"with probability {float(share):.2g} would meet it. {remedy}",
        LargeDelta,
        stacklevel=1,
    )


def fitting_delta(records: int) -> float:
    """The largest power of ten that is at most 0.1 / records."""
    return float(f"1e-{1 + math.ceil(math.log10(records))}")
