"""The list of a folder's files by hash, signed, and the check of it: no data and no library needed.

`files.json` names every file of the folder with its SHA-256. With a key, `signature.json` signs the
bytes of that list (Ed25519). Whoever gets the folder compares the key's fingerprint with the one that
the sender tells them another way; a signature by a key that nobody knows proves nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindstep.errors import FolderChanged, InvalidArgument

LIST, SIGNATURE = "files.json", "signature.json"
_NEEDS = (
    "signing needs the package cryptography: pip install '.[sign]' in a copy of the repository."
)


@dataclass(frozen=True)
class Checked:
    """A folder whose files are all as they were listed.

    Attributes:
        files: how many files are listed.
        list_hash: the SHA-256 of the list, for comparing two copies.
        signer: the fingerprint of the key that signed the list; None if it is not signed.
    """

    files: int
    list_hash: str
    signer: str | None

    def __str__(self) -> str:
        said = f"all {self.files} files are as they were listed (SHA-256 of the list: {self.list_hash})"
        if self.signer is None:
            return f"{said}. The list is not signed: anyone could have written it."
        return (
            f"{said}, and the list is signed by the key {self.signer}. Compare this fingerprint with "
            "the one that the sender told you another way."
        )


def seal(folder: Path, made_by: str, key: str | os.PathLike[str] | None) -> None:
    """List all files of a folder by hash and, with a key, sign the list."""
    listed = {"made_by": made_by, "sha256": _hashes(folder)}
    written = (json.dumps(listed, indent=2, sort_keys=True) + "\n").encode()
    (folder / LIST).write_bytes(written)
    if key is not None:
        signature = json.dumps(_signature(Path(key), written), indent=2)
        (folder / SIGNATURE).write_text(signature + "\n", encoding="utf-8")


def check(folder: str | os.PathLike[str], signer: str | None = None) -> Checked:
    """Check that every file of a handed-over folder is as it was listed, and the list as it was signed.

        blindstep hand-over check FOLDER

    Args:
        folder: the folder.
        signer: the fingerprint of the key that must have signed it.

    Raises:
        FolderChanged: a file was changed, added or taken away, or the signature does not fit.
    """
    place = Path(folder)
    try:
        written = (place / LIST).read_bytes()
        listed: dict[str, str] = json.loads(written)["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderChanged(f"{place} has no list of files that can be read ({LIST}).") from error
    found = _hashes(place)
    faults = [f"{name} is missing" for name in listed.keys() - found.keys()]
    faults += [f"{name} was added" for name in found.keys() - listed.keys()]
    faults += [
        f"{name} was changed" for name in listed if listed[name] != found.get(name, listed[name])
    ]
    if faults:
        raise FolderChanged(f"{place} is not as it was handed over: {'; '.join(sorted(faults))}.")
    made = _verified(place, written)
    if signer is not None and made != signer:
        raise FolderChanged(f"{place} is signed by {made or 'nobody'}, and should be by {signer}.")
    return Checked(len(listed), hashlib.sha256(written).hexdigest(), made)


def _hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder, but for the list and its signature."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() not in (LIST, SIGNATURE)
    }


def _signature(path: Path, message: bytes) -> dict[str, str]:
    """The signature of a message by the key in a file, which is made if there is none."""
    try:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise InvalidArgument(_NEEDS) from error
    if not path.exists():
        plain = (form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(made, "wb") as file:
            file.write(Ed25519PrivateKey.generate().private_bytes(*plain))
    try:
        key = form.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgument(f"{path} holds no private key in PEM without a password.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidArgument(f"{path} holds a key of another kind: an Ed25519 key is needed.")
    public = key.public_key().public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    return {
        "algorithm": "Ed25519",
        "public_key": base64.b64encode(public).decode(),
        "fingerprint": _fingerprint(public),
        "signature": base64.b64encode(key.sign(message)).decode(),
    }


def _verified(folder: Path, message: bytes) -> str | None:
    """The fingerprint of the key that signed the list; None if nobody did."""
    path = folder / SIGNATURE
    if not path.exists():
        return None
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise InvalidArgument(_NEEDS) from error
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        public, signature = (
            base64.b64decode(found[name], validate=True) for name in ("public_key", "signature")
        )
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        if (found["algorithm"], found["fingerprint"]) != ("Ed25519", _fingerprint(public)):
            raise ValueError("it is said to be of another kind, or by another key")
    except (ValueError, KeyError, TypeError, InvalidSignature) as error:
        raise FolderChanged(f"{folder}: the signature does not fit the list of files.") from error
    return _fingerprint(public)


def _fingerprint(public: bytes) -> str:
    """How people compare a public key."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip("=")
