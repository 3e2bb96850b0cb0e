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
from blindstep.cli.problem_file import ProblemFile, load_problem
from blindstep.drivers.compiled import minimize
from blindstep.drivers.planned import plan_for
from blindstep.drivers.pytrees import ParameterSpace, count_records
from blindstep.drivers.result import Result
from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.estimate.bounds import Bounds, Clip
from blindstep.insight.report import report as write_report
from blindstep.ledger.checkpoint import CURRENT
from blindstep.ledger.refusals import StorageError
from blindstep.optimize.choices import PRESETS
from blindstep.optimize.plan import Plan
from blindstep.private.statement import DEFAULT_DELTA, Privacy

_DEFAULT_CLIP = 1.0
_ANSWER, _THEOREM = "params", "random_round"
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
    horizon: Annotated[int | None, typer.Option(help="Steps in a round.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records of a step.")] = None,
    directions: Annotated[int | None, typer.Option(help="Directions of a step.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Smoothing radius.")] = None,
    reach: Annotated[float | None, typer.Option(help="Longest step.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Most loss evaluations.")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Run directory, SECRET: it holds the noise key. Default: PROBLEM-run."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger that all runs on the same people share.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Epsilon that all runs in the ledger may spend, at --delta."),
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
    notes = Console(stderr=True, highlight=False, markup=False, quiet=as_json)
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
        }
        choices = {name: value for name, value in fixed.items() if value is not None}
        choices |= _bounds(given, lipschitz, gap, clip, notes)
        space, records = ParameterSpace.of(given.params), count_records(given.data)
        if preset == "tight" and not {"lipschitz", "gap"} <= choices.keys():
            cheap = _CHEAP_EVALUATIONS // (2 * min(space.dim, directions or 256) * records)
            choices = {"passes": max(1, min(_MOST_PASSES, cheap)), **choices}
        choices |= {"privacy": Privacy(epsilon, delta, rho=rho), "radius": radius}
        made = plan_for(space, records, None, choices)
        limit = None if budget is None else Privacy(budget, delta)
        _introduce(made, directory, notes)
        result = minimize(
            given.loss,
            given.params,
            given.data,
            plan=made,
            checkpoint=directory,
            ledger=ledger,
            budget=limit,
            progress=not as_json,
        )
        files = _save(results, result)
        title, spent = f"A private run: {problem.name}", ledger or directory
        files["report"] = str(
            write_report(result, results / "report.html", title=title, ledger=spent)
        )
    except BlindstepError as error:
        if isinstance(error, StorageError):
            notes.print(f"(The run directory is {directory}; --checkpoint gives another one.)")
        fail(error, as_json)
    except KeyboardInterrupt:
        notes.print(f"Stopped; the same command goes on where it was, from {directory}.")
        raise typer.Exit(130) from None
    if as_json:
        told = {"privacy": result.privacy.to_dict(), "plan": made.to_dict()}
        print_json(told | files | {"checkpoint": str(directory)})
        return
    Console(highlight=False, markup=False).print(str(result.privacy))
    print(f"\n{files[_ANSWER]}: the answer, the mean of the last round.")
    if _THEOREM in files:
        print(
            f"{files[_THEOREM]}: the mean of round {result.random_round + 1} of {made.rounds}, chosen "
            f"at random: the point that the tolerance of {made.tolerance:.3g} speaks of."
        )
    print(f"{files['report']}: the report, for a browser.")
    print(f"{directory}: SECRET, holds the noise key. `blindstep ledger show` reads it.")


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
    """Say what is going to happen and what it costs."""
    steps = plan.rounds * plan.horizon
    notes.print(
        f"{plan.records:,} records, {plan.dim:,} parameters, {plan.passes} pass(es): {steps:,} steps "
        f"of at most {plan.reach:.3g}, so parameters move at most {steps * plan.reach:.3g} in all. "
        "More --passes, or a larger --radius or --reach, let them go further."
    )
    for note in plan.notes:
        notes.print(note)
    if os.path.exists(directory / CURRENT):
        notes.print(f"Going on with the run in {directory}.")
    else:
        notes.print(
            f"A new run in {directory}: it spends epsilon {plan.epsilon:.4g} at delta {plan.delta:g}, "
            "besides what other runs on the same people spend."
        )


def _save(directory: Path, result: Result) -> dict[str, str]:
    """Write the answer to `params.npz`; where a tolerance is certified, its point beside it.

    Files hold one array for each leaf, named by its path, and no pickle.
    """
    answers = {_ANSWER: result.params}
    if result.plan.tolerance is not None:
        answers[_THEOREM] = result.random_round_mean
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # One that an earlier run left here would be taken for this one's.
        (directory / f"{_THEOREM}.npz").unlink(missing_ok=True)
        for name, tree in answers.items():
            _write_arrays(directory / f"{name}.npz", tree)
    except OSError as error:
        raise InvalidArgument(
            f"the answer cannot be written to {directory} ({error.strerror}): give another --out. "
            "The run is finished and kept: the same command with it costs nothing more."
        ) from error
    return {name: str(directory / f"{name}.npz") for name in answers}


def _write_arrays(path: Path, tree: PyTree) -> None:
    """Write the leaves of a tree, whole or not at all."""
    arrays = {
        jax.tree_util.keystr(where, simple=True, separator="/") or path.stem: np.asarray(leaf)
        for where, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    temporary = path.with_name(f".{path.name}")
    with open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    os.replace(temporary, path)
