"""The mutants: privacy bugs, each as an edit of the source, and what must catch it.

An edit is (file under src/blindstep, exact old text, new text). The old text must be there exactly
once: where the source has moved on, put the mutant back on it. `caught_by` names tests, or an audit by
the options of `blindstep audit`, which must say BROKEN.
"""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Mutant:
    """A bug: each of `caught_by` must find it."""

    name: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]


def mutant(name: str, file: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, ((file, old, new),), caught_by)


PAPER = "audit --preset paper --records 2000"
TIGHT = "audit --records 2000"
CLIPPED = (
    "audit --clip 1 --records 2000 --oracle naive --horizon 8 --first-batch 20 --sharing record"
)
PASSES = "audit --records 2000 --oracle naive --horizon 8 --first-batch 100 --passes 4"

ORACLE, ESTIMATORS, INCREMENTS, PREFIX, RANDOMNESS, SCHEDULE, ACCOUNTING, ARITHMETIC, LEDGER = (
    f"trusted/{name}.py"
    for name in (
        *("oracle", "estimators", "increments", "prefix", "randomness", "schedule", "accounting"),
        *("arithmetic", "ledger"),
    )
)
CHACHA, CONVERSION, COMPILED, SESSION = (
    "trusted/chacha.py",
    "optimize/conversion.py",
    "drivers/compiled.py",
    "drivers/session.py",
)

DRAW = "draw = self.arithmetic.draw(key, block, step, size, std)"
AHEAD = "NoiseAhead(first, self.arithmetic.draw(key, block, place + 1, size, std))"
BLOCK = "block = state.epoch * self.blocks_per_epoch + state.step // self.period"
RELEASE = "self.oracle.release(state.oracle, increment, block, in_block, noise)"
NODES = "return np.sqrt(nodes)"
CHARGE = "            session.before_release(session.position, horizon, replay=True)\n"
AFTER_RUN = "            seconds = time.perf_counter() - began\n"
PAPERS = "np.full(self.steps, np.sqrt(2 * np.log(self.steps)))"

MUTANTS = (
    # -- noise too small -------------------------------------------------------------------------
    mutant(
        "noise x 0.9: in the release",
        ORACLE,
        "fresh = self.mechanism.init(size)",
        "draw, fresh = 0.9 * draw, self.mechanism.init(size)",
        PAPER,
    ),
    mutant(
        "noise x 0.9: in what is drawn ahead",
        ORACLE,
        AHEAD,
        AHEAD.replace("first, ", "first, 0.9 * "),
        PAPER,
        "tests/test_oracle.py::test_noise_drawn_ahead_is_the_noise_of_each_release",
    ),
    mutant(
        "noise x 0.9: in the calibration",
        ACCOUNTING,
        "return cost / mu * (1",
        "return 0.9 * cost / mu * (1",
        PAPER,
        TIGHT,
    ),
    mutant(
        "noise x 0.9: in the tree",
        PREFIX,
        "return state, jnp.sum(state, axis=0)",
        "return state, 0.9 * jnp.sum(state, axis=0)",
        PAPER,
        "tests/test_prefix.py::test_streaming_is_the_matrix_for_every_horizon_at_once",
    ),
    mutant(
        "noise x 0.9: in the generator",
        RANDOMNESS,
        "radius = jnp.sqrt(-2.0 *",
        "radius = 0.9 * jnp.sqrt(-2.0 *",
        TIGHT,
        "tests/test_randomness.py::test_the_law_is_standard_normal",
    ),
    mutant(
        "noise x 0.9: in the BLT",
        "trusted/blt.py",
        "filtered = draw",
        "filtered = 0.9 * draw",
        "audit --records 2000 --oracle variance-reduced --horizon 8 --mechanism blt",
    ),
    mutant(
        "noise x 0.9: on the lattice",
        ARITHMETIC,
        "return discrete_gaussian(key, block, step, dim)",
        "return jnp.rint(0.9 * discrete_gaussian(key, block, step, dim))",
        PAPER + " --secure",
    ),
    mutant(
        "missing factor 2",
        ESTIMATORS,
        "return 2.0 * self.record_bound(kind) / batch",
        "return self.record_bound(kind) / batch",
        PAPER,
        "tests/test_estimators.py::test_sensitivities_are_those_of_the_lemmas",
    ),
    mutant("mean for sum", INCREMENTS, "return total / batch", "return total", TIGHT),
    mutant(
        "sensitivity of the wrong batch",
        ORACLE,
        "later = of(Kind.DIFF, schedule.diff_batch)",
        "later = of(Kind.DIFF, schedule.first_batch)",
        PAPER,
    ),
    # -- noise used twice, or known ----------------------------------------------------------------
    Mutant(
        "noise reused across steps",
        (
            (ORACLE, DRAW, DRAW.replace("block, step,", "block, 1,")),
            (ORACLE, AHEAD, AHEAD.replace("place + 1", "0 * place + 1")),
        ),
        (PAPER, "tests/test_noise_of_runs.py::test_no_two_draws_of_two_runs_coincide"),
    ),
    mutant(
        "one draw of a stock for all its releases",
        ORACLE,
        "place = release - self.first",
        "place = 0 * (release - self.first)",
        PAPER,
        "tests/test_oracle.py::test_noise_drawn_ahead_is_the_noise_of_each_release",
    ),
    mutant(
        "a stock that repeats its last draw",
        ORACLE,
        "held = (place >= 0) & (place < len(self.draws))",
        "held = place == place",
        "tests/test_oracle.py::test_a_stock_gives_no_draw_that_it_does_not_hold",
    ),
    mutant(
        "noise reused across epochs",
        CONVERSION,
        BLOCK,
        "block = state.step // self.period",
        PAPER,
        "tests/test_noise_of_runs.py::test_no_two_draws_of_two_runs_coincide",
    ),
    mutant("noise reused across blocks", CONVERSION, BLOCK, "block = state.epoch", TIGHT),
    mutant(
        "noise seeded from the direction key",
        CONVERSION,
        RELEASE,
        RELEASE.replace(
            "noise)",
            "jnp.tile(__import__('jax').random.key_data(self._direction_key(state, public)), 4))",
        ),
        PAPER,
    ),
    mutant(
        "noise from a constant instead of entropy",
        RANDOMNESS,
        "noise, public = os.urandom(32), os.urandom(8)",
        "noise, public = bytes(32), os.urandom(8)",
        "tests/test_noise_of_runs.py::test_no_two_draws_of_two_runs_coincide",
    ),
    mutant(
        "noise key of 32 bits",
        RANDOMNESS,
        "os.urandom(32), os.urandom(8)",
        "os.urandom(4) * 8, os.urandom(8)",
        "tests/test_randomness.py::test_fresh_keys_take_256_bits_from_the_operating_system",
    ),
    mutant(
        "each draw in two coordinates",
        RANDOMNESS,
        "[radius * cosine, radius * sine]",
        "[radius * cosine, radius * cosine]",
        "tests/test_randomness.py::test_no_two_draws_coincide_within_and_between_runs",
    ),
    mutant(
        "a weak cipher",
        CHACHA,
        "_DOUBLE_ROUNDS = 10",
        "_DOUBLE_ROUNDS = 4",
        "tests/test_randomness.py::test_chacha20_is_the_one_of_rfc_8439",
    ),
    mutant(
        "resume that re-noises",
        SESSION,
        "self.keys, self._run = packed.keys, meta.run",
        "self.keys, self._run = _agreed_keys(None), meta.run",
        "tests/test_noise_of_runs.py::test_a_resumed_run_draws_what_was_left_and_nothing_twice",
    ),
    mutant(
        "noise past the horizon",
        ORACLE,
        "released = jnp.where(step <= self.mechanism.steps, released, jnp.nan)",
        "released = 1.0 * released",
        "tests/test_oracle.py::test_past_the_horizon_is_an_error_and_a_nan_when_compiled",
    ),
    # -- the wrong tree ----------------------------------------------------------------------------
    mutant(
        "a skipped tree node",
        PREFIX,
        "here = (lowbit >> levels) == 1",
        "here = ((lowbit >> levels) == 1) & (levels != 1)",
        PAPER,
        "tests/test_prefix.py::test_streaming_is_the_papers_tree",
    ),
    mutant(
        "a column norm off by one",
        PREFIX,
        "while (inside := node <= self.steps).any():",
        "while (inside := node < self.steps).any():",
        PAPER,
        "tests/test_prefix.py::test_factors_and_norms_are_exact",
    ),
    *(
        mutant(
            f"T = {steps} with the paper's constant",
            PREFIX,
            NODES,
            f"return {PAPERS} if self.steps == {steps} else np.sqrt(nodes)",
            f"tests/test_oracle.py::test_mu_is_the_brute_force_one[{steps}]",
        )
        for steps in (1, 2, 4)
    ),
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
