"""`blindstep train`: a private run on a problem file, across crashes.

With a budget and nothing else the run finds its scales itself. With --radius it is planned in units of
the parameters, by bounds that are known or clipped to, and may certify a tolerance. With --dry-run, all
checks of a run are made and its cost is shown; nothing is charged or written.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from jaxtyping import PyTree
from rich.console import Console

from blindstep.cli import STOPPED, AsJson, Delta, Epsilon, Mu, end, print_json
from blindstep.cli.choices import method_from, method_name, with_choices
from blindstep.cli.ledger import about_ledger, ledger_notes, ledger_of
from blindstep.cli.problem_file import ProblemFile, load_problem
from blindstep.errors import CheckpointUnwritable, InvalidArgument, LedgerError, StorageError
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.gradients import COST
from blindstep.insight.report import report as write_report
from blindstep.insight.tables import plan_table
from blindstep.ledger import data_ledger
from blindstep.ledger.budget import DEFAULT_DELTA, Privacy
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.storage import PLAN, Storage, account_at, require_room
from blindstep.ledger.storage import check as check_plan
from blindstep.losses.people import ROWS, People, count_people
from blindstep.losses.pytrees import ParameterSpace, count_records
from blindstep.losses.rehearsal import check_gradient, made_up, rehearse_compiled
from blindstep.planning.auto import Auto
from blindstep.planning.estimates import Gradients
from blindstep.planning.method import Method
from blindstep.planning.plan import Plan
from blindstep.planning.statement import round_up
from blindstep.planning.tight import Tight
from blindstep.private import accounting
from blindstep.run import planned
from blindstep.run.minimize import minimize
from blindstep.run.planned import Call, plan_for
from blindstep.run.progress import how_to_go_on
from blindstep.run.result import Result

_DEFAULT_CLIP = 1.0
_ANSWER, _THEOREM = "params", "random_round"
# Without L and the gap nothing says how many passes are best; noise grows as their square root only,
# so take many where they cost little: 20, or what this many evaluations of the loss allow.
_MOST_PASSES, _CHEAP_EVALUATIONS = 20, 10**9
# Made-up records and points whose evaluation a dry run measures: enough to fill a processor.
_RECORDS, _POINTS, _REPETITIONS = 256, 8, 3


def train(
    problem: Annotated[
        Path, typer.Argument(help="A Python file that defines loss, params and data.")
    ],
    mu: Mu = None,
    epsilon: Epsilon = None,
    delta: Delta = DEFAULT_DELTA,
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
    **choices: Any,
) -> None:
    """Train privately on a problem file. The same command goes on after a crash."""
    directory = checkpoint or problem.with_name(f"{problem.stem}-run")
    results = out or problem.with_name(f"{problem.stem}-result")
    # Progress and notes go to stderr, so that stdout holds the answer, or JSON, and nothing else.
    notes = Console(stderr=True, highlight=False, markup=False, quiet=as_json)
    try:
        given = load_problem(problem, people)
        space, records = ParameterSpace.of(given.params), count_records(given.data)
        whose = None
        if given.people is not None:
            whose = People(given.people, ROWS if rows is None else rows)
            records = count_people(given.people, records)
            notes.print(f"One person is one record, with at most {whose.rows} of their rows.")
        elif rows is not None:
            raise InvalidArgument(
                f"--rows {rows} is for people with several rows: give --people too."
            )
        each = 1 if whose is None else whose.rows
        method = _method(given, choices, space.dim, records * each, notes)
        limit = None if budget is None else Privacy(budget, delta)
        privacy = Privacy(epsilon, delta, mu=mu)
        call = Call(privacy, method, whose, Storage(directory))

        def effort() -> int:
            """Evaluations of a record, each of which calls the loss `each` times, in a minute."""
            return max(1, planned.of_compiled(given.loss, given.params, given.data) // each)

        made = plan_for(call, space, records, given.params, effort)
        _refuse_secret(results, directory)
        ledger = ledger or ledger_of(given, directory, write=not dry_run)
        if dry_run:
            if ledger is None and given.source is not None:
                notes.print(f"A ledger of {given.source} would be begun in {data_ledger.home()}.")
            _show_cost(given, made, Storage(directory, ledger, limit), each, as_json)
            return
        _introduce(made, Storage(directory, ledger), given, notes)
        result = minimize(
            given.loss,
            given.params,
            given.data,
            method=made,
            people=whose,
            checkpoint=directory,
            ledger=ledger,
            budget=limit,
            progress=not as_json,
        )
        files = _save(results, result)
        place, title = Storage(directory, ledger).ledger_path, f"A private run: {problem.name}"
        page = write_report(result, results / "report.html", title=title, ledger=place)
        files["report"] = str(page)
        spent = read_ledger(place).epsilon(made.delta)
    except StorageError as error:
        if isinstance(error, LedgerError) and (ledger or directory.exists()):
            notes.print(about_ledger(Storage(directory, ledger), delta))
        else:
            notes.print(f"(The run directory is {directory}; --checkpoint gives another one.)")
        raise
    except KeyboardInterrupt:
        end(STOPPED, how_to_go_on(directory, call="command"))
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


def _method(
    given: ProblemFile, choices: dict[str, Any], dim: int, evaluations: int, notes: Console
) -> Method:
    """The method that the options describe, or else the problem file.

    `evaluations` are those of one direction on one side, over all records.
    """
    if given.method is not None and not any(value is not None for value in choices.values()):
        return given.method
    name, choices = method_name(choices), dict(choices)
    if name == Auto.name:
        if given.known:
            notes.print(
                f"{', '.join(given.known)} in the file: for runs with --radius. This one finds its "
                "scales itself, and is as private for any loss."
            )
        return method_from(choices)
    for known, value in given.known.items():
        if choices.get(known) is None:
            choices[known] = value
    bounds = ("bounds", "lipschitz", "clip")
    if all(choices.get(each) is None for each in bounds):
        choices["bounds"] = Bounds(clip=_DEFAULT_CLIP)
        notes.print(
            f"No bound on the loss was given, so a record's gradient is clipped to norm "
            f"{_DEFAULT_CLIP:g}. That is private for any loss; --clip, or `lipschitz` or `bounds` in "
            "the file, may serve yours better."
        )
    certified = all(choices.get(each) is not None for each in ("lipschitz", "gap"))
    if name == Tight.name and choices["passes"] is None and not certified:
        of_a_record = 2 * min(dim, choices["directions"] or 256)
        if choices["estimate"] == Gradients.kind:
            of_a_record = COST
        cheap = _CHEAP_EVALUATIONS // (of_a_record * evaluations)
        choices["passes"] = max(1, min(_MOST_PASSES, cheap))
    return method_from(choices)


def _introduce(plan: Plan, storage: Storage, given: ProblemFile, notes: Console) -> None:
    """Say what is going to happen, what it costs, and where that is written down."""
    sizes, steps = f"{plan.records:,} records, {plan.dim:,} parameters", plan.rounds * plan.horizon
    if plan.calibration is not None:
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


def _show_cost(given: ProblemFile, plan: Plan, storage: Storage, rows: int, as_json: bool) -> None:
    """Check what a run would check, and print the plan and its cost; `rows` calls of the loss a record.

    Of the data, names, shapes and dtypes are looked at.
    """
    with jax.enable_x64(True):
        if differentiated := plan.differentiates:
            check_gradient(given.loss, given.params, given.data)
        rehearse_compiled(given.loss, given.params, given.data, differentiated=differentiated)
        seconds = _seconds_of_one(given)
    _check_place(storage)
    if storage.begun:  # the run that is there goes on with its own plan, or not at all
        for part in Path(storage.directory or ".").glob(f"**/{PLAN}"):
            check_plan(os.fspath(part.parent), plan.to_dict(), resuming=True)
    require_room(storage, plan.mu, secrecy=plan.secrecy)
    account = account_at(storage)
    spent = account.spent()
    total = accounting.compose([spent, plan.mu])
    evaluations = plan.evaluations * rows
    if as_json:
        cost: dict[str, Any] = {"epsilon": plan.epsilon, "delta": plan.delta, "mu": plan.mu}
        cost |= {"spent_mu_before": spent, "spent_mu_after": spent if storage.begun else total}
        cost |= {"evaluations": evaluations, "seconds": evaluations * seconds}
        told = {"dry_run": True, "goes_on": storage.begun, "cost": cost, "plan": plan.to_dict()}
        print_json(told)
        return
    Console(highlight=False, markup=False).print(plan_table(plan))
    print("\nA dry run: the loss works on made-up records; nothing was charged, nothing written.")
    if storage.begun:
        said = "it would go on, and spend what it was begun for."
        print(f"There is a run in {storage.directory}: {said}")
    else:
        budget = f"epsilon {plan.epsilon:.4g} at delta {plan.delta:g} (mu {plan.mu:.4g})"
        print(f"The run would spend {budget}.")
        if spent:
            secrecy = account.secrecy() + plan.secrecy
            at = f"epsilon {accounting.epsilon(total, plan.delta, secrecy=secrecy):.4g} at that delta"
            print(f"With what the ledger holds: mu {total:.4g}, {at}.")
    print(
        f"{evaluations:,} evaluations of the loss, which take about {_time(evaluations * seconds)} at "
        "the speed of the bare loss on made-up records; directions and noise come on top."
    )


def _seconds_of_one(given: ProblemFile) -> float:
    """How long one evaluation takes, compiled, among many at once; on made-up records."""
    records = made_up(given.data, _RECORDS)
    points = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * _POINTS), given.params)
    of_records = jax.vmap(given.loss, in_axes=(None, 0))
    program = jax.jit(jax.vmap(of_records, in_axes=(0, None)))
    jax.block_until_ready(program(points, records))  # compiled now
    times = []
    for _ in range(_REPETITIONS):
        began = time.perf_counter()
        jax.block_until_ready(program(points, records))
        times.append(time.perf_counter() - began)
    return min(times) / (_RECORDS * _POINTS)


def _check_place(storage: Storage) -> None:
    """Refuse a place where the run could not be written."""
    for path in (Path(storage.directory or "."), Path(storage.ledger_path).parent):
        there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            reason = os.strerror(errno.EACCES if there.is_dir() else errno.ENOTDIR)
            raise CheckpointUnwritable(
                f"{path} cannot be written ({reason}: {there}): check its permissions, or give another "
                "place."
            )


def _time(seconds: float) -> str:
    """Seconds in words that promise no more than is known."""
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else "a second or two"


train = with_choices(train)
