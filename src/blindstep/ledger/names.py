"""Names for secret things: a ledger recognises them again, and its readers learn nothing from them.

A ledger is for others to read. It must tell one noise key from another, the same data from changed
data, the answers that a step had from other answers. A plain hash would let a reader check guesses:
whoever knows all records but one could try every value of that one, and a vote is one bit. So each
name is an HMAC-SHA256.

*Data and answers* are named under a *naming secret*: 32 bytes from the operating system, drawn for
each run and kept in its checkpoint only. No seed makes it. So these names tell nothing, even to
somebody who knows the seed of the run.

*A noise key* is named under itself, with the ledger's random id: a key has one name throughout one
ledger, and different names in different ledgers. Nobody can guess 256 random bits. The key of a
seeded run is another matter: *anyone who knows or can guess the seed* can compute the key, and its
name confirms the guess. Such a run is not private against them anyway.
"""

from __future__ import annotations

import hmac
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class NoiseWords(Protocol):
    """What is needed of a noise key (`private.noise.NoiseKey`), so that a ledger needs no JAX."""

    def words(self) -> np.ndarray:
        """The eight secret words of 32 bits."""
        ...


def key_id(key: NoiseWords, ledger: str) -> str:
    """The name of a noise key in the ledger of this id."""
    words = key.words().astype("<u4").tobytes()
    return hmac.digest(words, b"blindstep noise key " + ledger.encode(), "sha256").hex()


def data_id(secret: bytes, fingerprint: str) -> str:
    """The name of a data set in one run; `fingerprint` is the secret `fingerprints.of_data`."""
    return _named(secret, b"data", fingerprint.encode())


def answers_id(secret: bytes, step: int, answers: np.ndarray) -> str:
    """The name of the answers that a step of one run is released from. All NaNs are the same."""
    values = np.where(np.isnan(answers), np.nan, answers).astype("<f8")
    return _named(secret, b"answers", step.to_bytes(8, "little") + values.tobytes())


def _named(secret: bytes, use: bytes, content: bytes) -> str:
    return hmac.digest(hmac.digest(secret, use, "sha256"), content, "sha256").hex()
