"""One folder about a release that can be given away: to a regulator, a hub, a registry, a colleague.

    bs.hand_over(result, "handed-over", about={"name": "Commuting times", "justification": "..."})
    blindstep hand-over RUN --to FOLDER --about about.json
    blindstep hand-over check FOLDER

| file | for |
|---|---|
| `README.md` | a model hub: a model card with Hugging Face's metadata |
| `registry.yaml` | OpenDP's Deployments Registry |
| `hazards.md` | a data-protection officer: the hazards of NIST SP 800-226, our answers, their tests |
| `bom.json` | an inventory of software: CycloneDX, with versions |
| `report.html` | everybody: the guarantee in words, numbers and pictures |
| `statement.json`, `plan.json` | programs |
| `parameters.npz` or `tuned.json` | use: the answer |
| `files.json`, `signature.json` | checking that nothing was changed |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.insight.audit import Audit
from blindstep.insight.certificate import Certificate
from blindstep.insight.hand_over_documents import (
    About,
    bill_of_materials,
    model_card,
    registry_record,
    to_yaml,
)
from blindstep.insight.hand_over_seal import seal
from blindstep.insight.report import render
from blindstep.insight.report_content import Content, of_result, of_run_directory
from blindstep.ledger import data_ledger
from blindstep.planning.statement import round_up
from blindstep.run.result import Reportable


class Hazard(NamedTuple):
    """A hazard, our answer, and the tests that hold it; without tests it is left to the curator."""

    hazard: str
    answer: str
    tests: tuple[str, ...]


# The hazards that NIST SP 800-226 speaks of. A test of this package fails if a named test disappears.
HAZARDS = (
    Hazard(
        "Privacy parameters that are too large to mean anything",
        "The statement gives mu, epsilon at a delta, zCDP and the best guess that anyone can make. A "
        "delta that is too large for the number of records causes a warning or is refused. Whether "
        "epsilon is small enough is for the curator to justify.",
        ("test_delta_is_held_against_the_number_of_records", "test_what_is_printed_holds_too"),
    ),
    Hazard(
        "The unit of privacy is not what people think it is",
        "The statement names the unit and the neighbouring relation. Guarantees about records and "
        "about people are never added up.",
        (
            "test_its_words_are_those_of_the_statement",
            "test_a_ledger_does_not_add_up_different_units",
        ),
    ),
    Hazard(
        "One person has several rows",
        "With people= all rows of a person are one record. Without it the unit is a row, and k rows "
        "of a person have k times the mu.",
        (
            "test_replacing_a_person_changes_one_record_and_no_place",
            "test_the_group_guarantee_holds_for_the_best_attack",
        ),
    ),
    Hazard(
        "Sensitivity rests on a promise about the data or the loss",
        "Each record's vector is clipped in the gate, after it was made, whatever the loss returns. "
        "No Lipschitz constant and no bound on data is taken on trust.",
        (
            "test_no_input_counts_more_than_the_bound",
            "test_hostile_neighbours_move_a_block_by_its_cost_at_most",
        ),
    ),
    Hazard(
        "The noise is smaller than it is said to be",
        "Noise follows from the budget, and nobody hands in a level. An audit through the real code "
        "measures a lower bound on mu, and catches ten percent less noise.",
        (
            "test_calibration_never_overshoots_and_wastes_nothing",
            "test_ten_percent_less_noise_is_broken",
        ),
    ),
    Hazard(
        "Floating-point arithmetic gives a record away",
        "Sums and discrete Gaussian noise are whole multiples of a public width, added without "
        "rounding. The last bits of a release tell nothing.",
        (
            "test_sums_are_the_same_in_every_order",
            "test_nothing_is_ruled_out_by_a_release_a_sum_or_a_norm",
        ),
    ),
    Hazard(
        "Random numbers can be predicted, or are used twice",
        "The noise comes from ChaCha20 under a 256-bit key of the operating system. Without entropy "
        "nothing runs, and no draw is used twice. A run with a user's seed says that it is not "
        "private.",
        (
            "test_no_entropy_is_an_error_never_a_fallback",
            "test_releases_read_disjoint_parts_of_the_stream",
            "test_a_seeded_run_says_so_and_one_pass_is_one_release",
        ),
    ),
    Hazard(
        "The budget is spent several times, or a crash hides what was spent",
        "Runs on the same people share a ledger, which is written before each release. What an older "
        "copy of a file says cannot undo it. Runs that share no ledger are not added up.",
        (
            "test_runs_on_the_same_people_compose_against_one_budget",
            "test_kill_9_never_hides_a_release",
        ),
    ),
    Hazard(
        "Choices were tuned on the private data without paying",
        "Scales of the problem are found by releases of the run's own budget; bs.tune pays for the "
        "choice among candidates. What was tried before, outside of this package, only the curator "
        "knows.",
        (
            "test_tuning_costs_one_budget_and_finds_the_better_start",
            "test_statements_about_the_same_records_add_up",
        ),
    ),
    Hazard(
        "Messages, logs or failures tell about a record",
        "A record whose loss fails, is not finite or is late counts 0, and nothing is said about it. "
        "Logs, errors, progress and files for others hold public quantities alone.",
        (
            "test_a_record_that_fails_counts_zero_and_nobody_hears_of_it",
            "test_progress_shows_steps_and_privacy_and_no_loss",
            "test_public_files_let_nobody_check_a_guess_of_data_or_key",
        ),
    ),
    Hazard(
        "Timing and other side channels",
        "How often, in which order and where the loss is evaluated does not depend on a record. How "
        "long it takes may, and is not protected, nor are power, memory traffic and swap. Access to "
        "the machine, and to the run directory with its key, is for the curator to control.",
        (
            "test_a_replaced_record_moves_its_increments_only",
            "test_no_branch_of_the_compiled_program_looks_at_records_or_noise",
        ),
    ),
    Hazard(
        "Post-processing that reads the data again",
        "Everything after a release is a function of releases: the learner, the parameters, the "
        "history, the report, this folder.",
        (
            "test_what_is_public_does_not_depend_on_the_answers_of_this_step",
            "test_no_file_that_is_handed_over_holds_a_number_without_noise",
        ),
    ),
    Hazard(
        "Noise and clipping harm some groups more than others",
        "Not prevented. A small group moves the mean little, and noise hides what little it moves. "
        "The curator should measure the answer on public data of the groups that matter.",
        (),
    ),
    Hazard(
        "What is true of people in general is taken for a breach, or for protected",
        "Not protected: that is what is learned. A person's share in it is what is hidden.",
        (),
    ),
)


def hazard_table(content: Content) -> str:
    """The table as a page in Markdown, for one run."""
    privacy = content.privacy
    rows = "\n".join(
        f"| {each.hazard} | {each.answer} | {_named(each.tests)} |" for each in HAZARDS
    )
    return (
        f"# {content.title}: hazards and answers\n\n"
        "In the words of NIST SP 800-226, *Guidelines for Evaluating Differential Privacy Guarantees*. "
        f"This release: epsilon {round_up(privacy.epsilon, 4)} at delta {round_up(privacy.delta, 4)} "
        f"(mu {round_up(privacy.mu, 4)}), {privacy.neighbours} neighbours, unit: {privacy.unit}. "
        f"Tests are those of blindstep {content.versions['blindstep']}.\n\n"
        f"| hazard | answer | the tests that hold it |\n|---|---|---|\n{rows}\n"
    )


def _named(tests: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in tests) or "none: it is for the curator"


_TITLE = "A private run"


def hand_over(
    result: Reportable,
    folder: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
    key: str | os.PathLike[str] | None = None,
    public_utility: Mapping[str, float | str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    certificate: Certificate | None = None,
    audit: Audit | None = None,
) -> Path:
    """Write a folder about a finished run that can be given away: it holds public quantities only.

        bs.hand_over(result, "handed-over", about={"name": "Commuting times", "curators": ["The city"]})

    What only you know (`hand_over_documents.QUESTIONS`) is asked for and never invented: a question
    without an answer stays in its place as "NOT ANSWERED".

    Args:
        result: what `minimize`, `tune`, `blindstep.torch.minimize` or an `Optimizer` gave.
        folder: a folder that does not exist yet, or is empty.
        about: your answers by name: name, curators, description, intended_use, justification and so on.
        key: a file with an Ed25519 key in PEM that signs the list of files. If there is no such file,
            a new key is written to it, readable by its owner only.
        public_utility: names and values that you computed *on public data*.
        ledger: the ledger of these records, or a run directory, whose spending is shown.
        certificate: what `certificate` measured at the answer.
        audit: what `audit` found for the plan of this run.

    Returns:
        The path of the folder.
    """
    answers = About(about, _TITLE, _today())
    content = of_result(result, answers["name"], public_utility, ledger, certificate, audit)
    target = _new_folder(folder)
    if content.params is not None:
        np.savez(target / "parameters.npz", allow_pickle=False, **content.params)
    elif save := getattr(result, "save", None):
        save(target / "tuned.json")
    return _written(content, answers, target, key)


def hand_over_run_directory(
    directory: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
    key: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
) -> Path:
    """The same of a run directory. `parameters` is the params.npz that `blindstep train` wrote."""
    answers = About(about, f"Run {os.path.basename(os.path.abspath(directory))}", _today())
    content = of_run_directory(directory, title=answers["name"], ledger=ledger)
    if not content.finished:
        raise InvalidArgument(
            f"the run in {directory} is at step {content.steps_done:,} of {content.steps:,}: finish it "
            "first. The same command goes on where it was."
        )
    params = None if parameters is None else _parameters(parameters)
    target = _new_folder(folder)
    if params is not None:
        np.savez(target / "parameters.npz", allow_pickle=False, **params)
    return _written(content, answers, target, key)


def open_questions(about: Mapping[str, Any] | None) -> dict[str, str]:
    """The questions that these answers leave open."""
    return About(about, _TITLE, _today()).open


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _parameters(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{os.fspath(path)} holds no parameters that can be read.") from error


def _new_folder(folder: str | os.PathLike[str]) -> Path:
    """An empty folder; refused where it is in a run directory, or holds something."""
    target = Path(folder)
    secret = data_ledger.secret_directory(target / "report.html")
    if secret is not None:
        raise InvalidArgument(
            f"{target} is in the run directory {secret}, which holds the noise key: hand over a folder "
            "outside of it."
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise InvalidArgument(f"{target} is not empty: give a new folder.")
    except OSError as error:
        raise InvalidArgument(
            f"{target} cannot be made ({error.strerror}): give another folder."
        ) from error
    return target


def _written(
    content: Content, about: About, folder: Path, key: str | os.PathLike[str] | None
) -> Path:
    answer = sorted(path.name for path in folder.iterdir())
    texts = {
        "README.md": model_card(content, about, answer),
        "registry.yaml": to_yaml(registry_record(content, about)),
        "hazards.md": hazard_table(content),
        "bom.json": _json(bill_of_materials(content, about)),
        "report.html": render(content),
        "statement.json": _json(content.privacy.to_dict()),
        "plan.json": content.plan.to_json() + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    seal(folder, f"blindstep {content.versions['blindstep']}", key)
    return folder


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
