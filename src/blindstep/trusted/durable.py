"""Bytes that are on the disk when a call returns. Errors are the operating system's own (OSError)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def flush(descriptor: int) -> None:
    """Return when the file's bytes are on the medium, not merely with the operating system."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's cache
    if full is not None:
        fcntl.fcntl(descriptor, full)  # pyright: ignore[reportOptionalMemberAccess]
    else:
        os.fsync(descriptor)


def flush_directory(path: str) -> None:
    """Make names in the directory durable: files created in it, replaced in it, removed from it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte: the operating system may take fewer at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def create_file(path: str, content: bytes, *, exclusive: bool) -> None:
    """A new file, readable by its owner only, with its bytes (not yet its name) durable.

    `exclusive` refuses to touch an existing file; otherwise an existing one is emptied first. What
    cannot be written whole is removed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_EXCL if exclusive else os.O_TRUNC)
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        os.fchmod(descriptor, PRIVATE_FILE)
        write_all(descriptor, content)
        flush(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def make_private_directory(path: str) -> None:
    """Make the directory and its missing parents, for the owner only, durably; leave one that is."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    make_private_directory(os.path.dirname(path))
    os.mkdir(path, PRIVATE_DIRECTORY)
    flush_directory(os.path.dirname(path))


def read_file(path: str) -> bytes:
    """All bytes of a plain file. Anything else of that name is an error, not an endless wait.

    A pipe would keep its reader waiting for somebody to write, a device may never end.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "a directory, pipe or device, not a file", path)
    with open(path, "rb") as file:
        return file.read()


def free_name(path: str, word: str) -> str:
    """The first of path.word-1, path.word-2, ... that does not exist yet."""
    number = 1
    while os.path.lexists(name := f"{path}.{word}-{number}"):
        number += 1
    return name
