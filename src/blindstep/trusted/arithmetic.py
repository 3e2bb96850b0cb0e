"""In which numbers an oracle adds and makes noise: float64, or whole multiples of a lattice width.

`Float64` is the textbook's Gaussian mechanism in double precision. Its last bits are not Gaussian: of
y = x + N(0, 1) they give x = 0 away, with certainty, in a quarter of all draws (Mironov 2012 for
Laplace noise; measured in tests/test_precision_attack.py).

`Lattice` leaves no such bits. With gamma = noise_std / S, S = `discrete_gaussian.STD`, an increment m
is snapped to whole numbers k = rint(m / gamma); running sums of k are exact, the noise z is a
discrete Gaussian of width S on the whole numbers, B and C of the prefix mechanism are whole numbers
too, and what is released is gamma times the whole number A k + B z = B (C k + z): a function of
C k + z and of nothing else.

Sensitivity. |rint(m / gamma) - m / gamma| <= 1/2 in each of d coordinates, so replacing a record
moves gamma k by at most s + gamma sqrt(d). And s itself is that of the sum as computed: float64 adds
b records' estimates, each of norm at most r, with an error of norm at most b r (b - 1) 2^-53 in any
order, which differs between neighbouring data sets (Casacuberta, Shoemate, Vadhan & Wagaman 2022).
With the divisions by b and gamma, s = 2 r / b grows by a relative b (b + 4) 2^-53 at most; it is taken
to grow twice that.

Guarantee. Let x = (C k)_t, a vector of whole numbers; one coordinate of C k + z has the law
N_Z(x, S^2). Draw a real y from N(x, S^2 - tau^2), then a whole number from N_Z(y, tau^2), which does
not look at x. By (1) of `discrete_gaussian`, the normaliser of the second draw is
tau sqrt(2 pi) (1 + e) with |e| <= E(tau), whatever y is; so the result has the law N_Z(x, S^2) up to
a factor of (1 + E(tau)) / (1 - E(tau)), below 1 + 1e-136 at tau = 4. Hence a run is post-processing of
the Gaussian mechanism with standard deviation sqrt(S^2 - tau^2) = S (1 - 1.2e-10), up to a total
variation of at most t = (coordinates drawn) x 2^-175: if f is the trade-off curve of mu-Gaussian-DP,
the run's is at least f(alpha + t) - t, and (epsilon, delta)-DP becomes
(epsilon, delta + (1 + e^epsilon) t)-DP. `accounting.epsilon` takes that off delta.
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from blindstep.errors import InvalidArgument
from blindstep.trusted import accounting
from blindstep.trusted.discrete_gaussian import (
    DISTANCE,
    LARGEST,
    STD,
    VARIANCE,
    discrete_gaussian,
)
from blindstep.trusted.randomness import Address, NoiseKey, gaussian

NoiseStd = float | Float[Array, ""]
_SMOOTHING_VARIANCE = 4**2  # tau^2
# Below this, sums of whole numbers are exact in float64.
_EXACT = 2.0**52


class Arithmetic(eqx.Module):
    """How increments become terms of the sum, what noise joins them, and what that does to privacy.

    Attributes:
        integer: whether the sum is of whole numbers, so that the prefix mechanism must be too.
        sentence: what a privacy statement says about it.
        effective: the Gaussian standard deviation that may be claimed, as a fraction of noise_std.
    """

    integer: ClassVar[bool]
    sentence: ClassVar[str]
    effective: ClassVar[float]

    @abc.abstractmethod
    def snap(self, increment: Float[Array, " n"], noise_std: NoiseStd) -> Float[Array, " n"]:
        """An increment as a term of the running sum."""

    @abc.abstractmethod
    def draw(
        self,
        key: NoiseKey,
        block: Address,
        step: Address,
        dim: int,
        noise_std: NoiseStd,
    ) -> Float[Array, "*many dim"]:
        """Noise in the units of the running sum: a vector for each address (block, step)."""

    @abc.abstractmethod
    def value(self, total: Float[Array, " n"], noise_std: NoiseStd) -> Float[Array, " n"]:
        """What is released of a noisy sum."""

    @abc.abstractmethod
    def as_computed(self, sensitivity: float, roundings: float) -> float:
        """Sensitivity of an increment as the computer adds it up.

        `roundings` is b times the longest chain of roundings from a record's estimate to m: see
        `oracle.increment_sensitivities`.
        """

    @abc.abstractmethod
    def snapping(self, release_dim: int) -> float:
        """What snapping adds to every sensitivity, as a multiple of noise_std."""

    @abc.abstractmethod
    def slack(self, draws: int) -> float:
        """Total variation that so many coordinates of noise cost, beyond the Gaussian mechanism."""

    @abc.abstractmethod
    def check_range(self, largest: float, terms: float, noise_std: float) -> None:
        """Raise if a sum of increments up to `largest`, with `terms` draws in it, is not exact."""

    def noise_std_for(
        self,
        rho: float,
        sensitivities: Float[np.ndarray, " n"],
        columns: Float[np.ndarray, " n"],
        passes: int,
        release_dim: int,
    ) -> float:
        """The least noise_std with which no s_i |column i| sqrt(passes) costs more than rho.

        Solves (s + a sigma) c / (effective sigma) <= rho for sigma, a = `snapping`.
        """
        costs = sensitivities * columns * math.sqrt(passes)
        added = self.snapping(release_dim) * columns * math.sqrt(passes)
        # Float64 leaves rounding to `accounting.noise_std_for`; here there are a few more.
        margin = 1e-13 if self.integer else 0.0
        left = rho * (self.effective - margin) - added
        if np.min(left) < rho / 2:
            raise InvalidArgument(
                f"on the lattice, {release_dim} noisy coordinates in {passes} pass(es) at rho = "
                f"{rho:g} would more than double the noise: share a frame among a block (fewer "
                "coordinates), make fewer passes or a shorter period, or leave out secure."
            )
        worst = int(np.argmax(costs / left))
        return accounting.noise_std_for(float(left[worst]), float(costs[worst]))


class Float64(Arithmetic):
    """Double precision throughout: the mechanism of the textbook, up to its last bits."""

    integer: ClassVar[bool] = False
    effective: ClassVar[float] = 1.0
    sentence: ClassVar[str] = (
        "float64; the last bits of a release are not exactly Gaussian (plan with secure for ones "
        "that are)"
    )

    def snap(self, increment: Float[Array, " n"], noise_std: NoiseStd) -> Float[Array, " n"]:
        """The increment itself."""
        return increment

    def draw(
        self,
        key: NoiseKey,
        block: Address,
        step: Address,
        dim: int,
        noise_std: NoiseStd,
    ) -> Float[Array, "*many dim"]:
        """Gaussian, of standard deviation noise_std."""
        return noise_std * gaussian(key, block, step, dim)

    def value(self, total: Float[Array, " n"], noise_std: NoiseStd) -> Float[Array, " n"]:
        """The sum itself."""
        return total

    def as_computed(self, sensitivity: float, roundings: float) -> float:
        """As in exact arithmetic: clips aim 1e-9 inside, and more is not accounted for."""
        return sensitivity

    def snapping(self, release_dim: int) -> float:
        """Nothing is snapped."""
        return 0.0

    def slack(self, draws: int) -> float:
        """Taken to be none."""
        return 0.0

    def check_range(self, largest: float, terms: float, noise_std: float) -> None:
        """Nothing is claimed to be exact."""


class Lattice(Arithmetic):
    """Exact whole multiples of gamma = noise_std / S, and discrete Gaussian noise among them."""

    integer: ClassVar[bool] = True
    # Rounded down by far more than gamma, S and the formulas around them are rounded.
    effective: ClassVar[float] = math.sqrt(1 - _SMOOTHING_VARIANCE / VARIANCE) * (1 - 1e-12)
    sentence: ClassVar[str] = (
        "secure; sums and noise (discrete Gaussian) are exact whole multiples of a public lattice "
        "width, rounding is part of the sensitivity, and the last bits of a release tell nothing"
    )

    def snap(self, increment: Float[Array, " n"], noise_std: NoiseStd) -> Float[Array, " n"]:
        """rint(m / gamma)."""
        return jnp.rint(increment / (noise_std / STD))

    def draw(
        self,
        key: NoiseKey,
        block: Address,
        step: Address,
        dim: int,
        noise_std: NoiseStd,
    ) -> Float[Array, "*many dim"]:
        """Discrete Gaussian, of standard deviation S in units of gamma."""
        return discrete_gaussian(key, block, step, dim)

    def value(self, total: Float[Array, " n"], noise_std: NoiseStd) -> Float[Array, " n"]:
        """gamma times the whole number, rounded: a function of that number alone."""
        return total * (noise_std / STD)

    def as_computed(self, sensitivity: float, roundings: float) -> float:
        """Larger by twice what float64 sums can be off."""
        return sensitivity * (1 + 2 * roundings * 2.0**-53)

    def snapping(self, release_dim: int) -> float:
        """gamma sqrt(d)."""
        return math.sqrt(release_dim) / STD

    def slack(self, draws: int) -> float:
        """2^-175 for each."""
        return draws * DISTANCE

    def check_range(self, largest: float, terms: float, noise_std: float) -> None:
        """All whole numbers stay below 2^52."""
        most = largest / (noise_std / STD) + terms * LARGEST
        if not most < _EXACT:
            raise InvalidArgument(
                f"sums of up to {most:.2g} lattice steps are not exact in float64: use smaller "
                "batches or a shorter period, or leave out secure."
            )
