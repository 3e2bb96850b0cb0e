"""Ask/tell: in any order, in parts, by several threads; and nothing private is shown."""

import json
import pathlib
import runpy
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger.ledger import read_ledger
from blindstep.losses.isolation_worker import number
from blindstep.private.noise import fresh_keys
from blindstep.run.query import numbers
from driver_runs import DATA, HORIZON, NAIVE_PLAN, PLAN, answer_in_parts, same
from losses import capped_distance_numpy

PLANS = {"own": PLAN, "shared": NAIVE_PLAN}


def begin(plan=PLAN, **options):
    return bs.Optimizer(plan, np.zeros(2), **{"seed": 7, **options})


def values(query):
    pairs = zip(query.points, DATA[query.record], strict=True)
    return np.asarray([capped_distance_numpy(x, z) for x, z in pairs])


def play(opt, answer=lambda opt, query: opt.tell(query, values(query))):
    while not opt.done:
        answer(opt, opt.ask())
    return opt.result()


@pytest.fixture(scope="module")
def whole():
    return play(begin())


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_query_says_which_record_answers_which_point(plan):
    opt, seen = begin(plan), []
    while not opt.done:
        query = opt.ask()
        assert query.id == (opt.round, opt.step) == (query.round, query.step)
        assert query.points.shape == (len(query), 2)
        np.testing.assert_array_equal(query.record.reshape(query.shape)[:, 1, 0], query.rows)
        if query.step == 0:  # GRAD: both points of a pair lie opposite of the point
            pairs = query.points.reshape(*query.shape, 2)
            middle = pairs.mean(axis=1)
            np.testing.assert_allclose(middle, np.broadcast_to(opt.point, middle.shape), atol=1e-12)
            lengths = np.linalg.norm(pairs - opt.point, axis=-1)
            np.testing.assert_allclose(lengths, plan.smoothing, rtol=1e-9)
        part = query.points_of(1, 3)
        of_each = query.points.reshape(len(query.rows), -1, 2)[1:4]
        np.testing.assert_array_equal(np.broadcast_to(part, of_each.shape), of_each)
        seen.extend(query.rows)
        opt.tell(query, np.zeros(len(query)))
    assert np.bincount(seen).max() == plan.passes


def test_parts_in_any_order_with_repeats_change_nothing(whole):
    rng = np.random.default_rng(5)

    def in_parts(opt, query):
        answers = values(query)
        for part in np.array_split(rng.permutation(len(query)), 4):
            assert set(query.record[part]) <= set(opt.missing())
            np.testing.assert_array_equal(opt.ask().points, query.points)
            opt.tell(query, answers[part], where=part)
            opt.tell(query, answers[part][::-1], where=part[::-1])  # the same again: ignored
            opt.tell(query, answers[part] + 1.0, where=part)  # another answer: the first one holds
            opt.tell(query, [answers[0], 7.0], where=[0, 0]) if 0 in part else None
        assert opt.done or opt.ask().id != query.id
        opt.tell(query, answers)  # released long ago: ignored

    assert same(play(begin(), in_parts), whole)


def test_silence_counts_nothing_until_the_user_says_so():
    def silent(opt, query):
        spoke = np.flatnonzero(query.record != query.rows[1])
        some = np.append(spoke, np.flatnonzero(query.record == query.rows[1])[:1])
        opt.tell(query, values(query)[some], where=some)
        assert opt.ask().id == query.id  # it waits
        np.testing.assert_array_equal(opt.missing(), query.rows[1:2])
        assert len(opt.unanswered()) == len(query) - len(some)
        opt.give_up(query)
        assert opt.done or opt.ask().id > query.id
        opt.give_up(query)  # once more, and too late
        opt.tell(query, values(query))

    def broken(opt, query):
        answers = values(query)
        answers[query.record == query.rows[1]] = np.nan
        opt.tell(query, answers)

    assert same(play(begin(), silent), play(begin(), broken))


def test_what_is_no_number_counts_zero(whole):
    class Hostile:
        def __float__(self):
            raise RuntimeError("secret")

    for strange in (None, "1.0", ValueError("x"), Hostile(), 1j, np.zeros(2), 10**400, [1.0]):
        assert np.isnan(number(strange))
    for good in (1, 1.0, True, np.float32(1), np.ones(()), np.ones(1), jnp.ones(())):
        assert number(good) == 1.0
    np.testing.assert_array_equal(numbers(np.array([True, False])), [1.0, 0.0])
    np.testing.assert_array_equal(numbers(np.array([1.0, None])), [1.0, np.nan])
    results = []
    for bad in (np.nan, -np.inf, ValueError("x")):

        def answer(opt, query, bad=bad):
            answers = list(values(query))
            answers[2] = bad
            opt.tell(query, answers)

        results.append(play(begin(), answer))
    assert all(same(result, results[0]) for result in results)
    assert not same(whole, results[0])


def test_an_answer_nobody_asked_for():
    opt, other = begin(), begin(seed=1)
    query = opt.ask()
    with pytest.raises(bs.errors.InvalidArgument, match=r"nobody asked.*not one of run"):
        opt.tell(other.ask(), np.zeros(len(query)))
    for wrong in (-1, len(query)):
        with pytest.raises(bs.errors.InvalidArgument, match=f"nobody asked question {wrong}"):
            opt.tell(query, [123.456], where=[wrong])
    for answers, where in (([1.0], None), ([1.0, 2.0], [0]), ([1.0], [0.0]), ([1.0], [[0]])):
        with pytest.raises(bs.errors.InvalidArgument, match="one value for each"):
            opt.tell(query, answers, where=where)
    assert len(opt.unanswered()) == len(query)
    opt.tell(query, np.zeros(len(query)))
    with pytest.raises(bs.errors.InvalidArgument, match="older checkpoint"):
        begin().tell(opt.ask(), np.zeros(len(opt.ask())))


def test_running_past_the_plan_is_an_error():
    opt = begin(NAIVE_PLAN)
    with pytest.raises(bs.errors.InvalidArgument, match="round 1 of"):
        opt.result()
    assert "round 1, step 1 of" in repr(opt)
    play(opt)
    assert "done" in repr(opt)
    assert opt.missing().size == opt.unanswered().size == 0
    with pytest.raises(bs.errors.HorizonExceeded, match="plan a longer run"):
        opt.ask()


def test_what_is_public_does_not_depend_on_the_answers_of_this_step():
    """Before the release, no attribute may know an answer; at no time the noise key."""
    opt = begin()
    query = opt.ask()

    def shown():
        names = [name for name in dir(opt) if name[0] != "_"]
        public = (getattr(opt, name) for name in names if name not in ("unanswered", "missing"))
        return [repr(opt), repr(query), *(repr(value) for value in public if not callable(value))]

    before = shown()
    opt.tell(query, np.full(len(query) - 1, 0.123456789), where=np.arange(len(query) - 1))
    assert shown() == before
    words = [str(word) for word in fresh_keys(7).noise.words()]
    assert not any(word in text for text in before for word in words)
    opt.tell(query, values(query))
    assert shown() != before  # the comparison can fail


def test_threads_may_share_it(whole, tmp_path):
    """Four of them, each with a quarter of the answers, and all with repeats, over a checkpoint."""
    opt, errors, gate = begin(checkpoint=tmp_path / "run"), [], threading.Barrier(4)

    def answer(number):
        try:
            for _ in range(2 * HORIZON):
                query = opt.ask()
                gate.wait(60)  # all have the same query
                mine = np.arange(number, len(query), 4)
                for part in (mine, mine[::2]):
                    opt.tell(query, values(query)[part], where=part)
                    opt.unanswered()
                    opt.missing()
                gate.wait(60)  # all have told: the step was released once
                assert opt.ask().id > query.id
        except BaseException as error:
            errors.append(error)
            gate.abort()

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (opt.round, opt.step) == (2, 0)
    np.testing.assert_array_equal(np.stack(opt.means), whole.means[:2])
    (account,) = read_ledger(tmp_path / "run" / "ledger.jsonl").runs.values()
    assert account.next_step == 2 * HORIZON
    answer_in_parts(opt)
    assert same(opt.result(), whole)


def test_a_question_is_plain_json():
    query = begin().ask()
    asked = json.loads(json.dumps([query.question(place) for place in (0, len(query) - 1)]))
    for place, question in zip((0, len(query) - 1), asked, strict=True):
        assert question["record"] == query.record[place]
        assert (question["run"], question["question"]) == (query.run, place)
        assert (question["round"], question["step"]) == query.id
        np.testing.assert_array_equal(question["point"], query.points[place])
    for nobody in (-1, len(query)):
        with pytest.raises(bs.errors.InvalidArgument, match="nobody asked question"):
            query.question(nobody)


def test_the_votes_example(monkeypatch):
    path = pathlib.Path(__file__).parents[2] / "examples" / "votes.py"
    monkeypatch.syspath_prepend(path.parent)  # as when it is run as a script
    said = runpy.run_path(str(path))["run"](users=20_000, epsilon=1.0, seed=0)
    assert said["before"] < 0.6
    assert said["after"] > said["before"] + 0.15
    assert said["after"] < said["best possible"]
