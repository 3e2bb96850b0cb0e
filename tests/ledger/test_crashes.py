"""The ledger's file over crashes, full disks, second writers and forked workers."""

import errno
import importlib.util
import json
import os
import subprocess
import sys
import types
from contextlib import suppress

import pytest

from blindstep.errors import (
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    LedgerMismatch,
    LedgerUnreadable,
    LedgerUnwritable,
)
from blindstep.ledger import files, journal
from blindstep.ledger.ledger import read_ledger
from storage_helpers import (
    CHILD,
    failing,
    full_disk,
    identity,
    kill_at_random,
    open_ledger,
    write_some,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_an_unfinished_last_line_is_set_aside(path):
    """Wherever the last write was cut: entries before it count, its bytes are kept, work goes on."""
    _, early, spent = write_some(path, steps=2)
    content, *_ = write_some_more(path)
    whole = content.rindex(b"\n", 0, -1) + 1
    torn = path.with_name(path.name + ".torn-1")
    for size in (*range(whole + 1, len(content) - 2, 20), len(content) - 2):
        rest = content[whole:size] + b"\0" * (size % 2 * 7)  # a file may grow before it is filled
        torn.unlink(missing_ok=True)
        path.write_bytes(content[:whole] + rest)
        assert read_ledger(path).spent() == spent
        with open_ledger(path, head=early) as ledger:
            assert ledger.account.spent() == spent
            assert path.read_bytes() == content[:whole]
            assert torn.read_bytes() == rest
            ledger.register(identity(steps_per_pass=2))
            ledger.begin("first", 2)
        assert read_ledger(path).spent() > spent
    path.write_bytes(path.read_bytes() + b'{"n":5')
    open_ledger(path).close()
    assert torn.exists()
    assert path.with_name(path.name + ".torn-2").read_bytes() == b'{"n":5'


def write_some_more(path):
    with open_ledger(path) as ledger:
        ledger.register(identity(steps_per_pass=2))
        ledger.begin("first", 2)
        return path.read_bytes(), ledger.head, ledger.account.spent()


def test_a_missing_newline_is_put_back(path):
    content, head, spent = write_some(path)
    path.write_bytes(content[:-1])
    assert read_ledger(path).spent() == spent
    with open_ledger(path, head=head) as ledger:
        assert ledger.account.spent() == spent
        assert path.read_bytes() == content
        ledger.register(identity(steps_per_pass=2))
        ledger.begin("first", 3)
    read_ledger(path)


def test_a_link_leads_to_the_same_lock(path, tmp_path):
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    with open_ledger(path), pytest.raises(LedgerBusy, match=r"ledger\.jsonl is being written"):
        open_ledger(link)
    open_ledger(link).close()


def test_a_failed_opening_gives_the_lock_back(path):
    open_ledger(path).close()
    with pytest.raises(LedgerMismatch):
        open_ledger(path, cohort="others")
    path.write_bytes(b"x\n")
    with pytest.raises(LedgerDamaged):
        open_ledger(path)
    path.unlink()
    open_ledger(path).close()


FORK = """
from storage_helpers import *
from blindstep.errors import LedgerUnwritable
ledger = open_ledger(sys.argv[1])
ledger.register(identity())
if os.fork() == 0:
    try:
        ledger.begin("first", 0)
    except LedgerUnwritable as refusal:
        assert "forked" in str(refusal)
        os.write(1, b"refused\\n")
    sys.stdin.read()  # lives on after its parent
    os._exit(0)
ledger.begin("first", 0)
os.write(1, b"begun\\n")
os.kill(os.getpid(), 9)
"""


def test_a_forked_worker_neither_writes_nor_keeps_the_lock(path):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD + FORK, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert {child.stdout.readline(), child.stdout.readline()} == {"refused\n", "begun\n"}
    child.wait()
    with open_ledger(path) as ledger:
        assert ledger.account.runs["first"].next_step == 1
    child.stdin.close()
    child.stdout.close()


def test_what_a_forked_child_does_first(path):
    """It lets go of every ledger; here without a fork, so that coverage sees it."""
    ledger = open_ledger(path)
    ledger.register(identity())
    journal._let_go_in_child()
    with pytest.raises(LedgerUnwritable, match="forked process never owns it"):
        ledger.begin("first", 0)
    open_ledger(path).close()


def test_the_name_of_a_new_ledger_is_durable_before_it_is_used(path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        real(descriptor)
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    with open_ledger(path):
        assert str(path.parent) in flushed
        assert flushed[-1] == str(path)  # the first entry


def test_begin_returns_after_exactly_one_fsync_of_all_its_bytes(path, monkeypatch):
    durable_bytes = []
    real = os.fsync

    def fsync(descriptor):
        real(descriptor)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            durable_bytes.append(path.read_bytes())

    with open_ledger(path) as ledger:
        ledger.register(identity())
        monkeypatch.setattr(os, "fsync", fsync)
        for step in range(3):
            ledger.begin("first", step)
            assert len(durable_bytes) == step + 1
            last = json.loads(durable_bytes[-1].splitlines()[-1])
            assert (last["kind"], last["first"]) == ("intent", step)
            assert durable_bytes[-1].endswith(b"\n")


@pytest.mark.parametrize(
    ("call", "error"),
    [("write", errno.ENOSPC), ("fsync", errno.ENOSPC), ("fsync", errno.EIO)]
    + [("write", errno.EROFS), ("write", errno.EDQUOT)],
)
def test_a_disk_that_does_not_take_the_entry_stops_the_release(path, monkeypatch, call, error):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        ledger.begin("first", 0)
        refusal = pytest.raises(LedgerUnwritable, match=r"ledger\.jsonl.*nothing more was released")
        with failing(monkeypatch, call, error), refusal:
            ledger.begin("first", 1)
        with pytest.raises(LedgerUnwritable, match="open it again"):
            ledger.begin("first", 1)
    with open_ledger(path) as ledger:
        run = ledger.register(identity())
        # The bytes may have arrived although fsync failed: then the step counts as begun.
        assert run.next_step == (2 if call == "fsync" else 1)
        ledger.begin("first", 1, replay=True)


def test_a_really_full_disk_leaves_a_torn_line_that_is_set_aside(path):
    content, head, spent = write_some(path)
    with open_ledger(path, head=head) as ledger:
        ledger.register(identity(steps_per_pass=2))
        refusal = pytest.raises(LedgerUnwritable, match="File too large")
        with full_disk(len(content) + 100), refusal:
            ledger.begin("first", 3)
    assert path.stat().st_size == len(content) + 100
    with open_ledger(path, head=head) as ledger:
        assert ledger.account.spent() == spent
    assert path.with_name(path.name + ".torn-1").stat().st_size == 100


@pytest.mark.parametrize("call", ["open", "write", "fsync", "ftruncate"])
def test_a_read_only_or_full_directory_is_an_error_on_opening(path, monkeypatch, call):
    content, head, _ = write_some(path)
    torn = content + f'{{"n":5,"prev":"{head.sha256}","at'.encode()
    path.write_bytes(torn)
    refusals = 0
    for after in range(4):
        with failing(monkeypatch, call, errno.EROFS, after), suppress(LedgerUnwritable):
            refusals += 1
            open_ledger(path).close()
            refusals -= 1
        assert path.read_bytes() in (torn, content)
    assert refusals
    open_ledger(path).close()
    assert path.read_bytes() == content


def test_places_where_no_ledger_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file" / "x.jsonl", tmp_path / "none" / "x.jsonl", "/proc/x.jsonl"):
        with pytest.raises(LedgerUnwritable, match="existing, writable directory"):
            open_ledger(place)
        with pytest.raises(LedgerUnreadable, match="cannot be read"):
            read_ledger(place)
    with pytest.raises(LedgerUnreadable, match="directory"):
        open_ledger(tmp_path)


def test_no_lock_no_ledger(path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(files.fcntl, "flock", no_locks)
        with pytest.raises(LedgerUnwritable, match=r"\.lock cannot be locked \(No locks"):
            open_ledger(path)
    monkeypatch.setattr(files, "fcntl", None)
    with pytest.raises(LedgerUnwritable, match="POSIX"):
        open_ledger(path)


def test_a_system_without_fcntl_can_still_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("durable_elsewhere", files.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.fcntl is None


def test_a_system_with_a_full_flush_gets_it(path, monkeypatch):
    """On macOS fsync stops at the drive's cache."""
    asked = []
    full = types.SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(files, "fcntl", full)
    with path.open("wb") as file:
        files.flush(file.fileno())
        assert asked == [(file.fileno(), 51)]


@pytest.mark.parametrize("change", ["moved", "replaced", "grown"])
def test_a_file_changed_under_its_writer_is_noticed(path, change):
    with open_ledger(path) as ledger:
        ledger.register(identity())
        content = path.read_bytes()
        if change == "grown":
            path.write_bytes(content + b"\n")
        else:
            path.rename(path.with_name("elsewhere"))
        if change == "replaced":
            path.write_bytes(content)
        with pytest.raises(LedgerError, match=r"ledger\.jsonl was"):
            ledger.begin("first", 0)


KILLED = """
from storage_helpers import *

def work(path):
    with open_ledger(path) as ledger:
        step = ledger.register(identity(steps_per_pass=10, passes=10**6)).next_step
        while True:
            ledger.begin("first", step)
            os.write(1, b"%d %r\\n" % (step, ledger.account.spent()))  # the release
            step += 1
"""


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_kill_9_never_hides_a_release(path, kills):
    released, spent = -1, 0.0
    for lines in kill_at_random(KILLED, path, kills, seed=1):
        if lines:
            released, spent = int(lines[-1].split()[0]), float(lines[-1].split()[1])
        with open_ledger(path) as ledger:
            # At most one step was begun and not released.
            assert released + 1 <= ledger.account.runs["first"].next_step <= released + 2
            assert ledger.account.spent() >= spent
            released = ledger.account.runs["first"].next_step - 1
    assert released > 5 * kills
