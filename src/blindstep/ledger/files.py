"""Files whose bytes are on the disk when a call returns, and sealed JSON, which shows any changed byte.

Errors are the operating system's own (OSError); the callers turn them into refusals.

A sealed object is one line of JSON. Its last member is the SHA-256 of the line without that member:
of its bytes, so a changed space is as visible as a changed number. It finds accidents (a failing disk,
a torn write, a file of another run). It is no signature: anyone who may write the file can also write
the hash.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from blindstep.errors import InvalidArgument

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


@contextlib.contextmanager
def taking_turns(path: str, patience: float = math.inf) -> Iterator[None]:
    """Hold the lock on the file at `path`; after `patience` seconds of waiting, go on without it.

    Where the platform has no flock, nobody waits.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        until = time.monotonic() + patience
        while fcntl is not None and time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


def read_file(path: str) -> bytes:
    """Read all bytes of a regular file. A directory, pipe or device is an OSError.

    Opening a pipe would wait for somebody to write, and a device may never end.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "a directory, pipe or device, not a file", path)
    with open(path, "rb") as file:
        return file.read()


_MARK, _END = b',"sha256":"', b'"}'
_SEAL = len(_MARK) + 64 + len(_END)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def _unique_names(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; two members of one name are a ValueError."""
    body = dict(members)
    if len(body) != len(members):
        raise ValueError("it has a name twice")
    return body


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. NaN, infinities, doubled names and deep nesting are a ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_names)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def seal(body: Mapping[str, Any]) -> bytes:
    """`body` as one line of JSON, without a newline, that ends with its own hash."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text[:-1] + _MARK + hashlib.sha256(text).hexdigest().encode("ascii") + _END


def unseal(line: bytes) -> tuple[dict[str, Any], str]:
    """The object in a sealed line, and its hash. Any other line is a ValueError."""
    text, found = line[:-_SEAL] + b"}", line[-_SEAL:]
    digest = hashlib.sha256(text).hexdigest()
    if found != _MARK + digest.encode("ascii") + _END:
        raise ValueError("its SHA-256 does not match its content")
    return parse(text), digest  # JSON that ends with a brace is an object


def is_unfinished(line: bytes) -> bool:
    """Whether `line` stops before its seal is complete, as a write that was cut short does.

    The bytes of the mark cannot occur inside a JSON string, where quotes are escaped. So the body
    must have no member called "sha256".
    """
    at = line.find(_MARK)
    return at < 0 or len(line) - at < _SEAL


def fingerprint(value: Any) -> str:
    """SHA-256 of a JSON-ready value, with sorted names: equal plans have equal fingerprints."""
    try:
        text = json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"this cannot be fingerprinted ({error}): give numbers, strings, lists and dicts."
        ) from error
    return hashlib.sha256(text.encode("ascii")).hexdigest()
