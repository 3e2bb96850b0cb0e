"""The compiled driver as a user meets it: any pytree, clear errors, one compilation, no leaks."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import compiled
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.trusted.randomness import fresh_keys
from losses import capped_distance

BUDGET = {"preset": "paper", "privacy": bs.Privacy(rho=1.0), "radius": 0.5, "lipschitz": 1.0}
SMALL = {**BUDGET, "horizon": 3, "first_batch": 4, "diff_batch": 2}
DATA = np.random.default_rng(0).normal(size=(40, 2))


def test_any_pytree_of_parameters_and_records():
    params = {"w": jnp.zeros((2, 3), jnp.float32), "b": (np.zeros(3), jnp.zeros((), jnp.float64))}
    data = {"x": np.ones((40, 2), np.float32), "y": (np.arange(40, dtype=np.int32),)}

    def loss(p, record):
        out = record["x"] @ p["w"] + p["b"][0]
        return jnp.sum(jnp.abs(out)) + p["b"][1] * record["y"][0]

    result = bs.minimize(loss, params, data, **SMALL, seed=0)
    for answer in (result.params, result.last, result.final, *result.epoch_means):
        assert jax.tree.structure(answer) == jax.tree.structure(params)
        for leaf, start in zip(jax.tree.leaves(answer), jax.tree.leaves(params), strict=True):
            assert leaf.shape == start.shape
            assert leaf.dtype == start.dtype
            assert np.all(np.isfinite(leaf))
    assert result.means.shape == (result.plan.epochs, 10)
    np.testing.assert_array_equal(
        result.means[result.chosen_epoch][0:3],
        np.ravel(result.epoch_means[result.chosen_epoch]["b"][0]),
    )


def test_it_gets_closer():
    rng = np.random.default_rng(1)
    people = np.array([1.0, -0.5]) + 0.1 * rng.normal(size=(20_000, 2))
    result = bs.minimize(
        capped_distance,
        jnp.zeros(2),
        people,
        privacy=bs.Privacy(epsilon=1.0),
        radius=2.0,
        lipschitz=1.0,
        gap=1.5,
        preset="paper",
        horizon=4,
        diff_batch=200,
        seed=0,
    )
    assert np.linalg.norm(result.last - np.array([1.0, -0.5])) < 0.2
    assert result.privacy.epsilon <= 1.0


def test_second_call_compiles_nothing_even_with_another_budget():
    traces = []

    def loss(p, z):
        traces.append(1)
        return jnp.sum(jnp.abs(p - z))

    bs.minimize(loss, jnp.zeros(2), DATA, **SMALL)
    first = len(traces)
    bs.minimize(loss, jnp.ones(2), DATA + 1, **SMALL)
    bs.minimize(loss, jnp.ones(2), DATA, **{**SMALL, "privacy": bs.Privacy(rho=0.3)})
    assert len(traces) == first


def test_memory_is_bounded_by_a_chunk():
    records, dim = 100_000, 1000
    plan = bs.plan(
        records=records,
        dim=dim,
        **BUDGET,
        horizon=2,
        first_batch=records - 1,
        diff_batch=1,
        epochs=1,
    )
    machine, space = plan.build(), ParameterSpace.of(jnp.zeros(dim))
    keys = fresh_keys(0)
    first, diffs = np.arange(records - 1)[None], np.full((1, 1, 1), records - 1)
    lowered = compiled.run_epoch.lower(
        machine,
        lambda p, z: jnp.abs(jnp.sum(p) - z[0]),
        space,
        machine.begin(jnp.zeros(dim)),
        jnp.zeros((records, 1)),
        first,
        diffs,
        keys.public,
        keys.noise,
    )
    temporary = lowered.compile().compiled.memory_analysis().temp_size_in_bytes
    assert temporary < 100e6  # records x d alone would be 800 MB, records x d x d 800 GB


def test_unseeded_runs_differ_and_seeded_runs_do_not():
    runs = [bs.minimize(capped_distance, jnp.zeros(2), DATA, **SMALL, seed=s) for s in (None, None)]
    assert np.any(runs[0].means != runs[1].means)
    assert not runs[0].privacy.seeded
    assert "seed" not in str(runs[0])
    seeded = [bs.minimize(capped_distance, jnp.zeros(2), DATA, **SMALL, seed=5) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].means, seeded[1].means)
    assert "NOT private against anyone who knows the seed" in str(seeded[0].privacy)


def test_the_statement_says_it_all():
    result = bs.minimize(capped_distance, jnp.zeros(2), DATA, **SMALL)
    said = str(result.privacy)
    for words in ("one record", "replaced", "noisy gradient", "clamped", "not finite counts 0"):
        assert words in said
    assert result.privacy.mu == pytest.approx(result.plan.mu)
    assert result.privacy.mu <= 1.0
    assert result.privacy.to_dict()["zcdp"] == pytest.approx(result.privacy.mu**2 / 2)
    assert result.privacy.epsilon <= bs.Privacy(rho=1.0).epsilon


def test_history_holds_public_quantities_only():
    result = bs.minimize(capped_distance, jnp.zeros(2), DATA, **SMALL)
    names = {field.name for field in dataclasses.fields(result.history)}
    assert names == {"gradient_norm", "move_norm", "seconds"}
    assert result.history.gradient_norm.shape == (result.plan.epochs, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_hostile_values_never_raise_and_count_zero(value):
    # Every record hostile: all increments are 0, and what is released is noise alone.
    hostile = bs.minimize(lambda p, z: jnp.sum(p) * value, jnp.zeros(2), DATA, **SMALL, seed=1)
    silent = bs.minimize(lambda p, z: 0.0 * jnp.sum(p), jnp.zeros(2), DATA, **SMALL, seed=1)
    np.testing.assert_array_equal(hostile.means, silent.means)


def test_one_hostile_record_leaves_the_others():
    data = DATA.copy()
    data[7] = np.nan
    result = bs.minimize(capped_distance, jnp.zeros(2), data, **SMALL, seed=1)
    assert np.all(np.isfinite(result.means))


def test_neighbours_with_the_same_noise_differ_at_most_by_the_sensitivity():
    # Record and replay: same keys, one record replaced; the first release that differs does so by
    # at most the declared sensitivity, and all before it are identical.
    plan = bs.plan(records=40, dim=2, **SMALL)
    neighbour = DATA.copy()
    neighbour[13] = 1e9
    one, two = (
        bs.minimize(capped_distance, jnp.zeros(2), d, plan=plan, seed=3) for d in (DATA, neighbour)
    )
    change = np.abs(one.history.gradient_norm - two.history.gradient_norm).ravel()
    first = int(np.argmax(change > 0))
    assert np.all(change[:first] == 0)
    assert 0 < change[first] <= plan.sensitivity
    assert one.history.gradient_norm.shape == two.history.gradient_norm.shape


def test_the_progress_bar_shows_no_loss(capsys):
    bs.minimize(lambda p, z: 123456.0 + jnp.sum(p), jnp.zeros(2), DATA, **SMALL, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "privacy spent" in err
    assert "epoch" in err
    assert "123456" not in err


def vector_loss(p, z):
    return p - z


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"radius": 0.0}, "radius must be above 0, got 0.0"),
        ({"radius": math.nan}, "radius must be a finite number"),
        ({"radius": -1.0}, "radius"),
        ({"lipschitz": -2.0}, "lipschitz must be above 0, got -2.0"),
        ({"lipschitz": math.inf}, "lipschitz must be a finite number"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        (
            {"horizon": 300, "first_batch": 100},
            "needs 698 records .* got 40: use a shorter horizon",
        ),
        ({"epochs": 100}, "need 800 records, got 40"),
        ({"diff_batch": -3}, "diff_batch"),
        ({"preset": "best"}, "preset must be one of"),
        ({"oracle": "delphi"}, "oracle must be one of"),
        ({"params": jnp.zeros(2, int)}, "params has dtype int.*floating-point"),
        ({"params": jnp.array([0.0, jnp.nan])}, "not finite"),
        ({"params": {}}, "no leaf"),
        ({"params": jnp.zeros((0,))}, "empty"),
        ({"data": np.zeros((0, 2))}, "the data set is empty"),
        (
            {"data": {"a": np.zeros((3, 2)), "b": np.zeros(4)}},
            r"disagree \(data\['a'\]: 3, data\['b'\]: 4\)",
        ),
        ({"data": {}}, "no leaf"),
        ({"data": np.float64(3.0)}, "scalar"),
        ({"loss": vector_loss}, r"returned \(2,\), but it must return one number"),
        ({"loss": lambda p, z: (jnp.sum(p), jnp.sum(z))}, "one number"),
        ({"loss": lambda p, z: 1j * jnp.sum(p)}, "real number"),
        ({"privacy": None}, "give privacy and radius"),
    ],
)
def test_bad_input_is_refused_before_any_evaluation(change, says):
    evaluated = []

    def loss(p, z):
        jax.debug.callback(lambda: evaluated.append(1))
        return jnp.sum(jnp.abs(p - z))

    arguments = {"loss": loss, "params": jnp.zeros(2), "data": DATA, **SMALL, **change}
    with pytest.raises(bs.InvalidArgument, match=says):
        bs.minimize(
            arguments.pop("loss"), arguments.pop("params"), arguments.pop("data"), **arguments
        )
    assert not evaluated


def test_a_plan_for_other_data_is_refused():
    plan = bs.plan(records=40, dim=2, **SMALL)
    with pytest.raises(bs.InvalidArgument, match="plan again"):
        bs.minimize(capped_distance, jnp.zeros(3), np.zeros((40, 3)), plan=plan)
    with pytest.raises(bs.InvalidArgument, match="plan again"):
        bs.minimize(capped_distance, jnp.zeros(2), DATA[:39], plan=plan)
    with pytest.raises(bs.InvalidArgument, match="not both"):
        bs.minimize(capped_distance, jnp.zeros(2), DATA, plan=plan, radius=0.5)


def test_a_forged_plan_cannot_lower_the_noise():
    plan = bs.plan(records=40, dim=2, **SMALL)
    forged = dataclasses.replace(plan, noise_std=plan.noise_std / 2)
    with pytest.raises(bs.InvalidArgument, match="above its budget"):
        bs.minimize(capped_distance, jnp.zeros(2), DATA, plan=forged)


def test_memory_mapped_records(tmp_path):
    path = tmp_path / "records.npy"
    np.save(path, DATA)
    mapped = np.load(path, mmap_mode="r")
    one = bs.minimize(capped_distance, jnp.zeros(2), mapped, **SMALL, seed=0)
    two = bs.minimize(capped_distance, jnp.zeros(2), DATA, **SMALL, seed=0)
    np.testing.assert_array_equal(one.means, two.means)


def test_works_in_the_users_single_precision_mode():
    with jax.enable_x64(False):
        result = bs.minimize(
            capped_distance, jnp.zeros(2), DATA.astype(np.float32), **SMALL, seed=0
        )
        assert result.params.dtype == jnp.float32
        assert jnp.zeros(1).dtype == jnp.float32
    assert result.means.dtype == np.float64
