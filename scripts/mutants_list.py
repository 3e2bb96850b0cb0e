"""The mutants: of records that count too much, of accounting, of the ledger, and of the noise."""

from __future__ import annotations

from mutant_kinds import (
    ACCOUNTING,
    AFTER_RUN,
    ARITHMETIC,
    CHARGE,
    CLIPPED,
    COMPILED,
    ESTIMATORS,
    INCREMENTS,
    LEDGER,
    ORACLE,
    PAPER,
    PASSES,
    SCHEDULE,
    Mutant,
    mutant,
)
from mutants_of_noise import NOISE

MUTANTS = (
    *NOISE,
    # -- records that count too much -----------------------------------------------------------------
    mutant(
        "a record in two batches",
        SCHEDULE,
        "rest = rows[self.first_batch :]",
        "rest = rows[self.first_batch - 1 : -1]",
        PAPER,
        "tests/test_oracle.py::test_no_record_takes_part_twice_in_a_pass",
    ),
    mutant(
        "a record in two blocks",
        SCHEDULE,
        "start = block % self.blocks_per_pass * self.block_size",
        "start = block % self.blocks_per_pass * self.first_batch",
        PAPER,
    ),
    mutant(
        "clamp removed",
        ESTIMATORS,
        "jnp.clip(values[..., 0, :] - values[..., 1, :], -limit, limit)",
        "values[..., 0, :] - values[..., 1, :]",
        "tests/test_estimators.py::test_clamp_and_clip_equal_the_twin_on_a_steep_loss",
    ),
    mutant(
        "clip removed",
        ESTIMATORS,
        "scale = jnp.where(norm > bound, bound / norm, 1.0)",
        "scale = jnp.ones_like(norm)",
        CLIPPED,
    ),
    Mutant(
        "clip after averaging",
        (
            (
                INCREMENTS,
                "    return estimator.enforce(query.kind, estimates, valid)",
                "    return jnp.where(valid[:, None], estimates, 0.0)",
            ),
            (
                INCREMENTS,
                "    return total / batch",
                "    return estimator.enforce(query.kind, total / batch, jnp.asarray(True))",
            ),
        ),
        (CLIPPED,),
    ),
    Mutant(
        "NaN passed through",
        (
            (ESTIMATORS, "values = jnp.where(finite, values, 0.0)", "values = 1.0 * values"),
            (
                ESTIMATORS,
                "return jnp.where(keep, scale * jnp.where(keep, estimate, 0.0), 0.0)",
                "return scale * estimate",
            ),
        ),
        ("tests/test_estimators.py::test_one_bad_record_counts_zero_and_the_others_count",),
    ),
    mutant(
        "a sum that runs on into the next block",
        ORACLE,
        "running = jnp.where(first, term, state.running + term)",
        "running = state.running + term",
        "tests/test_oracle.py::test_a_new_block_forgets_the_last_one",
    ),
    mutant(
        "rounding left out of the sensitivity",
        ARITHMETIC,
        "return math.sqrt(release_dim) / STD",
        "return 0.0",
        "tests/test_secure.py::test_snapping_adds_at_most_its_bound",
    ),
    mutant(
        "increments not snapped to the lattice",
        ARITHMETIC,
        "return jnp.rint(increment / (noise_std / STD))",
        "return increment / (noise_std / STD)",
        "tests/test_precision_attack.py::test_on_the_lattice_nothing_is_certain",
    ),
    # -- accounting --------------------------------------------------------------------------------
    mutant(
        "passes not composed in the claim",
        ORACLE,
        "return self.mu_per_pass() * math.sqrt(self.schedule.passes)",
        "return self.mu_per_pass()",
        PASSES,
    ),
    mutant(
        "passes not composed in the noise",
        ARITHMETIC,
        "costs = sensitivities * columns * math.sqrt(passes)",
        "costs = sensitivities * columns",
        PASSES,
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
        "root = _root(lambda e: _log_delta(mu, e) - target, 0.0, upper)",
        "root = 2 * mu * math.sqrt(math.log(1 / delta))",
        PAPER + " --rho 8",
        "tests/test_accounting.py::test_known_values",
    ),
    mutant(
        "epsilon rounded down",
        ACCOUNTING,
        "return root * (1 + _SAFE) + 1e-300",
        "return root * (1 - _SAFE)",
        "tests/test_accounting.py::test_epsilon_is_enough_and_hardly_more",
    ),
    mutant(
        "delta rounded down",
        ACCOUNTING,
        "math.exp(_log_delta(mu, epsilon)) * (1 + _SAFE)",
        "math.exp(_log_delta(mu, epsilon)) * (1 - _SAFE)",
        "tests/test_accounting.py::test_delta_is_never_below_the_truth",
    ),
    mutant(
        "rho rounded up",
        ACCOUNTING,
        "return root * (1 - _SAFE)",
        "return root * (1 + _SAFE)",
        "tests/test_accounting.py::test_calibration_never_overshoots_and_hardly_undershoots",
    ),
    mutant(
        "noise rounded down",
        ACCOUNTING,
        "(1 + 4 * np.finfo(np.float64).eps)",
        "(1 - 4 * np.finfo(np.float64).eps)",
        "tests/test_accounting.py::test_noise_never_falls_short",
    ),
    mutant(
        "a forged plan is built",
        "optimize/plan.py",
        "if not oracle.mu() <= self.rho:",
        "if oracle.mu() < 0:",
        "tests/test_minimize.py::test_a_forged_plan_cannot_lower_the_noise",
    ),
    # -- ledger -----------------------------------------------------------------------------------
    Mutant(
        "ledger written after the release",
        ((COMPILED, CHARGE, ""), (COMPILED, AFTER_RUN, CHARGE + AFTER_RUN)),
        ("tests/test_run_directory.py::test_a_disk_that_fills_up_stops_the_next_epoch",),
    ),
    mutant(
        "budget check off",
        LEDGER,
        "if charges and self._account.would_exceed(more):",
        "if not charges and self._account.would_exceed(more):",
        "tests/test_ledger.py::test_runs_on_the_same_people_compose_against_one_budget",
    ),
    mutant(
        "one noise key for two runs",
        LEDGER,
        "if other.identity.run != name and other.attempt(identity.noise_key) is not None:",
        "if other.identity.run == name and other.attempt(identity.noise_key) is None:",
        "tests/test_ledger.py::test_one_noise_key_never_serves_two_runs",
    ),
    mutant(
        "steps seen before are released again",
        LEDGER,
        "(attempt.again(first, number) and not replay)",
        "(attempt.again(first, number) and False)",
        "tests/test_ledger.py::test_steps_begun_before_are_refused_unless_replayed",
    ),
)
