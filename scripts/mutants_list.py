"""The mutants: of records that count too much, of accounting, of the ledger, and of the noise."""

from __future__ import annotations

from mutant_kinds import (
    ACCOUNTING,
    CLIP,
    CLIPPED,
    GATE,
    GROUP,
    LEAST_NOISE,
    LEDGER,
    PAPER,
    PASSES,
    SCHEDULE,
    SESSION,
    SHARING,
    TERMS,
    Mutant,
    mutant,
    test_of,
)
from mutants_of_noise import OF_NOISE
from mutants_of_secrecy import OF_SECRECY

INSIDE = 16 * " "  # the indentation inside `Gate.through`

MUTANTS = (
    *OF_NOISE,
    *OF_SECRECY,
    # -- records that count too much -----------------------------------------------------------------
    mutant(
        "a record in two batches",
        SCHEDULE,
        "start += self.first_batch + (place - 1) * self.diff_batch",
        "start += self.first_batch - 1 + (place - 1) * self.diff_batch",
        PAPER,
        test_of("private", "schedule", "no_record_answers_twice_in_a_pass"),
    ),
    mutant(
        "a record in two blocks",
        SCHEDULE,
        "start = turn * self.block_size",
        "start = turn * self.first_batch",
        PAPER,
        test_of("private", "schedule", "no_record_answers_twice_in_a_pass"),
    ),
    mutant(
        "rows of the release before",
        GATE,
        "return jnp.asarray(self.grad_rows)[grads[0] - grads[1]]",
        "return jnp.asarray(self.grad_rows)[jnp.maximum(grads[0] - grads[1] - 1, 0)]",
        test_of("private", "gate", "releases_of_a_permit_have_the_rows_of_the_schedule"),
    ),
    mutant(
        "fewer answers than records",
        GATE,
        "if contributions.answers not in (None, len(rows)):",
        "if contributions.answers is None and False:",
        test_of("private", "gate", "each_record_has_a_row_or_an_answer_of_its_own"),
    ),
    mutant(
        "fewer rows than records",
        GATE,
        "if contributions.rows is not None and contributions.rows < self.table:",
        "if contributions.rows is None and False:",
        test_of("private", "gate", "each_record_has_a_row_or_an_answer_of_its_own"),
    ),
    mutant(
        "clip removed",
        CLIP,
        "scale = jnp.where(norm > aim, aim / norm, 1.0) * 2.0",
        "scale = jnp.ones_like(norm) * 2.0",
        CLIPPED,
        test_of("private", "clip", "no_input_counts_more_than_the_bound"),
    ),
    mutant(
        "a clip that rounding carries beyond its bound",
        CLIP,
        "keep, aim = jnp.isfinite(norm), _inside(vectors.shape[1], batch)",
        "keep, aim = jnp.isfinite(norm), 1.0",
        test_of("private", "clip", "no_input_counts_more_than_the_bound"),
    ),
    mutant(
        "clip after averaging",
        GATE,
        "counted = jnp.where((places < held)[:, None], clip(vectors, bound, batch), 0.0)",
        "counted = jnp.where((places < held)[:, None], vectors / unit_of(bound, batch), 0.0)",
        CLIPPED,
    ),
    mutant(
        "a record counts twice at the end of a batch",
        GATE,
        "counted = jnp.where((places < held)[:, None], clip(vectors, bound, batch), 0.0)",
        "counted = clip(vectors, bound, batch)",
        test_of("private", "gate", "how_many_are_asked_at_once_changes_no_bit"),
    ),
    mutant(
        "NaN passed through",
        CLIP,
        "keep, aim = jnp.isfinite(norm), ",
        "keep, aim = jnp.ones_like(norm, bool), ",
        test_of("private", "sensitivity", "what_one_record_says_does_not_change_how_others_count"),
    ),
    mutant(
        "a sum that runs on into the next block",
        GATE,
        "jnp.where(place == 0, fresh, memory.buffers), increment, place",
        "memory.buffers, increment, place",
        test_of("private", "gate", "a_release_is_the_dense_formula_on_the_same_noise"),
    ),
    mutant(
        "rounding left out of the sensitivity",
        TERMS,
        "+ off * entered, entered / STD",
        "+ off * entered, 0.0 * entered",
        test_of("private", "sensitivity", "snapping_costs_what_it_is_said_to_cost"),
    ),
    mutant(
        "sums not snapped to the lattice",
        GATE,
        "y = width * (jnp.rint(total / width) + self._noise(position))",
        "y = width * (total / width + self._noise(position))",
        test_of("private", "precision_attack", "nothing_is_ruled_out_by_a_release_a_sum_or_a_norm"),
    ),
    # -- accounting --------------------------------------------------------------------------------
    mutant(
        "passes not composed in the claim",
        TERMS,
        "return self.mu_per_pass() * math.sqrt(self.schedule.passes)",
        "return self.mu_per_pass()",
        test_of(
            "private", "sensitivity", "passes_compose_in_squares_and_a_begun_pass_counts_whole"
        ),
    ),
    mutant(
        "passes not composed in the noise",
        LEAST_NOISE,
        "moved, snapped = often * moved, often * snapped",
        "pass",
        test_of("private", "sensitivity", "calibration_never_overshoots_and_wastes_nothing"),
    ),
    mutant(
        "passes counted as one",
        SCHEDULE,
        "return -(-self.blocks // self.blocks_per_pass)",
        "return 1",
        PASSES,
    ),
    mutant(
        "the paper's epsilon (erratum 3)",
        ACCOUNTING,
        "return _until(lambda e: _most(mu, e) <= target, root * (1 + _SAFE) + 1e-300, +1)",
        "return 2 * mu * math.sqrt(math.log(1 / delta))",
        PAPER + " --mu 8",
        test_of("private", "accounting", "known_values"),
    ),
    mutant(
        "epsilon rounded down",
        ACCOUNTING,
        "return _until(lambda e: _most(mu, e) <= target, root * (1 + _SAFE) + 1e-300, +1)",
        "return root * (1 - _SAFE)",
        test_of("private", "accounting", "epsilon_is_enough_and_hardly_more"),
    ),
    mutant(
        "mu rounded up",
        ACCOUNTING,
        "return _until(lambda mu: _most(mu, epsilon) <= target, root * (1 - _SAFE), -1)",
        "return root * (1 + _SAFE)",
        test_of("private", "accounting", "calibration_never_overshoots_and_hardly_undershoots"),
    ),
    mutant(
        "two terms that nearly cancel",
        ACCOUNTING,
        "_SIMPSON = 0.002",
        "_SIMPSON = 0.0",
        test_of("private", "accounting", "delta_is_never_below_the_truth_for_any_mu"),
    ),
    mutant(
        "the error of the formula left out",
        ACCOUNTING,
        "return sum(_log_delta(mu, epsilon))",
        "return _log_delta(mu, epsilon)[0]",
        test_of("private", "accounting", "a_formula_that_bounds_its_error_is_asked_for_it"),
    ),
    mutant(
        "mu rounded up from zCDP",
        ACCOUNTING,
        "return math.sqrt(2.0 * zcdp) * (1 - _SAFE)",
        "return math.sqrt(2.0 * zcdp) * (1 + _SAFE)",
        test_of("private", "accounting", "mu_of_zcdp_is_the_root_and_never_above_it"),
    ),
    mutant(
        "several runs cost what the dearest costs",
        TERMS,
        "mu = accounting.compose(each.mu for each in promises)",
        "mu = max(each.mu for each in promises)",
        test_of("private", "statement", "statements_about_the_same_records_add_up"),
    ),
    mutant(
        "who took part is private in all runs if it is in one",
        TERMS,
        "all(each.windows for each in promises)",
        "any(each.windows for each in promises)",
        test_of("private", "statement", "statements_about_the_same_records_add_up"),
    ),
    mutant(
        "large losses as likely as in a single release",
        ACCOUNTING,
        "return min(1.0, math.exp(high) * (1 + _SAFE) + _SMALLEST)",
        "return float(np.exp(log_ndtr(mu / 2 - epsilon / mu)))",
        test_of(
            "private",
            "accounting",
            "a_record_that_falls_silent_does_not_make_large_losses_likelier_than_said",
        ),
    ),
    mutant(
        "noise rounded down",
        LEAST_NOISE,
        "(1 + 4 * np.finfo(np.float64).eps)",
        "(1 - 1e-9)",
        test_of("private", "sensitivity", "calibration_never_overshoots_and_wastes_nothing"),
    ),
    mutant(
        "noise that costs more than was asked for",
        TERMS,
        "if not self.mu() <= mu:",
        "if not self.mu() <= 2 * mu:",
        test_of("private", "sensitivity", "terms_that_cost_more_than_was_asked_for_are_refused"),
    ),
    mutant(
        "noise that moves with its own statement",
        TERMS,
        "return worst / (EFFECTIVE * float(self.noise_std))",
        "return 0.5 * worst / (EFFECTIVE * float(self.noise_std))",
        test_of("private", "sensitivity", "mu_is_the_brute_force_one"),
    ),
    # -- ledger -----------------------------------------------------------------------------------
    Mutant(
        "ledger written after the release",
        (
            (GATE, f"{INSIDE}self._port.charge(first, count, answers)\n", ""),
            (
                GATE,
                f"{INSIDE}memory, out = program(permit, self._memory)\n",
                f"{INSIDE}memory, out = program(permit, self._memory)\n"
                f"{INSIDE}self._port.charge(first, count, answers)\n",
            ),
        ),
        (test_of("private", "gate", "nothing_runs_before_the_charge_and_nothing_after_a_refusal"),),
    ),
    mutant(
        "budget check off",
        LEDGER,
        "if charges and account.would_exceed(more, secrecy):",
        "if not charges and account.would_exceed(more, secrecy):",
        test_of("ledger", "contract", "runs_on_the_same_people_compose_against_one_budget"),
    ),
    mutant(
        "one noise key for two runs",
        LEDGER,
        "if other.identity.run != name and other.attempt(identity.noise_key) is not None:",
        "if other.identity.run == name and other.attempt(identity.noise_key) is None:",
        test_of("ledger", "contract", "one_noise_key_never_serves_two_runs"),
    ),
    mutant(
        "steps seen before are released again",
        LEDGER,
        "(again and not replay)",
        "(again and False)",
        test_of("ledger", "contract", "steps_begun_before_are_refused_unless_replayed"),
    ),
    # -- several processes ------------------------------------------------------------------------
    mutant(
        "processes that release without the word of process 0",
        SESSION,
        "self._group.led(steps, lambda: self._charge(first, count, answers))",
        "self._charge(first, count, answers)",
        test_of("ledger", "processes", "a_refusal_in_the_middle_is_one_of_all"),
    ),
    mutant(
        "process 0 speaks before it has charged",
        GROUP,
        "        with self:\n            made = make()\n",
        '        self._say({"what": what, "made": None})\n'
        "        with self:\n            return make()\n",
        test_of("ledger", "processes", "all_raise_what_process_0_raises"),
    ),
    mutant(
        "other records under the same noise, in another process",
        SHARING,
        '            "data": known.data,\n',
        "",
        test_of("ledger", "processes", "processes_that_were_given_something_else_are_refused"),
        test_of(
            "ledger",
            "processes",
            "without_storage_processes_share_keys_and_must_have_the_same_data",
        ),
    ),
    mutant(
        "another process has other answers for the same noise",
        SESSION,
        "if answers is not None and self._group.number > 1:",
        "if answers is None and self._group.number > 1:",
        test_of("ledger", "processes", "answers_from_outside_must_be_the_same_in_all"),
    ),
)
