"""Mutants of secret batches: steps that are known, drawn once, or accounted for as something else."""

from __future__ import annotations

from mutant_kinds import (
    GATE,
    LEAST_NOISE,
    LEDGER,
    NOISE,
    SCHEDULE,
    STATEMENT,
    TERMS,
    mutant,
    test_of,
)

SECRET_BATCHES, ACCOUNT = "private/secret_batches.py", "ledger/account.py"
AUDIT = test_of("insight", "secret_audit", "a_plan_with_secret_batches_holds_and_is_nearly_reached")
STEPS = test_of("private", "secret_gate", "steps_follow_the_secret_key_and_nothing_else")
ANEW = test_of(
    "private", "secret_gate", "steps_are_uniform_independent_and_drawn_anew_in_each_pass"
)
DIVISOR = test_of(
    "private", "secret_gate", "a_release_is_the_sum_by_the_public_divisor_on_its_own_noise"
)
SAMPLED = test_of("private", "secret_samples", "against_monte_carlo")
WORST = test_of("private", "secret_gate", "a_worst_case_reaches_the_length_that_is_accounted_for")
HALF = test_of("private", "secret_gate", "leaving_out_is_half_of_replacing")
_ORDER = "secret_steps(secret.words(), pass_index, self.records, self.blocks_per_pass)"
_LAW = "law = _law_of_pass(max(c, _LEAST), steps, made, _TAIL * secrecy)"

OF_SECRECY = (
    mutant(
        "steps drawn by the public key",
        SCHEDULE,
        _ORDER,
        "secret_steps(np.resize(np.asarray(jax.random.key_data(public)), 8), "
        "pass_index, self.records, self.blocks_per_pass)",
        STEPS,
        AUDIT,
    ),
    mutant(
        "the same steps in every pass",
        SCHEDULE,
        _ORDER,
        _ORDER.replace("pass_index", "0"),
        ANEW,
        AUDIT,
    ),
    mutant(
        "steps from the stream of the noise",
        NOISE,
        "_TAG, _STEPS_TAG = 0x6C617474, 0x73746570",
        "_TAG, _STEPS_TAG = 0x6C617474, 0x6C617474",
        test_of("private", "secret_gate", "steps_and_noise_read_different_parts_of_the_stream"),
    ),
    mutant(
        "some steps likelier than others",
        NOISE,
        ".astype(np.int64) & (steps - 1)",
        ".astype(np.int64) % max(1, steps - 1)",
        ANEW,
        AUDIT,
    ),
    mutant(
        "a sum divided by its own batch's size",
        GATE,
        "return total * (unit_of(bound, batch) / terms.schedule.divisor_of(kind))",
        "return total * (unit_of(bound, batch) / held)",
        DIVISOR,
        AUDIT,
    ),
    mutant(
        "empty places that count",
        GATE,
        "counted = jnp.where((places < held)[:, None], clip(vectors, bound, batch), 0.0)",
        "counted = jnp.where((places < batch)[:, None], clip(vectors, bound, batch), 0.0)",
        DIVISOR,
    ),
    mutant(
        "a slack that costs nothing: of delta",
        TERMS,
        "return self.secrecy_per_pass() * self.schedule.passes",
        "return 0.0",
        test_of("private", "secret_gate", "calibration_never_overshoots_and_wastes_little"),
        test_of("run", "secret_runs", "the_plan_is_secret_and_costs_what_it_says"),
    ),
    mutant(
        "a slack that costs nothing: of several runs",
        TERMS,
        "secrecy = sum(each.secrecy for each in promises)",
        "secrecy = max(each.secrecy for each in promises)",
        test_of("private", "statement", "secrecies_of_parts_add_up"),
    ),
    mutant(
        "a slack that costs nothing: in the ledger",
        ACCOUNT,
        "return sum(len(each.charges) * each.identity.secrecy_per_pass for each in self._about(run))",
        "return sum(each.identity.secrecy_per_pass for each in self._about(run))",
        test_of("ledger", "secrecy", "secrecies_add_up_and_are_taken_off_delta"),
    ),
    mutant(
        "a slack that costs nothing: of a budget",
        LEDGER,
        "secrecy = len(charges) * run.secrecy_per_pass",
        "secrecy = 0.0 * run.secrecy_per_pass",
        test_of("ledger", "secrecy", "a_run_whose_secrecy_breaks_the_budget_is_refused"),
    ),
    mutant(
        "a slack that is a hundred times larger",
        SECRET_BATCHES,
        "return min(c, _needed(power * off * (1 + _VALUES), size * off * (1 - _VALUES), secrecy))",
        "return min(c, _needed(power * off, size * off, min(0.5, 100 * secrecy)))",
        SAMPLED,
    ),
    mutant(
        "a step more than there is",
        SECRET_BATCHES,
        _LAW,
        _LAW.replace("steps,", "2 * steps,"),
        SAMPLED,
        test_of("private", "secret_batches", "two_steps_against_the_integral"),
    ),
    mutant(
        "fewer steps of a pass than are made",
        SCHEDULE,
        "return min(self.blocks, self.blocks_per_pass)",
        "return max(1, min(self.blocks, self.blocks_per_pass) // 2)",
        test_of("private", "secret_gate", "a_part_of_a_pass_is_accounted_for_as_what_is_made"),
    ),
    mutant(
        "steps that the schedule does not have",
        TERMS,
        "* presence_mu(length, *steps)",
        "* presence_mu(length, 2 * steps[0], *steps[1:])",
        WORST,
    ),
    mutant(
        "noise for steps that the schedule does not have",
        LEAST_NOISE,
        "length = longest(length * (1 - 1e-6), *steps)",
        "length = longest(length * (1 - 1e-6), 2 * steps[0], *steps[1:])",
        test_of("private", "secret_gate", "calibration_never_overshoots_and_wastes_little"),
        AUDIT,
    ),
    mutant(
        "one order of the pair alone",
        SECRET_BATCHES,
        "power = np.append((law.lost + after(with_it))[above], np.cumsum(law.weights)[below])",
        "power = np.append(0 * after(with_it)[above], np.cumsum(law.weights)[below])",
        SAMPLED,
    ),
    mutant(
        "leaving out claimed for replacing: in the cost",
        TERMS,
        "return PRESENCES[self.neighbours] * presence_mu",
        "return presence_mu",
        HALF,
        WORST,
    ),
    mutant(
        "leaving out claimed for replacing: in the noise",
        LEAST_NOISE,
        "length /= often * PRESENCES[terms.neighbours]",
        "length /= often",
        test_of("private", "secret_gate", "calibration_never_overshoots_and_wastes_little"),
        AUDIT,
    ),
    mutant(
        "leaving out claimed for replacing: in public batches",
        TERMS,
        "often = 1.0 if schedule.secret else float(PRESENCES[self.neighbours])",
        "often = 1.0",
        HALF,
    ),
    mutant(
        "leaving out claimed for replacing: in a ledger",
        ACCOUNT,
        'return unit if self.neighbours == REPLACE else f"{unit} ({self.neighbours})"',
        "return unit",
        test_of("ledger", "secrecy", "runs_about_different_neighbours_are_not_added_up"),
    ),
    mutant(
        "leaving out claimed for replacing: in words",
        STATEMENT,
        "unit_sentence(self.unit, self.neighbours, self.windows),",
        "unit_sentence(self.unit, windows=self.windows),",
        test_of("private", "statement", "neighbours_are_named_and_not_mixed"),
    ),
)
