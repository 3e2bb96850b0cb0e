"""`blindstep train`: a private run on a problem file, across crashes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from jaxtyping import PyTree
from rich.console import Console

from blindstep.cli.common import AsJson, Delta, Epsilon, Rho, fail, print_json
from blindstep.drivers.compiled import minimize
from blindstep.drivers.planned import plan_for
from blindstep.drivers.problem_file import ProblemFile, load_problem
from blindstep.drivers.pytrees import ParameterSpace, count_records
from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import PRESETS
from blindstep.trusted.bounds import Bounds, Clip
from blindstep.trusted.checkpoint import CURRENT
from blindstep.trusted.privacy import DEFAULT_DELTA, Privacy
from blindstep.trusted.refusals import StorageError

_DEFAULT_CLIP = 1.0
# Without L and the gap nothing says how many passes are best; noise grows as their square root only,
# so take many where they cost little: 20, or what this many evaluations of the loss allow.
_MOST_PASSES, _CHEAP_EVALUATIONS = 20, 10**9


def train(
    problem: Annotated[
        Path, typer.Argument(help="A Python file that defines loss, params and data.")
    ],
    radius: Annotated[float, typer.Option(help="Goldstein radius to aim for.")],
    rho: Rho = None,
    epsilon: Epsilon = None,
    delta: Delta = DEFAULT_DELTA,
    lipschitz: Annotated[
        float | None, typer.Option(help="Lipschitz bound of the loss; or in the file.")
    ] = None,
    gap: Annotated[
        float | None, typer.Option(help="Bound on F(start) - inf F; or in the file.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Clip norm of a record's gradient.")] = None,
    preset: Annotated[str, typer.Option(help=f"One of: {', '.join(PRESETS)}.")] = "tight",
    passes: Annotated[int | None, typer.Option(help="Passes over the records.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps in an epoch.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records of a step.")] = None,
    directions: Annotated[int | None, typer.Option(help="Directions of a step.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Smoothing radius.")] = None,
    reach: Annotated[float | None, typer.Option(help="Longest step.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Most loss evaluations.")] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Exact sums and noise, on a lattice.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Run directory, SECRET: it holds the noise key. Default: PROBLEM-run."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger that all runs on the same people share.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the answer goes. Default: PROBLEM-result.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train privately on a problem file. The same command goes on after a crash."""
    directory = checkpoint or problem.with_name(f"{problem.stem}-run")
    results = out or problem.with_name(f"{problem.stem}-result")
    # Progress and notes go to stderr, so that stdout holds the answer, or JSON, and nothing else.
    notes = Console(stderr=True, highlight=False, quiet=as_json)
    try:
        given = load_problem(problem)
        fixed = {
            "preset": preset,
            "passes": passes,
            "horizon": horizon,
            "first_batch": batch,
            "directions": directions,
            "smoothing": smoothing,
            "reach": reach,
            "evaluations": evaluations,
            "secure": secure or None,
        }
        choices = {name: value for name, value in fixed.items() if value is not None}
        choices |= _bounds(given, lipschitz, gap, clip, notes)
        space, records = ParameterSpace.of(given.params), count_records(given.data)
        if preset == "tight" and not {"lipschitz", "gap"} <= choices.keys():
            cheap = _CHEAP_EVALUATIONS // (2 * min(space.dim, directions or 256) * records)
            choices = {"passes": max(1, min(_MOST_PASSES, cheap)), **choices}
        budget = Privacy(epsilon, delta, rho=rho)
        made = plan_for(space, records, None, budget, radius, choices)
        _introduce(made, directory, notes)
        result = minimize(
            given.loss,
            given.params,
            given.data,
            plan=made,
            checkpoint=directory,
            ledger=ledger,
            progress=not as_json,
        )
        files = _save(results, {"params": result.params, "last": result.last})
        title, spent = f"A private run: {problem.name}", ledger or directory
        report = str(result.report(results / "report.html", title=title, ledger=spent))
    except BlindstepError as error:
        if isinstance(error, StorageError):
            notes.print(f"(The run directory is {directory}; --checkpoint gives another one.)")
        fail(error, as_json)
    except KeyboardInterrupt:
        notes.print(f"Stopped; the same command goes on where it was, from {directory}.")
        raise typer.Exit(130) from None
    if as_json:
        print_json(
            {
                "privacy": result.privacy.to_dict(),
                "plan": made.to_dict(),
                "params": files["params"],
                "last": files["last"],
                "report": report,
                "checkpoint": str(directory),
            }
        )
        return
    console = Console(highlight=False)
    console.print(str(result.privacy))
    console.print(f"\n{files['params']}: the answer that the theorem speaks of, one epoch's mean.")
    console.print(f"{files['last']}: the last epoch's mean, as private and often better.")
    console.print(f"{report}: the report, for a browser.")
    console.print(f"{directory}: SECRET, holds the noise key. `blindstep ledger show` reads it.")


def _bounds(
    given: ProblemFile,
    lipschitz: float | None,
    gap: float | None,
    clip: float | None,
    notes: Console,
) -> dict[str, Any]:
    """What is enforced: from the command line, else from the file, else a clip norm of 1."""
    choices = dict(given.known)
    choices |= {k: v for k, v in (("lipschitz", lipschitz), ("gap", gap)) if v is not None}
    if clip is not None:
        choices["bounds"] = choices.get("bounds", Bounds()) & Clip(clip)
    if "bounds" not in choices and "lipschitz" not in choices:
        choices["bounds"] = Clip(_DEFAULT_CLIP)
        notes.print(
            f"No bound on the loss was given, so a record's gradient is clipped to norm "
            f"{_DEFAULT_CLIP:g}. That is private for any loss; --clip, or `lipschitz` or `bounds` in "
            "the file, may serve yours better."
        )
    return choices


def _introduce(plan: Plan, directory: Path, notes: Console) -> None:
    """What is going to happen, in three lines."""
    steps = plan.epochs * plan.horizon
    notes.print(
        f"{plan.records:,} records, {plan.dim:,} parameters, {plan.passes} pass(es): {steps:,} steps "
        f"of at most {plan.reach:.3g}, so parameters move at most {steps * plan.reach:.3g} in all. "
        "More --passes, or a larger --radius or --reach, let them go further."
    )
    for note in plan.notes:
        notes.print(note)
    if (directory / CURRENT).exists():
        notes.print(f"Going on with the run in {directory}.")


def _save(directory: Path, answers: dict[str, PyTree]) -> dict[str, str]:
    """Each answer as `NAME.npz` without pickle, one array for each leaf, named by its path."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, tree in answers.items():
            arrays = {
                jax.tree_util.keystr(path, simple=True, separator="/") or name: np.asarray(leaf)
                for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            }
            temporary = directory / f".{name}.npz"
            with open(temporary, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            os.replace(temporary, directory / f"{name}.npz")
    except OSError as error:
        raise InvalidArgument(
            f"the answer cannot be written to {directory} ({error.strerror}): give another --out. "
            "The run is finished and kept: the same command with it costs nothing more."
        ) from error
    return {name: str(directory / f"{name}.npz") for name in answers}
