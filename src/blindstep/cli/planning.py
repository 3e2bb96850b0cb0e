"""`blindstep privacy` and `blindstep plan`: what a budget means, and what a run with it would be."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from blindstep.cli.common import (
    AsJson,
    Delta,
    Epsilon,
    Mu,
    fail,
    print_json,
    refuse_without_radius,
)
from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.estimate.bounds import Clip
from blindstep.insight.tables import plan_table, privacy_numbers, privacy_table
from blindstep.optimize.prefix import MECHANISMS
from blindstep.planning.checks import doubts
from blindstep.planning.choices import ESTIMATES, ORACLES, PRESETS, SAMPLERS, SHARINGS
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan as make_plan
from blindstep.private.statement import DEFAULT_DELTA, Privacy

# The options of a plan without a radius.
_SELF_SCALING = ("dim", "records", "preset", "passes", "directions", "evaluations", "estimate")


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
    radius: Annotated[
        float | None,
        typer.Option(help="Goldstein radius to certify. Without one, the run finds its scales."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stationarity wanted: gives the records it takes.")
    ] = None,
    mu: Mu = None,
    epsilon: Epsilon = None,
    delta: Delta = DEFAULT_DELTA,
    lipschitz: Annotated[float | None, typer.Option(help="Lipschitz bound of the loss.")] = None,
    gap: Annotated[float | None, typer.Option(help="Bound on F(start) - inf F.")] = None,
    clip: Annotated[float | None, typer.Option(help="Clip norm of a record's GRAD.")] = None,
    diff_clip: Annotated[float | None, typer.Option(help="Clip norm of a record's DIFF.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"One of: {', '.join(PRESETS)}. Default: tight; scaled without a radius."
        ),
    ] = None,
    oracle: Annotated[str | None, typer.Option(help=f"One of: {', '.join(ORACLES)}.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps in a round (T).")] = None,
    period: Annotated[int | None, typer.Option(help="Steps from one GRAD to the next.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Restarts of the learner (K).")] = None,
    passes: Annotated[int | None, typer.Option(help="Most passes over the records.")] = None,
    first_batch: Annotated[int | None, typer.Option(help="Records of a GRAD (B1).")] = None,
    diff_batch: Annotated[int | None, typer.Option(help="Records of a DIFF (B2).")] = None,
    directions: Annotated[int | None, typer.Option(help="Directions for each record (q).")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Most loss evaluations.")] = None,
    mechanism: Annotated[str | None, typer.Option(help=f"One of: {', '.join(MECHANISMS)}.")] = None,
    sampler: Annotated[str | None, typer.Option(help=f"One of: {', '.join(SAMPLERS)}.")] = None,
    sharing: Annotated[str | None, typer.Option(help=f"One of: {', '.join(SHARINGS)}.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Smoothing radius (h).")] = None,
    reach: Annotated[float | None, typer.Option(help="Longest step (D).")] = None,
    estimate: Annotated[str | None, typer.Option(help=f"One of: {', '.join(ESTIMATES)}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a run: every number of it, what it costs and what it certifies.

    Without --radius: the run that finds its own scales.
    """
    options = {name: value for name, value in locals().items() if name != "as_json"}
    try:
        made = plan_from(**options)
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


def plan_from(
    *,
    mu: float | None,
    epsilon: float | None,
    delta: float,
    clip: float | None,
    diff_clip: float | None,
    **options: Any,
) -> Plan:
    """The plan that the options of `blindstep plan` describe."""
    if options["preset"] == "auto" or (options["preset"] is None and options["radius"] is None):
        own = {name: value for name, value in options.items() if name not in _SELF_SCALING}
        refuse_without_radius({**own, "clip": clip, "diff_clip": diff_clip})
    if clip is None and diff_clip is not None:
        raise InvalidArgument(f"--diff-clip {diff_clip:g} needs --clip too: give both.")
    return make_plan(
        privacy=Privacy(epsilon, delta, mu=mu),
        bounds=None if clip is None else Clip(clip, diff_clip),
        **options,
    )
