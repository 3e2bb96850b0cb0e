"""A run's files: damaged, lost, on a full disk, shared by several runs, read by others."""

import errno
import hashlib
import json
import math
import shutil

import numpy as np
import pytest

from blindstep.errors import (
    BudgetExceeded,
    CheckpointDamaged,
    CheckpointUnwritable,
    LedgerBusy,
    LedgerError,
    LedgerMismatch,
    LedgerTruncated,
    LedgerUnwritable,
    NoiseReused,
    StorageError,
)
from blindstep.ledger import fingerprints
from blindstep.ledger.budget import Privacy
from blindstep.ledger.checkpoint import CURRENT, PREVIOUS, Checkpoint
from blindstep.ledger.ledger import read_ledger
from blindstep.private.noise import fresh_keys
from session_helpers import DATA, PLAN, begin, cut_after, files, finish, same, start
from storage_helpers import failing, flip, full_disk

# -- damage, loss, full disks ----------------------------------------------------------------------


def current_state(directory):
    return json.loads((directory / CURRENT).read_bytes())["state"]


def refused(directory, file, error=StorageError):
    """Resuming is refused with the file's name and a remedy; nothing is changed."""
    before = files(directory)
    with pytest.raises(error) as refusal:
        begin(directory)
    assert files(directory) == before
    message = str(refusal.value)
    assert str(directory / file) in message
    assert any(word in message.lower() for word in ("restore", "mv ", "delete it", "resume with"))
    return message


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_refused_by_name(run, damage):
    cut_after(run, 2)
    for file in ("ledger.jsonl", CURRENT, "plan.json", current_state(run)):
        path, content = run / file, (run / file).read_bytes()
        if damage == "cut":  # of the ledger, whole lines: a cut last line is what a crash leaves
            kept = b"".join(content.splitlines(keepends=True)[:-2])
            path.write_bytes(kept if file == "ledger.jsonl" else content[: len(content) // 2])
        else:
            path.write_bytes(flip(content, 4 * len(content) + 1) if damage == "flip" else b"")
        refused(run, file)
        path.write_bytes(content)


def test_the_remedy_in_the_message_works(run, whole):
    cut_after(run, 2)
    state = run / current_state(run)
    state.write_bytes(flip(state.read_bytes(), 999))
    message = refused(run, state.name, CheckpointDamaged)
    _, source, target = message[message.index("mv ") :].split()
    shutil.move(source, target)
    assert same(finish(run), whole)
    (run / "plan.json").write_text("{")
    refused(run, "plan.json", CheckpointDamaged)
    (run / "plan.json").unlink()
    assert same(finish(run), whole)


@pytest.mark.parametrize("gone", [(), ("plan.json",), ("ledger.jsonl",)])
def test_a_lost_file_does_not_start_the_run_again(run, gone):
    cut_after(run, 2)
    checkpoint = [p.name for p in run.iterdir() if p.name.startswith(("checkpoint", "state"))]
    for name in gone if gone == ("ledger.jsonl",) else (*gone, *checkpoint):
        (run / name).unlink()
    if gone == ("ledger.jsonl",):
        with pytest.raises(LedgerTruncated, match=r"ledger\.jsonl holds 0 entries"):
            begin(run)
    else:
        refused(run, CURRENT if gone else "plan.json", CheckpointDamaged)


def test_a_run_that_released_nothing_may_be_begun_again(run):
    begin(run).close()
    for path in run.iterdir():
        if path.name != "ledger.jsonl":
            path.unlink()
    with pytest.raises(NoiseReused):
        begin(run)
    assert not same(finish(run, seed=8), start())


def test_an_older_ledger_is_refused_and_an_older_checkpoint_forgets_nothing(run, whole):
    cut_after(run, 2)
    old = files(run)
    cut_after(run, 2)
    new = (run / "ledger.jsonl").read_bytes()
    spent = read_ledger(run / "ledger.jsonl").spent()
    (run / "ledger.jsonl").write_bytes(old["ledger.jsonl"])
    refused(run, "ledger.jsonl", LedgerTruncated)
    for name, content in old.items():
        (run / name).write_bytes(content)
    (run / "ledger.jsonl").write_bytes(new)
    cut_after(run, 1, saving=False)
    account = read_ledger(run / "ledger.jsonl")
    assert account.spent() == spent
    (attempt,) = (a for r in account.runs.values() for a in r.attempts)
    assert (attempt.stop, attempt.replayed) == (12, 3)
    assert same(finish(run), whole)


@pytest.mark.parametrize("limit", [0, 150, 400, 900, 3000])
def test_a_full_disk_at_the_start_stops_everything(run, whole, limit):
    """The kernel's own limit on file size, met by the ledger or by the state."""
    with full_disk(limit), pytest.raises(StorageError, match="File too large"):
        begin(run)
    assert same(finish(run), whole)


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "replace"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_read_only_directory_stops_everything(run, monkeypatch, call, after):
    refusal = pytest.raises((CheckpointUnwritable, LedgerUnwritable), match="Read-only")
    with failing(monkeypatch, call, errno.EROFS, after), refusal:
        begin(run / "a" / "b")
    begin(run / "a" / "b").close()


def test_places_where_no_run_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(CheckpointUnwritable, match="give one that can be written"):
            begin(place)


def test_two_at_once_are_refused_and_a_dropped_session_lets_go(run, monkeypatch):
    session = begin(run)
    with pytest.raises(LedgerBusy, match=r"ledger\.jsonl is being written"):
        begin(run)
    del session
    cut_after(run, 1)
    stale, real = Checkpoint(run).load(), Checkpoint.load
    cut_after(run, 1)
    answers = [stale]
    monkeypatch.setattr(Checkpoint, "load", lambda self: answers.pop() if answers else real(self))
    with pytest.raises(LedgerBusy, match="written by another process just now"):
        begin(run)


# -- shared ledgers --------------------------------------------------------------------------------


def test_runs_on_the_same_people_compose_and_the_third_is_refused(tmp_path):
    ledger = tmp_path / "people.jsonl"
    finish(tmp_path / "one", ledger=ledger, budget=Privacy(mu=1.5), seed=1)
    # The same people, other columns: whoever names the ledger says so. No run directory this time.
    finish(None, ledger=ledger, data=DATA * 2, seed=2)
    assert read_ledger(ledger).spent() == pytest.approx(math.sqrt(2))
    before = ledger.read_bytes()
    for error, options in (
        (BudgetExceeded, {"seed": 3}),
        (LedgerMismatch, {"seed": 3, "budget": Privacy(mu=9.0)}),
        (NoiseReused, {"seed": 1, "mu": 0.4}),
    ):
        with pytest.raises(error):
            begin(tmp_path / "three", ledger=ledger, **options)
    assert ledger.read_bytes() == before
    finish(tmp_path / "three", ledger=ledger, seed=3, mu=0.4)
    account = read_ledger(ledger)
    assert account.spent() == pytest.approx(math.sqrt(2.16))
    assert {told.identity.delta for told in account.runs.values()} == {PLAN["privacy"]["delta"]}


def test_a_run_resumed_with_another_ledger_is_refused(run, tmp_path):
    cut_after(run, 2)
    cut_after(tmp_path / "other", 2, seed=8)
    with pytest.raises(LedgerError):
        begin(run, ledger=tmp_path / "fresh.jsonl")
    with pytest.raises(LedgerMismatch, match="another ledger"):
        begin(run, ledger=tmp_path / "other" / "ledger.jsonl")


def test_each_run_keeps_its_own_delta_and_its_cohort(run, tmp_path):
    ledger = tmp_path / "people.jsonl"
    for seed, delta in ((1, 1e-6), (2, 1e-5)):
        begin(
            None,
            ledger=ledger,
            cohort="survey 2026",
            seed=seed,
            plan={**PLAN, "privacy": {"delta": delta}},
        )
    account = read_ledger(ledger)
    assert account.cohort == "survey 2026"
    assert [told.identity.delta for told in account.runs.values()] == [1e-6, 1e-5]
    begin(run, ledger=ledger, cohort="another name", seed=3).close()  # the ledger's name holds
    begin(tmp_path / "own").close()
    assert read_ledger(tmp_path / "own" / "ledger.jsonl").cohort == "own"


# -- what others may read --------------------------------------------------------------------------


def test_public_files_let_nobody_check_a_guess_of_data_or_key(tmp_path):
    """Not even of a seeded run: its key and its data have other names in every run and ledger."""
    guesses = {fingerprints.of_data(DATA)}
    words = fresh_keys(7).noise.words()
    guesses |= {hashlib.sha256(words.astype("<u4").tobytes()).hexdigest(), words.tobytes().hex()}
    guesses |= {fingerprints.data_id(words.tobytes(), fingerprints.of_data(DATA))}
    seen = []
    for name in ("one", "two"):
        finish(tmp_path / name)
        kept = {p.name: p for p in (tmp_path / name).iterdir()}
        text = "".join(p.read_text() for n, p in kept.items() if not n.startswith("state-"))
        assert not [guess for guess in guesses if guess in text]
        (told,) = read_ledger(kept["ledger.jsonl"]).runs.values()
        seen += [told.identity.data, told.identity.noise_key]
    assert len(set(seen)) == 4


def test_files_are_for_their_owner_and_of_the_same_size_for_every_data_set(tmp_path):
    sizes = []
    for name, data in (("one", DATA), ("two", np.full((12, 2), 1e308))):
        cut_after(tmp_path / name, 2, data=data)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        assert {p.stat().st_mode & 0o777 for p in (tmp_path / name).iterdir()} == {0o600}
        sizes.append({(p.name, p.stat().st_size) for p in (tmp_path / name).iterdir()})
    assert sizes[0] == sizes[1]
    assert {"ledger.jsonl", "plan.json", CURRENT, PREVIOUS} <= {name for name, _ in sizes[0]}
