"""JSON objects that end with their own SHA-256, so that no byte of them can change unseen.

A sealed object is one line of JSON. Its last member is the hash of the line without that member. The
hash covers bytes, not parsed values: a changed space is as visible as a changed number. It finds
accidents (a failing disk, a torn write, a file of another run). It is no signature: whoever may write
the file can also write the hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from blindstep.errors import InvalidArgument

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
