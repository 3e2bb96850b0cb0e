"""The checkpoint of a run: where it stands, and the secret state it goes on from.

It is a directory of
- `state-N.npz`: state, memory, keys and secret fingerprints as named plain arrays, *with the noise
  key*: anyone who can read it can subtract the noise. Plain NumPy, never pickle;
- `checkpoint.json`: which run, plan and data, how many steps are done, where the ledger stood, and
  the SHA-256 of the state and of itself;
- `checkpoint.previous.json`, with a state of its own: the checkpoint before.

Guarantee. Only their owner can read the files (mode 0600, in a directory made with 0700). A crash at
any moment leaves the old checkpoint or the new one, whole: the new state is durable under a new name
before `checkpoint.json` is replaced, in one step, by the file that names it. A file that is torn, cut,
changed or swapped is refused; it is never repaired, and the previous checkpoint stays.

A checkpoint does not say what was spent. The ledger does, and the ledger decides whether a run may go
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
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from blindstep.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointMismatch,
    CheckpointUnwritable,
    InvalidArgument,
    count,
)
from blindstep.ledger import files
from blindstep.ledger.files import seal, unseal
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.journal import Head
from blindstep.private.accounting import RECORD
from blindstep.private.gate import Memory
from blindstep.private.noise import Keys, NoiseKey, public_key

SCHEMA = 3
CURRENT, PREVIOUS = "checkpoint.json", "checkpoint.previous.json"
_STATE = re.compile(r"state-([0-9]+)\.npz")
_ARRAY_NAME = re.compile(r"[A-Za-z0-9_.-]+")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class CheckpointMeta:
    """The public part of a checkpoint."""

    run: str  # the run's name in the ledger
    plan: str  # fingerprint of its plan
    data: str  # a name of its data that tells nothing about them (`fingerprints.data_id`)
    position: int  # steps done, and so the number of the next step
    ledger: Head  # where the ledger stood when the checkpoint was made
    unit: str = RECORD  # what its privacy is about (`Statement.unit`)

    def __post_init__(self) -> None:
        origin, length, sha256 = self.ledger
        for text in (self.run, self.plan, self.data, self.unit, origin, sha256):
            if not isinstance(text, str) or not text:
                raise InvalidArgument(f"names and hashes are strings, not empty, got {text!r}.")
        object.__setattr__(self, "position", count("position", self.position, 0))
        object.__setattr__(self, "ledger", Head(origin, count("length", length), sha256))


class Checkpoint:
    """The checkpoint in a directory. The lock of the run's ledger keeps other processes away."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.path.abspath(directory)
        self._verified = False  # whether the current checkpoint is known to be whole

    def load(self) -> tuple[Arrays, CheckpointMeta] | None:
        """The current checkpoint, verified; None if there never was one.

        A damaged one raises CheckpointDamaged. Its `previous_position` tells whether the checkpoint
        before it is whole, and how far that one goes; later steps would have to be replayed.
        """
        if os.path.isdir(self.directory) and not os.access(self.directory, os.R_OK | os.X_OK):
            raise CheckpointError(
                f"{self.directory} cannot be read (Permission denied): check its permissions, or give "
                "another directory for a new run."
            )
        if not any(os.path.lexists(self._path(name)) for name in (CURRENT, PREVIOUS)):
            return None
        with self._naming_the_remedy():
            found = self._read(CURRENT)
        self._verified = True
        return found

    def load_previous(self) -> tuple[Arrays, CheckpointMeta] | None:
        """The checkpoint before the current one, verified; None if there is none."""
        return self._read(PREVIOUS) if os.path.lexists(self._path(PREVIOUS)) else None

    def save(self, arrays: Mapping[str, np.ndarray], meta: CheckpointMeta) -> None:
        """Make this the current checkpoint; the current one becomes the previous one.

        It is durable when this returns. If this raises, the old one or the new one is there, whole.
        """
        packed, replaced, content = _pack(arrays), "", b""
        if not self._verified:
            self.load()  # a damaged checkpoint must never push out the good one before it
        if os.path.lexists(self._path(CURRENT)):
            with self._naming_the_remedy():
                _, replaced, _, content = self._describe(CURRENT)
        try:
            files.make_private_directory(self.directory)
            self._write(packed, meta, replaced, content)
        except OSError as error:
            raise CheckpointUnwritable(
                f"the checkpoint in {self.directory} cannot be written ({error.strerror}); the one "
                "before it is untouched: free some space or make the directory writable, then "
                "start again from it."
            ) from error
        self._verified = True

    def _write(self, packed: bytes, meta: CheckpointMeta, replaced: str, content: bytes) -> None:
        """Write the checkpoint. The one before it has this `content` and the state `replaced`."""
        states = {int(m[1]): m[0] for m in map(_STATE.fullmatch, os.listdir(self.directory)) if m}
        state = f"state-{max(states, default=0) + 1}.npz"
        body = {"blindstep": "checkpoint", "schema": SCHEMA, **vars(meta), "state": state}
        body["state_sha256"] = hashlib.sha256(packed).hexdigest()
        files.put_file(self._path(state), packed)
        if content:
            files.put_file(self._path(PREVIOUS), content)
        files.flush_directory(self.directory)
        files.put_file(self._path(CURRENT), seal(body) + b"\n")
        files.flush_directory(self.directory)
        for old in set(states.values()) - {state, replaced}:
            with contextlib.suppress(OSError):
                os.unlink(self._path(old))

    def _describe(self, name: str) -> tuple[CheckpointMeta, str, str, bytes]:
        """What a JSON file says: the meta, the name and the SHA-256 of the state; and its bytes."""
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
            named = {name: body[name] for name in ("run", "plan", "data", "position", "unit")}
            meta = CheckpointMeta(**named, ledger=Head(*body["ledger"]))
            return meta, body["state"], str(body["state_sha256"]), content
        except (ValueError, KeyError, TypeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise CheckpointDamaged(f"{path} is not as it was written: {reason}.") from error

    def _read(self, name: str) -> tuple[Arrays, CheckpointMeta]:
        meta, state, sha256, _ = self._describe(name)
        path = self._path(state)
        packed = _read_file(path)
        if hashlib.sha256(packed).hexdigest() != sha256:
            raise CheckpointDamaged(
                f"{path} has another SHA-256 than the state that {self._path(name)} was written with."
            )
        return _unpack(packed, path), meta

    @contextlib.contextmanager
    def _naming_the_remedy(self) -> Iterator[None]:
        """Add to a refusal of the current checkpoint how the run can go on."""
        try:
            yield
        except CheckpointDamaged as damage:
            previous = None
            with contextlib.suppress(CheckpointDamaged):
                previous = self.load_previous()
            if previous is None:
                remedy = (
                    f"Restore {self.directory} from a copy; without one, move it away and start a "
                    "new run: the ledger keeps what this one spent."
                )
            else:
                damage.previous_position = previous[1].position
                remedy = (
                    f"The checkpoint before it, at position {damage.previous_position}, is whole. "
                    f"To go on from it: mv {self._path(PREVIOUS)} {self._path(CURRENT)}"
                )
            damage.args = (f"{damage} Nothing was changed. {remedy}",)
            raise

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def _read_file(path: str) -> bytes:
    try:
        return files.read_file(path)
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read ({error.strerror}).") from error


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays as an .npz file. Numbers only, so there is nothing to pickle."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in arrays.items():
            plain = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
            if not plain or _ARRAY_NAME.fullmatch(name) is None:
                raise InvalidArgument(
                    f"{name!r}: give a NumPy array of numbers (numpy.asarray makes one), under a "
                    "name of letters, digits, dots, hyphens and underscores."
                )
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return packed.getvalue()


def _unpack(packed: bytes, path: str) -> Arrays:
    """The arrays that `_pack` packed. Takes no more memory than the file: headers are checked first."""
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


_OF_KEYS = {
    "key.noise": ((8,), np.dtype(np.uint32)),
    "key.public": ((2,), np.dtype(np.uint32)),
    "key.seeded": ((), np.dtype(np.bool_)),
    "key.names": ((32,), np.dtype(np.uint8)),
}


class Packed(NamedTuple):
    """All that a checkpoint holds, apart from its public description: secret, but for `state`."""

    state: PyTree  # the driver's state: any pytree of arrays
    memory: Memory  # the gate's memory
    keys: Keys  # both keys of the run
    secret: bytes  # under which the run's data and answers are named (`fingerprints`)
    known: Fingerprints  # what must be the same when the run goes on, with the data's hash
    saved: Arrays  # the driver's own arrays, which may be answers


def pack(packed: Packed) -> Arrays:
    """Everything as arrays of numbers, named by where they belong."""
    of_run = _named("state", packed.state) | _named("memory", packed.memory)
    arrays = {name: np.asarray(leaf) for name, leaf in of_run.items()}
    arrays |= {f"saved.{name}": np.asarray(array) for name, array in packed.saved.items()}
    arrays["key.noise"] = packed.keys.noise.words()
    arrays["key.public"] = np.asarray(jax.random.key_data(packed.keys.public))
    arrays["key.seeded"] = np.asarray(packed.keys.seeded)
    arrays["key.names"] = np.frombuffer(packed.secret, np.uint8)
    for name, digest in asdict(packed.known).items():
        arrays[f"known.{name}"] = np.frombuffer(bytes.fromhex(digest), np.uint8)
    return arrays


def unpack(arrays: Mapping[str, np.ndarray], state: PyTree, memory: Memory, where: str) -> Packed:
    """What `pack` packed; names, shapes and dtypes must be those of `state` and `memory`.

    `where` names the file in the refusal.
    """
    template = _named("state", state) | _named("memory", memory)
    shapes = {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in template.items()}
    hashes = [arrays.get(f"known.{name}") for name in Fingerprints.__annotations__]
    found = {n: a for n, a in arrays.items() if not n.startswith(("saved.", "known."))}
    if {n: (a.shape, a.dtype) for n, a in found.items()} != shapes | _OF_KEYS or any(
        a is None or a.ndim != 1 or a.dtype != np.uint8 for a in hashes
    ):
        raise CheckpointMismatch(
            f"{where} holds a state of other names, shapes or dtypes than this version of blindstep "
            "uses: resume it with the version that began it."
        )
    leaves = [jnp.asarray(found[name]) for name in template]
    state, memory = jax.tree.unflatten(jax.tree.structure((state, memory)), leaves)
    noise, public = NoiseKey(found["key.noise"]), public_key(found["key.public"])
    keys, secret = Keys(noise, public, bool(found["key.seeded"])), found["key.names"].tobytes()
    known = {n: bytes(arrays[f"known.{n}"]).hex() for n in Fingerprints.__annotations__}
    saved = {n.removeprefix("saved."): a for n, a in arrays.items() if n.startswith("saved.")}
    return Packed(state, memory, keys, secret, Fingerprints(**known), saved)


def _named(prefix: str, tree: PyTree) -> dict[str, Any]:
    """The leaves of a pytree by name: PREFIX.NUMBER.PATH, where the number makes them unique."""
    named = {}
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        named[f"{prefix}.{number}." + re.sub(r"[^A-Za-z0-9_.-]", "_", name)] = leaf
    return named
