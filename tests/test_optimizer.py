"""Ask/tell: the compiled driver's iterates, in any order and in parts, and nothing private shown."""

import pathlib
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers.answers import number, numbers
from blindstep.trusted.randomness import fresh_keys
from losses import capped_distance

BUDGET = {"privacy": bs.Privacy(rho=1.0), "radius": 0.5}
DATA = np.random.default_rng(0).normal(size=(60, 3))
PLANS = {
    "paper": {"preset": "paper", "lipschitz": 1.0, "horizon": 3, "first_batch": 4, "diff_batch": 2},
    "naive, frame of a block": {
        "bounds": bs.Clip(1.0),
        "horizon": 2,
        "first_batch": 5,
        "directions": 2,
        "sharing": "block",
        "passes": 2,
    },
    "naive, frame of a batch": {
        "bounds": bs.Clip(1.0),
        "horizon": 2,
        "first_batch": 6,
        "directions": 2,
        "sharing": "batch",
    },
    "variance reduced": {
        "bounds": bs.Lipschitz(1.0) & bs.Clip(1.0, 0.5),
        "horizon": 6,
        "period": 3,
        "first_batch": 5,
        "diff_batch": 3,
        "directions": 2,
        "sharing": "record",
    },
}


def make(name="paper", records=60):
    return bs.plan(records=records, dim=3, **BUDGET, **PLANS[name])


def vectorized(query, data=DATA):
    """The same loss outside JAX's loop: all answers of a query."""
    return np.array(jax.vmap(capped_distance)(query.points, data[query.record]))


def play(opt, answer=lambda opt, query: opt.tell(query, vectorized(query))):
    while not opt.done:
        answer(opt, opt.ask())
    return opt.result()


def same(a, b, tolerance=0.0):
    np.testing.assert_allclose(a.means, b.means, rtol=0, atol=tolerance)
    np.testing.assert_allclose(a.final, b.final, rtol=0, atol=tolerance)
    assert a.chosen_epoch == b.chosen_epoch
    np.testing.assert_allclose(
        a.history.gradient_norm, b.history.gradient_norm, rtol=0, atol=100 * tolerance
    )


@pytest.mark.parametrize("name", PLANS)
def test_the_iterates_are_those_of_the_compiled_driver(name):
    plan = make(name)
    compiled = bs.minimize(capped_distance, jnp.zeros(3), DATA, plan=plan, seed=3)
    asked = play(bs.Optimizer(plan, jnp.zeros(3), seed=3))
    assert np.any(compiled.means != 0)
    same(asked, compiled, 1e-12)
    assert asked.privacy == compiled.privacy
    other = play(bs.Optimizer(plan, jnp.zeros(3), seed=4))  # the comparison can fail
    assert np.max(np.abs(other.means - compiled.means)) > 1e-6


def test_parameters_of_any_shape():
    start = {"w": np.zeros((2,), np.float32), "b": np.ones(())}
    opt = bs.Optimizer(make(), start, seed=0)
    query = opt.ask()
    assert query.parameters(query.points[0])["w"].dtype == np.float32
    result = play(opt)
    assert jax.tree.structure(result.params) == jax.tree.structure(start)
    assert opt.point["w"].shape == opt.position["w"].shape == (2,)


@pytest.mark.parametrize("name", PLANS)
def test_a_query_says_which_record_answers_which_point(name):
    plan = make(name)
    opt = bs.Optimizer(plan, jnp.zeros(3), seed=0)
    seen = []
    while not opt.done:
        query = opt.ask()
        assert query.points.shape == (len(query), 3)
        np.testing.assert_array_equal(query.record.reshape(query.shape)[:, 1, 0], query.rows)
        if query.step == 0:  # GRAD: both points of a pair lie opposite of the point
            pairs = query.points.reshape(*query.shape, 3)
            middle = pairs.mean(axis=1)
            np.testing.assert_allclose(middle, np.broadcast_to(opt.point, middle.shape), atol=1e-12)
            lengths = np.linalg.norm(pairs - opt.point, axis=-1)
            np.testing.assert_allclose(lengths, plan.smoothing, rtol=1e-9)
        part = query.points_of(1, 3)
        whole = query.points.reshape(len(query.rows), -1, 3)[1:4]
        np.testing.assert_array_equal(np.broadcast_to(part, whole.shape), whole)
        seen.extend(query.rows)
        opt.tell(query, np.zeros(len(query)))
    assert np.bincount(seen).max() == plan.passes


def test_parts_in_any_order_with_repeats_change_nothing():
    whole = play(bs.Optimizer(make(), jnp.zeros(3), seed=1))
    rng = np.random.default_rng(5)

    def in_parts(opt, query):
        values = vectorized(query)
        order = rng.permutation(len(query))
        for part in np.array_split(order, 4):
            assert set(query.record[part]) <= set(opt.missing())
            np.testing.assert_array_equal(opt.ask().points, query.points)
            opt.tell(query, values[part], where=part)
            opt.tell(query, values[part][::-1], where=part[::-1])  # the same again: ignored
            opt.tell(query, values[part] + 1.0, where=part)  # another answer: the first one holds
            opt.tell(query, [values[0], 7.0], where=[0, 0]) if 0 in part else None
        assert opt.done or opt.ask().id != query.id
        opt.tell(query, values)  # released long ago: ignored

    same(play(bs.Optimizer(make(), jnp.zeros(3), seed=1), in_parts), whole)


def test_silence_counts_nothing_until_the_user_says_so():
    plan = make()

    def silent(opt, query):
        spoke = np.flatnonzero(query.record != query.rows[1])
        some = np.append(spoke, np.flatnonzero(query.record == query.rows[1])[:1])
        opt.tell(query, vectorized(query)[some], where=some)
        assert opt.ask().id == query.id  # it waits
        np.testing.assert_array_equal(opt.missing(), query.rows[1:2])
        assert len(opt.unanswered()) == len(query) - len(some)
        opt.give_up(query)
        assert opt.done or opt.ask().id > query.id
        opt.give_up(query)  # once more, and too late
        opt.tell(query, vectorized(query))

    def broken(opt, query):
        values = vectorized(query)
        values[query.record == query.rows[1]] = np.nan
        opt.tell(query, values)

    same(
        play(bs.Optimizer(plan, jnp.zeros(3), seed=2), silent),
        play(bs.Optimizer(plan, jnp.zeros(3), seed=2), broken),
    )


def test_what_is_no_number_counts_zero():
    class Hostile:
        def __float__(self):
            raise RuntimeError("secret")

    for strange in (None, "1.0", ValueError("x"), Hostile(), 1j, np.zeros(2), 10**400, [1.0]):
        assert np.isnan(number(strange))
    for good in (1, 1.0, True, np.float32(1), np.ones(()), np.ones(1), jnp.ones(())):
        assert number(good) == 1.0
    np.testing.assert_array_equal(numbers(np.array([True, False])), [1.0, 0.0])
    np.testing.assert_array_equal(numbers(np.array([1.0, None])), [1.0, np.nan])
    plan, results = make(), []
    for bad in (np.nan, np.inf, None, ValueError("x")):

        def answer(opt, query, bad=bad):
            values = list(vectorized(query))
            values[2] = bad
            opt.tell(query, values)

        results.append(play(bs.Optimizer(plan, jnp.zeros(3), seed=2), answer))
    for result in results:
        same(result, results[0])
        assert np.all(np.isfinite(result.means))
    assert np.any(play(bs.Optimizer(plan, jnp.zeros(3), seed=2)).means != results[0].means)


def test_an_answer_nobody_asked_for():
    opt, other = (bs.Optimizer(make(), jnp.zeros(3), seed=s) for s in (0, 1))
    query = opt.ask()
    with pytest.raises(bs.InvalidArgument, match=r"nobody asked.*not one of run"):
        opt.tell(other.ask(), np.zeros(len(query)))
    for wrong in (-1, len(query)):
        with pytest.raises(bs.InvalidArgument, match=f"nobody asked question {wrong}"):
            opt.tell(query, [123.456], where=[wrong])
    for values, where in (([1.0], None), ([1.0, 2.0], [0]), ([1.0], [0.0]), ([1.0], [[0]])):
        with pytest.raises(bs.InvalidArgument, match="one value for each"):
            opt.tell(query, values, where=where)
    assert len(opt.unanswered()) == len(query)
    opt.tell(query, np.zeros(len(query)))
    behind = bs.Optimizer(make(), jnp.zeros(3), seed=0)
    with pytest.raises(bs.InvalidArgument, match="older checkpoint"):
        behind.tell(opt.ask(), np.zeros(len(opt.ask())))


def test_running_past_the_plan_is_an_error():
    opt = bs.Optimizer(make(), jnp.zeros(3))
    with pytest.raises(bs.InvalidArgument, match="epoch 1 of"):
        opt.result()
    play(opt)
    assert "done" in repr(opt)
    assert opt.missing().size == opt.unanswered().size == 0
    with pytest.raises(bs.HorizonExceeded, match="plan a longer run"):
        opt.ask()
    with pytest.raises(bs.InvalidArgument, match="plan again"):
        bs.Optimizer(make(), jnp.zeros(4))


def test_what_is_public_does_not_depend_on_the_answers_of_this_step():
    """Before the release, no attribute may know an answer; at no time the noise key."""
    opt = bs.Optimizer(make(), jnp.zeros(3), seed=0)
    query = opt.ask()

    def shown():
        names = [name for name in dir(opt) if name[0] != "_"]
        values = (getattr(opt, name) for name in names if name not in ("unanswered", "missing"))
        return [repr(opt), repr(query), *(repr(value) for value in values if not callable(value))]

    before = shown()
    opt.tell(query, np.full(len(query) - 1, 0.123456789), where=np.arange(len(query) - 1))
    assert shown() == before
    words = [str(word) for word in np.asarray(fresh_keys(0).noise)]
    assert not any(word in text for text in before for word in words)
    play(opt)
    assert shown() != before  # the comparison can fail


def test_the_votes_example():
    path = pathlib.Path(__file__).parents[1] / "examples" / "votes.py"
    said = runpy.run_path(str(path))["run"](users=40_000, epsilon=1.0, seed=0)
    assert said["before"] < 0.6
    assert said["after"] > said["before"] + 0.15
    assert said["after"] < said["best possible"]
