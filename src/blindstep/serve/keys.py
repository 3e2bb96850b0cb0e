"""The one secret of a service: a master key, and everything that is derived from it.

The master key is 32 bytes in a file of mode 0600 or in the environment; never in the database. Each use
has a key of its own, HMAC-SHA256(master, use), so no two uses share bits:

- *noise*: the noise key of one release of one study, which depends on the votes it is made from;
- *names*: what people's identifiers, API tokens and votes are called in the database;
- *questions*: the signature in the token of a question;
- *votes*: the pads under which votes lie in the database until their step is released.

Whoever has the database without the key reads no vote, no identifier and no token in it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.private.noise import NoiseKey, Uncopied

_SIZE = 32
_PERSON, _SIGNATURE, _NONCE, _TAG = 16, 16, 12, 8
_ADDRESS = struct.Struct(">IIIB")
_VALUE = struct.Struct("<d")


class Address(NamedTuple):
    """Which answer: that of a slot of a step of a study, to the first or the second of its points."""

    study: int  # the study's number in the database
    release: int  # the step, counted from 0
    slot: int  # the place in the step's batch
    part: int  # 0 or 1


class DamagedVote(Exception):
    """A stored vote is not what was written, or was written under another key."""


class Secrets(Uncopied):
    """The master key and its uses. It cannot be copied or pickled, and its `repr` shows nothing."""

    def __init__(self, master: bytes) -> None:
        if len(master) != _SIZE:
            raise InvalidArgument(
                f"the key must be {_SIZE} bytes in hexadecimal ({2 * _SIZE} digits), got "
                f"{len(master)} bytes: restore the key file that was made with the database."
            )
        uses = ("noise", "person", "api token", "question", "vote", "naming", "session")
        self._keys = {use: hmac.digest(master, b"blindstep serve " + use.encode(), "sha256")
                      for use in uses}  # fmt: skip
        self._nonces: list[bytes] = []
        self.name = hmac.digest(master, b"blindstep serve name", "sha256")[:16].hex()

    def person(self, study: str, identifier: str) -> bytes:
        """What a person is called in the database: another name in every study."""
        content = study.encode() + b"\0" + identifier.encode("utf-8", "surrogatepass")
        return _keyed(self._keys["person"], content, _PERSON)

    def token_name(self, token: str) -> bytes:
        """What an API token is called in the database: without the key no guess can be checked."""
        return _keyed(self._keys["api token"], token.encode("utf-8", "replace"), 32)

    def naming(self, study: str) -> bytes:
        """The secret under which the ledger names the votes of a study's steps."""
        return _keyed(self._keys["naming"], study.encode(), 32)

    def sign(self, content: bytes) -> bytes:
        """A signature for the cookie of a dashboard session."""
        return _keyed(self._keys["session"], content, 32)

    def noise(self, study: str, attempt: int, release: int | None, votes: str) -> NoiseKey:
        """The noise key of one release; `votes` is the keyed name of the votes it is made from.

        Guarantee: the same votes get the same key, so a release that is made again is the same. Other
        votes get an independent key: two vote sets never share noise, even where the database was
        restored from a copy. (To anyone without the master key, as long as HMAC-SHA256 is a
        pseudo-random function. For each set of votes the noise is a fresh draw, so the release is as
        private as one under a random key.) Without a release, the key stands for the whole attempt.
        """
        where = "run" if release is None else str(release)
        content = f"{study} {attempt} {where} {votes}".encode()
        words = np.frombuffer(hmac.digest(self._keys["noise"], content, "sha256"), "<u4")
        return NoiseKey(words.astype(np.uint32))

    # -- questions ------------------------------------------------------------------------------

    def question(self, address: Address) -> str:
        """The token of a question: its address, signed. Nobody can make one that was not given out."""
        packed = _ADDRESS.pack(*address)
        return base64.urlsafe_b64encode(packed + self._signature(packed)).decode().rstrip("=")

    def read_question(self, token: str) -> Address | None:
        """The address in a question's token; None if it was not made with this key."""
        try:
            content = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if base64.urlsafe_b64encode(content).decode().rstrip("=") != token:
            return None  # another spelling of the same bytes
        packed, signature = content[: _ADDRESS.size], content[_ADDRESS.size :]
        if len(packed) != _ADDRESS.size or not hmac.compare_digest(
            signature, self._signature(packed)
        ):
            return None
        return Address(*_ADDRESS.unpack(packed))

    def _signature(self, packed: bytes) -> bytes:
        return _keyed(self._keys["question"], packed, _SIGNATURE)

    # -- votes ----------------------------------------------------------------------------------

    def seal(self, address: Address, value: float) -> bytes:
        """A vote as it lies in the database: 28 bytes that tell nothing without the key."""
        nonce = self._nonce()
        hidden = _xor(_VALUE.pack(value), self._pad(address, nonce))
        return nonce + hidden + self._tag(address, nonce + hidden)

    def _nonce(self) -> bytes:
        """Twelve bytes that were never used: drawn many at a time, each handed out once."""
        try:
            return self._nonces.pop()  # one operation: threads cannot get the same
        except IndexError:
            drawn = os.urandom(_NONCE * 256)
            self._nonces.extend(drawn[at : at + _NONCE] for at in range(0, len(drawn), _NONCE))
            return os.urandom(_NONCE)

    def unseal(self, address: Address, sealed: bytes) -> float:
        """The vote that `seal` sealed for this address; another one is a DamagedVote."""
        nonce, hidden, tag = sealed[:_NONCE], sealed[_NONCE:-_TAG], sealed[-_TAG:]
        if len(hidden) != _VALUE.size or not hmac.compare_digest(
            tag, self._tag(address, nonce + hidden)
        ):
            raise DamagedVote(
                "a stored vote was not written under this key, or was changed: start the service "
                "with the key file that belongs to the database, or restore the database."
            )
        return _VALUE.unpack(_xor(hidden, self._pad(address, nonce)))[0]

    def _pad(self, address: Address, nonce: bytes) -> bytes:
        content = b"pad" + nonce + _ADDRESS.pack(*address)
        return _keyed(self._keys["vote"], content, _VALUE.size)

    def _tag(self, address: Address, content: bytes) -> bytes:
        content = b"tag" + content + _ADDRESS.pack(*address)
        return _keyed(self._keys["vote"], content, _TAG)


def _keyed(key: bytes, content: bytes, size: int) -> bytes:
    """Keyed BLAKE2b: `size` bytes that nobody can tell from random ones without the key.

    (The HMAC of OpenSSL gives the interpreter away at each call, and in a busy worker that costs more
    than the hash.)
    """
    return hashlib.blake2b(content, key=key, digest_size=size).digest()


def _xor(first: bytes, second: bytes) -> bytes:
    size = len(first)
    return (int.from_bytes(first, "big") ^ int.from_bytes(second, "big")).to_bytes(size, "big")


def from_text(text: str) -> Secrets:
    """The secrets of a master key in hexadecimal."""
    try:
        return Secrets(bytes.fromhex(text.strip()))
    except ValueError as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"the key is not hexadecimal: it must be {2 * _SIZE} digits 0-9 and a-f."
        ) from None


def from_file(path: str | os.PathLike[str], *, make: bool = False) -> Secrets:
    """The secrets of a key file; with `make`, one that is not there is made, readable by its owner.

    A file that others may read is refused: whoever has it can subtract the noise.
    """
    file = Path(path)
    if make and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(os.urandom(_SIZE).hex() + "\n")
            opened.flush()
            os.fsync(opened.fileno())
    try:
        text, mode = file.read_text(encoding="ascii"), file.stat().st_mode
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument(
            f"the key file {file} cannot be read: restore it from its back-up. Without it the "
            "votes of open steps are lost; what was released is not."
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidArgument(
            f"the key file {file} can be read by others (mode {mode & 0o777:o}): chmod 600 it."
        )
    return from_text(text)
