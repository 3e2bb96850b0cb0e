"""The public terms of a run's releases, and what they cost.

*Neighbours.* Two data sets are neighbours if one record of the one is replaced by any other
("replace"), or by one whose vectors are 0: if it is left out, then ("zero-out"). The paper means the
first; Opacus and jax-privacy mean the second when they quote an epsilon. What costs mu for the second
costs 2 mu for the first.

A record is in one batch of a block, so a change of it moves one increment m_i, by at most
s_i = 2 clip / batch (replace) or clip / batch (zero-out), and C m by s_i |column i of C|. Snapping and
the roundings of float64 move each coordinate of each release that m_i enters by at most gamma + 2 e
more: gamma is the width of the lattice, and e = r 2^-53 sum |C m| bounds r roundings. So a block is
mu-Gaussian-DP with

    mu = max_i ( s_i |column i| + (gamma + 2 e) sqrt(size x releases that m_i enters) ) / sigma,

however the increments depend on what was released before. Blocks of a pass share no record: a pass
costs one block. Passes add in squares. sigma is noise_std, less what makes the discrete Gaussian a
post-processing of the Gaussian: draw a real number from N(x, S^2 - tau^2), then a whole number around
it with width tau; its normaliser depends on that number by at most 1e-136 (tau = 4, formula (1) of
`lattice`). All this holds up to a total variation of `Terms.slack`.

*Windows.* Whoever comes in a window is in it, and nobody is in two of a pass. Who comes is private as
well: "zero-out" is somebody who stays away, "replace" somebody else who comes instead, in the same
window or another. The first moves one m_t by clip / planned; the second one m_t by twice that, or two
by once that each, which is less, though two releases are then snapped. In which window a person comes
may depend on what was released before: whatever that was, a change moves all releases together by at
most s, and that is all that the proof needs (docs/serve.md).

*Secret batches.* The same number for "zero-out" is c of `secret_batches`: how far a record moves the
one release of a pass that it is in. A pass then costs `presence_mu(c)` and the schedule's secrecy for
leaving a record out; for replacing it, which is leaving one out and adding another, twice that mu and
a few times that secrecy (`group`).
"""

from __future__ import annotations

import math

import equinox as eqx
import numpy as np
from jaxtyping import Float

from blindstep.errors import InvalidArgument, positive
from blindstep.private.clip import Scalar, check_fits
from blindstep.private.columns import check_mechanism
from blindstep.private.lattice import DISTANCE, LARGEST, STD, VARIANCE
from blindstep.private.mechanisms import Mechanism
from blindstep.private.schedule import UNLIKELY, Kind, Schedule
from blindstep.private.secret_batches import group, longest, presence_mu

# The Gaussian that may be claimed, as a share of noise_std: sqrt(S^2 - tau^2) / S with tau = 4,
# rounded down by far more than the formulas around it are rounded.
EFFECTIVE = math.sqrt(1 - 4**2 / VARIANCE) * (1 - 1e-12)
# Roundings between the exact sum of a batch and its number of lattice steps.
_ROUNDINGS = 4
# Below this, whole numbers and their sums are exact in float64.
_EXACT = 2.0**52
_SMALLEST = 1e-200
# How many presences a change of one record touches: who is replaced goes, and another one comes.
REPLACE, ZERO_OUT = "replace", "zero-out"
PRESENCES = {REPLACE: 2, ZERO_OUT: 1}


class Terms(eqx.Module):
    """The public terms of a run's releases: who answers, how much one counts, how much noise.

    Attributes:
        schedule: who answers when.
        mechanism: the matrix C of a block.
        size: coordinates of a record's vector and of a release.
        first_clip: the longest that a record's vector counts in a GRAD.
        diff_clip: the same in a DIFF.
        noise_std: standard deviation of the noise on a coordinate of a release.
        neighbours: which change of one record all costs are about, "replace" or "zero-out".
    """

    schedule: Schedule = eqx.field(static=True)
    mechanism: Mechanism
    size: int = eqx.field(static=True)
    first_clip: Scalar
    diff_clip: Scalar
    noise_std: Scalar
    neighbours: str = eqx.field(static=True, default=REPLACE)

    def __check_init__(self) -> None:
        if self.neighbours not in PRESENCES:
            raise InvalidArgument(
                f"neighbours must be one of {', '.join(PRESENCES)}, got {self.neighbours!r}."
            )
        if self.mechanism.steps != self.schedule.period:
            raise InvalidArgument(
                f"the mechanism is for {self.mechanism.steps} releases, a block has "
                f"{self.schedule.period}: make them equal."
            )
        check_mechanism(self.mechanism)
        check_fits(self.size, max(self.schedule.most_of(kind) for kind in Kind))
        for name in ("first_clip", "diff_clip", "noise_std"):
            # Far from the ends of float64, so that nothing underflows on the way to the lattice.
            if not _SMALLEST < positive(name, getattr(self, name)) < 1 / _SMALLEST:
                raise InvalidArgument(
                    f"{name} is {getattr(self, name):g}: give the loss other units."
                )
        steps = self._largest() / (self.noise_std / STD) + LARGEST
        if not steps < _EXACT:
            raise InvalidArgument(
                f"sums of up to {steps:.2g} lattice steps are not exact in float64: use smaller "
                "batches, a shorter period or a smaller budget."
            )

    def clip_of(self, kind: Kind) -> Scalar:
        """The longest that a record's vector counts in a release of this kind."""
        return self.first_clip if kind is Kind.GRAD else self.diff_clip

    def _largest(self) -> float:
        """A bound on every coordinate of C m, whose entries are at most 1."""
        first, later = (self.schedule.most_of(k) / self.schedule.divisor_of(k) for k in Kind)
        rest = (self.schedule.period - 1) * later * float(self.diff_clip)
        return first * float(self.first_clip) + rest

    def sensitivities(self) -> Float[np.ndarray, " period"]:
        """How far a change of one record moves each increment of a block.

        2 clip / batch for replacing it, and half of that where it is left out, or batches are secret.
        """
        schedule = self.schedule
        often = 1.0 if schedule.secret else float(PRESENCES[self.neighbours])
        moved = np.full(schedule.period, often * float(self.diff_clip))
        moved /= schedule.divisor_of(Kind.DIFF)
        moved[0] = often * float(self.first_clip) / schedule.divisor_of(Kind.GRAD)
        return moved

    def costs(self) -> tuple[Float[np.ndarray, " period"], Float[np.ndarray, " period"]]:
        """How far a change of a record of batch i moves a block's releases, for any noise_std.

        The Euclidean norm of the change is at most first_i + second_i noise_std: sensitivity with
        float64's roundings, and the snapping to the lattice.
        """
        columns = check_mechanism(self.mechanism)
        # Who is replaced by somebody who comes in another window leaves one release and enters another.
        often = PRESENCES[self.neighbours] if self.schedule.windows else 1
        entered = np.sqrt(self.size * columns.counts * often)
        off = 2.0 * (self.mechanism.roundings + _ROUNDINGS) * 2.0**-53 * self._largest()
        return self.sensitivities() * columns.norms + off * entered, entered / STD

    def _length(self) -> float:
        """The longest way that a change moves a block's releases, in standard deviations."""
        moved, snapped = self.costs()
        worst = float(np.max(moved + snapped * float(self.noise_std)))
        return worst / (EFFECTIVE * float(self.noise_std))

    def mu_per_pass(self) -> float:
        """Gaussian-DP parameter of one pass: that of one block, since blocks share no record."""
        schedule, length = self.schedule, self._length()
        if not schedule.secret:
            return length
        presence = presence_mu(length, schedule.blocks_per_pass, schedule.secrecy)
        return PRESENCES[self.neighbours] * presence

    def secrecy_per_pass(self) -> float:
        """What a pass costs beside `mu_per_pass`, if its batches are secret: see `secret_batches`."""
        if not self.schedule.secret:
            return 0.0
        often = PRESENCES[self.neighbours]
        return group(self.mu_per_pass() / often, self.schedule.secrecy, often)[1]

    def mu(self) -> float:
        """Gaussian-DP parameter of all releases: passes compose on the same records."""
        return self.mu_per_pass() * math.sqrt(self.schedule.passes)

    def secrecy(self) -> float:
        """What all releases cost beside `mu`: secrecies of passes add up."""
        return self.secrecy_per_pass() * self.schedule.passes

    def slack(self) -> float:
        """Total variation between the run and one that is exactly as private as said.

        Of the noise; and of secret batches, for the event that one has more records than places.
        """
        each = self.size * DISTANCE + (UNLIKELY if self.schedule.secret else 0.0)
        return self.schedule.releases * each


def calibrated(
    schedule: Schedule,
    mechanism: Mechanism,
    size: int,
    first_clip: float,
    diff_clip: float,
    mu: float,
    neighbours: str = REPLACE,
) -> Terms:
    """The terms with the least noise that spends at most `mu`.

    Solves (a + b sigma) / (EFFECTIVE sigma) <= c for every column of C, with a, b from `Terms.costs`.
    c is mu / sqrt(passes), or the longest vector for which a secret pass costs that.
    """
    # Any noise above every clip will do to ask for the costs.
    terms = Terms(
        schedule, mechanism, size, first_clip, diff_clip, first_clip + diff_clip, neighbours
    )
    often = math.sqrt(schedule.passes)
    moved, snapped = terms.costs()
    length = positive("mu", mu)
    if schedule.secret:
        length /= often * PRESENCES[neighbours]
        length = longest(length * (1 - 1e-6), schedule.blocks_per_pass, schedule.secrecy)
    else:
        moved, snapped = often * moved, often * snapped
    left = length * EFFECTIVE * (1 - 1e-13) - snapped
    if np.min(left) < length / 2:
        raise InvalidArgument(
            f"rounding {size} coordinates to the lattice in {schedule.passes} pass(es) at mu = "
            f"{mu:g} would more than double the noise: share a frame among a block (fewer "
            "coordinates), make fewer passes or a shorter period."
        )
    noise_std = float(np.max(moved / left)) * (1 + 4 * np.finfo(np.float64).eps)
    return Terms(schedule, mechanism, size, first_clip, diff_clip, noise_std, neighbours)
