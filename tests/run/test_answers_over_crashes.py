"""Ask/tell and the host driver over crashes: no answer is lost, none is ever exchanged for another."""

import contextlib
import errno
import shutil

import numpy as np
import pytest

import blindstep as bs
from blindstep.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    LedgerBusy,
    LedgerUnwritable,
    RecordsConsumed,
)
from blindstep.ledger.ledger import read_ledger
from blindstep.ledger.session import Session
from blindstep.run import ask_tell
from driver_runs import DATA, SHORT, Killed, answer_in_parts, events, same
from kill_helpers import digest_of
from losses import capped_distance_numpy
from storage_helpers import failing


@pytest.fixture
def place(tmp_path):
    return tmp_path / "run"


def begin(directory=None, **options):
    return bs.Optimizer(SHORT, np.zeros(2), checkpoint=directory, **{"seed": 7, **options})


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


def test_no_file_of_a_finished_run_holds_answers(place):
    """Nor the checkpoint before the last one; a run that goes on keeps those of its last step there."""
    finish(begin(place))
    kept = [np.load(path) for path in place.rglob("*.npz")]
    assert len(kept) == 2
    assert [arrays["saved.answers"].size for arrays in kept] == [0, 0]
    assert same(finish(begin(place)), finish(begin()))


def test_every_tell_is_on_the_disk_when_it_returns(place, whole):
    chance = np.random.default_rng(3)
    opt = begin(place)
    while not opt.done:
        query = opt.ask()
        order = chance.permutation(opt.unanswered())
        for part in np.array_split(order, 2):
            opt.tell(query, values(query, part), where=part)
            left = opt.unanswered()
            crash(opt)
            opt = begin(place, seed=None)
            np.testing.assert_array_equal(opt.unanswered(), left)
            assert opt.done or opt.ask().run == query.run
        assert opt.done or opt.ask().id > query.id
    assert same(opt.result(), whole)
    (account,) = read_ledger(place / "ledger.jsonl").runs.values()
    assert len(account.charges) == 1


MOMENTS = {
    "before saving": (Session, "save", False),
    "after saving": (Session, "save", True),
    "before the entry": (Session, "charge", False),
    "after the entry": (Session, "charge", True),
    "after the release": (ask_tell, "step_from_answers", True),
    "before the next step": (Session, "after", False),
    "in the next step": (Session, "after", True),
}


@contextlib.contextmanager
def cut(monkeypatch, moment, call):
    """A crash at the `call`-th time that this moment comes."""
    where, name, afterwards = MOMENTS[moment]
    real, left = getattr(where, name), [call]

    def maybe(*arguments, **named):
        left[0] -= 1
        if left[0] == 0 and not afterwards:
            raise Killed
        out = real(*arguments, **named)
        if left[0] == 0:
            raise Killed
        return out

    with monkeypatch.context() as patch:
        patch.setattr(where, name, maybe)
        yield


def released(monkeypatch):
    """A dictionary of all that was ever released, by step; one that differs is an error."""
    seen, real = {}, ask_tell.step_from_answers

    def step_from_answers(permit, memory, machine, state, *rest):
        memory, (after, told) = real(permit, memory, machine, state, *rest)
        step = int(state.round) * machine.horizon + int(state.step)
        digest = digest_of(after.path.position, after.path.move, after.path.point)
        assert seen.setdefault(step, digest) == digest
        return memory, (after, told)

    monkeypatch.setattr(ask_tell, "step_from_answers", step_from_answers)
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
def test_a_step_is_only_ever_released_from_the_answers_it_had(place, monkeypatch, driver, moment):
    """Other answers under the same noise would give away their difference."""
    chance = np.random.default_rng(11)
    seen = released(monkeypatch)

    def life():
        if driver == "host":
            return bs.minimize(
                lambda x, z: chance.random(),
                np.zeros(2),
                DATA,
                method=SHORT,
                evaluate=bs.Host(),
                checkpoint=place,
            )
        opt = bs.Optimizer(SHORT, np.zeros(2), checkpoint=place)
        try:
            random_votes(opt, chance)
        except Killed:
            crash(opt)
            raise
        return opt.result()

    for call in (1, 3):
        with cut(monkeypatch, moment, call), pytest.raises(Killed):
            life()
    result = life()
    assert len(seen) == 8
    assert read_ledger(place / "ledger.jsonl").spent() == result.privacy.mu
    assert same(life(), result)


def test_answers_that_were_not_saved_before_the_entry_cannot_be_exchanged(place, monkeypatch):
    """The ledger sees it, were a driver to forget: the entry names the answers."""
    opt = begin(place)
    monkeypatch.setattr(bs.Optimizer, "_save", lambda self: None)
    with cut(monkeypatch, "after the entry", 1), pytest.raises(Killed):
        finish(opt)
    crash(opt)
    before = (place / "ledger.jsonl").read_bytes()
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"steps 0 \.\. 0 may have been seen"):
        opt = begin(place)
    query = opt.ask()
    with pytest.raises(RecordsConsumed, match="other answers"):
        opt.tell(query, values(query) + 1e-9)
    assert (place / "ledger.jsonl").read_bytes() == before
    assert opt.round == opt.step == 0


def test_an_older_checkpoint_goes_on_only_with_the_same_answers(place, tmp_path, whole):
    with begin(place) as opt:
        opt.tell(opt.ask(), values(opt.ask()))
    old = shutil.copytree(place, tmp_path / "old")
    with begin(place) as opt:
        opt.tell(opt.ask(), values(opt.ask()))
    shutil.copyfile(place / "ledger.jsonl", old / "ledger.jsonl")
    other = shutil.copytree(old, tmp_path / "other")
    with pytest.warns(UserWarning, match=r"steps 1 \.\. 1 may have been seen"):
        assert same(finish(begin(old)), whole)
    with pytest.warns(UserWarning, match="older than the ledger"):
        opt = begin(other)
    with pytest.raises(RecordsConsumed, match="Restore the checkpoint"):
        opt.tell(opt.ask(), values(opt.ask()) * 2)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("last", [False, True])
def test_a_disk_that_is_full_when_an_answer_comes(place, monkeypatch, whole, call, last):
    """The error comes before anything is released; the same tell works once there is space."""
    opt = begin(place)
    query = opt.ask()
    part = np.arange(len(query) if last else 3)
    seen = events(monkeypatch)
    with (
        failing(monkeypatch, call, errno.ENOSPC),
        pytest.raises((CheckpointUnwritable, LedgerUnwritable), match="No space"),
    ):
        opt.tell(query, values(query, part), where=part)
    assert ("step_from_answers", 1) not in seen
    opt.tell(query, values(query, part), where=part)
    assert (("step_from_answers", 1) in seen) == last
    crash(opt)
    opt = begin(place)
    assert len(opt.unanswered()) == len(opt.ask()) - (0 if last else 3)
    assert opt.step == last
    assert same(finish(opt), whole)


def test_one_optimizer_at_a_time_and_none_after_closing(place):
    opt = begin(place)
    with pytest.raises(LedgerBusy, match=r"ledger\.jsonl is being written by another run"):
        begin(place)
    opt.close()
    opt.close()
    with pytest.raises(LedgerUnwritable, match="closed here"):
        opt.tell(opt.ask(), [1.0], where=[0])
    with begin(place) as again:
        assert len(again.unanswered()) == len(again.ask())


def test_closing_saves_the_last_release(place, monkeypatch):
    """So that it need not be repeated: not even by another version of JAX."""
    with begin(place) as opt:
        opt.tell(opt.ask(), values(opt.ask()))
    monkeypatch.setattr("blindstep.ledger.fingerprints.of_environment", lambda: "e" * 64)
    seen = events(monkeypatch)
    assert begin(place).step == 1
    assert seen == []


def test_a_cohort_names_the_people_of_a_ledger_and_stays(place):
    with begin(place, cohort="survey 2026") as opt:
        opt.tell(opt.ask(), values(opt.ask()))
    assert read_ledger(place / "ledger.jsonl").cohort == "survey 2026"
    with pytest.raises(CheckpointMismatch, match="another data"):
        begin(place, cohort="another survey")
