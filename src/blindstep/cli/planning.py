"""`blindstep privacy` and `blindstep plan`: what a budget means, and what a run with it would be."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from blindstep.cli.choices import method_from, with_choices
from blindstep.cli.common import AsJson, Delta, Epsilon, Mu, fail, print_json
from blindstep.errors import BlindstepError
from blindstep.insight.tables import plan_table, privacy_numbers, privacy_table
from blindstep.planning.checks import doubts
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan as make_plan
from blindstep.private.statement import DEFAULT_DELTA, Privacy


def privacy(
    mu: Mu = None, epsilon: Epsilon = None, delta: Delta = DEFAULT_DELTA, as_json: AsJson = False
) -> None:
    """Convert a privacy budget, exactly: mu to epsilon, or epsilon to mu."""
    try:
        budget = Privacy(epsilon, delta, mu=mu)
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json(privacy_numbers(budget))
    else:
        Console().print(privacy_table(budget))


def plan(
    dim: Annotated[int, typer.Option(help="Number of parameters.")],
    records: Annotated[int | None, typer.Option(help="Number of records.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stationarity wanted: gives the records it takes.")
    ] = None,
    mu: Mu = None,
    epsilon: Epsilon = None,
    delta: Delta = DEFAULT_DELTA,
    as_json: AsJson = False,
    **choices: Any,
) -> None:
    """Plan a run: every number of it, what it costs and what it certifies.

    Without --radius: the run that finds its own scales.
    """
    try:
        sizes = {"dim": dim, "records": records, "tolerance": tolerance}
        made = plan_from(Privacy(epsilon, delta, mu=mu), sizes, choices)
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json(made.to_dict())
        return
    console = Console()
    console.print(plan_table(made))
    for note in made.notes:
        console.print(f"- {note}", style="bold red" if note.startswith("VACUOUS") else None)
    for doubt in doubts(made):
        console.print(f"- HOPELESS: {doubt}", style="bold red")


def plan_from(budget: Privacy, sizes: dict[str, Any], choices: dict[str, Any]) -> Plan:
    """The plan that the options of `blindstep plan` describe."""
    return make_plan(method_from(choices), privacy=budget, **sizes)


plan = with_choices(plan)
