"""The one secret of a service: a master key, and everything that is derived from it.

The master key is 32 bytes in a file of mode 0600 or in the environment; never in the database. Each use
has a key of its own, HMAC-SHA256(master, use), so no two uses share bits:

- *noise*: the noise key of one release of one study, which depends on a random salt of the step and on
  the votes it is made from;
- *names*: what people's identifiers, API tokens and votes are called in the database;
- *questions*: what hides and signs the token of a question;
- *votes*: the pads under which votes lie in the database until their step is released.

Anyone who has the database without the key reads no vote, no identifier and no token in it. A step's
salt is deleted with its votes: anyone who steals both later learns neither the noise of a released step
nor its votes.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.ledger import files
from blindstep.private.noise import NoiseKey, Uncopied

_SIZE = 32
_PERSON, _SIGNATURE, _NONCE, _TAG = 16, 16, 12, 8
_ADDRESS = struct.Struct(f">II{_PERSON}sB")
_VALUE = struct.Struct("<d")


class Address(NamedTuple):
    """Which answer: that of a person in a step of a study, to the first or the second point."""

    study: int  # the study's number in the database
    release: int  # the step, counted from 0
    person: bytes  # what `Secrets.person` calls them
    part: int  # 0 or 1


def number_of(person: bytes) -> int:
    """The number that chooses a person's direction: 32 bits of their keyed hash.

    Two people may share one, and so a direction, which harms neither.
    """
    return int.from_bytes(person[:4], "big")


def share_of(person: bytes) -> float:
    """A number from 0 to 1, of other bits: whether a person is in the control group."""
    return int.from_bytes(person[4:8], "big") / 2**32


def turn_of(person: bytes) -> int:
    """0 or 1: which of two things this person meets first. One more bit of their hash."""
    return person[8] & 1


class SignedAddress(NamedTuple):
    """The address in a token, and the signature that came with it."""

    address: Address
    signature: bytes


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
        uses = ("noise", "person", "api token", "question", "vote", "naming", "session", "name")
        self._keys = {
            use: hmac.digest(master, f"blindstep serve {use}".encode(), "sha256") for use in uses
        }
        self.name = self._keys.pop("name")[:16].hex()
        self._nonces: list[bytes] = []

    def person(self, study: str, identifier: str) -> bytes:
        """What a person is called in the database: another name in every study."""
        content = study.encode() + b"\0" + identifier.encode("utf-8", "surrogatepass")
        return _keyed(self._keys["person"], content, _PERSON)

    def token_name(self, token: str) -> bytes:
        """What an API token is called in the database: without the key no guess can be checked."""
        return _keyed(self._keys["api token"], token.encode("utf-8", "replace"), 32)

    def naming(self, study: str, salt: bytes = b"") -> bytes:
        """The secret under which the ledger names a study's people, and with a salt a step's votes.

        Votes are few and can be guessed: once the salt is deleted, their name tells nothing, not even
        to someone who has this key.
        """
        return _keyed(self._keys["naming"], study.encode() + salt, 32)

    def run_name(self, study: str, attempt: str) -> NoiseKey:
        """A key that stands for an attempt in the ledger; no noise is made from it."""
        return self._noise_key("naming", f"{study} {attempt}")

    def sign(self, content: bytes) -> bytes:
        """A signature for the cookie of somebody who is signing in."""
        return _keyed(self._keys["session"], content, 32)

    def noise(self, study: str, attempt: str, release: int, salt: bytes, votes: str) -> NoiseKey:
        """The noise key of one release; `votes` is the keyed name of the votes it is made from.

        Guarantee: the key is a fresh draw for each salt, and a salt is drawn when a step is frozen, so
        its votes can no longer change. A release that is made again from the same frozen step is the
        same; a step that is collected again, from a restored copy, has other noise even for the same
        votes. In a database that was tampered with, other votes get another key under the same salt
        too. (To anyone without the master key, as long as HMAC-SHA256 is a pseudo-random function.)
        """
        return self._noise_key("noise", f"{study} {attempt} {release} {salt.hex()} {votes}")

    def _noise_key(self, use: str, content: str) -> NoiseKey:
        digest = hmac.digest(self._keys[use], content.encode(), "sha256")
        return NoiseKey(np.frombuffer(digest, "<u4").astype(np.uint32))

    # -- questions ------------------------------------------------------------------------------

    def question(self, address: Address, attempt: str) -> str:
        """The token of a question: its address, hidden and signed.

        It tells nobody whose it is. Nobody can make one that was not given out in this attempt of the
        study. Always the same for one question.
        """
        packed = _ADDRESS.pack(*address)
        signature = self._signature(packed, attempt)
        return _base64(signature + _xor(packed, self._mask(signature)))

    def read_question(self, token: str) -> SignedAddress | None:
        """The address in a question's token, whose signature is still to be checked; or None."""
        try:
            content = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if _base64(content) != token or len(content) != _SIGNATURE + _ADDRESS.size:
            return None  # at times another spelling of the same bytes
        signature, hidden = content[:_SIGNATURE], content[_SIGNATURE:]
        address = Address(*_ADDRESS.unpack(_xor(hidden, self._mask(signature))))
        return SignedAddress(address, signature)

    def genuine(self, signed: SignedAddress, attempt: str) -> bool:
        """Whether this question was asked, in this attempt of its study."""
        expected = self._signature(_ADDRESS.pack(*signed.address), attempt)
        return hmac.compare_digest(signed.signature, expected)

    def _signature(self, packed: bytes, attempt: str) -> bytes:
        return _keyed(self._keys["question"], b"sign" + packed + attempt.encode(), _SIGNATURE)

    def _mask(self, signature: bytes) -> bytes:
        return _keyed(self._keys["question"], b"hide" + signature, _ADDRESS.size)

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


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _xor(first: bytes, second: bytes) -> bytes:
    size = len(first)
    return (int.from_bytes(first, "big") ^ int.from_bytes(second, "big")).to_bytes(size, "big")


def from_text(text: str) -> Secrets:
    """The secrets of a master key in hexadecimal."""
    try:
        master = bytes.fromhex(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"the key is not hexadecimal: it must be {2 * _SIZE} digits 0-9 and a-f."
        ) from None
    return Secrets(master)


def from_file(path: str | os.PathLike[str], *, make: bool = False) -> Secrets:
    """The secrets of a key file; with `make`, one that is not there is made, readable by its owner.

    A file that others may read is refused: anyone who has it can subtract the noise.
    """
    file = Path(path)
    if make and not file.exists():
        _make_key_file(file)
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


def _make_key_file(file: Path) -> None:
    """Write a fresh key, whole or not at all; where two make one at a time, both use the first."""
    fresh = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.put_file(str(fresh), os.urandom(_SIZE).hex().encode() + b"\n")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(fresh, file)
        finally:
            fresh.unlink()
    except OSError as error:
        raise InvalidArgument(
            f"the key file {file} cannot be made ({error.strerror}): give --key-file a place that "
            "you may write to."
        ) from None
    files.flush_directory(str(file.parent))
