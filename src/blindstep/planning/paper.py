"""Preset `paper`: Theorem thm:convergence and Corollary cor:privacy, with the errata."""

from __future__ import annotations

import math

from blindstep.errors import InvalidArgument, VacuousPlan
from blindstep.planning.choices import Choices
from blindstep.planning.plan import Plan, finished
from blindstep.private.schedule import MOST_RELEASES


def plan_paper(choices: Choices, records: int) -> Plan:
    """The paper's plan for a number of records; refused where the theorem promises nothing."""
    made = theorem_plan(choices, records)
    if choices.horizon is not None or choices.rounds is not None or not made.vacuous:
        return made
    problem = choices.problem(records)
    naive = made.oracle == "naive"
    batch = made.first_batch if naive else made.diff_batch
    order = problem.order_bound(made.horizon, batch, naive=naive)
    if order > problem.lipschitz:
        raise VacuousPlan(
            f"the theorem promises nothing here: with {records} records in dimension "
            f"{choices.dim} at mu = {choices.privacy.mu:g} its bound is {order:.3g} with every "
            f"constant set to 1, and {made.tolerance:.3g} with its real constants, where L = "
            f"{problem.lipschitz:g} is known beforehand. Bring more records, a larger radius or a "
            "larger budget (plan with a tolerance to see how many records it takes), or fix horizon "
            "to run all the same: the privacy guarantee does not depend on the bound."
        )
    return made


def theorem_plan(choices: Choices, records: int) -> Plan:
    """Theorem thm:convergence: B1 = T + 1, B2 = 1, D = delta / T, T the larger balancing value.

    Batches that are fixed enter the balance. The naive oracle gets the batch that its rate needs.
    """
    choices.refuse(
        "paper",
        *("period", "passes", "directions", "evaluations", "mechanism", "sampler", "sharing"),
        *("smoothing", "reach"),
    )
    naive = choices.oracle == "naive"
    first, diff_batch = choices.first_batch, choices.diff_batch or 1
    if naive and first is None:
        fits = records // ((choices.horizon or 1) * (choices.rounds or 1))
        first = max(1, min(choices.problem(records).naive_batch(), fits))
    horizon = choices.horizon or _horizon(choices, records, first, diff_batch)
    # cor:privacy asks for B1 >= T B2 / 2; the theorem's T + 1 is this at B2 = 1.
    first_batch = first or horizon * diff_batch + 1
    round_size = first_batch * horizon if naive else first_batch + diff_batch * (horizon - 1)
    if round_size > records:
        raise InvalidArgument(
            f"one round of horizon {horizon} needs {round_size} records (first_batch {first_batch}"
            + (")" if naive else f", diff_batch {diff_batch})")
            + f", got {records}: use a shorter horizon, smaller batches or more records."
        )
    rounds = choices.rounds or max(1, min(records // round_size, MOST_RELEASES // horizon))
    if rounds * round_size > records:
        raise InvalidArgument(
            f"{rounds} rounds of {round_size} records need {rounds * round_size} records, got "
            f"{records}: preset paper goes through them once. Use fewer rounds, a shorter horizon, "
            "smaller batches or more records."
        )
    made = Plan(
        preset="paper",
        mechanism="independent" if naive else "tree",
        sampler="sphere",
        sharing="record",
        horizon=horizon,
        period=1 if naive else horizon,
        rounds=rounds,
        first_batch=first_batch,
        diff_batch=diff_batch,
        directions=1 if naive else choices.dim,
        smoothing=choices.radius / 2,
        reach=choices.radius / 2 / horizon,
        **choices.known(records),
    )
    return finished(made, _theorem_notes(choices, records))


def _horizon(choices: Choices, records: int, first: int | None, diff_batch: int) -> int:
    """The larger of the balancing horizons (erratum 2), as far as one round fits the records."""
    size = records // (choices.rounds or 1)
    naive = choices.oracle == "naive"
    if naive:
        longest = size // (first or 1)
    elif first is None:  # it is the theorem's T B2 + 1
        longest = (size - 1 + diff_batch) // (2 * diff_batch)
    else:
        longest = 1 + (size - first) // diff_batch
    if choices.rounds is not None:
        return max(1, longest)
    if not choices.certifiable:
        raise InvalidArgument(
            "the theorem chooses the horizon from lipschitz and gap: give both, or fix horizon."
        )
    batch = (first or 1) if naive else diff_batch
    wanted = max(choices.problem(records).balancing_horizons(batch, naive=naive))
    if first is not None and not naive:  # cor:privacy: past this, what B1 costs falls no more
        wanted = min(wanted, 2 * first / diff_batch)
    return max(1, min(math.ceil(wanted), longest))


def _theorem_notes(choices: Choices, records: int) -> tuple[str, ...]:
    """What the theorem says beside the numbers."""
    notes = [
        f"Runs with smoothing {choices.radius / 2:g} and certifies radius {choices.radius:g}: "
        "a run at delta certifies 2 delta."
    ]
    if choices.certifiable and choices.oracle != "naive":
        free = choices.problem(records).free_mu()
        verb = "is" if choices.privacy.mu >= free else "would be"
        notes.append(f"Privacy {verb} free, to the order of the theorem, from mu >= {free:.4g}.")
    return tuple(notes)
