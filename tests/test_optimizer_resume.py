"""Ask/tell and the host driver over crashes: no answer is lost, none is ever exchanged for another."""

import contextlib
import errno
import os
import shutil

import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import optimizer
from blindstep.drivers.session import Session
from blindstep.trusted.ledger import answers_id, read_ledger
from blindstep.trusted.refusals import (
    BudgetExceeded,
    CheckpointMismatch,
    CheckpointUnwritable,
    LedgerBusy,
    LedgerUnwritable,
    RecordsConsumed,
)
from kill_helpers import digest_of
from losses import capped_distance_numpy
from resume_helpers import CHOICES, DATA, Killed, answer_in_parts, evaluations, same, small_run
from storage_helpers import failing, identity, open_ledger

# 12 steps: 3 epochs of 4 in one pass over 36 records.
PLAN = bs.plan(records=36, dim=2, **CHOICES | {"passes": 1})


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def begin(directory=None, **options):
    return bs.Optimizer(PLAN, np.zeros(2), checkpoint=directory, **{"seed": 7, **options})


def values(query, part=slice(None)):
    pairs = zip(query.points[part], DATA[query.record[part]], strict=True)
    return np.asarray([capped_distance_numpy(x, z) for x, z in pairs])


def finish(opt):
    answer_in_parts(opt)
    return opt.result()


def crash(opt):
    """What a killed process leaves: the disk as it is, and the lock free."""
    opt._session.close()


@pytest.fixture(scope="module")
def whole():
    return finish(begin())


def test_every_tell_is_on_the_disk_when_it_returns(run, whole):
    chance = np.random.default_rng(3)
    opt = begin(run)
    while not opt.done:
        query = opt.ask()
        order = chance.permutation(opt.unanswered())
        for part in np.array_split(order, 2):
            opt.tell(query, values(query, part), where=part)
            left = opt.unanswered()
            crash(opt)
            opt = begin(run, seed=None)
            np.testing.assert_array_equal(opt.unanswered(), left)
            assert opt.done or opt.ask().run == query.run
        assert opt.done or opt.ask().id > query.id
    assert same(opt.result(), whole)
    (account,) = read_ledger(run / "ledger.jsonl").runs.values()
    assert len(account.charges) == 1


MOMENTS = {
    "before saving": (Session, "save", False),
    "after saving": (Session, "save", True),
    "before the entry": (Session, "before_release", False),
    "after the entry": (Session, "before_release", True),
    "after the release": (optimizer, "release", True),
    "before the next step": (Session, "after", False),
    "in the next step": (Session, "after", True),
}


@contextlib.contextmanager
def cut(monkeypatch, moment, call):
    """A crash at the `call`-th time that this moment comes."""
    place, name, afterwards = MOMENTS[moment]
    real, left = getattr(place, name), [call]

    def maybe(*arguments, **named):
        left[0] -= 1
        if left[0] == 0 and not afterwards:
            raise Killed
        out = real(*arguments, **named)
        if left[0] == 0:
            raise Killed
        return out

    with monkeypatch.context() as patch:
        patch.setattr(place, name, maybe)
        yield


def released(monkeypatch):
    """A dictionary of all that was ever released, by step; one that differs is an error."""
    seen, real = {}, optimizer.release

    def release(machine, state, *rest):
        after, public = real(machine, state, *rest)
        step = int(state.epoch) * machine.horizon + int(state.step)
        digest = digest_of(after.position, after.move, after.point)
        assert seen.setdefault(step, digest) == digest
        return after, public

    monkeypatch.setattr(optimizer, "release", release)
    return seen


def random_votes(opt, chance):
    """People who never answer twice alike; some never do."""
    while not opt.done:
        query, left = opt.ask(), opt.unanswered()
        for part in (left[::2], left[1::3]):
            opt.tell(query, chance.random(len(part)).round(), where=part)
        if not opt.done and opt.ask().id == query.id:
            opt.give_up(query)


@pytest.mark.parametrize("driver", ["ask", "host"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_step_is_only_ever_released_from_the_answers_it_had(run, monkeypatch, driver, moment):
    """Other answers under the same noise would give away their difference."""
    chance = np.random.default_rng(11)
    seen = released(monkeypatch)

    def life():
        if driver == "host":
            data = DATA[:36]
            return bs.host.minimize(
                lambda x, z: chance.random(), np.zeros(2), data, plan=PLAN, checkpoint=run
            )
        opt = bs.Optimizer(PLAN, np.zeros(2), checkpoint=run)
        try:
            random_votes(opt, chance)
        except Killed:
            crash(opt)
            raise
        return opt.result()

    for call in (1, 2, 5):
        with cut(monkeypatch, moment, call), pytest.raises(Killed):
            life()
    result = life()
    assert len(seen) == 12
    account = read_ledger(run / "ledger.jsonl")
    assert account.spent() == result.privacy.mu
    assert same(life(), result)


def test_answers_that_were_not_saved_before_the_entry_cannot_be_exchanged(run, monkeypatch):
    """The ledger sees it, were a driver to forget: the entry names the answers."""
    opt = begin(run)
    monkeypatch.setattr(bs.Optimizer, "_save", lambda self: None)
    with cut(monkeypatch, "after the entry", 1), pytest.raises(Killed):
        finish(opt)
    crash(opt)
    before = (run / "ledger.jsonl").read_bytes()
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"steps 0 \.\. 0 may have been seen"):
        opt = begin(run)
    query = opt.ask()
    with pytest.raises(RecordsConsumed, match="other answers"):
        opt.tell(query, values(query) + 1e-9)
    assert (run / "ledger.jsonl").read_bytes() == before
    assert opt.epoch == opt.step == 0


def test_an_older_checkpoint_goes_on_only_with_the_same_answers(run, tmp_path, whole):
    opt = begin(run)
    for _ in range(2):
        opt.tell(opt.ask(), values(opt.ask()))
    opt.close()
    old = shutil.copytree(run, tmp_path / "old")
    opt = begin(run)
    for _ in range(2):
        opt.tell(opt.ask(), values(opt.ask()))
    opt.close()
    shutil.copyfile(run / "ledger.jsonl", old / "ledger.jsonl")
    other = shutil.copytree(old, tmp_path / "other")
    with pytest.warns(UserWarning, match=r"steps 2 \.\. 3 may have been seen"):
        assert same(finish(begin(old)), whole)
    with pytest.warns(UserWarning, match="older than the ledger"):
        opt = begin(other)
    with pytest.raises(RecordsConsumed, match="Restore the checkpoint"):
        opt.tell(opt.ask(), values(opt.ask()) * 2)


def test_the_name_of_answers_says_nothing_without_the_key():
    key, other = np.arange(8, dtype=np.uint32), np.arange(1, 9, dtype=np.uint32)
    votes = np.asarray([0.0, 1.0, np.nan])
    name = answers_id(key, 3, votes)
    assert name == answers_id(key, 3, np.asarray([0.0, 1.0, -np.nan]))
    changed = [(other, 3, votes), (key, 4, votes), (key, 3, votes[::-1].copy())]
    assert len({name, *(answers_id(*each) for each in changed)}) == 4


@pytest.mark.parametrize("second", ["other", None])
def test_no_ledger_takes_a_step_twice_with_other_answers(tmp_path, second):
    with open_ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.register(identity())
        ledger.begin("first", 0, answers="some")
        ledger.begin("first", 0, answers="some", replay=True)
        with pytest.raises(RecordsConsumed, match=r"step 0 .* with other answers"):
            ledger.begin("first", 0, answers=second, replay=True)
        with pytest.raises(bs.InvalidArgument, match="one step, not to 2"):
            ledger.begin("first", 1, 2, answers="some")
        assert ledger.spent() == 0.5
        entry = {"kind": "intent", "at": "", "run": "first", "attempt": 0, "first": 0, "count": 1}
        with pytest.raises(ValueError, match="with other answers"):  # nor reads one that has it
            ledger.account.apply({**entry, "charges": [], "answers": second})


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("last", [False, True])
def test_a_disk_that_is_full_when_an_answer_comes(run, monkeypatch, whole, call, last):
    """The error comes before anything is released; the same tell works once there is space."""
    opt = begin(run)
    query = opt.ask()
    part = np.arange(len(query) if last else 3)
    evaluated = evaluations(monkeypatch)
    with (
        failing(monkeypatch, call, errno.ENOSPC),
        pytest.raises((CheckpointUnwritable, LedgerUnwritable), match="No space"),
    ):
        opt.tell(query, values(query, part), where=part)
    assert not evaluated
    opt.tell(query, values(query, part), where=part)
    assert bool(evaluated) == last
    crash(opt)
    opt = begin(run)
    assert len(opt.unanswered()) == len(opt.ask()) - (0 if last else 3)
    assert opt.step == last
    assert same(finish(opt), whole)


def test_one_optimizer_at_a_time_and_none_after_closing(run):
    opt = begin(run)
    with pytest.raises(LedgerBusy, match=r"ledger\.jsonl is being written by another run"):
        begin(run)
    opt.close()
    opt.close()
    with pytest.raises(LedgerUnwritable, match="closed here"):
        opt.tell(opt.ask(), [1.0], where=[0])
    with begin(run) as again:
        assert len(again.unanswered()) == len(again.ask())


def test_closing_saves_the_last_release(run, monkeypatch):
    """So that it need not be repeated: not even by another version of JAX."""
    with begin(run) as opt:
        opt.tell(opt.ask(), values(opt.ask()))
    monkeypatch.setattr("blindstep.drivers.fingerprints.of_environment", lambda: "e" * 64)
    evaluated = evaluations(monkeypatch)
    assert begin(run).step == 1
    assert not evaluated


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"records": "another survey"}, "another data"),
        ({"params": np.ones(2)}, "another params"),
        ({"seed": 8}, "another seed"),
        ({"plan": bs.plan(records=36, dim=2, **CHOICES)}, "plan.json is another plan"),
    ],
)
def test_what_changed_is_refused(run, change, says):
    with begin(run, records="survey 2026") as opt:
        opt.tell(opt.ask(), values(opt.ask()))
    assert read_ledger(run / "ledger.jsonl").records == "survey 2026"
    before = (run / "ledger.jsonl").read_bytes()
    same_run = {"plan": PLAN, "params": np.zeros(2), "seed": 7, "records": "survey 2026"}
    with pytest.raises(CheckpointMismatch, match=says):
        bs.Optimizer(**same_run | {"checkpoint": run} | change)
    assert (run / "ledger.jsonl").read_bytes() == before


def test_a_finished_run_is_returned_and_changes_nothing(run, monkeypatch, whole):
    finish(begin(run))
    files = {path.name: path.read_bytes() for path in run.iterdir()}
    evaluated = evaluations(monkeypatch)
    with begin(run) as opt:
        assert opt.done
        assert same(opt.result(), whole)
        with pytest.raises(bs.HorizonExceeded):
            opt.ask()
    assert not evaluated
    assert {path.name: path.read_bytes() for path in run.iterdir()} == files
    assert {path.stat().st_mode & 0o777 for path in run.iterdir()} == {0o600}


def test_without_a_checkpoint_there_are_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(begin())
    assert os.listdir(tmp_path) == []


def test_all_drivers_share_a_ledger_and_its_budget(tmp_path, monkeypatch):
    ledger, budget = tmp_path / "people.jsonl", bs.Privacy(rho=1.8)
    small_run(ledger=ledger, budget=budget, seed=1)
    small_run(tmp_path / "host", ledger=ledger, seed=2, driver="host")
    small_run(ledger=ledger, seed=3, driver="ask")
    account = read_ledger(ledger)
    assert account.spent() == pytest.approx(np.sqrt(3))
    assert len(account.runs) == 3
    evaluated, before = evaluations(monkeypatch), ledger.read_bytes()
    for driver in ("compiled", "host", "ask"):
        with pytest.raises(BudgetExceeded, match="nothing was released"):
            small_run(tmp_path / "more", ledger=ledger, seed=4, driver=driver)
    assert not evaluated
    assert ledger.read_bytes() == before
    with pytest.raises(bs.InvalidArgument, match="give checkpoint or ledger"):
        begin(budget=budget)
