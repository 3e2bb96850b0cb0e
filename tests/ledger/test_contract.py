"""What every ledger promises, whatever keeps its entries. A new kind joins `IMPLEMENTATIONS`."""

import contextlib
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindstep.errors import (
    BudgetExceeded,
    HorizonExceeded,
    InvalidArgument,
    LedgerBusy,
    LedgerError,
    LedgerMismatch,
    LedgerUnwritable,
    NoiseReused,
    RecordsConsumed,
)
from blindstep.ledger.account import SCHEMA, Account
from blindstep.private.accounting import compose
from blindstep.private.noise import fresh_keys
from blindstep.serve.accounts import open_ledger as open_sql
from ledger_kinds import IMPLEMENTATIONS, FileLedger, SqlLedger, kinds_of_ledger
from storage_helpers import identity

people = kinds_of_ledger


@pytest.fixture
def file(tmp_path):
    """For what only a file can meet: other writers, the file of another cohort, a cut end."""
    return FileLedger(tmp_path)


@pytest.fixture
def begun(people):
    """A run of 12 steps in three passes that began 6 of them: two passes, at mu 0.5 each."""
    with people.open() as ledger:
        ledger.register(identity())
        ledger.begin("first", 0, 6)
    return people


# -- charge before release, never below what was released ------------------------------------------


def test_a_step_is_stored_with_its_charge_when_begin_returns(people):
    """One charge for each pass, at its first step, and others can read it at once."""
    with people.open() as ledger:
        ledger.register(identity())
        assert people.read().spent() == 0
        for step in range(12):
            ledger.begin("first", step)
            seen = people.read()
            assert seen.runs["first"].next_step == step + 1
            assert seen.spent() == seen.spent("first") == compose([0.5] * (1 + step // 4))
            assert seen.spent() == ledger.account.spent()


def test_many_steps_at_once_charge_every_pass_they_touch(people):
    with people.open() as ledger:
        ledger.register(identity())
        ledger.begin("first", 0, 3)
        assert ledger.account.spent() == 0.5
        ledger.begin("first", 3, 6)
        assert ledger.account.spent() == compose([0.5] * 3)


def test_steps_past_the_horizon_and_gaps_are_refused(people):
    with people.open() as ledger:
        ledger.register(identity())
        with pytest.raises(LedgerMismatch, match="checkpoint is newer than the ledger"):
            ledger.begin("first", 1)
        ledger.begin("first", 0, 12)
        for first, count in ((12, 1), (11, 2), (0, 13)):
            with pytest.raises(HorizonExceeded, match="planned for 12"):
                ledger.begin("first", first, count, replay=True)
        assert ledger.account.spent() == compose([0.5] * 3)


class Model:
    """What should be spent, kept apart: one charge for each (run, key, pass) that was begun."""

    def __init__(self):
        self.charged, self.seen = set(), set()

    def begin(self, who, steps):
        """Take the steps; give those that this key had before."""
        steps = {(who.run, who.noise_key, step) for step in steps}
        again, self.seen = steps & self.seen, self.seen | steps
        self.charged |= {(run, key, step // who.steps_per_pass) for run, key, step in steps}
        return again

    def spent(self):
        return math.sqrt(0.25 * len(self.charged))


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_history_is_charged_like_the_model(data, tmp_path_factory, make):
    """Random steps, replays, lost keys and reopenings: the ledger's sum is the model's, always."""
    people = make(tmp_path_factory.mktemp("model"))
    with contextlib.closing(people):
        follow_the_model(people, data)


def follow_the_model(people, data):
    model, keys, ledger = Model(), {"a": 0, "b": 0}, people.open()

    def same(account):
        return math.isclose(account.spent(), model.spent(), rel_tol=1e-15, abs_tol=0)

    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from("ab"))
        if data.draw(st.booleans()):
            ledger.close()
            ledger = people.open(head=ledger.head)
            assert same(ledger.account)
        keys[name] += data.draw(st.sampled_from([0, 0, 1]))
        who = identity(name, noise_key=f"{name}{keys[name]}")
        ledger.register(who, recharge=True)
        first, count = data.draw(st.integers(0, 11)), data.draw(st.integers(1, 5))
        replay, before = data.draw(st.booleans()), people.stored()
        try:
            ledger.begin(name, first, count, replay=replay)
        except (RecordsConsumed, LedgerMismatch, HorizonExceeded):
            assert people.stored() == before
        else:
            assert not model.begin(who, range(first, first + count)) or replay
        assert same(ledger.account)
    ledger.close()
    assert same(people.read())


# -- budget ----------------------------------------------------------------------------------------


def test_runs_on_the_same_people_compose_against_one_budget(people):
    one = {"passes": 1, "steps_per_pass": 2}
    with people.open(budget=1.0) as ledger:
        account = ledger.account
        for name, mu in (("a", 0.6), ("b", 0.64)):
            ledger.register(identity(name, mu_per_pass=mu, data=name * 64, **one))
            ledger.begin(name, 0)
        assert account.spent() == compose([0.6, 0.64])
        assert account.spent("a") == 0.6
        left = account.remaining()
        assert math.isclose(left, math.sqrt(1 - 0.6**2 - 0.64**2), rel_tol=1e-12)
        assert not account.would_exceed(left)
        assert account.would_exceed(left * 1.0001)
        before, large = people.stored(), identity("c", mu_per_pass=left * 1.0001, **one)
        for refuse in (ledger.admit, ledger.register):
            with pytest.raises(BudgetExceeded, match=r"nothing was released"):
                refuse(large)
        assert people.stored() == before
        assert "c" not in account.runs
        ledger.register(identity("c", mu_per_pass=left, **one))
        ledger.begin("c", 0)
        assert math.isclose(account.spent(), 1.0, rel_tol=1e-12)


def test_the_budget_is_checked_again_at_every_pass(people):
    """Two runs that fit one by one, but not together."""
    with people.open(budget=1.0) as ledger:
        for name in "ab":
            ledger.register(identity(name, mu_per_pass=0.8, passes=1))
        ledger.begin("a", 0)
        before = people.stored()
        with pytest.raises(BudgetExceeded):
            ledger.begin("b", 0)
        assert people.stored() == before
        ledger.begin("a", 1)  # paid for
        ledger.begin("a", 0, replay=True)


def test_the_budget_stays_and_may_only_be_lowered(people):
    for given_budget, kept in ((None, math.inf), (2.0, 2.0), (None, 2.0), (1.0, 1.0)):
        with people.open(budget=given_budget) as ledger:
            assert ledger.account.remaining() == kept
            assert ledger.account.would_exceed(1e9) == (kept < math.inf)
    with pytest.raises(LedgerMismatch, match="never raised"):
        people.open(budget=2.0)
    with pytest.raises(InvalidArgument):
        people.open(budget=math.nan)


@settings(max_examples=50, deadline=None)
@given(budget=st.floats(1e-6, 1e6), passes=st.integers(1, 100))
def test_a_run_planned_for_the_whole_budget_fits(budget, passes):
    """Rounding must not stop the last pass, and one pass more must not fit."""
    account, mu = Account(), budget / math.sqrt(passes)
    run = identity(mu_per_pass=mu, steps_per_pass=1, passes=passes + 1)
    for entry in (
        {"kind": "ledger", "schema": SCHEMA, "id": "1f", "cohort": "people"},
        {"kind": "budget", "mu": budget},
        {"kind": "run", **vars(run)},
    ):
        account.apply(entry | {"at": ""})
    body = {"kind": "intent", "at": "", "run": "first", "attempt": 0, "count": 1}
    for step in range(passes):
        assert not account.would_exceed(mu)
        account.apply({**body, "first": step, "charges": [[step, mu]]})
    assert account.would_exceed(mu)
    assert account.would_exceed(1e-4 * budget)


# -- replay, lost keys, noise reuse ----------------------------------------------------------------


def test_steps_begun_before_are_refused_unless_replayed(begun):
    with begun.open() as ledger:
        assert ledger.register(identity()).next_step == 6
        for first, count in ((0, 1), (5, 1), (5, 3)):
            with pytest.raises(RecordsConsumed, match=r"replay=True.*recharge"):
                ledger.begin("first", first, count)
        ledger.begin("first", 3, replay=True)
        ledger.begin("first", 4, 4, replay=True)  # 4 and 5 again, 6 and 7 for the first time
        assert ledger.account.spent() == compose([0.5] * 2)
        ledger.begin("first", 8)
        assert ledger.account.spent() == compose([0.5] * 3)
        (attempt,) = ledger.account.runs["first"].attempts
        assert (attempt.start, attempt.stop, attempt.replayed) == (0, 9, 3)


@pytest.mark.parametrize("second", ["other", None])
def test_a_step_is_replayed_only_from_the_answers_it_had(people, second):
    """The same noise on other answers would hand over the difference."""
    with people.open() as ledger:
        ledger.register(identity())
        ledger.begin("first", 0)
        ledger.begin("first", 1, answers="some")
        ledger.begin("first", 1, answers="some", replay=True)
        for first, count in ((1, 1),) if second else ((1, 1), (0, 2), (1, 2)):
            with pytest.raises(RecordsConsumed, match=r"step \d .* with other answers"):
                ledger.begin("first", first, count, answers=second, replay=True)
        with pytest.raises(InvalidArgument, match="one step, not to 2"):
            ledger.begin("first", 2, 2, answers="some")
        assert ledger.account.spent() == 0.5
        entry = {"kind": "intent", "at": "", "run": "first", "attempt": 0, "first": 1, "count": 1}
        with pytest.raises(ValueError, match="with other answers"):  # nor reads one that has it
            ledger.account.apply({**entry, "charges": [], "answers": second})


def test_a_lost_key_is_paid_for(begun):
    fresh = identity(noise_key="another")
    with begun.open() as ledger:
        account = ledger.account
        with pytest.raises(RecordsConsumed, match="recharge=True"):
            ledger.register(fresh)
        ledger.register(fresh, recharge=True)
        assert account.spent() == compose([0.5] * 2)
        ledger.begin("first", 4)  # from a checkpoint at step 4: pass 1 is touched again, pass 0 not
        assert account.spent() == compose([0.5] * 3)
        for step, replay in ((3, True), (4, False)):  # nothing to replay under this key; consumed
            with pytest.raises(RecordsConsumed):
                ledger.begin("first", step, replay=replay)
        ledger.begin("first", 5, 4)
        assert account.spent() == compose([0.5] * 4)
    with begun.open() as ledger:  # the old checkpoint turns up again
        ledger.register(identity())
        ledger.begin("first", 2, 4, replay=True)
        assert ledger.account.spent() == compose([0.5] * 4)
        with pytest.raises(LedgerMismatch):
            ledger.begin("first", 8)  # under this key, steps 6 and 7 were never begun


def test_a_key_that_made_no_noise_yet_may_be_replaced(people):
    with people.open() as ledger:
        ledger.register(identity())
    with people.open() as ledger:
        ledger.register(identity(noise_key="another"))
        ledger.begin("first", 0)
        assert ledger.account.spent() == 0.5


def test_one_noise_key_never_serves_two_runs(people):
    key = fresh_keys(3).noise
    with people.open() as ledger:
        ledger.register(identity(noise_key=ledger.name_of(key)))
    with people.open() as ledger, pytest.raises(NoiseReused, match="fresh keys"):
        ledger.register(identity("second", noise_key=ledger.name_of(key)))


def test_a_key_has_a_name_in_each_ledger_that_only_the_key_gives(people, tmp_path):
    """Two ledgers cannot be compared, and no plain hash of a seeded key is in either."""
    keys = [fresh_keys(seed).noise for seed in (3, 4)]
    (tmp_path / "other").mkdir()
    other = type(people)(tmp_path / "other")
    with people.open() as one, other.open() as two:
        named = [ledger.name_of(key) for ledger in (one, two) for key in keys]
        assert one.name_of(fresh_keys(3).noise) == named[0]
    with people.open() as one:
        assert one.name_of(keys[0]) == named[0]
    assert len(set(named)) == 4


# -- who, and which run ----------------------------------------------------------------------------


def test_the_file_of_another_cohort_is_refused(file):
    file.open().close()
    with pytest.raises(LedgerMismatch, match=r"is the ledger of 'people', not of 'others'"):
        file.open(cohort="others")


def test_a_ledger_knows_its_cohort(people):
    assert people.cohort() is None
    people.open().close()
    assert people.cohort() == people.read().cohort == "people"
    for bad in ("", None, 5):
        with pytest.raises((InvalidArgument, TypeError), match="cohort"):
            people.open(cohort=bad)


@pytest.mark.parametrize(
    "change",
    [{"plan": "q" * 64}, {"data": "e" * 64}, {"mu_per_pass": 0.4}, {"steps_per_pass": 5}]
    + [{"passes": 4}, {"delta": 1e-5}],
)
def test_a_run_keeps_its_plan_its_data_and_its_delta(people, change):
    with people.open() as ledger:
        ledger.register(identity())
    with people.open() as ledger:
        assert ledger.account.runs["first"].identity.delta == 1e-6
        with pytest.raises(LedgerMismatch, match=next(iter(change))):
            ledger.register(identity(**change), recharge=True)


def test_arguments_that_make_no_sense(people):
    with people.open() as ledger:
        with pytest.raises(InvalidArgument, match="not registered"):
            ledger.begin("first", 0)
        ledger.register(identity())
        for first, count in ((-1, 1), (0, 0), (True, 1)):
            with pytest.raises(InvalidArgument):
                ledger.begin("first", first, count)
        with pytest.raises(InvalidArgument, match="no run 'second'"):
            ledger.account.spent("second")
    bad = ({"mu_per_pass": 0.0}, {"mu_per_pass": math.nan}, {"passes": 0}, {"data": ""})
    for change in (*bad, {"delta": 0.0}, {"delta": 1.0}):
        with pytest.raises(InvalidArgument):
            identity(**change)


def test_one_writer_of_a_file_at_a_time(file):
    with file.open() as ledger:
        ledger.register(identity())
        with pytest.raises(LedgerBusy):
            file.open()
        file.read()
    with pytest.raises(LedgerUnwritable, match="closed"):
        ledger.begin("first", 0)
    ledger = file.open()
    del ledger  # forgotten, not closed: others may write
    file.open().close()


def test_of_two_workers_each_sees_what_the_other_charged(tmp_path):
    """And what is refused in a transaction, or rolled back, was never written."""
    people = SqlLedger(tmp_path)
    one, two = people.open(budget=0.8), people.open()
    for worker in (one, two):
        worker.register(identity(passes=2))
    one.begin("first", 0)
    with pytest.raises(RecordsConsumed):
        two.begin("first", 0)
    two.begin("first", 1)
    before = people.stored()

    def cut_short():
        with people.database.begin() as connection:
            ledger = open_sql(connection, "people")
            ledger.register(identity(passes=2))
            ledger.begin("first", 2)
            raise RuntimeError("power")

    with pytest.raises(RuntimeError, match="power"):
        cut_short()
    assert people.stored() == before
    assert people.read().runs["first"].next_step == 2
    people.close()


def test_a_run_is_known_by_its_day_and_no_time_of_day(begun):
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", begun.read().runs["first"].since)
    assert not re.search(rb"\d\d:\d\d", begun.stored())


def test_an_account_takes_no_nonsense():
    """A run that is registered twice under one key is no history."""
    account = Account()
    account.apply({"kind": "ledger", "at": "", "schema": SCHEMA, "id": "1f", "cohort": "people"})
    entry = {"kind": "run", "at": "", **vars(identity())}
    account.apply(entry)
    for again in (entry, entry | {"plan": "q" * 64, "noise_key": "another"}):
        with pytest.raises(ValueError, match="registered twice"):
            account.apply(again)


def test_a_ledger_is_recognised_by_the_head_a_checkpoint_kept(file, tmp_path):
    with file.open() as ledger:
        head = ledger.head
    file.open(head=head).close()
    (tmp_path / "other").mkdir()
    with pytest.raises(LedgerError):
        FileLedger(tmp_path / "other").open(head=head)
