"""A comparison: by how much candidates are better than the start, for each record against its own loss.

A record evaluates the loss f at the start x_0 and at k candidates x_j, and hands its differences
f(x_j) - f(x_0) to the gate, in one of two forms:

- at first, to find how large they are: a 1 around the place of log2 |f(x_j) - f(x_0)| in a histogram;
- then the differences themselves, each clamped by a limit that was read from the histogram: a fall
  counts up to the limit, a rise up to three times it. Few large rises among many small falls are what
  a mean of clamped differences would hide; so what is not known counts for the start.

Either vector is at most sqrt(k) long. A record whose loss is a finite number at the start and none at a
candidate counts as the largest rise: a loss that breaks is no gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from blindstep.estimate.calibration import FIRST, PLACES, place

# The first release shows histograms, the others the differences.
RELEASES = 3
# Most differences are around the three neighbouring places that hold most, if that is so many standard
# deviations of the noise on one; larger ones are where another place holds so many.
_SURE, _SURE_OF_MORE = 4.0, 3.5
# Places that are looked at together, by how many more standard deviations they must stand out, since
# there are more such looks, and the share of what they hold that a limit is to cover.
_WIDTHS, _SURE_OF_SEVERAL, _MOST = (1, 2, 4, 8), 0.7, 0.75
# In noise alone, a place far from where differences are expected is likely to be noise: it must hold
# this much more for each place on the way, which is a factor of 2.
_FARFETCHED = 0.2
# A difference counts from -1 to so many limits; the middle and half the width of that.
_RISE = 3.0
_MIDDLE, _HALF = (_RISE - 1.0) / 2.0, (_RISE + 1.0) / 2.0
# A candidate is better than the start if it is so by so many standard deviations.
BETTER = 2.0
# A limit is at least this share of what differences are expected to be. Where many records gain a
# little and few lose much, noise hides the few in the histogram: see docs/decisions.md.
_LEAST = 0.5


class ComparisonQuery(eqx.Module):
    """How a record's values become its vector.

    Attributes:
        candidates: k, how many points are compared with the start.
    """

    candidates: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        """Length of a record's vector."""
        return self.candidates * (PLACES + 1)

    @property
    def clip(self) -> float:
        """The longest that a record's vector can be."""
        return math.sqrt(self.candidates)

    @property
    def evaluations(self) -> int:
        """Evaluations of the loss that a release asks of a record: at the start, and at candidates."""
        return 1 + self.candidates

    def vector(
        self, values: Float[Array, "*records evaluations"], limits: Float[Array, " candidates"]
    ) -> Float[Array, "*records size"]:
        """A record's vector from its values at the start and the candidates.

        Limits of 0 ask for the histograms. Guarantee: it depends on that record's values and on public
        numbers alone, and it is at most `clip` long.
        """
        values = values.astype(jnp.float64)
        difference = values[..., 1:] - values[..., :1]
        start, there = jnp.isfinite(values[..., :1]), jnp.isfinite(values[..., 1:])
        gained = jnp.where(start, jnp.inf, jnp.where(there, -jnp.inf, 0.0))
        difference = jnp.where(start & there, difference, gained)
        histograms = place(jnp.abs(difference))
        histograms = histograms.reshape(*histograms.shape[:-2], -1)
        known = limits > 0
        shown = jnp.clip(difference / jnp.where(known, limits, 1.0), -1.0, _RISE)
        shown = jnp.where(known, (shown - _MIDDLE) / _HALF, 0.0)
        none = ~jnp.any(known)
        return jnp.concatenate(
            [jnp.where(none, histograms, 0.0), jnp.where(none, 0.0, shown)], axis=-1
        )

    def limits(
        self,
        release: Float[np.ndarray, " size"],
        noise: float,
        expected: Float[np.ndarray, " candidates"],
    ) -> tuple[Float[np.ndarray, " candidates"], Bool[np.ndarray, " candidates"]]:
        """The largest differences that count, from a release of histograms, and whether any were seen.

        A limit is the largest difference that a number of records have, and never less than a share of
        `expected`: about how large differences should be. `noise` is the standard deviation on each
        coordinate of the release.
        """
        histograms = np.asarray(release[: self.candidates * PLACES])
        highest = [
            _highest(one, noise, math.log2(size) - FIRST)
            for one, size in zip(histograms.reshape(-1, PLACES), expected, strict=True)
        ]
        found = np.array([0.0 if at is None else 2.0 ** (at + FIRST) for at in highest])
        return np.maximum(found, _LEAST * expected), found > 0

    def differences(self, release: Float[np.ndarray, " size"]) -> Float[np.ndarray, " candidates"]:
        """The mean clamped differences in a release of them, as shares of the limits."""
        return _MIDDLE + _HALF * np.asarray(release[-self.candidates :])


def _highest(counts: Float[np.ndarray, " places"], noise: float, expected: float) -> int | None:
    """The highest place that holds records beyond the noise, alone or with those around it.

    None if no place does.
    """
    places = np.arange(PLACES)
    around = np.convolve(counts, np.ones(3), "same")
    around -= _FARFETCHED * noise * np.abs(places - expected)
    middle = int(np.argmax(around))
    if around[middle] <= _SURE * noise:
        return None
    beside = slice(max(0, middle - 1), middle + 2)
    highest = fullest = int(places[beside][np.argmax(counts[beside])])
    needed = noise * (_SURE_OF_MORE + _FARFETCHED * (places - fullest))
    for width in _WIDTHS:
        # The sum from a place to `width` - 1 above it: few records of many sizes are in no place alone.
        # It begins above all that was found, or it would hold that again, and noise would say where.
        held = np.convolve(counts, np.ones(width), "valid")
        first = places[: len(held)]
        enough = needed[: len(held)] + (_SURE_OF_SEVERAL * noise if width > 1 else 0.0)
        there = first[(held > enough * math.sqrt(width)) & (first > highest)]
        if there.size:
            most = np.cumsum(counts[there[-1] : there[-1] + width]) >= _MOST * held[there[-1]]
            highest = max(highest, int(there[-1] + np.argmax(most)))
    return highest


@dataclass(frozen=True)
class Comparison:
    """What a comparison showed: functions of releases.

    Attributes:
        rounds: of which rounds the means were compared with the start.
        difference: by how much the mean loss is higher than at the start, each record's difference
            clamped to -1 to 3 times `limit`.
        std: the standard deviation of the noise on each.
        limit: the largest fall that counts.
        seen: whether the losses of a number of records were seen to differ at all.
        trusted: whether the slopes led one way, more than noise does. Then they are followed unless the
            differences tell against it.
        share: how much of the way from the start to the mean of a round the candidates are.
    """

    rounds: tuple[int, ...]
    difference: Float[np.ndarray, " candidates"]
    std: Float[np.ndarray, " candidates"]
    limit: Float[np.ndarray, " candidates"]
    seen: Bool[np.ndarray, " candidates"]
    trusted: bool = False
    share: float = 1.0

    @property
    def better(self) -> Bool[np.ndarray, " candidates"]:
        """Which candidates are better than the start beyond their noise."""
        return self.difference < -BETTER * self.std

    @property
    def best(self) -> int | None:
        """The round to take; None: the start.

        Of those that are better than the start the first in `rounds`, unless another one is better than
        that beyond the noise of both. If none is, and slopes are trusted, the first in `rounds` unless
        that is worse than the start beyond the noise, or nothing was seen of it.
        """
        if not np.any(self.better):
            level = bool(self.seen[0]) and self.difference[0] <= BETTER * self.std[0]
            return self.rounds[0] if self.trusted and level else None
        chosen = int(np.argmax(self.better))
        for other in np.flatnonzero(self.better):
            doubt = BETTER * math.hypot(float(self.std[chosen]), float(self.std[other]))
            if self.difference[other] < self.difference[chosen] - doubt:
                chosen = int(other)
        return self.rounds[chosen]


def read(
    query: ComparisonQuery,
    releases: Float[np.ndarray, "releases size"],
    limits: Float[np.ndarray, " candidates"],
    noise: float,
    rounds: tuple[int, ...],
    seen: Bool[np.ndarray, " candidates"],
    trusted: bool = False,
    share: float = 1.0,
) -> Comparison:
    """What all releases of a comparison show together."""
    every = np.stack([query.differences(each) for each in releases[1:]])
    std = limits * _HALF * noise / math.sqrt(len(every))
    return Comparison(rounds, limits * np.mean(every, axis=0), std, limits, seen, trusted, share)
