"""The checkpoint: atomic, private, plain arrays, and refused when it is not what was written."""

import errno
import hashlib
import io
import os
import pickle
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from blindstep.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointUnwritable,
    InvalidArgument,
    RecordsConsumed,
)
from blindstep.ledger.checkpoint import CURRENT, PREVIOUS, SCHEMA, Checkpoint, CheckpointMeta
from blindstep.ledger.files import seal, unseal
from blindstep.ledger.journal import Head
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
        (directory / "state-2.npz.tmp").touch(0o666)  # left by a crash, made readable since
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


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_refused(directory, every):
    key = {"noise_key": arrays(0)["noise_key"]}
    Checkpoint(directory).save(key, meta(1))
    for path in (directory / CURRENT, directory / "state-1.npz"):
        content = path.read_bytes()
        for bit in range(0, 8 * len(content), every):
            overwrite(path, flip(content, bit))
            with pytest.raises(CheckpointDamaged, match=path.name):
                Checkpoint(directory).load()
        path.write_bytes(content)
    assert Checkpoint(directory).load() is not None


@pytest.mark.parametrize("name", [CURRENT, "state-2.npz"])
def test_a_cut_is_refused(directory, name):
    content = save(directory, 1, 2)[name]
    for size in (*range(0, len(content), 17), len(content) - 1):
        overwrite(directory / name, content[:size])
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


@pytest.mark.parametrize(
    "changes",
    [{"schema": SCHEMA - 1}, {"blindstep": "x"}, {"position": -1}, {"position": "1"}]
    + [{"ledger": []}, {"ledger": ["a", 0, "b"]}, {"state": "../x.npz"}, {"state": 3}, {"run": ""}],
)
def test_descriptions_that_make_no_sense_are_refused_though_their_hash_is_right(directory, changes):
    files = save(directory, 1)
    body, _ = unseal(files[CURRENT][:-1])
    (directory / CURRENT).write_bytes(seal({**body, **changes}) + b"\n")
    with pytest.raises(CheckpointDamaged, match=CURRENT):
        Checkpoint(directory).load()


def write_state(directory, packed):
    """A state with the right hash in its description."""
    body = unseal((directory / CURRENT).read_bytes()[:-1])[0]
    body["state_sha256"] = hashlib.sha256(packed).hexdigest()
    overwrite(directory / body["state"], packed)
    overwrite(directory / CURRENT, seal(body) + b"\n")


class Trap:
    """Unpickling this would leave a mark."""

    def __reduce__(self):
        return Path.touch, (Path("unpickled"),)


def test_a_pickle_is_never_opened(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(directory, 1)
    packed = io.BytesIO()
    np.savez(packed, x=np.array([Trap()], dtype=object), allow_pickle=True)
    for state in (packed.getvalue(), pickle.dumps(Trap()), b""):
        write_state(directory, state)
        with pytest.raises(CheckpointDamaged, match=r"state-1\.npz"):
            Checkpoint(directory).load()
    assert not Path("unpickled").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("members", [("a.txt",), ("a",), ("a.npy", "a.npy")])
def test_members_that_are_no_arrays_or_share_a_name_are_refused(directory, members):
    save(directory, 1)
    packed, array = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(array, np.zeros(2))
    with zipfile.ZipFile(packed, "w") as archive:
        for name in members:
            archive.writestr(zipfile.ZipInfo(name), array.getvalue())
    write_state(directory, packed.getvalue())
    with pytest.raises(CheckpointDamaged, match="names are not those of arrays"):
        Checkpoint(directory).load()


def test_a_header_is_not_believed_before_its_bytes_are_there(directory):
    save(directory, 1)
    packed = io.BytesIO()
    header = str({"descr": "<f8", "fortran_order": False, "shape": (2**32,)}).encode() + b"\n"
    with zipfile.ZipFile(packed, "w") as archive:
        magic = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little")
        archive.writestr("key.npy", magic + header + bytes(64))
    write_state(directory, packed.getvalue())
    tracemalloc.start()
    with pytest.raises(CheckpointDamaged, match="not as large as it says"):
        Checkpoint(directory).load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # of 32 GiB that it declares


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_whatever_call_fails_an_old_or_the_new_checkpoint_is_whole(directory, monkeypatch, call):
    """Every point where the disk can refuse; the last refusals come after the commit."""
    save(directory, 1)
    position, failures = 1, 0
    for after in range(12):
        checkpoint = Checkpoint(directory)
        checkpoint.load()
        with failing(monkeypatch, call, errno.ENOSPC, after):
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
        "state-2.npz.tmp",
        "state-2.npz.tmp -> state-2.npz",
        f"{PREVIOUS}.tmp",
        f"{PREVIOUS}.tmp -> {PREVIOUS}",
        "run",
        f"{CURRENT}.tmp",
        f"{CURRENT}.tmp -> {CURRENT}",
        "run",
    ]


def test_a_directory_that_may_not_be_read_is_not_taken_for_an_empty_one(directory, monkeypatch):
    os.makedirs(directory, exist_ok=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # what root is never told
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\): check its"):
        Checkpoint(directory).load()


def test_places_where_no_checkpoint_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(CheckpointUnwritable, match="cannot be written"):
            Checkpoint(place).save(arrays(0), meta(0))


KILLED = f"""
sys.path.insert(0, {os.path.dirname(__file__)!r})
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


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_kill_9_leaves_a_whole_checkpoint_as_new_as_the_last_saved(directory, kills):
    saved = -1
    for lines in kill_at_random(KILLED, directory, kills, seed=2):
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
    assert saved > 5 * kills


def test_a_run_that_is_resumed_with_ledger_and_checkpoint(directory, tmp_path):
    """Both in the order that a session uses; the crash comes between `begin` and `save`."""
    path, who, checkpoint = tmp_path / "ledger.jsonl", identity(), Checkpoint(directory)
    with open_ledger(path, budget=1.0) as ledger:
        ledger.register(who)
        for step in range(5):
            place = CheckpointMeta(who.run, who.plan, who.data, step, ledger.head)
            checkpoint.save(arrays(step), place)
            ledger.begin(who.run, step)
        spent = ledger.account.spent()
    _, found = Checkpoint(directory).load()
    with open_ledger(path, head=found.ledger) as ledger:
        assert (found.position, ledger.register(who).next_step) == (4, 5)
        with pytest.raises(RecordsConsumed, match="checkpoint is older than the ledger"):
            ledger.begin(who.run, found.position)
        ledger.begin(who.run, found.position, replay=True)
        assert ledger.account.spent() == spent
