"""Commands that need no records: `privacy`, `plan`, `audit` and `report`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console

from blindstep.cli import WHOLE, AsJson, Delta, Epsilon, Mu, print_json
from blindstep.cli.choices import method_from, with_choices
from blindstep.errors import InvalidArgument
from blindstep.insight import audit as auditing
from blindstep.insight.audit_bounds import audit_table, save_plot
from blindstep.insight.report import report_run_directory
from blindstep.insight.tables import plan_table, privacy_numbers, privacy_table
from blindstep.ledger.budget import DEFAULT_DELTA, Privacy
from blindstep.ledger.files import read_file
from blindstep.ledger.storage import PLAN
from blindstep.planning.checks import doubts
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan as make_plan


def privacy(
    mu: Mu = None, epsilon: Epsilon = None, delta: Delta = DEFAULT_DELTA, as_json: AsJson = False
) -> None:
    """Convert a privacy budget, exactly: mu to epsilon, or epsilon to mu."""
    budget = Privacy(epsilon, delta, mu=mu)
    if as_json:
        print_json(privacy_numbers(budget))
    else:
        Console().print(privacy_table(budget))


def plan(
    dim: Annotated[int, typer.Option(help="Number of parameters.", **WHOLE)],
    records: Annotated[int | None, typer.Option(help="Number of records.", **WHOLE)] = None,
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
    sizes = {"dim": dim, "records": records, "tolerance": tolerance}
    made = make_plan(method_from(choices), privacy=Privacy(epsilon, delta, mu=mu), **sizes)
    if as_json:
        print_json(made.to_dict())
        return
    console = Console()
    console.print(plan_table(made))
    for note in made.notes:
        console.print(f"- {note}", style="bold red" if note.startswith("VACUOUS") else None)
    for doubt in doubts(made):
        console.print(f"- HOPELESS: {doubt}", style="bold red")


plan = with_choices(plan)

# What is audited where nothing is said: each value belongs to an option and is used only if the
# others of its row are left out too, since they say the same in other words.
_DEFAULTS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("dim", 10, ()),
    ("radius", 0.1, ()),
    ("records", 100_000, ("tolerance",)),
    ("mu", 1.0, ("epsilon",)),
    ("lipschitz", 1.0, ("clip",)),
    ("gap", 1.0, ("clip",)),
)


def audit(
    plan_file: Annotated[
        str | None,
        typer.Option("--plan", help="A plan: the JSON of `blindstep plan`, or a run directory."),
    ] = None,
    attack: Annotated[
        str, typer.Option(help=f"One of: {', '.join(auditing.ATTACKS)}.")
    ] = "many-runs",
    pairs: Annotated[int | None, typer.Option(help="Trials to count.")] = None,
    confidence: Annotated[float, typer.Option(help="That the bound is right.")] = 0.999,
    seed: Annotated[int | None, typer.Option(help="For reproduction.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write a picture to this file.")] = None,
    as_json: AsJson = False,
    **choices: Any,
) -> None:
    """Attack a plan through its own code: a lower bound on mu against what is claimed.

    Takes the options of `blindstep plan`, or a plan. Exit code 1 if the claim is broken.
    """
    plan = _read(plan_file, choices) if plan_file else _described(choices)
    found = auditing.audit(plan, attack=attack, pairs=pairs, confidence=confidence, seed=seed)
    if plot is not None:
        try:
            save_plot(found, plot)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"the picture {plot} cannot be written: {error}.") from error
    if as_json:
        print_json(found.to_dict())
    else:
        Console().print(audit_table(found))
    if not found.holds:
        raise typer.Exit(1)


def _described(choices: dict[str, Any]) -> Plan:
    """The plan that the options describe, with what is audited where nothing is said."""
    options, scaled = dict(choices), choices["method"] == "auto"
    for name, value, others in _DEFAULTS:
        if scaled and name in ("radius", "lipschitz", "gap"):
            continue  # such a plan has none
        if all(options[other] is None for other in (name, *others)):
            options[name] = value
    free = all(options[name] is None for name in ("horizon", "rounds", "tolerance"))
    if choices["method"] == "paper" and free:
        # The theorem's own horizon would be refused where it promises nothing; privacy is the same.
        options["horizon"] = 16
    mu, epsilon, delta = (options.pop(name) for name in ("mu", "epsilon", "delta"))
    sizes = {name: options.pop(name) for name in ("dim", "records", "tolerance")}
    return make_plan(method_from(options), privacy=Privacy(epsilon, delta, mu=mu), **sizes)


def _read(path: str, options: dict[str, Any]) -> Plan:
    usual = {"delta": DEFAULT_DELTA}
    given = [name for name, value in options.items() if value not in (None, usual.get(name))]
    if given:
        raise InvalidArgument(f"give either --plan or {', '.join(given)}: the plan has them all.")
    file_name = os.path.join(path, PLAN) if os.path.isdir(path) else path
    try:
        return Plan.from_json(read_file(file_name).decode())
    except OSError as error:
        raise InvalidArgument(
            f"{file_name} cannot be read ({error.strerror}): give the JSON of `blindstep plan`, or a "
            "run directory."
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"{file_name}: {error}") from error


audit = with_choices(audit, plan)


def report(
    directory: Annotated[str, typer.Argument(help="The directory of a run, finished or not.")],
    out: Annotated[
        str | None, typer.Option(help="The file to write. Default: DIRECTORY-report.html.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The heading.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger, where the run did not keep its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report of a run: privacy, noise, plan, ledger; nothing secret.

    The run directory holds the noise key, so the page goes beside it, not into it.
    """
    path = report_run_directory(directory, out, title=title, ledger=ledger)
    if as_json:
        print_json({"report": str(path)})
    else:
        print(f"{path}: the report, for a browser. It holds nothing secret.")
