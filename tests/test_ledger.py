"""The ledger's bookkeeping: who is charged what, and what is refused. Files: test_journal.py."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindstep.errors import HorizonExceeded, InvalidArgument
from blindstep.trusted import accounting
from blindstep.trusted.account import Account, RunIdentity
from blindstep.trusted.ledger import noise_key_id, people_of, read_ledger
from blindstep.trusted.refusals import (
    BudgetExceeded,
    LedgerMismatch,
    NoiseReused,
    RecordsConsumed,
)
from blindstep.trusted.sealed_json import fingerprint
from storage_helpers import identity, open_ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_a_pass_is_charged_once_at_its_first_step(path):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        assert ledger.spent() == 0
        spent = []
        for step in range(12):
            ledger.begin("first", step)
            spent.append(ledger.spent())
    assert spent == [accounting.compose([0.5] * (1 + step // 4)) for step in range(12)]
    account = read_ledger(path)
    assert account.spent() == account.spent("first") == spent[-1]
    assert account.runs["first"].next_step == 12


def test_an_epoch_at_once_charges_every_pass_it_touches(path):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        ledger.begin("first", 0, 3)
        assert ledger.spent() == 0.5
        ledger.begin("first", 3, 6)
        assert ledger.spent() == accounting.compose([0.5] * 3)


def test_runs_on_the_same_people_compose_against_one_budget(path):
    one = {"passes": 1, "steps_per_pass": 2}
    with open_ledger(path, budget=1.0) as ledger:
        for name, mu in (("a", 0.6), ("b", 0.64)):
            ledger.register(identity(name, mu_per_pass=mu, data=name * 64, **one))
            ledger.begin(name, 0)
        assert ledger.spent() == accounting.compose([0.6, 0.64])
        assert ledger.spent("a") == 0.6
        left = ledger.remaining()
        assert math.isclose(left, math.sqrt(1 - 0.6**2 - 0.64**2), rel_tol=1e-12)
        assert not ledger.would_exceed(left)
        assert ledger.would_exceed(left * 1.0001)
        size = path.stat().st_size
        with pytest.raises(BudgetExceeded, match=r"ledger\.jsonl.*nothing was released"):
            ledger.register(identity("c", mu_per_pass=left * 1.0001, **one))
        assert path.stat().st_size == size
        assert "c" not in ledger.account.runs
        ledger.register(identity("c", mu_per_pass=left, **one))
        ledger.begin("c", 0)
        assert math.isclose(ledger.spent(), 1.0, rel_tol=1e-12)


def test_the_budget_is_checked_again_at_every_pass(path):
    """Two runs that fit one by one, but not together."""
    with open_ledger(path, budget=1.0) as ledger:
        for name in "ab":
            ledger.register(identity(name, mu_per_pass=0.8, passes=1))
        ledger.begin("a", 0)
        size = path.stat().st_size
        with pytest.raises(BudgetExceeded):
            ledger.begin("b", 0)
        assert path.stat().st_size == size
        ledger.begin("a", 1)  # paid for
        ledger.begin("a", 0, replay=True)


@settings(max_examples=100, deadline=None)
@given(budget=st.floats(1e-6, 1e6), passes=st.integers(1, 100))
def test_a_run_planned_for_the_whole_budget_fits(budget, passes):
    """Rounding must not stop the last pass, and one pass more must not fit."""
    account = Account()
    account.apply({"kind": "ledger", "at": "", "schema": 1, "records": "people"})
    account.apply({"kind": "budget", "at": "", "mu": budget})
    mu = budget / math.sqrt(passes)
    run = identity(mu_per_pass=mu, steps_per_pass=1, passes=passes + 1)
    account.apply({"kind": "run", "at": "", **run.__dict__})
    body = {"kind": "intent", "at": "", "run": "first", "attempt": 0, "replay": False}
    for step in range(passes):
        assert not account.would_exceed(mu)
        account.apply({**body, "first": step, "count": 1, "charges": [[step, mu]]})
    assert account.would_exceed(mu)
    assert account.would_exceed(1e-4 * budget)


def test_the_budget_stays_and_may_only_be_lowered(path):
    with open_ledger(path, budget=2.0) as ledger:
        assert ledger.remaining() == 2.0
    with open_ledger(path) as ledger:
        assert ledger.remaining() == 2.0
    with pytest.raises(LedgerMismatch, match="never raised"):
        open_ledger(path, budget=3.0)
    with open_ledger(path, budget=1.0) as ledger:
        assert ledger.remaining() == 1.0
    with pytest.raises(LedgerMismatch):
        open_ledger(path, budget=2.0)
    with pytest.raises(InvalidArgument):
        open_ledger(path, budget=math.nan)


def test_no_budget_means_no_limit(path):
    with open_ledger(path) as ledger:
        assert ledger.remaining() == math.inf
        assert not ledger.would_exceed(1e9)


def test_steps_begun_before_are_refused_unless_replayed(path):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        for step in range(6):
            ledger.begin("first", step)
        spent = ledger.spent()
    with open_ledger(path) as ledger:
        assert ledger.register(identity()).next_step == 6
        for step in (0, 3, 5):
            with pytest.raises(RecordsConsumed, match=r"ledger\.jsonl.*replay=True.*recharge"):
                ledger.begin("first", step)
        with pytest.raises(RecordsConsumed):
            ledger.begin("first", 5, 3)
        ledger.begin("first", 3, replay=True)
        ledger.begin("first", 4, 4, replay=True)  # 4 and 5 again, 6 and 7 for the first time
        assert ledger.spent() == spent
        ledger.begin("first", 8)
        assert ledger.spent() == accounting.compose([0.5] * 3)
        attempt = ledger.account.runs["first"].attempts[0]
        assert (attempt.start, attempt.stop, attempt.replayed) == (0, 9, 3)


def test_a_lost_key_is_paid_for(path):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        ledger.begin("first", 0, 6)
    fresh = identity(noise_key="another")
    with open_ledger(path) as ledger:
        with pytest.raises(RecordsConsumed, match="recharge=True"):
            ledger.register(fresh)
        ledger.register(fresh, recharge=True)
        assert ledger.spent() == accounting.compose([0.5] * 2)
        ledger.begin("first", 4)  # from a checkpoint at step 4: pass 1 is touched again, pass 0 not
        assert ledger.spent() == accounting.compose([0.5] * 3)
        with pytest.raises(RecordsConsumed):
            ledger.begin("first", 3, replay=True)  # there is nothing to replay under this key
        with pytest.raises(RecordsConsumed):
            ledger.begin("first", 4)
        ledger.begin("first", 5, 4)
        assert ledger.spent() == accounting.compose([0.5] * 4)
    with open_ledger(path) as ledger:  # the old checkpoint turns up again
        ledger.register(identity())
        ledger.begin("first", 2, 4, replay=True)
        assert ledger.spent() == accounting.compose([0.5] * 4)
        with pytest.raises(LedgerMismatch):
            ledger.begin("first", 8)  # under this key, steps 6 and 7 were never begun


def test_a_key_that_made_no_noise_yet_may_be_replaced(path):
    """A crash between `register` and the first checkpoint."""
    with open_ledger(path) as ledger:
        ledger.register(identity())
    with open_ledger(path) as ledger:
        ledger.register(identity(noise_key="another"))
        ledger.begin("first", 0)
        assert ledger.spent() == 0.5


def test_one_noise_key_never_serves_two_runs(path):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        with pytest.raises(NoiseReused, match="fresh keys"):
            ledger.register(identity("second", noise_key=identity().noise_key))


@pytest.mark.parametrize(
    "change",
    [{"plan": "q" * 64}, {"data": "e" * 64}, {"mu_per_pass": 0.4}, {"steps_per_pass": 5}]
    + [{"passes": 4}],
)
def test_a_run_keeps_its_plan_and_its_data(path, change):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        with pytest.raises(LedgerMismatch, match=rf"ledger\.jsonl.*{next(iter(change))}"):
            ledger.register(identity(**change), recharge=True)


def test_other_peoples_ledger_is_refused(path):
    open_ledger(path).close()
    with pytest.raises(LedgerMismatch, match=r"ledger\.jsonl is the ledger of 'people'"):
        open_ledger(path, records="others")


def test_a_ledger_is_asked_for_its_people(path):
    assert people_of(path) is None
    path.write_bytes(b"")
    assert people_of(path) is None  # begun, and never written
    path.unlink()
    with open_ledger(path) as ledger:
        ledger.register(identity("a"))
    assert people_of(path) == read_ledger(path).records is not None


def test_steps_past_the_horizon_and_gaps_are_refused(path):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        with pytest.raises(LedgerMismatch, match="checkpoint is newer than the ledger"):
            ledger.begin("first", 1)
        ledger.begin("first", 0, 12)
        for first, number in ((12, 1), (11, 2), (0, 13)):
            with pytest.raises(HorizonExceeded, match="planned for 12"):
                ledger.begin("first", first, number, replay=True)
        assert ledger.spent() == accounting.compose([0.5] * 3)


def test_arguments_that_make_no_sense(path):
    with open_ledger(path) as ledger:
        with pytest.raises(InvalidArgument, match="not registered"):
            ledger.begin("first", 0)
        ledger.register(identity())
        for first, number in ((-1, 1), (0, 0), (True, 1)):
            with pytest.raises(InvalidArgument):
                ledger.begin("first", first, number)
        with pytest.raises(InvalidArgument, match="no run 'second'"):
            ledger.spent("second")
    for bad in ({"mu_per_pass": 0.0}, {"mu_per_pass": math.nan}, {"passes": 0}, {"data": ""}):
        with pytest.raises(InvalidArgument):
            identity(**bad)


def test_fingerprints():
    assert fingerprint({"a": 1, "b": [2.5]}) == fingerprint({"b": [2.5], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    with pytest.raises(InvalidArgument, match="fingerprinted"):
        fingerprint({"a": math.inf})
    key = np.arange(8, dtype=np.uint32)
    assert len(noise_key_id(key)) == 64
    assert noise_key_id(key) != noise_key_id(key[::-1])
    for wrong in (key[:7], key.astype(np.int64)):
        with pytest.raises(InvalidArgument, match="noise key"):
            noise_key_id(wrong)


class Model:
    """What should be spent, kept apart: one charge for each (run, key, pass) that was begun."""

    def __init__(self):
        self.charged, self.seen = set(), {}

    def begin(self, who: RunIdentity, first, number):
        steps = self.seen.setdefault((who.run, who.noise_key), set())
        again = steps & set(range(first, first + number))
        steps |= set(range(first, first + number))
        self.charged |= {
            (who.run, who.noise_key, s // who.steps_per_pass) for s in range(first, first + number)
        }
        return again

    def spent(self):
        return math.sqrt(0.25 * len(self.charged))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_history_is_charged_like_the_model(data, tmp_path_factory):
    """Random steps, replays, lost keys and reopenings: `spent` is the model's, before and after."""
    path = tmp_path_factory.mktemp("model") / "ledger.jsonl"
    model, keys = Model(), {"a": 0, "b": 0}
    ledger = open_ledger(path)
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from("ab"))
        if data.draw(st.booleans()):
            ledger.close()
            ledger = open_ledger(path, head=ledger.head)
            assert math.isclose(ledger.spent(), model.spent(), rel_tol=1e-15, abs_tol=0)
        keys[name] += data.draw(st.sampled_from([0, 0, 1]))
        who = identity(name, noise_key=f"{name}{keys[name]}")
        ledger.register(who, recharge=True)
        first, number = data.draw(st.integers(0, 11)), data.draw(st.integers(1, 5))
        replay = data.draw(st.booleans())
        before, size = ledger.spent(), path.stat().st_size
        try:
            ledger.begin(name, first, number, replay=replay)
        except (RecordsConsumed, LedgerMismatch, HorizonExceeded):
            assert (ledger.spent(), path.stat().st_size) == (before, size)
        else:
            assert not model.begin(who, first, number) or replay
        assert math.isclose(ledger.spent(), model.spent(), rel_tol=1e-15, abs_tol=0)
    ledger.close()
    assert read_ledger(path).spent() == ledger.spent()
