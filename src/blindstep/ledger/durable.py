"""Files whose bytes are on the disk when a call returns.

Errors are the operating system's own (OSError); the callers turn them into refusals.
"""

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


def flush(descriptor: int) -> None:
    """Wait until the file's bytes are on the medium, not merely with the operating system."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's cache
    if full is not None:
        fcntl.fcntl(descriptor, full)  # pyright: ignore[reportOptionalMemberAccess]
    else:
        os.fsync(descriptor)


def flush_directory(path: str) -> None:
    """Wait until the directory's names are on the medium: files created, replaced or removed in it."""
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


def put_file(path: str, content: bytes) -> None:
    """Put a file under its name in one step: readers see the old content or the new, never a part.

    Only its owner can read it. Its bytes are durable, its name is not yet: `flush_directory`. The
    bytes go to PATH.tmp first; nothing is left there on failure.
    """
    temporary = path + ".tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, PRIVATE_FILE)
    try:
        os.fchmod(descriptor, PRIVATE_FILE)  # a crash may have left it, with another mode
        write_all(descriptor, content)
        flush(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # it may hold the noise key
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def make_private_directory(path: str) -> None:
    """Make a directory and its missing parents, durably, for their owner only."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    make_private_directory(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):  # else another process was quicker
            raise
    flush_directory(os.path.dirname(path))


def read_file(path: str) -> bytes:
    """Read all bytes of a regular file. A directory, pipe or device is an OSError.

    Opening a pipe would wait for somebody to write, and a device may never end.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "a directory, pipe or device, not a file", path)
    with open(path, "rb") as file:
        return file.read()
