"""One statement for several runs on the same records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blindstep.errors import InvalidArgument
from blindstep.planning.plan import Plan
from blindstep.private import accounting
from blindstep.private.statement import RECORD, Statement, statement


def of_plan(plan: Plan, *, seeded: bool, unit: str = RECORD) -> Statement:
    """The statement of a whole run: its looks, if it has any, and its steps."""
    parts = (plan.calibration_terms, plan.terms)
    said = [statement(terms, plan.delta, seeded=seeded, unit=unit) for terms in parts if terms]
    return together(said)


def together(statements: Sequence[Statement]) -> Statement:
    """What several runs on the same records guarantee together.

    Guarantee: runs that are mu_1-, .., mu_k-Gaussian-DP, each whatever the others released, are
    sqrt(sum mu_i^2)-Gaussian-DP together; what holds up to total variations slack_i holds up to their
    sum. What is enforced is listed part by part: a number of releases is that of its part alone.
    """
    first = statements[0]
    if len(statements) == 1:
        return first
    units = {each.unit for each in statements}
    if len(units) > 1:
        raise InvalidArgument(f"runs about different units do not add up: {', '.join(units)}.")
    mu = accounting.compose(each.mu for each in statements)
    slack = sum(each.slack for each in statements)
    epsilon = accounting.epsilon(mu, first.delta, slack)
    return replace(
        first,
        mu=mu,
        epsilon=epsilon,
        exceeds=accounting.exceeds(mu, epsilon),
        released="; ".join(dict.fromkeys(each.released for each in statements)),
        enforced=tuple(f"in part {at}, {line}" for at, line in enumerate(_parts(statements), 1)),
        slack=slack,
        seeded=any(each.seeded for each in statements),
    )


def _parts(statements: Sequence[Statement]) -> list[str]:
    """What is enforced in each run, and in each part of a run that has several."""
    parts = []
    for each in statements:
        several = [line.partition(", ")[2] for line in each.enforced if line.startswith("in part ")]
        parts += several or [", ".join(each.enforced)]
    return parts
