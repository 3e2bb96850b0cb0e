"""Tables for people, with rich; what a ledger says; how many public records a clip norm would cut."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree
from rich.table import Column, Table
from rich.text import Text

from blindstep.estimate.gradients import vectors_of_loss
from blindstep.estimate.vectors import Query
from blindstep.ledger import data_ledger
from blindstep.ledger.account import Account
from blindstep.ledger.budget import DEFAULT_DELTA, Privacy
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.storage import LEDGER
from blindstep.losses.pytrees import Loss, ParameterSpace, check_loss, count_records
from blindstep.planning.plan import Plan
from blindstep.planning.statement import round_up
from blindstep.private import accounting
from blindstep.private.noise import fresh_keys
from blindstep.private.schedule import Kind
from blindstep.private.terms import ZERO_OUT


def plan_table(plan: Plan) -> Table:
    """A plan, one row for each number."""
    return _table("Plan", "name", plan.rows())


def privacy_numbers(privacy: Privacy) -> dict[str, float]:
    """One budget in every currency."""
    half = privacy.mu**2 / 2
    budget = {"mu": privacy.mu, "epsilon": privacy.epsilon, "delta": privacy.delta}
    return {**budget, "zcdp": half, "rdp_slope": half}


def privacy_table(privacy: Privacy) -> Table:
    """One budget in every currency, for people."""
    meanings = {
        "mu": "Gaussian-DP: no easier than telling N(0,1) from N(mu,1)",
        "epsilon": "of (epsilon, delta)-DP, exact",
        "delta": "where epsilon is quoted",
        "zcdp": "zero-concentrated DP: mu^2 / 2",
        "rdp_slope": "Renyi-DP of order alpha: alpha times this",
    }
    numbers = privacy_numbers(privacy)
    return _table("Privacy", "currency", [(k, round_up(numbers[k]), meanings[k]) for k in numbers])


def _table(title: str, first: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    columns = Column(first, style="bold"), Column("value", justify="right")
    table = Table(*columns, Column("meaning", style="dim"), title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def read_spending(path: str | os.PathLike[str]) -> Account:
    """The account of a ledger, or of that of a run directory. Takes no lock and writes nothing."""
    if os.path.isdir(path):
        path = data_ledger.of_run(path) or os.path.join(path, LEDGER)
    return read_ledger(path)


def spending_numbers(account: Account, delta: float | None = None) -> dict[str, Any]:
    """Every run of a ledger, and their sum. `None` for a budget means that there is no limit.

    A run's `epsilon` is at the run's own `delta`, as its statement quotes it. Totals, budget and
    what remains are at `delta`; left out, it is the largest delta of the runs.
    """
    runs = account.runs
    if delta is None:
        delta = max((run.identity.delta for run in runs.values()), default=DEFAULT_DELTA)
    remaining = account.remaining()
    unlimited = math.isinf(remaining)
    return {
        "cohort": account.cohort,
        "unit": account.unit,
        "delta": delta,
        "runs": [
            {
                "run": name,
                "plan": run.identity.plan,
                "data": run.identity.data,
                "since": run.since,
                "unit": run.identity.unit,
                "steps_begun": run.next_step,
                "steps_replayed": sum(attempt.replayed for attempt in run.attempts),
                "attempts": len(run.attempts),
                "neighbours": run.identity.neighbours,
                "mu": account.spent(name),
                "secrecy": account.secrecy(name),
                "epsilon": account.epsilon(run.identity.delta, name),
                "delta": run.identity.delta,
            }
            for name, run in runs.items()
        ],
        "mu": account.spent(),
        "secrecy": account.secrecy(),
        "epsilon": account.epsilon(delta),
        "budget_mu": account.budget,
        "budget_epsilon": None if account.budget is None else _epsilon(account.budget, delta),
        "remaining_mu": None if unlimited else remaining,
        "remaining_epsilon": None if unlimited else _epsilon(remaining, delta),
    }


def spending_table(account: Account, delta: float | None = None) -> Table:
    """The same as a table. Epsilons do not add up: mu does, in squares."""
    numbers = spending_numbers(account, delta)
    unit, how = (account.unit or "nobody yet").removesuffix(f" ({ZERO_OUT})"), "replacing"
    if account.unit is not None and account.unit.endswith(ZERO_OUT + ")"):
        how = "leaving out or adding"
    changed = f"{how} {unit}"
    # As Text: names are the user's own, and may look like markup.
    title = Text(f"Spent on the people of {str(account.cohort)[:40]}", style="table.title")
    caption = Text(
        "A run's epsilon is at the run's own delta; total, budget and remaining are at delta "
        f"{numbers['delta']:g}. All are for {changed}.{_beside(numbers['secrecy'])}"
    )
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("run", style="bold", overflow="fold")
    table.add_column("plan")
    table.add_column("since")
    for heading in ("steps begun", "mu", "epsilon", "at delta"):
        table.add_column(heading, justify="right")
    for run in numbers["runs"]:
        names = (Text(run["run"]), Text(run["plan"][:8]), Text(run["since"]))
        amounts = map(_number, (run["mu"], run["epsilon"], run["delta"]))
        table.add_row(*names, f"{run['steps_begun']:,}", *amounts)
    table.add_section()
    for name, prefix in (("total", ""), ("budget", "budget_"), ("remaining", "remaining_")):
        amounts = (numbers[prefix + "mu"], numbers[prefix + "epsilon"], numbers["delta"])
        table.add_row(name, "", "", "", *map(_number, amounts))
    return table


def _beside(secrecy: float) -> str:
    if not secrecy:
        return ""
    return f" Secret batches cost {round_up(secrecy, 2)} of delta, which is in these epsilons."


def _epsilon(mu: float, delta: float) -> float:
    return accounting.epsilon(mu, delta) if mu > 0 else 0.0


def _number(value: float | None) -> str:
    return "no limit" if value is None else round_up(value)


# A vector that its clamps leave just as long as the clip norm is not cut: that is rounding.
_ROUNDING = 1e-6


def fraction_clipped(loss: Loss, params: PyTree, public_data: PyTree, plan: Plan) -> float:
    """The share of records whose GRAD vector at `params` is longer than the plan's clip norm.

    `public_data` must be public: simulated, or published. This function looks at records directly
    and charges nothing. On private records its answer would be a release without noise, and so would
    be a clip norm chosen by looking at them, or by comparing runs: no privacy statement of this
    package accounts for such a choice. Choose on public records, or before seeing any.
    """
    space, records = ParameterSpace.of(params), count_records(public_data)
    with jax.enable_x64(True):
        check_loss(loss, params, public_data)
        point = space.flatten(params)
        made = vectors_of_loss(
            plan.estimator.working_in(np.result_type(*space.dtypes)),
            lambda at, record: loss(space.unflatten(at), record),
            jax.tree.map(jnp.asarray, public_data),
        )
        query = Query(point, point, fresh_keys().public, Kind.GRAD)
        vectors = made.contributions(query, records)
        longest = float(plan.terms.first_clip) * (1 + _ROUNDING)

        def cut(start: Int[Array, ""]) -> Bool[Array, " some"]:
            # Past the end the last record is asked again, and cut off below.
            rows = jnp.minimum(start + jnp.arange(vectors.batch_size), records - 1)
            return jnp.linalg.norm(vectors.of(rows, rows), axis=1) > longest

        cuts = jax.lax.map(cut, jnp.arange(0, records, vectors.batch_size))
        return float(jnp.mean(cuts.ravel()[:records]))
