"""The checkpoint: atomic, private, plain arrays, and refused when it is not what was written."""

import errno
import hashlib
import io
import os
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.trusted.checkpoint import CURRENT, PREVIOUS, Checkpoint, CheckpointMeta
from blindstep.trusted.journal import Head
from blindstep.trusted.ledger import Ledger, noise_key_id
from blindstep.trusted.refusals import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointMismatch,
    CheckpointUnwritable,
    RecordsConsumed,
)
from blindstep.trusted.sealed_json import seal, unseal
from storage_helpers import failing, flip, identity, kill_at_random, open_ledger, overwrite

HEAD = Head("a" * 64, 3, "b" * 64)


def meta(position, **changes):
    return CheckpointMeta(
        **{"run": "r", "plan": "p" * 64, "data": "d" * 64, "position": position, "ledger": HEAD}
        | changes
    )


def arrays(position):
    return {
        "noise_key": np.arange(8, dtype=np.uint32) + position,
        "step": np.asarray(position, np.int64),
        "oracle.running": np.linspace(0, 1, 3) * position,
        "empty": np.zeros((0, 2)),
    }


def assert_same(found, position):
    assert found is not None
    expected = arrays(position)
    assert found[1] == meta(position)
    assert list(found[0]) == list(expected)
    for name, array in expected.items():
        assert found[0][name].dtype == array.dtype
        np.testing.assert_array_equal(found[0][name], array, strict=True)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "deep" / "run"


def save(directory, *positions):
    for position in positions:
        Checkpoint(directory).save(arrays(position), meta(position))
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def test_what_was_saved_is_loaded_bit_for_bit(directory):
    assert Checkpoint(directory).load() is None
    assert Checkpoint(directory).load_previous() is None
    checkpoint = Checkpoint(directory)
    for position in range(4):
        checkpoint.save(arrays(position), meta(position))
        assert_same(checkpoint.load(), position)
        assert_same(Checkpoint(directory).load(), position)
        if position:
            assert_same(checkpoint.load_previous(), position - 1)
    assert sorted(os.listdir(directory)) == [CURRENT, PREVIOUS, "state-3.npz", "state-4.npz"]
    with np.load(directory / "state-4.npz", allow_pickle=False) as plain:
        assert plain["step"] == 3


def test_files_are_for_their_owner_only(directory):
    before = os.umask(0)
    try:
        save(directory, 0)
        (directory / "state.npz.tmp").touch(0o666)  # left by a crash, made readable since
        save(directory, 1)
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in directory.iterdir()} == {0o600}


def test_only_plain_arrays_of_numbers(directory):
    good = {"x": np.zeros(2)}
    for name, value in (
        ("x", np.array([{}], dtype=object)),
        ("x", np.array(["text"])),
        ("x", np.zeros(1, dtype=[("a", float)])),
        ("../x", np.zeros(1)),
        ("", np.zeros(1)),
    ):
        with pytest.raises(InvalidArgument):
            Checkpoint(directory).save({**good, name: value}, meta(0))
    assert not directory.exists()
    odd = {"file": np.ones(1), "allow_pickle": np.ones(2), "arr_0": np.asfortranarray(np.eye(3))}
    Checkpoint(directory).save(odd, meta(0))
    found = Checkpoint(directory).load()
    assert found is not None
    assert set(found[0]) == set(odd)
    for bad in ({"position": -1}, {"run": ""}, {"ledger": Head("", 1, "x")}):
        with pytest.raises(InvalidArgument):
            meta(**{"position": 0, **bad})


def test_every_flipped_bit_is_refused(directory):
    key = {"noise_key": arrays(0)["noise_key"]}
    Checkpoint(directory).save(key, meta(1))
    for path in (directory / CURRENT, directory / "state-1.npz"):
        content = path.read_bytes()
        for bit in range(8 * len(content)):
            overwrite(path, flip(content, bit))
            with pytest.raises(CheckpointDamaged, match=path.name):
                Checkpoint(directory).load()
        path.write_bytes(content)
    assert Checkpoint(directory).load() is not None


@pytest.mark.parametrize("name", [CURRENT, "state-2.npz"])
def test_every_cut_is_refused(directory, name):
    files = save(directory, 1, 2)
    for size in range(len(files[name])):
        overwrite(directory / name, files[name][:size])
        with pytest.raises(CheckpointDamaged, match=name):
            Checkpoint(directory).load()
    (directory / name).unlink()
    with pytest.raises(CheckpointDamaged, match=rf"{name} cannot be read") as refusal:
        Checkpoint(directory).load()
    assert refusal.value.previous_position == 1


def test_the_remedy_in_the_message_works(directory):
    files = save(directory, 1, 2)
    (directory / "state-2.npz").write_bytes(b"torn")
    with pytest.raises(CheckpointDamaged, match="position 1, is whole") as refusal:
        Checkpoint(directory).load()
    # A damaged checkpoint must not push the good one out.
    with pytest.raises(CheckpointDamaged):
        Checkpoint(directory).save(arrays(3), meta(3))
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == {
        **files,
        "state-2.npz": b"torn",
    }
    command = str(refusal.value).rpartition("mv ")[2].split()
    os.rename(*command)
    assert_same(Checkpoint(directory).load(), 1)
    save(directory, 2, 3)
    assert_same(Checkpoint(directory).load(), 3)
    assert_same(Checkpoint(directory).load_previous(), 2)


def test_without_a_previous_one_the_message_says_so(directory):
    save(directory, 1)
    (directory / CURRENT).write_bytes(b"{}\n")
    with pytest.raises(CheckpointDamaged, match=r"Restore .* from a copy") as refusal:
        Checkpoint(directory).load()
    assert refusal.value.previous_position is None


def test_damage_while_running_is_noticed_on_saving(directory):
    checkpoint = Checkpoint(directory)
    checkpoint.save(arrays(1), meta(1))
    (directory / CURRENT).write_bytes(b"other")
    with pytest.raises(CheckpointDamaged, match=CURRENT):
        checkpoint.save(arrays(2), meta(2))


def test_files_swapped_between_checkpoints_are_refused(directory, tmp_path):
    mine, other = save(directory, 1, 2), save(tmp_path / "other", 3, 4)
    for name in mine:
        (directory / name).write_bytes(other[name])
        if name == "state-1.npz" or name == PREVIOUS:
            assert_same(Checkpoint(directory).load(), 2)
            with pytest.raises(CheckpointDamaged):
                Checkpoint(directory).load_previous()
        else:
            with pytest.raises(CheckpointDamaged):
                Checkpoint(directory).load()
        (directory / name).write_bytes(mine[name])
    shutil.copy(directory / PREVIOUS, directory / CURRENT)  # rolled back: whole, but older
    assert_same(Checkpoint(directory).load(), 1)


def test_random_damage_never_raises_anything_else(directory):
    files = save(directory, 1, 2)
    rng = random.Random(3)
    for _ in range(1500):
        name = rng.choice(sorted(files))
        changed = bytearray(files[name])
        at, size = rng.randrange(len(changed)), rng.randrange(1, 60)
        changed[at : at + size] = rng.choice([b"", bytes(size), rng.randbytes(size), b"\n"])
        overwrite(directory / name, changed)
        try:
            assert_same(Checkpoint(directory).load(), 2)
        except CheckpointError:
            assert name in (CURRENT, "state-2.npz")
        try:
            assert_same(Checkpoint(directory).load_previous(), 1)
        except CheckpointError:
            assert name in (PREVIOUS, "state-1.npz")
        overwrite(directory / name, files[name])


@pytest.mark.parametrize(
    "changes",
    [{"schema": 2}, {"schema": None}, {"blindstep": "x"}, {"position": -1}, {"position": "1"}]
    + [{"ledger": []}, {"ledger": ["a", 0, "b"]}, {"state": "../x.npz"}, {"state": 3}, {"run": ""}],
)
def test_descriptions_that_make_no_sense_are_refused_though_their_hash_is_right(directory, changes):
    files = save(directory, 1)
    body, _ = unseal(files[CURRENT][:-1])
    (directory / CURRENT).write_bytes(seal({**body, **changes}) + b"\n")
    with pytest.raises(CheckpointDamaged, match=CURRENT):
        Checkpoint(directory).load()


class Trap:
    """Unpickling this would leave a mark."""

    def __reduce__(self):
        return Path.touch, (Path("unpickled"),)


def test_a_pickle_is_never_opened(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = save(directory, 1)
    body, _ = unseal(files[CURRENT][:-1])
    packed = io.BytesIO()
    np.savez(packed, x=np.array([Trap()], dtype=object), allow_pickle=True)
    for state in (packed.getvalue(), pickle.dumps(Trap()), b""):
        (directory / "state-1.npz").write_bytes(state)
        changes = {"state_sha256": hashlib.sha256(state).hexdigest()}
        (directory / CURRENT).write_bytes(seal({**body, **changes}) + b"\n")
        with pytest.raises(CheckpointDamaged, match=r"state-1\.npz"):
            Checkpoint(directory).load()
    assert not Path("unpickled").exists()


def test_another_plan_or_other_data_is_refused(directory):
    save(directory, 1)
    checkpoint = Checkpoint(directory)
    found = checkpoint.load()
    assert found is not None
    checkpoint.check(found[1], plan="p" * 64, data="d" * 64)
    for plan, data, name in (("q", "d" * 64, "plan"), ("p" * 64, "e", "data")):
        with pytest.raises(CheckpointMismatch, match=rf"{CURRENT} .*another {name}"):
            checkpoint.check(found[1], plan=plan, data=data)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_whatever_call_fails_an_old_or_the_new_checkpoint_is_whole(
    directory, monkeypatch, call, error
):
    """Every point where the disk can refuse; the last refusals come after the commit."""
    save(directory, 1)
    position, failures = 1, 0
    for after in range(12):
        checkpoint = Checkpoint(directory)
        checkpoint.load()
        with failing(monkeypatch, call, error, after):
            try:
                checkpoint.save(arrays(position + 1), meta(position + 1))
            except CheckpointUnwritable:
                failures += 1
        found = Checkpoint(directory).load()
        assert found is not None
        assert found[1].position in (position, position + 1)
        assert_same(found, found[1].position)
        assert not [p for p in directory.iterdir() if p.suffix == ".tmp"]
        position = found[1].position
    assert 1 <= failures < 12


def test_the_new_state_is_durable_before_it_is_named_and_the_name_before_saving_returns(
    directory, monkeypatch
):
    save(directory, 1)
    events, sync, rename = [], os.fsync, os.replace

    def fsync(descriptor):
        sync(descriptor)
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def replace(source, target):
        rename(source, target)
        events.append(f"{Path(source).name} -> {Path(target).name}")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    save(directory, 2)
    assert events == [
        "state.npz.tmp",
        "state.npz.tmp -> state-2.npz",
        f"{PREVIOUS}.tmp",
        f"{PREVIOUS}.tmp -> {PREVIOUS}",
        "run",
        f"{CURRENT}.tmp",
        f"{CURRENT}.tmp -> {CURRENT}",
        "run",
    ]


def test_places_where_no_checkpoint_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(CheckpointUnwritable, match="cannot be written"):
            Checkpoint(place).save(arrays(0), meta(0))


KILLED = """
from test_checkpoint import *

def work(path):
    checkpoint = Checkpoint(path)
    found = checkpoint.load()
    position = 0 if found is None else found[1].position + 1
    while True:
        checkpoint.save(arrays(position), meta(position))
        os.write(1, b"%d\\n" % position)
        position += 1
"""


def test_kill_9_leaves_a_whole_checkpoint_as_new_as_the_last_saved(directory):
    saved = -1
    for lines in kill_at_random(KILLED, directory, kills=20, seed=2):
        saved = int(lines[-1]) if lines else saved
        found = Checkpoint(directory).load()
        assert found is not None
        assert saved <= found[1].position <= saved + 1
        assert_same(found, found[1].position)
        if found[1].position:
            # Killed between the two renames of a save, the current one is also the previous one.
            previous = Checkpoint(directory).load_previous()
            assert previous is not None
            assert found[1].position - 1 <= previous[1].position <= found[1].position
            assert_same(previous, previous[1].position)
        saved = found[1].position
        assert len(os.listdir(directory)) <= 7
    assert saved > 100


def test_a_run_that_is_resumed_with_ledger_and_checkpoint(directory, tmp_path):
    """The order of things as a driver uses them; the crash comes between `begin` and `save`."""
    path = tmp_path / "ledger.jsonl"
    key = np.arange(8, dtype=np.uint32)
    who = identity(noise_key=noise_key_id(key))

    def place(ledger, position):
        return CheckpointMeta(who.run, who.plan, who.data, position, ledger.head)

    checkpoint = Checkpoint(directory)
    with open_ledger(path, budget=1.0) as ledger:
        ledger.register(who)
        checkpoint.save({"noise_key": key}, place(ledger, 0))
        for step in range(5):
            ledger.begin(who.run, step)
            if step < 4:
                checkpoint.save({"noise_key": key}, place(ledger, step + 1))
        spent = ledger.spent()
    found = Checkpoint(directory).load()
    assert found is not None
    with Ledger.open(path, records="people", head=found[1].ledger) as ledger:
        run = ledger.register(identity(noise_key=noise_key_id(found[0]["noise_key"])))
        assert (found[1].position, run.next_step) == (4, 5)
        with pytest.raises(RecordsConsumed, match="checkpoint is older than the ledger"):
            ledger.begin(who.run, found[1].position)
        ledger.begin(who.run, found[1].position, replay=True)
        assert ledger.spent() == spent
