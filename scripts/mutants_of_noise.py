"""Mutants of the noise: too small, used twice or known, and the wrong matrix."""

from __future__ import annotations

from mutant_kinds import (
    GATE,
    LEAST_NOISE,
    MECHANISMS,
    NOISE,
    PAPER,
    SESSION,
    TERMS,
    TIGHT,
    Mutant,
    mutant,
    test_of,
)

DRAW = "return lattice_noise(self.key, position, self.terms.size)"
AHEAD = "lattice_noise(self.key, numbers, self.terms.size)"
AHEAD_TEST = test_of(
    "private", "gate", "noise_drawn_ahead_and_data_of_its_rows_alone_change_no_bit"
)
DENSE = test_of("private", "gate", "a_release_is_the_dense_formula_on_the_same_noise")
BRUTE = test_of("private", "sensitivity", "mu_is_the_brute_force_one")
PAPERS = "np.full(self.steps, 2 * np.log(self.steps))"

OF_NOISE = (
    # -- noise too small -------------------------------------------------------------------------
    mutant(
        "noise x 0.9: in the release",
        GATE,
        "y = width * (jnp.rint(total / width) + self._noise(position))",
        "y = width * (jnp.rint(total / width) + jnp.rint(0.9 * self._noise(position)))",
        PAPER,
        TIGHT,
        test_of("private", "gate", "releases_have_the_noise_that_is_claimed"),
    ),
    mutant(
        "noise x 0.9: in what is drawn ahead",
        GATE,
        AHEAD,
        f"jnp.rint(0.9 * {AHEAD})",
        PAPER,
        AHEAD_TEST,
    ),
    mutant(
        "noise x 0.9: in the calibration",
        LEAST_NOISE,
        "noise_std = float(np.max(moved / left))",
        "noise_std = 0.9 * float(np.max(moved / left))",
        test_of("private", "sensitivity", "calibration_never_overshoots_and_wastes_nothing"),
    ),
    mutant(
        "noise x 0.9: in the sampler",
        NOISE,
        "return (_FACTOR * coarse + fine).astype(jnp.float64)",
        "return jnp.rint(0.9 * (_FACTOR * coarse + fine).astype(jnp.float64))",
        TIGHT,
        test_of("private", "noise", "the_law"),
    ),
    mutant(
        "noise on half of the coordinates",
        GATE,
        "return jnp.where(held, draws[jnp.clip(place, 0, len(draws) - 1)], jnp.nan)",
        "return jnp.where(held, draws[jnp.clip(place, 0, len(draws) - 1)], jnp.nan)"
        ".at[::2].set(0.0)",
        PAPER,
        AHEAD_TEST,
    ),
    mutant(
        "missing factor 2",
        TERMS,
        "moved[0] = often * float(self.first_clip)",
        "moved[0] = float(self.first_clip)",
        TIGHT,
        BRUTE,
    ),
    mutant(
        "mean for sum",
        GATE,
        "return total * (unit_of(bound, batch) / terms.schedule.divisor_of(kind))",
        "return total * unit_of(bound, batch)",
        TIGHT,
        DENSE,
    ),
    mutant(
        "sensitivity of the wrong batch",
        TERMS,
        "moved /= schedule.divisor_of(Kind.DIFF)",
        "moved /= schedule.divisor_of(Kind.GRAD)",
        PAPER,
        test_of("private", "sensitivity", "a_worst_case_reaches_the_cost_of_every_batch"),
    ),
    mutant(
        "the clip of the wrong kind",
        TERMS,
        "return self.first_clip if kind is Kind.GRAD else self.diff_clip",
        "return self.first_clip",
        test_of("private", "sensitivity", "hostile_neighbours_move_a_block_by_its_cost_at_most"),
    ),
    # -- noise used twice, or known ----------------------------------------------------------------
    Mutant(
        "noise reused across steps",
        (
            (GATE, DRAW, DRAW.replace("position", "0 * position")),
            (GATE, AHEAD, AHEAD.replace("numbers", "0 * numbers")),
        ),
        (PAPER, DENSE),
    ),
    Mutant(
        "noise reused across blocks",
        (
            (GATE, DRAW, DRAW.replace("position", "position % self.terms.schedule.period")),
            (GATE, AHEAD, AHEAD.replace("numbers", "numbers % self.terms.schedule.period")),
        ),
        (PAPER, TIGHT),
    ),
    mutant(
        "one draw of a stock for all its releases",
        GATE,
        "place = position - first",
        "place = 0 * (position - first)",
        PAPER,
        AHEAD_TEST,
    ),
    mutant(
        "noise from a constant instead of entropy",
        NOISE,
        "noise, public = os.urandom(32), os.urandom(8)",
        "noise, public = bytes(32), os.urandom(8)",
        test_of("private", "noise", "fresh_keys_take_256_bits_from_the_operating_system"),
    ),
    mutant(
        "noise key of 32 bits",
        NOISE,
        "os.urandom(32), os.urandom(8)",
        "os.urandom(4) * 8, os.urandom(8)",
        test_of("private", "noise", "fresh_keys_take_256_bits_from_the_operating_system"),
    ),
    mutant(
        "half of the key is not used",
        NOISE,
        "body = [jnp.broadcast_to(key[i : i + 4, None], tail.shape) for i in (0, 4)]",
        "body = [jnp.broadcast_to(key[i : i + 4, None], tail.shape) for i in (0, 0)]",
        test_of("private", "noise", "all_256_bits_of_the_key_matter"),
    ),
    mutant(
        "a weak cipher",
        NOISE,
        "BLOCK_WORDS, _DOUBLE_ROUNDS, _BLOCKS_OF_KERNEL = 16, 10, 256",
        "BLOCK_WORDS, _DOUBLE_ROUNDS, _BLOCKS_OF_KERNEL = 16, 4, 256",
        test_of("private", "noise", "chacha20_is_the_one_of_rfc_8439"),
    ),
    mutant(
        "a weak cipher in the kernel of a graphics card",
        NOISE,
        "(column + diagonal * row) % 4",
        "column",
        test_of("private", "noise", "the_kernel_for_graphics_cards_gives_the_same_words"),
    ),
    mutant(
        "a key that can be copied",
        NOISE,
        "__copy__ = __deepcopy__ = __reduce_ex__ = __reduce__ = __getstate__ = _refuse",
        "__never__ = _refuse",
        test_of("private", "gate", "what_holds_the_noise_key_cannot_be_copied_pickled_or_printed"),
    ),
    mutant(
        "noise past the permit",
        GATE,
        "within = (position >= self.first) & (position < self.stop)",
        "within = position >= self.first",
        test_of("private", "gate", "inside_a_program_what_is_past_the_range_is_nan"),
    ),
    mutant(
        "a release of another kind",
        GATE,
        "allowed = within & ((place == 0) == (kind is Kind.GRAD))",
        "allowed = within",
        test_of(
            "private", "gate", "inside_a_program_another_kind_is_nan_and_stays_out_of_the_rest"
        ),
    ),
    # -- the wrong matrix --------------------------------------------------------------------------
    mutant(
        "a skipped tree node",
        MECHANISMS,
        "here, below = (lowbit >> levels) == 1, (lowbit >> levels) > 1",
        "here, below = ((lowbit >> levels) == 1) & (levels != 1), (lowbit >> levels) > 1",
        test_of("private", "mechanisms", "streaming_is_the_matrix_compiled_or_not"),
    ),
    mutant(
        "a column norm off by one",
        MECHANISMS,
        "while (inside := node <= self.steps).any():",
        "while (inside := node < self.steps).any():",
        PAPER,
        BRUTE,
    ),
    mutant(
        "columns of BLT twice as long as said",
        MECHANISMS,
        "return xp.sqrt(square) * _ROUND_UP",
        "return 0.5 * xp.sqrt(square) * _ROUND_UP",
        test_of("private", "mechanisms", "no_column_is_longer_than_one"),
    ),
    *(
        mutant(
            f"T = {steps} with the paper's constant",
            MECHANISMS,
            "        return nodes\n",
            f"        return {PAPERS} if self.steps == {steps} else nodes\n",
            f"{BRUTE}[{steps}-tree]",
        )
        for steps in (1, 2, 4)
    ),
    mutant(
        "two gates under one seed draw the same noise",
        NOISE,
        'name = f"blindstep looks {seed} {use}" if use else f"blindstep looks {seed}"',
        'name = f"blindstep looks {seed}"',
        test_of("private", "noise", "a_second_gate_of_one_call_has_other_noise"),
    ),
    mutant(
        "one seed gives every data set the same noise",
        NOISE,
        'f"blindstep noise {seed} {about}".rstrip()',
        'f"blindstep noise {seed}"',
        test_of("ledger", "seeds", "one_seed_gives_two_data_sets_other_noise"),
    ),
    mutant(
        "our own columns on trust",
        MECHANISMS,
        "if not np.all(norms[::-1] <= scaling):",
        "if not np.all(norms[::-1] <= 2 * scaling):",
        test_of("private", "mechanisms", "our_own_columns_are_not_taken_on_trust"),
    ),
    mutant(
        "columns of a mechanism from elsewhere on trust",
        MECHANISMS,
        "    return _measured(mechanism)\n",
        "    return Columns(mechanism.column_norms(), mechanism.column_counts())\n",
        test_of("private", "mechanisms", "a_mechanism_that_would_void_the_guarantee_is_refused"),
    ),
    mutant(
        "resume that re-noises",
        SESSION,
        "self.keys, self._secret = packed.keys, packed.secret",
        "self.keys, self._secret = fresh_keys(None), packed.secret",
        test_of("ledger", "session", "an_unseeded_run_keeps_its_key"),
    ),
)
