"""An append-only file of hash-chained JSON lines, durable line by line, with a single writer.

Line n is {"n": n, "prev": SHA-256 of line n-1, ..., "sha256": its own}. So a changed, missing,
doubled, moved or foreign line is found on opening, by line number.

What a crash can leave. A line is written with one append and is on the disk before `append`
returns. A crash in between leaves an unfinished last line. Its `append` never returned, so nothing
that waited for it has happened, and it may be set aside: it is kept in PATH.torn-1 (-2, ...), never
erased. If only the newline is missing, the line is whole and counts. Every other irregularity is
not what a crash leaves, and is refused.

What the file alone cannot show is that its last whole lines were cut off. A `Head`, kept elsewhere
(in a checkpoint), shows it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from blindstep.trusted import durable
from blindstep.trusted.refusals import (
    LedgerBusy,
    LedgerDamaged,
    LedgerMismatch,
    LedgerTruncated,
    LedgerUnreadable,
    LedgerUnwritable,
)
from blindstep.trusted.sealed_json import is_unfinished, seal, unseal

NOTHING_BEFORE = "0" * 64
_RESTORE = (
    "It is left as it is. Restore it from a copy made at or after the last release; do not edit it, "
    "and do not start a new ledger for the same people: it would forget what they have spent"
)


class Head(NamedTuple):
    """How far a journal had grown: enough to recognise it, and to see that nothing is missing.

    Attributes:
        origin: SHA-256 of its first line, which no other journal shares.
        length: number of lines.
        sha256: of the last of them.
    """

    origin: str
    length: int
    sha256: str


Visit = Callable[[dict[str, Any]], None]


class Scan(NamedTuple):
    """What the bytes of a journal hold.

    Attributes:
        head: of the whole lines; None if there are none.
        whole: number of bytes in whole lines, up to and with the last newline if it is there.
        torn: the bytes of an unfinished last line.
        terminated: whether the last whole line ends with a newline.
    """

    head: Head | None
    whole: int
    torn: bytes
    terminated: bool


def scan(path: str, content: bytes, visit: Visit, expected: Head | None = None) -> Scan:
    """Verify every line, in order, and hand it to `visit`. Anything irregular is refused.

    `visit` raises ValueError (with the reason) on a line that makes no sense to it. `expected` is a
    head this journal had before: it must still be part of it.
    """
    lines = content.split(b"\n")
    unterminated = len(lines) - 1  # after the last newline; an empty line, as a rule
    whole, origin, previous, number = 0, "", NOTHING_BEFORE, 0
    for index, line in enumerate(lines):
        if index == unterminated and (not line or _was_cut_short(line, number, previous)):
            break
        try:
            body, digest = unseal(line)
            if (body.pop("n", None), body.pop("prev", None)) != (number, previous):
                raise ValueError("it does not follow the line before it")
            visit(body)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise LedgerDamaged(
                f"{path}, line {number + 1}: {reason}. The file is not as it was written. "
                f"{_RESTORE}."
            ) from error
        number, previous, origin = number + 1, digest, origin or digest
        whole += len(line) + (index < unterminated)
        if expected is not None:
            _check_against(expected, path, origin, number, digest)
    if expected is not None and number < expected.length:
        raise LedgerTruncated(
            f"{path} holds {number} entries, but the checkpoint has seen {expected.length}: entries "
            f"are missing at the end, or the whole file is. {_RESTORE}."
        )
    head = Head(origin, number, previous) if number else None
    terminated = whole == 0 or content[whole - 1 : whole] == b"\n"
    return Scan(head, whole, content[whole:], terminated)


def _check_against(expected: Head, path: str, origin: str, number: int, digest: str) -> None:
    if origin != expected.origin:
        raise LedgerMismatch(
            f"{path} is another ledger than the one that the checkpoint was written with: put the "
            "right file there, or open the ledger that belongs to this checkpoint."
        )
    if number == expected.length and digest != expected.sha256:
        raise LedgerMismatch(
            f"{path}, line {number}: not the line that the checkpoint has seen there. The ledger "
            f"was rolled back and written on, so it misses releases. {_RESTORE}."
        )


def _was_cut_short(line: bytes, number: int, previous: str) -> bool:
    """Whether this is the beginning of the line that would have come next, and no more.

    A file system may have grown the file before it wrote the bytes: zeros at the end are allowed.
    """
    start = f'{{"n":{number},"prev":"{previous}",'.encode("ascii")
    written = line.rstrip(b"\0")
    size = min(len(written), len(start))
    return written[:size] == start[:size] and is_unfinished(written)


def read_bytes(path: str) -> bytes:
    """The whole file; one that cannot be read is refused."""
    try:
        return durable.read_file(path)
    except OSError as error:
        raise LedgerUnreadable(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions."
        ) from error


class Journal:
    """The one writer of a journal. Use from one thread at a time.

    On construction: takes the lock PATH.lock (advisory, `flock`, so a network file system must
    support it), reads and verifies everything, changes nothing. `prepare` then sets an unfinished
    last line aside; `append` adds lines. After an append that failed the object is of no further
    use: only reading the file again tells what the disk took.
    """

    def __init__(self, path: str, visit: Visit, expected: Head | None = None) -> None:
        # One lock for one file, whatever links lead to it.
        self.path = os.path.realpath(path)
        self._lock = _lock(self.path)
        self._finalizer = weakref.finalize(self, os.close, self._lock)
        try:
            try:
                content = read_bytes(self.path) if os.path.exists(self.path) else b""
                self._scan = scan(self.path, content, visit, expected)
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
                self._file = os.open(self.path, flags, durable.PRIVATE_FILE)
            except OSError as error:
                raise self._unwritable(error) from error
        except BaseException:
            self.close()
            raise
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _close, self._file, self._lock)
        self._head, self._failed = self._scan.head, False
        self._size = len(content)
        _open_journals.add(self)

    @property
    def head(self) -> Head | None:
        """Of the lines so far; None while there are none."""
        return self._head

    def prepare(self) -> None:
        """Make the file ready for the next line; keep an unfinished last one in a side file."""
        self.check()
        directory, torn = os.path.dirname(self.path), self._scan.torn
        self._failed = True  # until the file is known to end with a whole line
        try:
            if torn:
                durable.create_file(durable.free_name(self.path, "torn"), torn, exclusive=True)
                durable.flush_directory(directory)
                os.ftruncate(self._file, self._scan.whole)
            if not self._scan.terminated:
                durable.write_all(self._file, b"\n")
            durable.flush(self._file)
            # A writer that crashed may not have come to make the file's name durable.
            durable.flush_directory(directory)
        except OSError as error:
            raise self._unwritable(error) from error
        self._size = self._scan.whole + (not self._scan.terminated)
        self._failed = False

    def append(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add a line, and return its entry.

        Guarantee: it is on the disk when this returns. If this raises, it is not known to be, and
        what waits for it must not happen.
        """
        self.check()
        number, previous = (0, NOTHING_BEFORE) if self._head is None else self._head[1:]
        line = seal({"n": number, "prev": previous, "at": _now(), **body})
        self._failed = True  # until the line is known to be durable
        try:
            durable.write_all(self._file, line + b"\n")
            durable.flush(self._file)
        except OSError as error:
            raise self._unwritable(error) from error
        entry, digest = unseal(line)
        origin = digest if self._head is None else self._head.origin
        self._head = Head(origin, number + 1, digest)
        self._size += len(line) + 1
        self._failed = False
        return entry

    def close(self) -> None:
        """Let go of the file and the lock. May be called again."""
        self._finalizer()

    def check(self) -> None:
        """Refuse if no line can be added: closed, failed, or the file changed by someone else."""
        if not self._finalizer.alive:
            raise LedgerUnwritable(
                f"{self.path} is closed here (a forked process never owns it): open it again in "
                "the process that releases."
            )
        if self._failed:
            raise LedgerUnwritable(
                f"an earlier write to {self.path} failed, so its last entry is in doubt: open it "
                "again, and go on from the checkpoint."
            )
        held = os.fstat(self._file)
        try:
            found = os.stat(self.path)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise LedgerMismatch(
                f"{self.path} was moved, deleted or replaced while in use: put it back, then start "
                "again from the checkpoint."
            )
        if held.st_size != self._size:
            raise LedgerDamaged(
                f"{self.path} was changed by someone else while in use: open it again."
            )

    def _unwritable(self, error: OSError) -> LedgerUnwritable:
        return LedgerUnwritable(
            f"{self.path} cannot be written ({error.strerror}), so nothing more was released: free "
            "some space or make the directory writable, then start again from the checkpoint."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _lock(path: str) -> int:
    """Take the lock of the file at `path`; return its descriptor, which holds it."""
    if durable.fcntl is None:
        raise LedgerUnwritable(
            f"{path}: this platform has no flock, so a second writer could not be kept out: run on "
            "a POSIX system (Linux, macOS, WSL)."
        )
    lock = path + ".lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, durable.PRIVATE_FILE)
    except OSError as error:
        raise LedgerUnwritable(
            f"{lock} cannot be made ({error.strerror}), so nothing was released: give a ledger in "
            "an existing, writable directory."
        ) from error
    try:
        durable.fcntl.flock(descriptor, durable.fcntl.LOCK_EX | durable.fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise LedgerBusy(
                f"{path} is being written by another run (it holds {lock}): wait until it ends, or "
                "close it. Runs on the same people take turns."
            ) from error
        raise LedgerUnwritable(
            f"{lock} cannot be locked ({error.strerror}): keep the ledger on a file system with "
            "flock."
        ) from error
    return descriptor


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# A forked worker inherits the lock. It would keep the ledger locked after its parent was killed,
# and two processes would share one file position: the child lets go at once.
_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for journal in list(_open_journals):
        journal.close()


# Where processes are not forked there is nothing to register with.
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_let_go_in_child)
