"""The parts of a run, and their shares of its budget: calibrations, steps and the comparison.

Each part is a gate of its own. mus of parts add up in squares. Where batches are secret, a part takes
a third of what room the budget has for secrecy (`Privacy.room`), and releases that take all records, or
nearly all, stay public: there is nothing to hide.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from blindstep.private.mechanisms import Independent
from blindstep.private.schedule import Schedule
from blindstep.private.secret_batches import LEAST_SECRECY, secrecy_for
from blindstep.private.statement import Privacy
from blindstep.private.terms import PRESENCES, Terms, calibrated

# Of the room for secrecy: what each of the three parts may take of it.
_SHARE = 1 / 3


def secret_schedule(public: Schedule, mu: float, privacy: Privacy) -> Schedule:
    """The same batches, secret, for a part that spends mu; public, where nothing is gained by that.

    Raises `InvalidArgument` where so large a mu leaves no secrecy small enough.
    """
    tried = replace(public, secrecy=LEAST_SECRECY)
    if tried.blocks_per_pass == 1:
        return public
    often = PRESENCES[privacy.neighbours]
    presence = mu / often / math.sqrt(tried.passes)
    return replace(public, secrecy=_secrecy(presence, often, _SHARE * privacy.room / tried.passes))


@lru_cache(maxsize=1024)
def _secrecy(mu: float, often: int, room: float) -> float:
    return secrecy_for(mu, often, room)


def asking_terms(
    schedule: Schedule, size: int, clip: float, mu: float, privacy: Privacy, *, secret: bool
) -> Terms:
    """The terms of releases before or after the steps, each of which asks a batch of records."""
    if secret:
        schedule = secret_schedule(schedule, mu, privacy)
    return _calibrated(schedule, size, clip, mu, privacy.neighbours)


@lru_cache(maxsize=1024)
def _calibrated(schedule: Schedule, size: int, clip: float, mu: float, neighbours: str) -> Terms:
    return calibrated(schedule, Independent(1), size, clip, clip, mu, neighbours)


def secret_noise(schedule: Schedule, size: int, clip: float, mu: float, neighbours: str) -> float:
    """The least noise of secret steps, worked out once for each of such terms."""
    return float(_calibrated(schedule, size, clip, mu, neighbours).noise_std)
