"""The public terms of a run's releases, and what they cost.

A record is in one batch of a block, so replacing it moves one increment m_i, by at most
s_i = 2 clip / batch, and C m by s_i |column i of C|. Snapping and the roundings of float64 move each
coordinate of each release that m_i enters by at most gamma + 2 e more: gamma is the width of the
lattice, and e = r 2^-53 sum |C m| bounds r roundings. So a block is mu-Gaussian-DP with

    mu = max_i ( s_i |column i| + (gamma + 2 e) sqrt(size x releases that m_i enters) ) / sigma,

however the increments depend on what was released before. Blocks of a pass share no record: a pass
costs one block. Passes add in squares. sigma is noise_std, less what makes the discrete Gaussian a
post-processing of the Gaussian: draw a real number from N(x, S^2 - tau^2), then a whole number around
it with width tau; its normaliser depends on that number by at most 1e-136 (tau = 4, formula (1) of
`lattice`). All this holds up to a total variation of `Terms.slack`.
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
from blindstep.private.schedule import Kind, Schedule

# The Gaussian that may be claimed, as a share of noise_std: sqrt(S^2 - tau^2) / S with tau = 4,
# rounded down by far more than the formulas around it are rounded.
EFFECTIVE = math.sqrt(1 - 4**2 / VARIANCE) * (1 - 1e-12)
# Roundings between the exact sum of a batch and its number of lattice steps.
_ROUNDINGS = 4
# Below this, whole numbers and their sums are exact in float64.
_EXACT = 2.0**52
_SMALLEST = 1e-200


class Terms(eqx.Module):
    """The public terms of a run's releases: who answers, how much one counts, how much noise.

    Attributes:
        schedule: who answers when.
        mechanism: the matrix C of a block.
        size: coordinates of a record's vector and of a release.
        first_clip: the longest that a record's vector counts in a GRAD.
        diff_clip: the same in a DIFF.
        noise_std: standard deviation of the noise on a coordinate of a release.
    """

    schedule: Schedule = eqx.field(static=True)
    mechanism: Mechanism
    size: int = eqx.field(static=True)
    first_clip: Scalar
    diff_clip: Scalar
    noise_std: Scalar

    def __check_init__(self) -> None:
        if self.mechanism.steps != self.schedule.period:
            raise InvalidArgument(
                f"the mechanism is for {self.mechanism.steps} releases, a block has "
                f"{self.schedule.period}: make them equal."
            )
        check_mechanism(self.mechanism)
        check_fits(self.size, max(self.schedule.first_batch, self.schedule.diff_batch))
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
        return float(self.first_clip) + (self.schedule.period - 1) * float(self.diff_clip)

    def sensitivities(self) -> Float[np.ndarray, " period"]:
        """How far replacing one record moves each increment of a block: 2 clip / batch."""
        schedule = self.schedule
        moved = np.full(schedule.period, 2.0 * float(self.diff_clip) / schedule.diff_batch)
        moved[0] = 2.0 * float(self.first_clip) / schedule.first_batch
        return moved

    def costs(self) -> tuple[Float[np.ndarray, " period"], Float[np.ndarray, " period"]]:
        """How far replacing a record of batch i moves a block's releases, for any noise_std.

        The Euclidean norm of the change is at most first_i + second_i noise_std: sensitivity with
        float64's roundings, and the snapping to the lattice.
        """
        columns = check_mechanism(self.mechanism)
        entered = np.sqrt(self.size * columns.counts)
        off = 2.0 * (self.mechanism.roundings + _ROUNDINGS) * 2.0**-53 * self._largest()
        return self.sensitivities() * columns.norms + off * entered, entered / STD

    def mu_per_pass(self) -> float:
        """Gaussian-DP parameter of one pass: that of one block, since blocks share no record."""
        moved, snapped = self.costs()
        worst = float(np.max(moved + snapped * float(self.noise_std)))
        return worst / (EFFECTIVE * float(self.noise_std))

    def mu(self) -> float:
        """Gaussian-DP parameter of all releases: passes compose on the same records."""
        return self.mu_per_pass() * math.sqrt(self.schedule.passes)

    def slack(self) -> float:
        """Total variation between the run and one that is exactly mu-Gaussian-DP."""
        return self.schedule.releases * self.size * DISTANCE


def calibrated(
    schedule: Schedule,
    mechanism: Mechanism,
    size: int,
    first_clip: float,
    diff_clip: float,
    mu: float,
) -> Terms:
    """The terms with the least noise that spends at most `mu`.

    Solves sqrt(passes) (a + b sigma) / (EFFECTIVE sigma) <= mu for every column of C, with a and b
    from `Terms.costs`.
    """
    # Any noise above every clip will do to ask for the costs.
    terms = Terms(schedule, mechanism, size, first_clip, diff_clip, first_clip + diff_clip)
    moved, snapped = (math.sqrt(schedule.passes) * cost for cost in terms.costs())
    left = positive("mu", mu) * EFFECTIVE * (1 - 1e-13) - snapped
    if np.min(left) < mu / 2:
        raise InvalidArgument(
            f"rounding {size} coordinates to the lattice in {schedule.passes} pass(es) at mu = "
            f"{mu:g} would more than double the noise: share a frame among a block (fewer "
            "coordinates), make fewer passes or a shorter period."
        )
    noise_std = float(np.max(moved / left)) * (1 + 4 * np.finfo(np.float64).eps)
    return Terms(schedule, mechanism, size, first_clip, diff_clip, noise_std)
