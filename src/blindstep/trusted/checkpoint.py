"""The checkpoint of a run: where it stands, and the secret state it goes on from.

    checkpoint = Checkpoint("run/")
    found = checkpoint.load()                # None, or (arrays, meta)
    checkpoint.save(arrays, CheckpointMeta(run, plan, data, position, ledger.head))

It is a directory of
- `state-N.npz`: the arrays, *with the noise key*: who can read it can subtract the noise. Plain
  NumPy, never pickle;
- `checkpoint.json`: which run, plan and data, how many steps are done, where the ledger stood, and
  the SHA-256 of the state and of itself;
- `checkpoint.previous.json`, with its own state: the one before.

Guarantee. Files are for their owner only (mode 0600, in a directory made with 0700). A crash at any
moment leaves the old checkpoint or the new one, whole: the new state is durable under a new name
before `checkpoint.json` is replaced, in one step, by the file that names it. A file that is torn,
cut, changed or swapped is refused; it is never repaired, and the previous checkpoint stays.

A checkpoint says nothing about what was spent: the ledger does, and it decides whether a run may go
on from here (`Ledger.open(head=meta.ledger)`, then `Ledger.begin`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blindstep.errors import InvalidArgument, count
from blindstep.trusted import durable
from blindstep.trusted.journal import Head
from blindstep.trusted.refusals import (
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointUnwritable,
)
from blindstep.trusted.sealed_json import seal, unseal

SCHEMA = 1
CURRENT, PREVIOUS = "checkpoint.json", "checkpoint.previous.json"
_STATE = re.compile(r"state-([0-9]+)\.npz")
_ARRAY_NAME = re.compile(r"[A-Za-z0-9_.-]+")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class CheckpointMeta:
    """The public part of a checkpoint.

    Attributes:
        run: the run's name in the ledger.
        plan: fingerprint of its plan.
        data: name of its data that tells nothing about them (`ledger.data_id`).
        position: steps done: the next one to begin.
        ledger: where the ledger stood when the checkpoint was made.
    """

    run: str
    plan: str
    data: str
    position: int
    ledger: Head

    def __post_init__(self) -> None:
        origin, length, sha256 = self.ledger
        for text in (self.run, self.plan, self.data, origin, sha256):
            if not isinstance(text, str) or not text:
                raise InvalidArgument(
                    f"a run's name and all fingerprints are strings, not empty; got {text!r}."
                )
        object.__setattr__(self, "position", count("position", self.position, 0))
        object.__setattr__(self, "ledger", Head(origin, count("length", length), sha256))


class _Description(NamedTuple):
    """What a checkpoint's JSON file says, and its bytes."""

    meta: CheckpointMeta
    state: str
    state_sha256: str
    content: bytes


class Checkpoint:
    """The checkpoint in a directory. One process at a time: the run's ledger sees to that."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.path.abspath(directory)
        self._whole = False  # the current checkpoint is known to be

    def load(self) -> tuple[Arrays, CheckpointMeta] | None:
        """The current checkpoint, verified; None if there never was one.

        A damaged one raises CheckpointDamaged. Its `previous_position` tells whether the one before
        is whole, and how far it goes; what the ledger has seen since would have to be replayed.
        """
        if not any(os.path.lexists(self._path(name)) for name in (CURRENT, PREVIOUS)):
            return None
        with self._remedy_named():
            found = self._read(CURRENT)
        self._whole = True
        return found

    def load_previous(self) -> tuple[Arrays, CheckpointMeta] | None:
        """The checkpoint before the current one, verified; None if there is none."""
        return self._read(PREVIOUS) if os.path.lexists(self._path(PREVIOUS)) else None

    def check(self, meta: CheckpointMeta, *, plan: str, data: str) -> None:
        """Refuse a checkpoint that was made with another plan or on other data."""
        for name, mine, asked in (("plan", meta.plan, plan), ("data", meta.data, data)):
            if mine != asked:
                raise CheckpointMismatch(
                    f"{self._path(CURRENT)} is of run {meta.run!r} with another {name} "
                    f"(fingerprint {mine}, now {asked}): resume with the {name} it was made with, "
                    "or give another directory for a new run."
                )

    def save(self, arrays: Mapping[str, np.ndarray], meta: CheckpointMeta) -> None:
        """Make this the current checkpoint, and the current one the previous.

        It is durable when this returns. If this raises, the current one is still what it was.
        """
        state = _pack(arrays)
        if not self._whole:
            self.load()  # never let a damaged one push out the good one before it
        replaced = None
        if os.path.lexists(self._path(CURRENT)):
            with self._remedy_named():
                replaced = self._describe(CURRENT)
        try:
            durable.make_private_directory(self.directory)
            self._write(state, meta, replaced)
        except OSError as error:
            raise CheckpointUnwritable(
                f"the checkpoint in {self.directory} cannot be written ({error.strerror}); the one "
                "before it is untouched: free some space or make the directory writable, then "
                "start again from it."
            ) from error
        self._whole = True

    def _write(self, state: bytes, meta: CheckpointMeta, replaced: _Description | None) -> None:
        states = {int(m[1]): m[0] for m in map(_STATE.fullmatch, os.listdir(self.directory)) if m}
        name = f"state-{max(states, default=0) + 1}.npz"
        body = {"blindstep": "checkpoint", "schema": SCHEMA, "run": meta.run, "plan": meta.plan}
        body |= {"data": meta.data, "position": meta.position, "ledger": list(meta.ledger)}
        body |= {"state": name, "state_sha256": hashlib.sha256(state).hexdigest()}
        kept = {name}
        self._place(name, state)
        if replaced is not None:
            kept.add(replaced.state)
            self._place(PREVIOUS, replaced.content)
        durable.flush_directory(self.directory)
        self._place(CURRENT, seal(body) + b"\n")
        durable.flush_directory(self.directory)
        for old in set(states.values()) - kept:
            with contextlib.suppress(OSError):
                os.unlink(self._path(old))

    def _place(self, name: str, content: bytes) -> None:
        """Put a file under its name in one step, its bytes durable."""
        temporary = self._path(name if _STATE.fullmatch(name) is None else "state.npz") + ".tmp"
        try:
            durable.create_file(temporary, content, exclusive=False)
            os.replace(temporary, self._path(name))
        except BaseException:
            with contextlib.suppress(OSError):  # it may hold the noise key
                os.unlink(temporary)
            raise

    def _describe(self, name: str) -> _Description:
        path = self._path(name)
        content = _read_file(path)
        try:
            if content[-1:] != b"\n":
                raise ValueError("it is cut short")
            body, _ = unseal(content[:-1])
            if (body["blindstep"], body["schema"]) != ("checkpoint", SCHEMA):
                raise ValueError(
                    f"it is of schema {body['schema']!r}, and this version of blindstep reads "
                    f"{SCHEMA}: use the version that wrote it"
                )
            if _STATE.fullmatch(body["state"]) is None:
                raise ValueError("it names no state")
            meta = CheckpointMeta(
                body["run"], body["plan"], body["data"], body["position"], Head(*body["ledger"])
            )
            return _Description(meta, body["state"], body["state_sha256"], content)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{path} is not as it was written: {error}.") from error

    def _read(self, name: str) -> tuple[Arrays, CheckpointMeta]:
        found = self._describe(name)
        path = self._path(found.state)
        packed = _read_file(path)
        if hashlib.sha256(packed).hexdigest() != found.state_sha256:
            raise CheckpointDamaged(
                f"{path} is not the state that {self._path(name)} was written with: its SHA-256 "
                "differs."
            )
        return _unpack(packed, path), found.meta

    @contextlib.contextmanager
    def _remedy_named(self) -> Iterator[None]:
        """Add to a refusal of the current checkpoint what there is to go on from."""
        try:
            yield
        except CheckpointDamaged as damage:
            previous = None
            with contextlib.suppress(CheckpointDamaged):
                previous = self.load_previous()
            if previous is None:
                damage.args = (
                    f"{damage} Nothing was changed. Restore {self.directory} from a copy; without "
                    "one, move it away and start a new run: the ledger keeps what this one spent.",
                )
            else:
                damage.previous_position = previous[1].position
                damage.args = (
                    f"{damage} Nothing was changed. The checkpoint before it, at position "
                    f"{damage.previous_position}, is whole. To go on from it: "
                    f"mv {self._path(PREVIOUS)} {self._path(CURRENT)}",
                )
            raise

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def _read_file(path: str) -> bytes:
    try:
        return durable.read_file(path)
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read ({error.strerror}).") from error


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays as an .npz file; numbers only, so there is nothing to pickle."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in arrays.items():
            if _ARRAY_NAME.fullmatch(name) is None:
                raise InvalidArgument(
                    f"array name {name!r}: use letters, digits, dots, hyphens and underscores."
                )
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                raise InvalidArgument(
                    f"{name} is no NumPy array of numbers: convert it with numpy.asarray."
                )
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return packed.getvalue()


def _unpack(packed: bytes, path: str) -> Arrays:
    """The arrays that `_pack` packed. Memory is that of the file: no header is believed before."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            members = archive.infolist()
            if any(m.compress_type != zipfile.ZIP_STORED for m in members):
                raise ValueError("it is compressed")
            arrays = {m.filename: _array(archive.read(m)) for m in members}
        if len(arrays) != len(members) or any(not name.endswith(".npy") for name in arrays):
            raise ValueError("its names are not those of arrays")
    except Exception as error:  # whatever the zip and array readers make of a foreign file
        raise CheckpointDamaged(f"{path} is no .npz file of plain arrays ({error}).") from error
    return {name.removesuffix(".npy"): array for name, array in arrays.items()}


def _array(content: bytes) -> np.ndarray:
    """One array in NumPy's own format. Its size must be what its header says, to the byte."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another version of the format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    body = content[file.tell() :]
    if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError("an array that is not as large as it says, or not of numbers")
    flat = np.frombuffer(body, dtype).copy()
    return flat.reshape(shape, order="F" if fortran else "C")
