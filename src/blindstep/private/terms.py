"""The public terms of a run's releases, and what they cost.

*Neighbours.* Two data sets are neighbours if one record of the one is replaced by any other
("replace"), or by one whose vectors are 0, so that it is left out ("zero-out"). What costs mu for the
second costs 2 mu for the first.

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
`noise`). All this holds up to a total variation of `Terms.slack`.

*Windows.* Whoever comes in a window is in it, and nobody is in two of a pass. Who comes is private as
well: "zero-out" is somebody who stays away, "replace" somebody else who comes instead, in the same
window or another. The first moves one m_t by clip / planned; the second one m_t by twice that, or two
by once that each, which is less, though two releases are then snapped. When a person comes may depend
on earlier releases: a change moves all releases together by at most s all the same (docs/serve.md).

*Secret batches.* The same number for "zero-out" is c of `secret_batches`: how far a record moves the
one release of a pass that it is in. A pass then costs `presence_mu(c)` and the schedule's secrecy for
leaving a record out; for replacing it, which is leaving one out and adding another, twice that mu and
a few times that secrecy (`group`). A pass that has begun counts as whole, unless it is the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import numpy as np

from blindstep.errors import InvalidArgument, count, positive
from blindstep.private import accounting
from blindstep.private.accounting import PERSON, RECORD
from blindstep.private.clip import Scalar, check_fits
from blindstep.private.mechanisms import Mechanism, PerStep, check_mechanism
from blindstep.private.noise import DISTANCE, LARGEST, STD, VARIANCE
from blindstep.private.schedule import UNLIKELY, Kind, Schedule
from blindstep.private.secret_batches import group, presence_mu

Made = TypeVar("Made", bound="Promise")
# The Gaussian that may be claimed, as a share of noise_std: sqrt(S^2 - tau^2) / S with tau = 4,
# rounded down by far more than the formulas around it are rounded.
EFFECTIVE = math.sqrt(1 - 4**2 / VARIANCE) * (1 - 1e-12)
_ROUNDINGS = 4  # between the exact sum of a batch and its number of lattice steps
_EXACT = 2.0**52  # below this, whole numbers and their sums are exact in float64
_SMALLEST = 1e-200
# How many presences a change of one record touches: who is replaced goes, and another one comes.
REPLACE, ZERO_OUT = "replace", "zero-out"
PRESENCES = {REPLACE: 2, ZERO_OUT: 1}


def check_neighbours(name: str) -> None:
    """Raise unless there is such a change of one record."""
    if name not in PRESENCES:
        raise InvalidArgument(f"neighbours must be one of {', '.join(PRESENCES)}, got {name!r}.")


class Terms(eqx.Module):
    """The public terms of a run's releases: who answers, how much one counts, how much noise."""

    schedule: Schedule = eqx.field(static=True)
    mechanism: Mechanism  # the matrix C of a block
    size: int = eqx.field(static=True)  # coordinates of a record's vector and of a release
    first_clip: Scalar  # the longest that a record's vector counts in a GRAD
    diff_clip: Scalar  # the same in a DIFF
    noise_std: Scalar  # standard deviation of the noise on a coordinate of a release
    neighbours: str = eqx.field(static=True, default=REPLACE)  # what all costs are about

    def __check_init__(self) -> None:
        check_neighbours(self.neighbours)
        steps, period = self.mechanism.steps, self.schedule.period
        if steps != period:
            raise InvalidArgument(f"the mechanism is for {steps} releases, a block has {period}.")
        check_mechanism(self.mechanism)
        check_fits(self.size, max(self.schedule.most_of(kind) for kind in Kind))
        for name in ("first_clip", "diff_clip", "noise_std"):
            value = positive(name, getattr(self, name))
            # Far from the ends of float64, so that nothing underflows on the way to the lattice.
            if not _SMALLEST < value < 1 / _SMALLEST:
                raise InvalidArgument(f"{name} is {value:g}: give the loss other units.")
        largest = self._largest() / (self.noise_std / STD) + LARGEST
        if not largest < _EXACT:
            raise InvalidArgument(
                f"sums of up to {largest:.2g} lattice steps are not exact in float64: use smaller "
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

    def sensitivities(self) -> PerStep:
        """How far a change of one record, or its secret presence, moves each increment of a block."""
        schedule = self.schedule
        often = 1.0 if schedule.secret else float(PRESENCES[self.neighbours])
        moved = np.full(schedule.period, often * float(self.diff_clip))
        moved /= schedule.divisor_of(Kind.DIFF)
        moved[0] = often * float(self.first_clip) / schedule.divisor_of(Kind.GRAD)
        return moved

    def costs(self) -> tuple[PerStep, PerStep]:
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
        steps = schedule.blocks_per_pass, schedule.secrecy, schedule.blocks_made
        return PRESENCES[self.neighbours] * presence_mu(length, *steps)

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
        """Total variation between the run and one that is exactly as private as said."""
        # Of the noise, and of secret batches: that one may have more records than places.
        each = self.size * DISTANCE + (UNLIKELY if self.schedule.secret else 0.0)
        return self.schedule.releases * each

    def within(self, mu: float) -> Terms:
        """These terms; refused where they cost more than `mu`, whoever worked out their noise."""
        if not self.mu() <= mu:
            raise InvalidArgument(
                f"terms that cost mu = {self.mu():g} were made for {mu:g}: please report this error."
            )
        return self


@dataclass(frozen=True)
class Promise:
    """What a run guarantees. Computed from the terms of its gate, not from what anybody wished."""

    mu: float  # the Gaussian-DP parameter of everything released
    epsilon: float  # of (epsilon, delta)-DP at `delta`, exact and rounded up
    delta: float  # where epsilon is quoted
    exceeds: float  # the probability, at most, that the privacy loss is above epsilon
    unit: str  # what is protected: one of these may be changed as `neighbours` says
    slack: float  # total variation up to which all this holds; in epsilon already
    seeded: bool  # whether a user's seed made the noise
    neighbours: str = REPLACE  # or "zero-out"
    secrecy: float = 0.0  # what secret batches cost beside mu; in epsilon already
    windows: bool = False  # whether it is private, too, who took part and how many did

    def for_rows(self: Made, rows: int) -> Made:
        """The same for `rows` records of one person together; for whole people, this one.

        Guarantee: changing k records is k mu-Gaussian-DP (Dong, Roth & Su 2022, Theorem 2.14), and
        costs the secrecy that `secret_batches.group` says.
        """
        if count("rows", rows) == 1 or self.unit.startswith(PERSON):
            return self
        if not self.unit.startswith(RECORD):
            raise InvalidArgument(f"this is about {self.unit}: ask the run's own statement.")
        mu, secrecy = group(self.mu, self.secrecy, rows)
        unit = f"{rows} records of one person together{self.unit.removeprefix(RECORD)}"
        return replace(self, unit=unit, **_quoted(mu, self.delta, self.slack, secrecy))


def promise(terms: Terms, delta: float, *, seeded: bool, unit: str = RECORD) -> Promise:
    """The promise about every release that a gate with these terms makes in a whole run."""
    slack, windows = terms.slack(), terms.schedule.windows
    about: dict[str, Any] = {"unit": unit, "neighbours": terms.neighbours, "windows": windows}
    quoted = _quoted(terms.mu(), delta, slack, terms.secrecy())
    return Promise(**quoted, delta=delta, slack=slack, seeded=seeded, **about)


def compose(promises: Sequence[Made]) -> Made:
    """What several runs on the same records promise together: the first, with the cost of all.

    Guarantee: runs that are mu_1-, .., mu_k-Gaussian-DP, each whatever the others released, are
    sqrt(sum mu_i^2)-Gaussian-DP together. Slacks add up, and secrecies do. Who took part is private
    where it is so in all of them.
    """
    first = promises[0]
    units = {f"{each.unit} ({each.neighbours})" for each in promises}
    if len(units) > 1:
        raise InvalidArgument(f"runs about different units do not add up: {', '.join(units)}.")
    mu = accounting.compose(each.mu for each in promises)
    slack = sum(each.slack for each in promises)
    secrecy = sum(each.secrecy for each in promises)
    quoted = _quoted(mu, first.delta, slack, secrecy)
    seeded, windows = any(each.seeded for each in promises), all(each.windows for each in promises)
    return replace(first, **quoted, slack=slack, seeded=seeded, windows=windows)


def _quoted(mu: float, delta: float, slack: float, secrecy: float) -> dict[str, float]:
    """A cost of (mu, secrecy) with epsilon at delta, and how often the privacy loss exceeds it."""
    epsilon = accounting.epsilon(mu, delta, slack, secrecy)
    exceeds = accounting.exceeds(mu, epsilon, secrecy)
    return {"mu": mu, "epsilon": epsilon, "exceeds": exceeds, "secrecy": secrecy}
