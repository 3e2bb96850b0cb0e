"""A run that is cut short goes on with the same bits, and its ledger never says too little.

Everything here goes through a session and its gate; no driver is needed.
"""

import json
import math
import shutil

import jax
import numpy as np
import pytest

from blindstep.errors import (
    BudgetExceeded,
    CheckpointMismatch,
    HorizonExceeded,
    InvalidArgument,
    LedgerUnwritable,
    RecordsConsumed,
)
from blindstep.ledger import fingerprints, storage
from blindstep.ledger import session as session_module
from blindstep.ledger.budget import Privacy
from blindstep.ledger.checkpoint import CURRENT, Checkpoint
from blindstep.ledger.ledger import Ledger, read_ledger
from blindstep.ledger.storage import SavingInterval, Storage
from blindstep.private.noise import fresh_keys
from session_helpers import (
    DATA,
    PLAN,
    SCHEDULE,
    Killed,
    begin,
    cut_after,
    files,
    finish,
    go_on,
    kill,
    releases,
    same,
    start,
    terms,
)
from storage_helpers import full_disk

MU = terms().mu_per_pass()


# -- charge before release -------------------------------------------------------------------------


def test_a_release_is_charged_before_it_is_made(run):
    positions = []

    def seen():
        account = read_ledger(run / "ledger.jsonl")
        (told,) = account.runs.values()
        positions.append(told.next_step)
        assert account.spent() == pytest.approx(MU * math.sqrt(1 + (told.next_step > 9)))

    with begin(run) as session:
        go_on(session, seen=seen)
    assert positions == [3, 6, 9, 12, 15, 18]


def test_a_ledger_that_refuses_stops_the_release(run, whole):
    released = []
    with begin(run, saving=False) as session:
        go_on(session, 2)
        size = (run / "ledger.jsonl").stat().st_size
        refusal = pytest.raises(LedgerUnwritable, match="nothing more was released")
        with full_disk(size + 100), refusal:
            go_on(session, seen=lambda: released.append(1))
    assert not released
    assert same(finish(run), whole)


def test_nothing_is_released_out_of_order_past_the_end_or_after_closing(run):
    with begin(run) as session:
        with pytest.raises(InvalidArgument, match="step 3 is not next"):
            session.charge(3, 3, None)
        with pytest.raises(InvalidArgument, match=r"after 3 steps, but the gate has made 0"):
            session.after(start(), 3, dict)
        with pytest.raises(HorizonExceeded):
            session.gate.through(kill, 19)
        assert read_ledger(run / "ledger.jsonl").spent() == 0
    with pytest.raises(LedgerUnwritable, match="closed here"):
        session.gate.through(kill, 3)
    with pytest.raises(LedgerUnwritable, match="closed here"):
        session.save(session.state, {})


def test_a_step_whose_state_was_lost_is_not_built_upon(run, whole):
    """The gate went on, the driver did not: only the checkpoint can go on from there."""
    with begin(run) as session:
        go_on(session, 1)
        before, kinds = session.state, tuple(map(SCHEDULE.kind_of, range(3)))
        session.gate.through(lambda p, memory: releases(p, memory, before, DATA, kinds), 3)
        with pytest.raises(InvalidArgument, match="step 6 is not next: 3 steps are done"):
            go_on(session, 1)
        session.save(before, {})  # what it saves is where the driver stands
    assert same(finish(run), whole)


def test_the_whole_run_must_fit_into_the_budget_before_anything(run, tmp_path):
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        begin(run, budget=Privacy(mu=0.9))
    assert not (run / CURRENT).exists()
    finish(run, mu=0.8)  # the directory is still free for a run that fits
    with pytest.raises(InvalidArgument, match="give checkpoint or ledger"):
        begin(budget=Privacy(mu=2.0))


# -- resumed, bit for bit --------------------------------------------------------------------------


@pytest.mark.parametrize("saving", [True, False])
def test_a_run_cut_short_gives_the_same_bits(run, whole, saving):
    """With every block saved, and with none saved: then all are replayed, at no charge."""
    begun = 0
    for blocks in (1, 2, 4):
        cut_after(run, blocks, saving=saving)
        begun = begun + 3 * blocks if saving else 3 * blocks
        account = read_ledger(run / "ledger.jsonl")
        (told,) = account.runs.values()
        assert told.next_step == min(begun, 18)
        assert account.spent() == pytest.approx(MU * math.sqrt(1 + (begun > 9)))
    assert same(finish(run), whole)
    account = read_ledger(run / "ledger.jsonl")
    assert account.spent() == pytest.approx(MU * math.sqrt(2))
    assert len(account.runs) == 1


def test_a_run_cut_inside_a_block_gives_the_same_bits(run):
    """What the gate remembers of a block's increments survives, too."""
    whole = go_on(begin(), count=1).state
    for saving, steps in ((True, 4), (False, 2)):
        with begin(run, saving=saving) as session:
            go_on(session, steps, count=1)
    with begin(run) as session:
        assert (session.position, session.begun) == (4, 6)
        assert same(go_on(session, count=1).state, whole)


def test_a_finished_run_is_returned_and_writes_nothing(run, whole):
    finish(run)
    before = files(run)
    with begin(run) as session:
        assert session.finished
        assert same(session.state, whole)
        assert np.array_equal(session.saved["norms"], np.ones(2))
        with pytest.raises(HorizonExceeded):
            session.gate.through(kill)
    assert files(run) == before


def test_an_unseeded_run_keeps_its_key(run):
    cut_after(run, 2, seed=None)
    with begin(run, seed=None) as session:
        assert not session.keys.seeded
        one = go_on(session).state
    assert same(one, finish(run, seed=None))
    assert not same(one, finish(run.with_name("another"), seed=None))


CRASHES = [(Checkpoint, "save"), (Ledger, "admit"), (Ledger, "register"), (storage, "write")]


@pytest.mark.parametrize(("place", "name"), CRASHES)
def test_a_crash_before_the_first_release_costs_nothing(run, monkeypatch, whole, place, name):
    """Whatever is on the disk by then, the same call starts the same run."""
    with monkeypatch.context() as patch:
        patch.setattr(place, name, kill)
        with pytest.raises(Killed):
            begin(run)
    assert same(finish(run), whole)
    assert read_ledger(run / "ledger.jsonl").spent() == pytest.approx(MU * math.sqrt(2))


def test_answers_are_saved_first_and_never_exchanged(run, tmp_path):
    """The same noise on other answers would hand over how they differ."""
    votes = np.asarray([0.0, 1.0, np.nan])
    with begin(run) as session:
        session.save(session.state, {"answers": votes})
        with pytest.raises(Killed):
            session.gate.through(kill, 1, votes)
    public = "".join(p.read_text() for p in run.iterdir() if p.suffix in (".json", ".jsonl"))
    for words in (fresh_keys(7).noise.words(), np.zeros(8, np.uint32)):
        assert (
            fingerprints.answers_id(words.tobytes(), 0, votes) not in public
        )  # no seed leads to the name
    for kept, answers in ((True, votes), (False, votes[::-1].copy()), (False, None)):
        with begin(shutil.copytree(run, tmp_path / f"{kept}{answers is None}")) as session:
            assert np.array_equal(session.saved["answers"], votes, equal_nan=True)
            assert (session.position, session.begun) == (0, 1)
            with pytest.raises(Killed if kept else RecordsConsumed):
                session.gate.through(kill, 1, answers)


CHANGES = [
    ({"data": DATA * (1 + 1e-15)}, "another data"),
    ({"data": DATA.astype(np.float32)}, "another data"),
    ({"plan": {**PLAN, "dim": 3}}, r"plan\.json is another plan"),
    ({"of": lambda x, z: jax.numpy.sum(x - z)}, "another loss"),
    ({"params": np.ones(2)}, "another params"),
    ({"seed": 8}, "another seed"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_what_changed_is_refused(run, change, says):
    cut_after(run, 2)
    before = files(run)
    with pytest.raises(CheckpointMismatch, match=says):
        begin(run, **change)
    assert files(run) == before


def test_notes_may_be_reworded_and_a_deleted_plan_is_written_again(run, whole):
    cut_after(run, 2)
    (run / "plan.json").unlink()
    with pytest.raises(CheckpointMismatch, match="another plan"):
        begin(run, plan={**PLAN, "dim": 3})
    reworded = {**PLAN, "notes": ["other words"]}
    for _ in range(2):  # also where the run is finished already
        assert same(finish(run, plan=reworded), whole)
        assert json.loads((run / "plan.json").read_text()) == reworded
        (run / "plan.json").unlink()


def test_other_versions_may_go_on_but_not_repeat(tmp_path, monkeypatch, whole):
    """Where nothing has to be repeated bit for bit, a new version of JAX is no obstacle."""
    behind, level = tmp_path / "behind", tmp_path / "level"
    cut_after(behind, 2, saving=False)
    cut_after(level, 2)
    other = "versions, devices or compiler flags"
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "of_environment", lambda data: "e" * 64)
        with pytest.raises(CheckpointMismatch, match=other):
            begin(behind)
        cut_after(level, 1, saving=False)
    # That block was begun by the other version, and cannot be repeated by this one.
    with pytest.raises(CheckpointMismatch, match=other):
        begin(level)
    assert same(finish(behind), whole)


# -- saving ----------------------------------------------------------------------------------------


def test_a_run_without_storage_asks_for_no_fingerprints():
    """But under a seed: there they are part of what makes the noise."""
    session = session_module.Session(terms(), PLAN, start(), Storage(), kill)
    with pytest.raises(Killed):
        session_module.Session(terms(), PLAN, start(), Storage(), kill, seed=7)
    assert not session.saves
    assert session.begun == 0


@pytest.mark.parametrize(("step", "save"), [(0.001, 0.01), (0.01, 0.3), (5.0, 0.01), (1.0, 0.0)])
def test_saving_takes_a_twentieth_of_the_time_at_most(step, save):
    now = [0.0]

    def spend(seconds):
        now[0] += seconds

    interval, saves = SavingInterval(clock=lambda: now[0]), 0
    interval.measure(lambda: spend(save))  # the first save is not optional
    for _ in range(3000):
        spend(step)
        if interval.due():
            interval.measure(lambda: spend(save))
            saves += 1
    assert (saves + 1) * save <= 0.05 * now[0] + save
    assert saves >= min(3000, 0.04 * 3000 * step / save) - 1 if save else saves == 3000
