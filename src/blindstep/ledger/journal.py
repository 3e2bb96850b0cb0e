"""An append-only file of hash-chained JSON lines, durable line by line, with a single writer.

Line n is {"n": n, "prev": SHA-256 of line n-1, "at": the day, ..., "sha256": its own}. So a changed,
missing, doubled, moved or foreign line is found when the file is opened, by line number. A line
carries the day, not the time of day: when a step was released may say who took part in it.

What a crash can leave. `append` writes a line in one go and returns when it is on the disk. A crash
in between leaves an unfinished last line. Its `append` never returned, so nothing that waited for it
has happened, and its bytes are set aside in PATH.torn-1 (-2, ...). If only the newline is missing, the
line is whole and counts. A crash leaves nothing else, so everything else is refused.

The file alone cannot show that its last whole lines were cut off. A `Head` that is kept elsewhere, in
a checkpoint, shows it.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from blindstep.errors import (
    LedgerBusy,
    LedgerDamaged,
    LedgerMismatch,
    LedgerTruncated,
    LedgerUnreadable,
    LedgerUnwritable,
)
from blindstep.ledger import files
from blindstep.ledger.files import is_unfinished, seal, unseal

NOTHING_BEFORE = "0" * 64
Visit = Callable[[dict[str, Any]], None]
_RESTORE = (
    "It is left as it is. Restore it from a copy made at or after the last release; do not edit it, "
    "and do not start a new ledger for the same people: it would forget what they have spent"
)


class Head(NamedTuple):
    """How far a journal had grown: enough to recognise it, and to see that no line is missing."""

    origin: str  # SHA-256 of its first line, which no other journal shares
    length: int  # number of lines
    sha256: str  # SHA-256 of the last line


class Scan(NamedTuple):
    """What the bytes of a journal hold."""

    head: Head | None  # of the whole lines; None if there are none
    whole: int  # bytes in whole lines, with the last newline if it is there
    torn: bytes  # those of an unfinished last line
    terminated: bool  # whether the last whole line ends with a newline


def scan(path: str, content: bytes, visit: Visit, expected: Head | None = None) -> Scan:
    """Verify every line in order and hand its entry to `visit`. Anything irregular is refused.

    `visit` raises ValueError, with the reason, on an entry that makes no sense to it. `expected` is a
    head that this journal had before: the journal must still contain it.
    """
    lines = content.split(b"\n")
    unterminated = len(lines) - 1  # what follows the last newline: nothing, as a rule
    whole, digests, previous = 0, [], NOTHING_BEFORE
    for number, line in enumerate(lines):
        if number == unterminated and (not line or _was_cut_short(line, number, previous)):
            break
        try:
            body, digest = unseal(line)
            if (body.pop("n", None), body.pop("prev", None)) != (number, previous):
                raise ValueError("it does not follow the line before it")
            visit(body)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise LedgerDamaged(
                f"{path}, line {number + 1}: {reason}. The file is not as it was written. "
                f"{_RESTORE}."
            ) from error
        digests.append(digest)
        previous = digest
        whole += len(line) + (number < unterminated)
    if expected is not None:
        _check_contains(path, digests, expected)
    head = Head(digests[0], len(digests), previous) if digests else None
    terminated = whole == 0 or content[whole - 1 : whole] == b"\n"
    return Scan(head, whole, content[whole:], terminated)


def follow(head: Head | None, body: dict[str, Any]) -> tuple[bytes, dict[str, Any], Head]:
    """The line that comes after `head` (without its newline), its entry, and the head after it."""
    number, previous = (0, NOTHING_BEFORE) if head is None else head[1:]
    today = datetime.now(UTC).date().isoformat()
    line = seal({"n": number, "prev": previous, "at": today, **body})
    entry, digest = unseal(line)
    return line, entry, Head(head.origin if head else digest, number + 1, digest)


def _check_contains(path: str, digests: list[str], expected: Head) -> None:
    """Refuse a journal of these lines that is not the one which had the expected head, grown."""
    if digests and digests[0] != expected.origin:
        raise LedgerMismatch(
            f"{path} is another ledger than the one that the checkpoint was written with: put the "
            "right file there, or open the ledger that belongs to this checkpoint."
        )
    if len(digests) < expected.length:
        raise LedgerTruncated(
            f"{path} holds {len(digests)} entries, but the checkpoint has seen {expected.length}: "
            f"entries are missing at the end, or the whole file is. {_RESTORE}."
        )
    if digests[expected.length - 1] != expected.sha256:
        raise LedgerMismatch(
            f"{path}, line {expected.length}: not the line that the checkpoint has seen there. The "
            f"ledger was rolled back and written on, so it misses releases. {_RESTORE}."
        )


def _was_cut_short(line: bytes, number: int, previous: str) -> bool:
    """Whether these bytes are only the beginning of the line that would have come next.

    A file system may grow a file before it writes the bytes, so zeros at the end are allowed.
    """
    start = f'{{"n":{number},"prev":"{previous}",'.encode("ascii")
    written = line.rstrip(b"\0")
    size = min(len(written), len(start))
    return written[:size] == start[:size] and is_unfinished(written)


def read_bytes(path: str) -> bytes:
    """Read the whole file, or refuse with LedgerUnreadable."""
    try:
        return files.read_file(path)
    except OSError as error:
        raise LedgerUnreadable(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions."
        ) from error


class Entries:
    """Where a ledger keeps its entries: a file (`Journal`), or a transaction of a database.

    Attributes:
        path: what messages call it.
        head: where it stands; None while it is empty.
    """

    path: str
    head: Head | None

    def prepare(self) -> None:
        """Make ready for the first `append`, once it is known that this is the right ledger."""

    def append(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add an entry and return it; what it announces must not happen unless it is durable."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse if no entry can be added."""

    def close(self) -> None:
        """Let other writers in."""


class Journal(Entries):
    """The one writer of a journal. Use it from one thread at a time.

    The constructor takes the lock PATH.lock (an advisory `flock`, which a network file system must
    support), reads and verifies everything, and changes nothing. After an append that failed the
    object refuses to write: only opening the file again tells what the disk took.
    """

    def __init__(self, path: str, visit: Visit, expected: Head | None = None) -> None:
        self.path = os.path.realpath(path)  # one lock for one file, whatever links lead to it
        held = contextlib.ExitStack()
        held.callback(os.close, _lock(self.path))
        self._finalizer = weakref.finalize(self, held.close)
        try:
            content = read_bytes(self.path) if os.path.exists(self.path) else b""
            self._scan = scan(self.path, content, visit, expected)
            with self._writing():
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
                self._file = os.open(self.path, flags, files.PRIVATE_FILE)
                held.callback(os.close, self._file)
        except BaseException:
            self.close()
            raise
        self.head, self._size = self._scan.head, len(content)
        _open_journals.add(self)

    def prepare(self) -> None:
        """Make the file ready for its next line; keep an unfinished last line in a side file."""
        self.check()
        directory, torn = os.path.dirname(self.path), self._scan.torn
        with self._writing():
            if torn:
                number = 1
                while os.path.lexists(aside := f"{self.path}.torn-{number}"):
                    number += 1
                files.put_file(aside, torn)
                files.flush_directory(directory)
                os.ftruncate(self._file, self._scan.whole)
            if not self._scan.terminated:
                files.write_all(self._file, b"\n")
            files.flush(self._file)
            # A writer that crashed may not have made the file's name durable.
            files.flush_directory(directory)
            self._size = self._scan.whole + (not self._scan.terminated)

    def append(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add a line and return its entry.

        Guarantee: the line is on the disk when this returns. If this raises, nobody knows whether it
        is, and whatever waits for it must not happen.
        """
        self.check()
        line, entry, head = follow(self.head, body)
        with self._writing():
            files.write_all(self._file, line + b"\n")
            files.flush(self._file)
            self.head, self._size = head, self._size + len(line) + 1
        return entry

    def close(self) -> None:
        """Close the file and free the lock. May be called again."""
        self._finalizer()

    def check(self) -> None:
        """Refuse if no line can be added: closed, failed, or someone else changed the file."""
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
        held, in_place = os.fstat(self._file), False
        with contextlib.suppress(OSError):
            in_place = os.path.samestat(os.stat(self.path), held)
        if not in_place:
            raise LedgerMismatch(
                f"{self.path} was moved, deleted or replaced while in use: put it back, then start "
                "again from the checkpoint."
            )
        if held.st_size != self._size:
            raise LedgerDamaged(
                f"{self.path} was changed by someone else while in use: open it again."
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse what the disk refuses. Until all bytes are durable, the file's end is in doubt."""
        self._failed = True
        try:
            yield
        except OSError as error:
            raise LedgerUnwritable(
                f"{self.path} cannot be written ({error.strerror}), so nothing more was released: "
                "free some space or make the directory writable, then start again from the "
                "checkpoint."
            ) from error
        self._failed = False


def _lock(path: str) -> int:
    """Take the lock of the file at `path`, and return the descriptor that holds it."""
    if files.fcntl is None:
        raise LedgerUnwritable(
            f"{path}: this platform has no flock, so a second writer could not be kept out: run on "
            "a POSIX system (Linux, macOS, WSL)."
        )
    lock = path + ".lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, files.PRIVATE_FILE)
    except OSError as error:
        raise LedgerUnwritable(
            f"{lock} cannot be made ({error.strerror}), so nothing was released: give a ledger in "
            "an existing, writable directory."
        ) from error
    try:
        files.fcntl.flock(descriptor, files.fcntl.LOCK_EX | files.fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise LedgerBusy(
                f"{path} is being written by another run (it holds {lock}): wait until it ends, or "
                "close it. Runs on the same people take turns."
            ) from error
        raise LedgerUnwritable(
            f"{lock} cannot be locked ({error.strerror}): use a file system that has flock."
        ) from error
    return descriptor


# A forked worker inherits the lock. It would keep the ledger locked after its parent was killed,
# and two processes would share one file position. So the child lets go at once.
_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for journal in list(_open_journals):
        journal.close()


# Where processes are not forked there is nothing to register with.
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_let_go_in_child)
