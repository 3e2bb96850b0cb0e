"""Private values, and choices that are paid for."""

import html
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.insight.report import report_run_directory
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.session import Session
from blindstep.planning.statement import delta_sentence, round_up
from blindstep.private import accounting

DATA = np.random.default_rng(0).normal(size=(4000, 2)) + np.array([3.0, 0.0])
PRIVACY = bs.Privacy(epsilon=1, delta=1e-5)


def loss(point, record):
    return jnp.sum(jnp.abs(point - record))


def test_the_mean_loss_within_its_noise():
    errors, point = [], np.array([2.0, 1.0])
    truth = np.mean(np.sum(np.abs(point - DATA), axis=1))
    for _ in range(20):
        found = bs.value(loss, point, DATA, privacy=PRIVACY)
        errors.append((found.mean - truth) / found.std)
        assert found.largest >= 2.0
    # Clamping costs little here: the mean error is that of 20 draws of the noise, and no more.
    assert abs(np.mean(errors)) < 4 / np.sqrt(20) + 0.5
    assert found.privacy.mu == pytest.approx(PRIVACY.mu, rel=1e-6)


def test_a_public_bound_leaves_less_noise():
    wrong = lambda point, record: (record[0] > point[0]).astype(float)  # noqa: E731
    point = np.array([3.0, 0.0])
    known = bs.value(wrong, point, DATA, privacy=PRIVACY, largest=1.0)
    found = bs.value(wrong, point, DATA, privacy=PRIVACY)
    assert known.std < found.std
    assert known.largest == 1.0
    assert known.mean == pytest.approx(0.5, abs=0.02 + 5 * known.std)


def test_one_record_moves_a_value_by_its_sensitivity_at_most():
    point, seeds = np.array([0.0, 0.0]), {"seed": 11, "largest": 4.0, "privacy": PRIVACY}
    other = DATA.copy()
    other[7] = 1e300
    before, after = (bs.value(loss, point, data, **seeds).mean for data in (DATA, other))
    # Equal noise: the difference is what the record moved, at most 2 x 4 / n.
    assert abs(after - before) <= 2 * 4.0 / len(DATA) * (1 + 1e-9)


def test_losses_that_are_no_numbers_count_nothing():
    def sometimes(point, record):
        return jnp.where(record[0] > 3.0, jnp.nan, 1.0)

    found = bs.value(sometimes, np.zeros(1), DATA, privacy=PRIVACY, largest=1.0)
    assert found.mean == pytest.approx(np.mean(DATA[:, 0] <= 3.0), abs=5 * found.std)


def test_a_plain_python_loss_has_values_too():
    found = bs.value(
        lambda p, z: float(abs(p[0] - z[0])), np.zeros(1), DATA[:300], privacy=PRIVACY, largest=8.0
    )
    assert found.mean == pytest.approx(3.0, abs=6 * found.std + 0.3)


OTHERS = {
    "largest": (loss, {"largest": 4.0}),
    "another loss": (lambda p, z: 2 * loss(p, z), {}),
}


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_a_value_is_not_resumed_with_another_bound_or_loss(name, crashed, tmp_path, monkeypatch):
    other, changed = OTHERS[name]
    call = {"privacy": PRIVACY, "checkpoint": tmp_path / "run"}
    if crashed:
        with monkeypatch.context() as patched:
            patched.setattr(Session, "_begin", stopping(Session._begin, at=2))
            with pytest.raises(KeyboardInterrupt):
                bs.value(loss, np.zeros(2), DATA, **call)
    else:
        bs.value(loss, np.zeros(2), DATA, **call)
    before = read_ledger(tmp_path / "run" / "ledger.jsonl").spent()
    with pytest.raises(bs.errors.CheckpointMismatch):
        bs.value(other, np.zeros(2), DATA, **call, **changed)
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").spent() == before
    found = bs.value(loss, np.zeros(2), DATA, **call)
    spent = read_ledger(tmp_path / "run" / "ledger.jsonl").spent()
    assert spent == pytest.approx(found.privacy.mu, rel=1e-9)


def stopping(begin, at):
    """`begin`, but for its call number `at`, which a crash prevents."""
    calls = []

    def once(*args):
        calls.append(None)
        if len(calls) == at:
            raise KeyboardInterrupt
        return begin(*args)

    return once


def test_nor_with_another_python_function(tmp_path):
    call = {"privacy": PRIVACY, "checkpoint": tmp_path / "run", "largest": 8.0}
    first = bs.value(lambda p, z: float(abs(p[0] - z[0])), np.zeros(1), DATA[:99], **call)
    again = bs.value(lambda p, z: float(abs(p[0] - z[0])), np.zeros(1), DATA[:99], **call)
    assert again == first
    with pytest.raises(bs.errors.CheckpointMismatch, match="another loss"):
        bs.value(lambda p, z: float(abs(p[0] + z[0])), np.zeros(1), DATA[:99], **call)
    bounded = {**call, "largest": None}
    with pytest.raises(bs.errors.CheckpointMismatch, match="another largest"):
        bs.value(lambda p, z: float(abs(p[0] - z[0])), np.zeros(1), DATA[:99], **bounded)


@pytest.mark.parametrize("largest", [None, 8.0])
def test_an_epsilon_that_cannot_be_stated_is_refused_before_anything_is_released(
    largest, tmp_path, monkeypatch
):
    huge = bs.Privacy(epsilon=200, delta=1e-5)
    monkeypatch.setattr(Session, "charge", lambda *_: pytest.fail("something was charged"))
    with pytest.raises(bs.errors.InvalidArgument, match="too large to be stated"):
        bs.value(loss, np.zeros(2), DATA, huge, largest=largest)
    with pytest.raises(bs.errors.InvalidArgument, match="too large to be stated"):
        bs.tune(loss, np.zeros(2), DATA, [bs.Auto()], bs.Privacy(epsilon=90, delta=1e-5))


def test_a_value_is_about_the_neighbours_of_its_budget():
    one, other = (
        bs.value(loss, np.zeros(2), DATA, bs.Privacy(mu=0.5, neighbours=each), largest=8.0)
        for each in ("replace", "zero-out")
    )
    assert other.privacy.neighbours == "zero-out"
    assert other.privacy.mu == pytest.approx(one.privacy.mu, rel=1e-6)
    assert other.std == pytest.approx(one.std / 2, rel=1e-3)


def raising(p, z):
    def call(number):
        if number > 3.0:
            raise ValueError("secret")
        return number

    value = jax.ShapeDtypeStruct((), z.dtype)
    return jax.pure_callback(call, value, z[0], vmap_method="sequential") + 0 * p[0]


def test_a_callback_that_raises_says_nothing_in_a_value_or_a_choice(capfd, caplog):
    with pytest.raises(bs.errors.LossFailed) as of_value:
        bs.value(raising, np.zeros(2), DATA, PRIVACY, largest=8.0)
    method = bs.Auto(evaluations=2**16)
    with pytest.raises(bs.errors.LossFailed) as of_choice:
        bs.tune(loss, np.zeros(2), DATA, [method], PRIVACY, score=raising)
    for failure in (of_value.value, of_choice.value):
        assert failure.__context__ is None
        assert "secret" not in f"{failure}{capfd.readouterr()}{caplog.text}"


def test_losses_that_overflow_warn_of_nothing(recwarn, capfd):
    """Also where they are divided by a small bound."""
    data = np.where(np.arange(300) == 7, 1e308, 1.0)[:, None]
    for each in (lambda p, z: z[0] + 0 * p[0], lambda p, z: float(z[0] * 10 / 10)):
        bs.value(each, np.zeros(1), data, PRIVACY, largest=1e-3)
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []
    assert "warn" not in str(capfd.readouterr()).lower()


@pytest.mark.parametrize("largest", [None, 8.0])
def test_no_file_of_a_finished_value_holds_losses_without_noise(largest, tmp_path):
    """Of any generation of its checkpoints, nor of the histogram's."""
    run = tmp_path / "run"
    bs.value(loss, np.zeros(2), DATA, PRIVACY, largest=largest, checkpoint=run)
    kept = [np.load(path) for path in run.rglob("*.npz")]
    assert kept
    for arrays in kept:
        assert not [name for name in arrays if name.startswith("saved")]
        assert max(arrays[name].size for name in arrays) < len(DATA)


def test_tuning_costs_one_budget_and_finds_the_better_start(tmp_path):
    # Two short steps from so far away lead nowhere.
    short = bs.Tight(radius=1.0, bounds=bs.Bounds(clip=1.0), horizon=2, reach=0.1, rounds=1)
    method = bs.Auto(evaluations=2**16, secret=False)
    candidates = [{"params": np.array([1e3, -1e3]), "method": short}, method]
    budget = bs.Privacy(epsilon=4, delta=1e-5)
    options = {"privacy": budget, "checkpoint": tmp_path / "tuned"}
    tuned = bs.tune(loss, np.zeros(2), DATA, candidates, **options)
    assert tuned.chosen == 1
    assert tuned.values[1] < tuned.values[0]
    spent = read_ledger(tmp_path / "tuned" / "ledger.jsonl").spent()
    assert spent == pytest.approx(tuned.privacy.mu, rel=1e-9)
    assert tuned.privacy.epsilon <= 4.0
    parts = [result.plan.mu for result in tuned.results]
    assert parts[0] == pytest.approx(parts[1])
    choice = np.sqrt(tuned.privacy.mu**2 - accounting.compose(parts) ** 2)
    assert choice**2 / tuned.privacy.mu**2 == pytest.approx(0.1, rel=0.02)
    again = bs.tune(loss, np.zeros(2), DATA, candidates, **options)
    assert again.values == tuned.values
    tells_the_whole(tuned, tmp_path)


def tells_the_whole(tuned, tmp_path):
    """Wherever a result of the choice is shown, the privacy is that of all runs and the choice."""
    sentence = delta_sentence(*(getattr(tuned.privacy, n) for n in ("epsilon", "delta", "exceeds")))
    for each in (tuned, tuned.best, *tuned.results, pickle.loads(pickle.dumps(tuned.best))):
        assert each.privacy == tuned.privacy
        assert sentence in str(each)
        page = bs.report(each, tmp_path / "choice.html").read_text()
        assert sentence in html.unescape(page)
    for name in ("run-1", "run-2"):  # its directory knows the ledger of all
        page = report_run_directory(tmp_path / "tuned" / name).read_text()
        assert "part of a larger spend" in page
        assert f"{round_up(tuned.privacy.mu)}-Gaussian" in page


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ([], "no candidates"),
        ([{"privacy": PRIVACY}], "same for all"),
        ([{"loss": loss}, {}], "score="),
    ],
)
def test_candidates_that_cannot_be_compared_are_refused(candidates, words):
    with pytest.raises(bs.errors.InvalidArgument, match=words):
        bs.tune(loss, np.zeros(2), DATA, candidates, privacy=PRIVACY)


def test_values_and_choices_are_about_the_neighbours_of_their_budget(tmp_path):
    """Half the sensitivity: half the noise, at a mu that means half as much."""
    point = np.zeros(2)
    out = bs.Privacy(epsilon=1, delta=1e-5, neighbours="zero-out")
    given = {"largest": 4.0, "checkpoint": tmp_path / "run", "budget": out}
    half = bs.value(loss, point, DATA, privacy=out, **given)
    whole = bs.value(loss, point, DATA, privacy=PRIVACY, largest=4.0)
    assert half.std == pytest.approx(whole.std / 2, rel=1e-6)
    assert half.privacy.neighbours == "zero-out"
    assert half.privacy.mu == pytest.approx(whole.privacy.mu, rel=1e-6)
    assert "left out or added" in str(half.privacy)
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").unit == "one record (zero-out)"
    methods = [bs.Auto(evaluations=40_000)]
    tuned = bs.tune(loss, point, DATA, methods, privacy=out)
    assert tuned.privacy.neighbours == "zero-out"
    assert tuned.privacy.epsilon <= 1.0
