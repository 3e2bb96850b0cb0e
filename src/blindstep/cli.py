"""The command line: `blindstep privacy | plan | demo | ledger`, each with `--json` for machines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from blindstep.errors import BlindstepError
from blindstep.insight import demo as demonstration
from blindstep.insight.spending import read_spending, spending_numbers, spending_table
from blindstep.insight.tables import plan_table, privacy_numbers, privacy_table
from blindstep.optimize.plan import MECHANISMS, SAMPLERS
from blindstep.optimize.planner import PRESETS
from blindstep.optimize.planner import plan as make_plan
from blindstep.optimize.request import ORACLES
from blindstep.trusted.bounds import Clip
from blindstep.trusted.privacy import DEFAULT_DELTA, Privacy

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Differentially private optimization from function values alone.",
    pretty_exceptions_enable=False,
)

ledger_app = typer.Typer(no_args_is_help=True, help="What was spent, run by run.")
app.add_typer(ledger_app, name="ledger")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Rho = Annotated[float | None, typer.Option(help="Gaussian-DP budget (the paper's rho).")]
Epsilon = Annotated[float | None, typer.Option(help="Epsilon of (epsilon, delta)-DP.")]
Delta = Annotated[float, typer.Option(help="Delta of (epsilon, delta)-DP.")]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _fail(error: BlindstepError, as_json: bool) -> NoReturn:
    if as_json:
        _print_json({"error": type(error).__name__, "message": str(error)})
    print(f"blindstep: {error}", file=sys.stderr)
    raise typer.Exit(2)


@app.command()
def privacy(
    rho: Rho = None, epsilon: Epsilon = None, delta: Delta = DEFAULT_DELTA, as_json: AsJson = False
) -> None:
    """Convert a privacy budget, exactly: rho to epsilon, or epsilon to rho."""
    try:
        budget = Privacy(epsilon, delta, rho=rho)
    except BlindstepError as error:
        _fail(error, as_json)
    if as_json:
        _print_json(privacy_numbers(budget))
    else:
        Console().print(privacy_table(budget))


@app.command()
def plan(
    dim: Annotated[int, typer.Option(help="Number of parameters.")],
    radius: Annotated[float, typer.Option(help="Goldstein radius to certify.")],
    records: Annotated[int | None, typer.Option(help="Number of records.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stationarity wanted: gives the records it takes.")
    ] = None,
    rho: Rho = None,
    epsilon: Epsilon = None,
    delta: Delta = DEFAULT_DELTA,
    lipschitz: Annotated[float | None, typer.Option(help="Lipschitz bound of the loss.")] = None,
    gap: Annotated[float | None, typer.Option(help="Bound on F(start) - inf F.")] = None,
    clip: Annotated[float | None, typer.Option(help="Clip norm of a record's GRAD.")] = None,
    diff_clip: Annotated[float | None, typer.Option(help="Clip norm of a record's DIFF.")] = None,
    preset: Annotated[str, typer.Option(help=f"One of: {', '.join(PRESETS)}.")] = "tight",
    oracle: Annotated[str | None, typer.Option(help=f"One of: {', '.join(ORACLES)}.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps in an epoch (T).")] = None,
    period: Annotated[int | None, typer.Option(help="Steps from one GRAD to the next.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs (K).")] = None,
    passes: Annotated[int | None, typer.Option(help="Passes over the records.")] = None,
    first_batch: Annotated[int | None, typer.Option(help="Records of a GRAD (B1).")] = None,
    diff_batch: Annotated[int | None, typer.Option(help="Records of a DIFF (B2).")] = None,
    directions: Annotated[int | None, typer.Option(help="Directions for each record (q).")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Most loss evaluations.")] = None,
    mechanism: Annotated[str | None, typer.Option(help=f"One of: {', '.join(MECHANISMS)}.")] = None,
    sampler: Annotated[str | None, typer.Option(help=f"One of: {', '.join(SAMPLERS)}.")] = None,
    sharing: Annotated[str | None, typer.Option(help="One of: record, batch, block.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Smoothing radius (h).")] = None,
    reach: Annotated[float | None, typer.Option(help="Longest step (D).")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a run: every number of it, what it costs and what it certifies."""
    try:
        fixed = {
            "oracle": oracle,
            "horizon": horizon,
            "period": period,
            "epochs": epochs,
            "passes": passes,
            "first_batch": first_batch,
            "diff_batch": diff_batch,
            "directions": directions,
            "evaluations": evaluations,
            "mechanism": mechanism,
            "sampler": sampler,
            "sharing": sharing,
            "smoothing": smoothing,
            "reach": reach,
        }
        made = make_plan(
            dim=dim,
            privacy=Privacy(epsilon, delta, rho=rho),
            radius=radius,
            records=records,
            tolerance=tolerance,
            preset=preset,
            lipschitz=lipschitz,
            gap=gap,
            bounds=None if clip is None else Clip(clip, diff_clip),
            **fixed,
        )
    except BlindstepError as error:
        _fail(error, as_json)
    if as_json:
        _print_json(made.to_dict())
        return
    console = Console()
    console.print(plan_table(made))
    for note in made.notes:
        console.print(f"- {note}", style="bold red" if note.startswith("VACUOUS") else None)


@app.command()
def demo(as_json: AsJson = False) -> None:
    """Run the paper's algorithm on a small embedded problem, at several epsilons."""
    stories = demonstration.run(progress=not as_json)
    if as_json:
        _print_json([asdict(story) for story in stories])
        return
    table = Table(title="One meeting point for 40,000 people, from 4 distances asked of each")
    for heading in ("", "meeting point (km)", "mean walk (km)"):
        table.add_column(heading, justify="right")
    for story in stories:
        table.add_row(
            story.label, f"({story.place[0]:.2f}, {story.place[1]:.2f})", f"{story.mean_walk:.3f}"
        )
    console = Console()
    console.print(table)
    for story in stories:
        if story.epsilon == 1.0:
            console.print(f"\nThe guarantee of the row at epsilon 1:\n{story.statement}")


@ledger_app.command()
def show(
    path: Annotated[str, typer.Argument(help="A ledger, or a run directory.")],
    delta: Delta = DEFAULT_DELTA,
    as_json: AsJson = False,
) -> None:
    """Show what each run in a ledger has spent, their sum and what remains of the budget."""
    try:
        account = read_spending(path)
        numbers, table = spending_numbers(account, delta), spending_table(account, delta)
    except BlindstepError as error:
        _fail(error, as_json)
    if as_json:
        _print_json(numbers)
    else:
        Console().print(table)


def main() -> None:
    """Entry point of the `blindstep` command."""
    app()
