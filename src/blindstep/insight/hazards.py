"""The hazards of a private release that NIST SP 800-226 speaks of, our answers, and their tests.

Each answer names the tests that fail when it stops being true; a test of this package fails if one of
them disappears.
"""

from __future__ import annotations

from typing import NamedTuple

from blindstep.insight.report_content import Content
from blindstep.private.statement import round_up


class Hazard(NamedTuple):
    """A hazard, our answer, and the tests that hold it; without tests it is left to the curator."""

    hazard: str
    answer: str
    tests: tuple[str, ...]


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
        ("test_no_branch_of_the_compiled_program_looks_at_records_or_noise",),
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


def table(content: Content) -> str:
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
