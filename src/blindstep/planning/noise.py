"""The least noise for a budget, and the parts of a run with their shares of it.

Searches alone: what noise costs is worked out in `private`, and `Terms.within` refuses noise that
costs more than was asked for. So a mistake here is an error or wastes budget; it never overspends.

A run has up to three parts: calibrations, steps and the comparison. Each is a gate of its own, and mus
of parts add up in squares. Where batches are secret, a part takes a third of what room the budget has
for secrecy (`Privacy.room`), and releases that take all records, or nearly all, stay public: there is
nothing to hide.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from blindstep.errors import InvalidArgument, count, positive, probability
from blindstep.ledger.budget import Privacy
from blindstep.private.mechanisms import Independent, Mechanism
from blindstep.private.schedule import Schedule
from blindstep.private.secret_batches import LEAST_SECRECY, group, presence_mu
from blindstep.private.terms import EFFECTIVE, PRESENCES, REPLACE, Terms

# Of the room for secrecy: what each of the three parts may take of it.
_SHARE = 1 / 3
_CLOSE = 2e-3  # how close `longest` comes


def calibrated(
    schedule: Schedule,
    mechanism: Mechanism,
    size: int,
    first_clip: float,
    diff_clip: float,
    mu: float,
    neighbours: str = REPLACE,
) -> Terms:
    """The terms with the least noise that spends at most `mu`."""
    chosen = (schedule, mechanism, size, first_clip, diff_clip)
    some = Terms(*chosen, first_clip + diff_clip, neighbours)
    return with_least_noise(some, mu).within(mu)


def with_least_noise(terms: Terms, mu: float) -> Terms:
    """These terms with the least noise that spends at most `mu`, in place of their own.

    Solves (a + b sigma) / (EFFECTIVE sigma) <= c for every column of C, with a, b from `Terms.costs`.
    c is mu / sqrt(passes), or the longest vector for which a secret pass costs that.
    """
    schedule, often = terms.schedule, math.sqrt(terms.schedule.passes)
    moved, snapped = terms.costs()
    length = positive("mu", mu)
    if schedule.secret:
        length /= often * PRESENCES[terms.neighbours]
        steps = schedule.blocks_per_pass, schedule.secrecy, schedule.blocks_made
        length = longest(length * (1 - 1e-6), *steps)
    else:
        moved, snapped = often * moved, often * snapped
    left = length * EFFECTIVE * (1 - 1e-13) - snapped
    if np.min(left) < length / 2:
        raise InvalidArgument(
            f"rounding {terms.size} coordinates to the lattice in {schedule.passes} pass(es) at mu = "
            f"{mu:g} would more than double the noise: share a frame among a block (fewer "
            "coordinates), make fewer passes or a shorter period."
        )
    noise_std = float(np.max(moved / left)) * (1 + 4 * np.finfo(np.float64).eps)
    clips = terms.first_clip, terms.diff_clip
    return Terms(schedule, terms.mechanism, terms.size, *clips, noise_std, terms.neighbours)


@lru_cache(maxsize=4096)
def longest(mu: float, steps: int, secrecy: float, made: int | None = None) -> float:
    """The largest c, that is the least noise, whose pass of `steps` secret steps costs (mu, secrecy).

    Guarantee: `presence_mu(c, steps, secrecy, made) <= mu`: this very c was asked for. Either it costs
    at least 0.998 mu, or one that is 0.2% longer costs more than mu.
    """
    low, steps = positive("mu", mu), count("steps", steps)
    if steps == 1:
        return low

    def costs(c: float) -> float:
        return presence_mu(c, steps, secrecy, made)

    # The ideal gain; but beyond a length of about 1 none comes near it.
    high = max(low, min(low * steps / math.sqrt(made or steps), 1.0))
    while costs(high) <= mu:
        low, high = high, 1.25 * high
    while high > low * (1 + _CLOSE) and costs(low) < mu * (1 - _CLOSE):
        # A power law through both ends, aimed just below mu.
        before, after = (math.log(costs(c) / mu) for c in (low, high))
        share = min(max((before + _CLOSE / 2) / (before - after), 0.05), 0.9)
        c = low ** (1 - share) * high**share
        low, high = (c, high) if costs(c) <= mu else (low, c)
    return low


@lru_cache(maxsize=1024)
def secrecy_for(mu: float, size: int, room: float) -> float:
    """The secrecy of one record's presence that leaves at most `room` for changing `size` records.

    Guarantee: `group(mu, secrecy, size)` has a secrecy of at most `room`: this very one was asked for.
    """
    secrecy = probability("room", room)
    while secrecy >= LEAST_SECRECY:
        try:
            _, taken = group(mu, secrecy, size)
        except InvalidArgument:  # no bound for so much
            taken = math.inf
        if taken <= room:
            return secrecy
        secrecy *= min(0.5, max(0.01, 0.99 * room / taken))
    raise InvalidArgument(
        f"no secrecy leaves {room:g} at mu = {mu:g}: spend less, or take public batches."
    )


def secret_schedule(public: Schedule, mu: float, privacy: Privacy) -> Schedule:
    """The same batches, secret, for a part that spends mu; public, where nothing is gained by that.

    Raises `InvalidArgument` where so large a mu leaves no secrecy small enough.
    """
    tried = replace(public, secrecy=LEAST_SECRECY)
    if tried.blocks_per_pass == 1:
        return public
    often = PRESENCES[privacy.neighbours]
    presence = mu / often / math.sqrt(tried.passes)
    secrecy = secrecy_for(presence, often, _SHARE * privacy.room / tried.passes)
    return replace(public, secrecy=secrecy)


def asking_terms(
    schedule: Schedule, size: int, clip: float, mu: float, privacy: Privacy, *, secret: bool
) -> Terms:
    """The terms of releases before or after the steps, each of which asks a batch of records."""
    if secret:
        schedule = secret_schedule(schedule, mu, privacy)
    return _independent(schedule, size, clip, mu, privacy.neighbours)


@lru_cache(maxsize=1024)
def _independent(schedule: Schedule, size: int, clip: float, mu: float, neighbours: str) -> Terms:
    return calibrated(schedule, Independent(1), size, clip, clip, mu, neighbours)


def secret_noise(schedule: Schedule, size: int, clip: float, mu: float, neighbours: str) -> float:
    """The least noise of secret steps, worked out once for each of such terms."""
    return float(_independent(schedule, size, clip, mu, neighbours).noise_std)
