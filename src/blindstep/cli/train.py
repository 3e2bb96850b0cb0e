"""`blindstep train`: a private run on a problem file, across crashes.

With a budget and nothing else the run finds its scales itself. With --radius it is planned in units of
the parameters, by bounds that are known or clipped to, and may certify a tolerance.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from jaxtyping import PyTree
from rich.console import Console

from blindstep.cli.common import (
    AsJson,
    Delta,
    Epsilon,
    Mu,
    fail,
    print_json,
    refuse_without_radius,
    stop,
)
from blindstep.cli.dry_run import rehearse_run
from blindstep.cli.ledger import about_ledger, ledger_notes, ledger_of
from blindstep.cli.problem_file import ProblemFile, load_problem
from blindstep.errors import BlindstepError, InvalidArgument, LedgerError, StorageError
from blindstep.estimate.bounds import Bounds, Clip
from blindstep.estimate.gradients import COST
from blindstep.insight.report import report as write_report
from blindstep.ledger import data_ledger
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.storage import Storage
from blindstep.losses.people import ROWS, count_people
from blindstep.losses.pytrees import ParameterSpace, count_records
from blindstep.planning.choices import ESTIMATES, GRADIENT, PRESETS, VALUES
from blindstep.planning.plan import Plan
from blindstep.private import accounting
from blindstep.private.statement import DEFAULT_DELTA, Privacy, round_up
from blindstep.run import planned
from blindstep.run.compiled import minimize
from blindstep.run.planned import plan_for
from blindstep.run.progress import how_to_go_on
from blindstep.run.result import Result

_DEFAULT_CLIP = 1.0
_ANSWER, _THEOREM = "params", "random_round"
# Without L and the gap nothing says how many passes are best; noise grows as their square root only,
# so take many where they cost little: 20, or what this many evaluations of the loss allow.
_MOST_PASSES, _CHEAP_EVALUATIONS = 20, 10**9


_IN_YOUR_UNITS = "With --radius: a plan in units of the parameters"


def _known(words: str) -> Any:
    """An option that only a run with a radius has."""
    return typer.Option(help=words, rich_help_panel=_IN_YOUR_UNITS)


def train(
    problem: Annotated[
        Path, typer.Argument(help="A Python file that defines loss, params and data.")
    ],
    mu: Mu = None,
    epsilon: Epsilon = None,
    delta: Delta = DEFAULT_DELTA,
    evaluations: Annotated[
        int | None,
        typer.Option(help="Most loss evaluations. Default: about a minute of a laptop's work."),
    ] = None,
    passes: Annotated[int | None, typer.Option(help="Most passes over the records.")] = None,
    directions: Annotated[int | None, typer.Option(help="Directions of a step.")] = None,
    estimate: Annotated[
        str | None,
        typer.Option(help=f"One of: {', '.join(ESTIMATES)}. Default: {VALUES} of the loss."),
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(
            help="Goldstein radius to aim for. Without one the run finds its scales itself.",
            rich_help_panel=_IN_YOUR_UNITS,
        ),
    ] = None,
    lipschitz: Annotated[
        float | None, _known("Lipschitz bound of the loss; or in the file.")
    ] = None,
    gap: Annotated[float | None, _known("Bound on F(start) - inf F; or in the file.")] = None,
    clip: Annotated[float | None, _known("Clip norm of a record's gradient.")] = None,
    preset: Annotated[str | None, _known(f"One of: {', '.join(PRESETS)}. Default: tight.")] = None,
    horizon: Annotated[int | None, _known("Steps in a round.")] = None,
    batch: Annotated[int | None, _known("Records of a step.")] = None,
    smoothing: Annotated[float | None, _known("Smoothing radius.")] = None,
    reach: Annotated[float | None, _known("Longest step.")] = None,
    people: Annotated[
        str | None,
        typer.Option(
            help="The column of data that says whose row it is; the loss does not see it."
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="With --people: rows of a person used at most, 8 by default.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Run directory, SECRET: it holds the noise key. Default: PROBLEM-run."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="A ledger that all runs on the same people share. Default: one for each data file, "
            "whose place is printed; where data are not a file, one in the run directory."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Epsilon that all runs in the ledger may spend, at --delta."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the answer goes. Default: PROBLEM-result.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check everything and show the cost; spend and write nothing."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train privately on a problem file. The same command goes on after a crash."""
    directory = checkpoint or problem.with_name(f"{problem.stem}-run")
    results = out or problem.with_name(f"{problem.stem}-result")
    # Progress and notes go to stderr, so that stdout holds the answer, or JSON, and nothing else.
    notes = Console(stderr=True, highlight=False, markup=False, quiet=as_json)
    try:
        given = load_problem(problem, people)
        known = {"lipschitz": lipschitz, "gap": gap, "clip": clip}
        units = {"horizon": horizon, "batch": batch, "smoothing": smoothing, "reach": reach}
        space, records = ParameterSpace.of(given.params), count_records(given.data)
        if given.people is not None:
            records = count_people(given.people, records)
            notes.print(f"One person is one record, with at most {rows or ROWS} of their rows.")
        each = 1 if given.people is None else rows or ROWS
        choices: dict[str, Any] = {
            "passes": passes,
            "directions": directions,
            "evaluations": evaluations,
            "estimate": estimate,
        }
        if preset == "auto" or (preset is None and radius is None):
            refuse_without_radius({"radius": radius, **known, **units})
            _say_what_is_not_needed(given, notes)
        else:
            choices |= {"preset": preset or "tight", "radius": radius} | units
            choices["first_batch"] = choices.pop("batch")
            choices |= _bounds(given, notes, **known)
            if choices["preset"] == "tight" and passes is None:
                of_a_record = 2 * min(space.dim, directions or 256)
                if estimate == GRADIENT:
                    of_a_record = COST
                choices["passes"] = _passes(choices, of_a_record * records * each)
        choices |= {"privacy": Privacy(epsilon, delta, mu=mu), "checkpoint": directory}
        made = plan_for(space, records, None, choices, lambda: _effort(given, each))
        limit = None if budget is None else Privacy(budget, delta)
        _refuse_secret(results, directory)
        ledger = ledger or ledger_of(given, directory, write=not dry_run)
        if dry_run:
            if ledger is None and given.source is not None:
                notes.print(f"A ledger of {given.source} would be begun in {data_ledger.home()}.")
            rehearse_run(given, made, Storage(directory, ledger, limit), each, as_json)
            return
        _introduce(made, Storage(directory, ledger), given, notes)
        result = minimize(
            given.loss,
            given.params,
            given.data,
            people=given.people,
            rows=rows,
            plan=made,
            checkpoint=directory,
            ledger=ledger,
            budget=limit,
            progress=not as_json,
        )
        files = _save(results, result)
        place, title = Storage(directory, ledger).ledger_path, f"A private run: {problem.name}"
        page = write_report(result, results / "report.html", title=title, ledger=place)
        files["report"] = str(page)
        spent = accounting.epsilon(read_ledger(place).spent(), made.delta)
    except BlindstepError as error:
        if isinstance(error, LedgerError) and (ledger or directory.exists()):
            notes.print(about_ledger(Storage(directory, ledger), delta))
        elif isinstance(error, StorageError):
            notes.print(f"(The run directory is {directory}; --checkpoint gives another one.)")
        fail(error, as_json)
    except KeyboardInterrupt:
        stop(how_to_go_on(directory, call="command"))
    if as_json:
        told = {"privacy": result.privacy.to_dict(), "plan": made.to_dict()}
        kept = {"checkpoint": str(directory), "ledger": place, "ledger_epsilon": spent}
        print_json(told | files | {"outcome": result.outcome} | kept)
        return
    Console(highlight=False, markup=False).print(str(result.privacy))
    print(f"\n{result.outcome}")
    which = "the start"
    if result.best_round is not None:
        which = f"the mean of round {result.best_round % made.rounds + 1} of {made.rounds}"
    print(f"\n{files[_ANSWER]}: the answer, {which}.")
    if _THEOREM in files:
        print(
            f"{files[_THEOREM]}: the mean of round {result.random_round + 1} of {made.rounds}, chosen "
            f"at random: the point that the tolerance of {made.tolerance:.3g} speaks of."
        )
    print(f"{files['report']}: the report, for a browser.")
    print(f"{directory}: SECRET, holds the noise key.")
    print(
        f"{place}: the ledger. All runs in it have spent epsilon {round_up(spent, 4)} at delta "
        f"{made.delta:g}; `blindstep ledger show {directory}` prints them."
    )


def _effort(given: ProblemFile, rows: int) -> int:
    """Evaluations of a record, each of which calls the loss `rows` times, in about a minute."""
    return max(1, planned.of_compiled(given.loss, given.params, given.data) // rows)


def _say_what_is_not_needed(given: ProblemFile, notes: Console) -> None:
    """A file may know more of its loss than a run that finds its scales has use for."""
    if given.known:
        notes.print(
            f"{', '.join(given.known)} in the file: for runs with --radius. This one finds its scales "
            "itself, and is as private for any loss."
        )


def _passes(choices: dict[str, Any], evaluations: int) -> int | None:
    """Passes where nothing says how many are best; None where L and the gap do."""
    if {"lipschitz", "gap"} <= choices.keys():
        return None
    return max(1, min(_MOST_PASSES, _CHEAP_EVALUATIONS // evaluations))


def _bounds(
    given: ProblemFile,
    notes: Console,
    *,
    lipschitz: float | None,
    gap: float | None,
    clip: float | None,
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


def _introduce(plan: Plan, storage: Storage, given: ProblemFile, notes: Console) -> None:
    """Say what is going to happen, what it costs, and where that is written down."""
    sizes, steps = f"{plan.records:,} records, {plan.dim:,} parameters", plan.rounds * plan.horizon
    if plan.calibrations:
        notes.print(f"{sizes}, {plan.passes} pass(es). The run finds its scales itself.")
    else:
        notes.print(
            f"{sizes}, {plan.passes} pass(es): {steps:,} steps of at most {plan.reach:.3g}, so "
            f"parameters move at most {steps * plan.reach:.3g} in all. More --passes, or a larger "
            "--radius or --reach, let them go further."
        )
    for note in plan.notes:
        notes.print(note)
    if storage.begun:
        notes.print(f"Going on with the run in {storage.directory}.")
    else:
        notes.print(
            f"A new run in {storage.directory}: it spends epsilon {plan.epsilon:.4g} at delta "
            f"{plan.delta:g}."
        )
    for note in ledger_notes(plan, storage, given.source):
        notes.print(note, soft_wrap=True)


def _refuse_secret(results: Path, directory: Path) -> None:
    """Raise if the answer, which is for others, would go where the noise key is."""
    inside = directory.resolve() in (results.resolve(), *results.resolve().parents)
    if inside or data_ledger.secret_directory(results) is not None:
        raise InvalidArgument(
            f"--out {results} is in a run directory, which holds the noise key, and the answer is made "
            "to be shown: give a place outside of it."
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
