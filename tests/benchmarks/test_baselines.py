"""The baselines of the benchmarks are noised exactly as they should be: no more, no less.

An over-noised baseline would dress up every comparison; an under-noised one would not be private.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import baselines, problems
from benchmarks.baselines import Setting
from benchmarks.data import Split, read_libsvm
from scipy import stats

from blindstep.errors import InvalidArgument
from blindstep.ledger.budget import Privacy
from blindstep.losses.pytrees import ParameterSpace
from blindstep.private import accounting

pytestmark = pytest.mark.slow  # of the benchmarks, not of the library

BATCH, DIM, CLIP = 6, 8, 0.7
KINDS = {"first-order": 0, "DPZero": 1, "DP-AggZO": 5}


def linear(params, record):
    """Its gradient is the record: neighbours can be made as far apart as wanted."""
    return params @ record["a"]


def problem_of(loss, dim: int, records: dict[str, np.ndarray]) -> problems.Problem:
    split = Split(records, records, records, records)
    return problems.Problem("test", loss, loss, lambda _: np.zeros(dim), lambda *_: 0.0, split)


@functools.partial(jax.jit, static_argnums=1)
def _total(rows, directions: int):
    drawn = None
    if directions:
        drawn = baselines.directions_for(jax.random.key(3), directions, DIM, jnp.float64)
    space = ParameterSpace.of(np.zeros(DIM))
    values = baselines.contributions(linear, space, jnp.zeros(DIM), {"a": rows}, drawn, 0.1)
    return baselines.clipped_sum(values, CLIP)


def total(rows: np.ndarray, directions: int) -> np.ndarray:
    """What a step releases before noise, for a batch of linear losses."""
    return np.asarray(_total(jnp.asarray(rows), directions))


class TestSensitivity:
    """2 C if a record is replaced: never exceeded, and reached."""

    @pytest.mark.parametrize("directions", KINDS.values(), ids=KINDS)
    def test_replacing_any_record_moves_the_sum_by_at_most_twice_the_clip(self, directions):
        rng = np.random.default_rng(0)
        worst = 0.0
        for _ in range(200):
            rows = rng.standard_normal((BATCH, DIM)) * 10.0 ** rng.uniform(-3, 6)
            other = rows.copy()
            place = rng.integers(BATCH)
            hostile = (np.nan, np.inf, 1e300, -1e9)
            choices = [-rows[place], rng.standard_normal(DIM), *(np.full(DIM, h) for h in hostile)]
            other[place] = choices[rng.integers(len(choices))]
            moved = np.linalg.norm(total(rows, directions) - total(other, directions))
            worst = max(worst, float(moved))
        assert worst <= 2 * CLIP * (1 + 1e-9)
        assert worst >= 2 * CLIP * 0.99

    def test_short_contributions_are_not_clipped(self):
        rows = np.random.default_rng(2).standard_normal((BATCH, DIM)) * 1e-3
        np.testing.assert_allclose(total(rows, 0), rows.sum(axis=0), rtol=1e-9)

    def test_one_record_that_is_not_finite_counts_nothing(self):
        rows = np.random.default_rng(3).standard_normal((BATCH, DIM))
        broken = rows.copy()
        broken[1] = np.nan
        np.testing.assert_allclose(total(broken, 5), total(np.delete(rows, 1, axis=0), 5))


class TestEstimates:
    """Without clip, the zeroth-order estimates are unbiased for the gradient of a linear loss."""

    def test_differences_are_the_slopes_along_the_directions(self):
        rows = np.random.default_rng(4).standard_normal((BATCH, DIM)) * 1e-3
        drawn = baselines.directions_for(jax.random.key(3), 5, DIM, jnp.float64)
        np.testing.assert_allclose(total(rows, 5), np.asarray(drawn) @ rows.sum(0), rtol=1e-9)

    @pytest.mark.parametrize("directions", [1, 16])
    def test_directions_have_the_identity_as_second_moment(self, directions):
        drawn = jax.vmap(lambda k: baselines.directions_for(k, directions, DIM, jnp.float64))(
            jax.random.split(jax.random.key(0), 4000)
        ).reshape(-1, DIM)
        moment = np.asarray(drawn.T @ drawn) / len(drawn)
        # Each entry has standard deviation at most sqrt(2 / 4000) = 0.022; 5 of them.
        np.testing.assert_allclose(moment, np.eye(DIM), atol=0.12)
        if directions == 1:
            np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), math.sqrt(DIM))


def squared_noise(setting: Setting, privacy: Privacy) -> float:
    """Sum of squared released noise / (expected variance), from a whole run on a constant loss.

    The contributions are 0, so parameters move by noise alone: x = -sum_t rate_t noise_t / batch.
    """
    dim, number = 3000, 40
    records = {"a": np.zeros((number, 1))}
    problem = problem_of(lambda params, record: 0.0 * jnp.sum(params), dim, records)
    outcome = baselines.run(problem, records, privacy, setting, 7)
    steps = setting.passes * setting.batches
    rates = setting.rate * (1 - np.arange(steps) / steps)
    return (
        float(np.sum(np.asarray(outcome.params) ** 2) / np.sum(rates**2))
        * (number / setting.batches) ** 2
    )


class TestNoise:
    """The noise that a run really adds is the one that the privacy needs."""

    @pytest.mark.parametrize(("passes", "batches"), [(1, 1), (9, 1), (4, 5)])
    def test_first_order_noise_is_two_clips_root_passes_over_mu(self, passes, batches):
        privacy = Privacy(mu=0.8)
        found = squared_noise(Setting(passes, batches, CLIP, 0.3), privacy)
        wanted = 2 * CLIP * math.sqrt(passes) / 0.8
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 3000)
        assert low < found / wanted**2 < high
        # Power: the same draws would have shown noise x 0.9, or a factor 2 too much or too little.
        for factor in (0.9, 2.0, 0.5):
            assert not low < factor**2 * found / wanted**2 < high

    @pytest.mark.parametrize("directions", [1, 5])
    def test_zeroth_order_noise_has_one_number_for_each_direction(self, directions):
        """One step: x = -(rate / batch K) sum_j noise_j u_j, with known u_j. Solve for the noise."""
        privacy, setting = Privacy(mu=0.8), Setting(1, 1, CLIP, 1.0, directions, 0.1)
        records = {"a": np.zeros((40, 1))}
        problem = problem_of(lambda params, record: 0.0 * jnp.sum(params), DIM, records)
        found = []
        for seed in range(100):
            outcome = baselines.run(problem, records, privacy, setting, seed)
            public, _ = jax.random.split(jax.random.key(seed))
            drawn = baselines.directions_for(
                jax.random.fold_in(public, 0), directions, DIM, jnp.float64
            )
            moved = -np.asarray(outcome.params) * 40 * directions
            noise, residual, _, _ = np.linalg.lstsq(np.asarray(drawn).T, moved)
            assert float(np.sum(residual)) < 1e-18
            found.extend(noise / (2 * CLIP / 0.8))
        count = len(found)
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], count)
        assert low < np.sum(np.square(found)) < high
        assert not low < 0.25 * np.sum(np.square(found)) < high

    def test_no_privacy_means_no_noise(self):
        records = {"a": np.random.default_rng(0).standard_normal((20, DIM))}
        outcome = baselines.run(
            problem_of(linear, DIM, records), records, None, Setting(1, 1, math.inf, 1.0), 0
        )
        np.testing.assert_allclose(outcome.params, -records["a"].mean(axis=0), rtol=1e-6)

    def test_noise_and_directions_come_from_different_keys(self):
        """A peer draws its noise from the generator that made its direction."""
        records = {"a": np.zeros((4, 1))}
        problem = problem_of(lambda params, record: 0.0 * jnp.sum(params), DIM, records)
        setting, privacy = Setting(1, 1, CLIP, 1.0, 1, 0.1), Privacy(mu=1.0)
        sizes = []
        for seed in range(200):
            moved = np.asarray(baselines.run(problem, records, privacy, setting, seed).params)
            public, _ = jax.random.split(jax.random.key(seed))
            key = jax.random.fold_in(public, 0)
            direction = np.asarray(baselines.directions_for(key, 1, DIM, jnp.float64))[0]
            sizes.append((float(moved @ direction), float(jax.random.normal(key, (), jnp.float64))))
        found, guessed = np.transpose(sizes)
        # Correlation of 200 independent pairs is below 5 / sqrt(200) with near certainty.
        assert abs(np.corrcoef(found, guessed)[0, 1]) < 5 / math.sqrt(200)


class TestCalibration:
    """Sigma gives back exactly the budget."""

    @pytest.mark.parametrize("passes", [1, 7, 4000])
    def test_disjoint_noise_spends_mu_exactly(self, passes):
        sigma = baselines.disjoint_noise(0.5, CLIP, passes)
        spent = accounting.compose([2 * CLIP / sigma] * passes)
        assert spent == pytest.approx(0.5, rel=1e-9)


class TestBatches:
    """Participation: what the accounting assumes is what the schedule does."""

    def test_disjoint_batches_use_a_record_once_in_a_pass(self):
        rows = baselines.disjoint_rows(np.random.default_rng(0), 103, 3, 10)
        assert rows.shape == (3, 10, 10)
        for one_pass in rows.reshape(3, -1):
            assert len(np.unique(one_pass)) == one_pass.size

    def test_a_pass_in_batches_and_one_of_everybody_see_all_records(self):
        """Full batches take everybody, in any order; evaluations add up."""
        records = {"a": np.random.default_rng(0).standard_normal((20, DIM))}
        problem = problem_of(linear, DIM, records)
        # Rates fall from 1 to 1/2 in two batches of half the records each.
        halves = baselines.disjoint_rows(np.random.default_rng([0, 1]), 20, 1, 2)[0]
        means = [records["a"][half].mean(axis=0) for half in halves]
        for batches, moved in ((1, records["a"].mean(axis=0)), (2, means[0] + 0.5 * means[1])):
            outcome = baselines.run(problem, records, None, Setting(1, batches, math.inf, 1.0), 0)
            np.testing.assert_allclose(outcome.path, -moved[None], rtol=1e-6)
        setting = Setting(3, 1, CLIP, 1.0, 5, 0.1)
        counted = baselines.run(problem, records, None, setting, 0).evaluations
        np.testing.assert_array_equal(counted, [10, 20, 30])


class TestProblems:
    """Losses and data forms."""

    def test_network_has_826_parameters_and_the_right_gradient(self):
        start = jax.tree.map(lambda leaf: leaf.astype(np.float64), problems.network_start(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(start)) == 826
        record = {"features": jnp.ones(40), "label": jnp.asarray(3)}
        scores = problems.network_scores(start, record["features"])
        expected = -jax.nn.log_softmax(scores)[3]
        assert float(problems.cross_entropy(start, record)) == pytest.approx(float(expected))

    def test_capped_penalty_and_hinge(self):
        record = {"features": jnp.asarray([1.0, 0.0, 1.0]), "label": jnp.asarray(0)}
        found = problems.capped_svm(jnp.asarray([0.5, 3.0, -1.0]), record)
        assert float(found) == pytest.approx((1 - 0.5) + 1e-5 * (0.5 + 2.0 + 1.0))

    def test_zero_one_loss_has_no_gradient(self):
        record = {"features": jnp.asarray([1.0, 1.0]), "label": jnp.asarray(1)}
        params = jnp.asarray([-0.3, 0.1])
        assert float(problems.zero_one_loss(params, record)) == 1.0
        assert np.all(np.asarray(jax.grad(problems.zero_one_loss)(params, record)) == 0.0)

    def test_libsvm_lines_become_dense_rows(self, tmp_path):
        path = tmp_path / "rows"
        path.write_text("1 1:1 3:0.5 \n0 2:1 \n-1 \n")
        features, labels = read_libsvm(path, 3)
        np.testing.assert_array_equal(features, [[1, 0, 0.5], [0, 1, 0], [0, 0, 0]])
        np.testing.assert_array_equal(labels, [1, 0, 0])

    def test_missing_data_says_where_it_is_from(self, tmp_path):
        with pytest.raises(InvalidArgument, match="LIBSVM data page"):
            problems.a9a(tmp_path)

    def test_every_baseline_learns_an_easy_problem(self):
        """Privately, with many records: the sign of the mean record, through the whole of `run`."""
        records = {"a": np.random.default_rng(6).standard_normal((20_000, 3)) * 0.1 + 0.5}
        problem = problem_of(linear, 3, records)
        for directions, passes in ((0, 5), (1, 60), (5, 10)):
            setting = Setting(passes, 2, 3.0, 1.0 / passes, directions, 0.1)
            outcome = baselines.run(problem, records, Privacy(mu=1.0), setting, 0)
            assert np.all(np.asarray(outcome.params) < -0.1), directions
            smaller = dataclasses.replace(setting, passes=1)
            noises = [baselines.noise_for(Privacy(mu=1.0), each) for each in (smaller, setting)]
            assert noises[0] < noises[1]
