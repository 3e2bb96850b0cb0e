"""One ledger for all runs on the records of a data file, found again by what the file holds.

Where a user names no ledger, `blindstep train` keeps one in a folder of the user's own, beside a
description of the file it belongs to:

    people-1f0c9a2e.jsonl         the ledger, which may be shown
    people-1f0c9a2e.data.json     SECRET: hashes of what the file held, and where it lay

A file is recognised by its content, so that another name, a link or a copy leads to the same ledger;
and by its path, so that the file is still the same people after a correction. Either is enough: at
worst, runs are counted together that need not be.

The hashes are secret because a guess of the data can be checked against them. They are in a file for
its owner only (mode 0600, in a directory made with 0700), and nothing of them is in the ledger.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from blindstep.errors import LedgerUnreadable, LedgerUnwritable
from blindstep.ledger import files
from blindstep.ledger.checkpoint import CURRENT
from blindstep.ledger.ledger import Ledger
from blindstep.ledger.storage import LEDGER, PathLike, put

HOME = "BLINDSTEP_HOME"
# In a run directory: where the run's ledger is, if it is not in there.
POINTER = "ledger.path"
_DESCRIPTION = ".data.json"
_REMEDY = f"give --ledger PATH, or set {HOME} to a folder that is kept"


@dataclass(frozen=True)
class Kept:
    """A ledger of a data file."""

    ledger: str  # its path
    contents: tuple[str, ...]  # SHA-256 of every content that the file had
    paths: tuple[str, ...]  # every place where it lay


def home() -> str:
    """The folder of these ledgers: in $BLINDSTEP_HOME, or where the user's programs keep their data."""
    own = os.environ.get(HOME)
    shared = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.abspath(os.path.join(own or os.path.join(shared, "blindstep"), "ledgers"))


def all_kept() -> list[Kept]:
    """All ledgers of data files."""
    return [_read(path) for path in sorted(Path(home()).glob(f"*{_DESCRIPTION}"))]


def find(data: PathLike) -> Kept | None:
    """The ledger of the records in this file; None if no run on them has begun. Writes nothing."""
    return _find(_sha256(data), os.path.realpath(data))


def keep(data: PathLike) -> Kept:
    """The ledger of the records in this file, begun if there is none.

    Guarantee: for the same content, and for the same path, it is always the same ledger, until somebody
    removes it from the folder. Two processes that begin at once agree on one.
    """
    content, path, folder = _sha256(data), os.path.realpath(data), home()
    stem = Path(path).stem
    try:
        files.make_private_directory(folder)
        with files.taking_turns(os.path.join(folder, ".lock")):  # one that looks here at a time
            found = _find(content, path)
            if found is None:
                name = f"{stem}-{os.urandom(4).hex()}.jsonl"
                found = Kept(os.path.join(folder, name), (), ())
            contents, paths = [*found.contents, content], [*found.paths, path]
            known = Kept(found.ledger, *(tuple(dict.fromkeys(each)) for each in (contents, paths)))
            if known != found:
                text = json.dumps({"contents": known.contents, "paths": known.paths}, indent=2)
                files.put_file(_description(known.ledger), text.encode("ascii") + b"\n")
                files.flush_directory(folder)
            if not os.path.exists(known.ledger):
                Ledger.open(known.ledger, cohort=stem).close()
    except OSError as error:
        raise LedgerUnwritable(
            f"the ledger of {data} would be kept in {folder}, which cannot be written "
            f"({error.strerror}), so nothing was released: {_REMEDY}."
        ) from error
    return known


def of_run(directory: PathLike) -> str | None:
    """The ledger of the run in this directory: its own, or the one that it was begun with."""
    own, pointer = (os.path.join(directory, name) for name in (LEDGER, POINTER))
    if os.path.exists(own):
        return os.path.abspath(own)
    try:
        return files.read_file(pointer).decode().rstrip("\n")
    except (OSError, UnicodeDecodeError):
        return None


def point(directory: PathLike, ledger: str) -> None:
    """Write down, in a run directory, where the run's ledger is, if it is elsewhere."""
    path = os.path.join(directory, POINTER)
    if os.path.dirname(ledger) != os.path.abspath(directory) and not os.path.exists(path):
        put(path, f"{ledger}\n")


def secret_directory(path: PathLike) -> Path | None:
    """The run directory that this path is, or lies in; None if it is in none."""
    place = Path(os.path.realpath(path))
    return next((each for each in (place, *place.parents) if (each / CURRENT).exists()), None)


def _find(content: str, path: str) -> Kept | None:
    """By content first: that says for certain whose records they are."""
    kept = all_kept()
    same = [each for each in kept if content in each.contents]
    return next(iter(same or [each for each in kept if path in each.paths]), None)


def _read(path: Path) -> Kept:
    try:
        body = files.parse(files.read_file(str(path)))
        contents, paths = (tuple(map(str, body[name])) for name in ("contents", "paths"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerUnreadable(
            f"{path} cannot be read, so nobody knows whose ledger is beside it: restore it from a "
            f"copy, or {_REMEDY}."
        ) from error
    return Kept(str(path).removesuffix(_DESCRIPTION) + ".jsonl", contents, paths)


def _description(ledger: str) -> str:
    return ledger.removesuffix(".jsonl") + _DESCRIPTION


def _sha256(data: PathLike) -> str:
    try:
        with open(data, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LedgerUnreadable(f"{data} cannot be read ({error.strerror}).") from error
