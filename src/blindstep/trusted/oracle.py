"""The private gradient oracle: increments in, noisy gradients out, with its exact privacy.

Variance-reduced (Algorithm alg:oracle-variance-reduced): within a block,

    g_1 = GRAD(w_1),   g_t = g_{t-1} + DIFF(w_t, w_{t-1}),   released: g_t + (B z)_t

with prefix noise B z (erratum 4: the paper's g~ + Tree is g + Tree). The naive oracle (Algorithm
alg:oracle-standard) is the case of blocks of one release. What `release` returns is the only thing
that leaves the trusted base.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from blindstep.errors import HorizonExceeded, InvalidArgument, positive
from blindstep.trusted import accounting
from blindstep.trusted.arithmetic import Arithmetic, Float64
from blindstep.trusted.estimators import Estimator, Kind, Sharing
from blindstep.trusted.prefix import Prefix
from blindstep.trusted.randomness import NoiseKey
from blindstep.trusted.schedule import Schedule


def increment_sensitivities(
    estimator: Estimator, schedule: Schedule, arithmetic: Arithmetic
) -> Float[np.ndarray, " period"]:
    """Replace-one sensitivity of each increment of a block (Lemmas lem:grad/diff-estimator).

    As computed: b estimates are added in some order and divided by b and, on a lattice, by its width;
    where a batch shares a frame, q coordinates are turned into d by one more product, whose error is at
    most q^(3/2) roundings.
    """
    turned = estimator.number**1.5 if estimator.sharing is Sharing.BATCH else 0.0

    def of(kind: Kind, batch: int) -> float:
        declared = estimator.sensitivity(kind, batch)
        return arithmetic.as_computed(declared, batch * (batch + 4 + turned))

    first = of(Kind.GRAD, schedule.first_batch)
    if schedule.period == 1:
        return np.asarray([first])
    later = of(Kind.DIFF, schedule.diff_batch)
    return np.asarray([first] + [later] * (schedule.period - 1))


class OracleState(eqx.Module):
    """Secret: the running sum without its noise, and the noise now in it (arithmetic's units)."""

    running: Float[Array, " dim"]
    noise: Float[Array, "slots dim"]


class NoiseAhead(eqx.Module):
    """Secret: the noise draws of consecutive releases, made at once.

    A release takes its own draw by its number and no other: asked for one that it does not hold, a
    stock gives NaN, never a draw a second time.

    Attributes:
        first: number of the first release, counted over the whole run.
        draws: of this release and those after it.
    """

    first: Int[Array, ""]
    draws: Float[Array, "number dim"]

    def of(self, release: Int[Array, ""]) -> Float[Array, " dim"]:
        """The draw of release number `release`."""
        place = release - self.first
        held = (place >= 0) & (place < len(self.draws))
        return jnp.where(held, self.draws[jnp.clip(place, 0, len(self.draws) - 1)], jnp.nan)


class Oracle(eqx.Module):
    """Estimator, noise and schedule of records, with the privacy that follows from them.

    Attributes:
        estimator: GRAD and DIFF with their enforced bounds.
        mechanism: prefix noise for the `period` releases of a block.
        schedule: who answers when.
        noise_std: standard deviation of one noise draw, per coordinate.
        arithmetic: the numbers that sums and noise are made of.
    """

    estimator: Estimator
    mechanism: Prefix
    schedule: Schedule = eqx.field(static=True)
    noise_std: float | Float[Array, ""]
    arithmetic: Arithmetic = Float64()

    def __check_init__(self) -> None:
        self.estimator.bounds.require_finite(needs_diff=self.schedule.period > 1)
        if self.mechanism.steps != self.schedule.period:
            raise InvalidArgument(
                f"the noise is for {self.mechanism.steps} releases, a block has "
                f"{self.schedule.period}: make them equal."
            )
        if self.arithmetic.integer and not self.mechanism.integer:
            raise InvalidArgument(
                f"{self.mechanism.name} noise is not made of whole numbers, so it cannot be exact on a "
                "lattice: take mechanism independent or tree, or leave out secure."
            )
        if isinstance(self.noise_std, float):
            positive("noise_std", self.noise_std, "a release without noise is not private")
            self.arithmetic.check_range(
                self._largest_sum(), self.mechanism.steps.bit_length(), self.noise_std
            )

    def _largest_sum(self) -> float:
        """A bound on every coordinate of every running sum of a block."""
        first, later = (self.estimator.record_bound(kind) for kind in (Kind.GRAD, Kind.DIFF))
        return first + (later * (self.schedule.period - 1) if self.schedule.period > 1 else 0.0)

    def sensitivities(self) -> list[float]:
        """Replace-one sensitivity of each increment of a block, rounding and snapping included."""
        moved = increment_sensitivities(self.estimator, self.schedule, self.arithmetic)
        snapping = self.arithmetic.snapping(self.estimator.release_dim) * float(self.noise_std)
        return [float(s) + snapping for s in moved]

    def mu_per_pass(self) -> float:
        """Gaussian-DP parameter of one pass: that of one block, since blocks share no record."""
        return accounting.block_mu(
            self.sensitivities(),
            self.mechanism.column_norms(),
            self.arithmetic.effective * float(self.noise_std),
        )

    def mu(self) -> float:
        """Gaussian-DP parameter of the whole run, exactly: passes compose on the same records."""
        return self.mu_per_pass() * math.sqrt(self.schedule.passes)

    def slack(self) -> float:
        """Total variation between the run and one that is exactly mu-Gaussian-DP: see `arithmetic`."""
        draws = self.schedule.blocks * self.schedule.period * self.estimator.release_dim
        return self.arithmetic.slack(draws)

    def init(self) -> OracleState:
        """The state before a block's first release."""
        size = self.estimator.release_dim
        return OracleState(jnp.zeros(size), self.mechanism.init(size))

    def noise_ahead(
        self, block: Int[Array, ""], step: Int[Array, ""], number: int, key: NoiseKey
    ) -> NoiseAhead:
        """The draws of `number` releases from release `step` of block `block` on: see `release`."""
        first = block * self.schedule.period + step - 1
        numbers = first + jnp.arange(number, dtype=first.dtype)
        block, place = numbers // self.schedule.period, numbers % self.schedule.period
        size, std = self.estimator.release_dim, self.noise_std
        return NoiseAhead(first, self.arithmetic.draw(key, block, place + 1, size, std))

    def release(
        self,
        state: OracleState,
        increment: Float[Array, " release_dim"],
        block: Int[Array, ""] | int,
        step: Int[Array, ""] | int,
        key: NoiseKey | NoiseAhead,
    ) -> tuple[OracleState, Float[Array, " release_dim"]]:
        """Add `increment` to the running sum and release it with noise.

        `block` counts blocks over the whole run, `step` = 1 .. period counts releases in it; step 1
        starts from nothing. `key` may be a stock of noise that was drawn with it (`noise_ahead`).

        Guarantee: a block's releases are mu_per_pass-Gaussian-DP for replacing one record, if its
        increments came from `increments.increment` on the schedule's batches. Past the period there
        is an error (a NaN inside a compiled program), never noise a second time.
        """
        if not isinstance(step, Tracer) and not 1 <= int(step) <= self.mechanism.steps:
            raise HorizonExceeded(
                f"release {int(step)} of a block whose noise is calibrated for "
                f"{self.mechanism.steps}: plan a longer period."
            )
        step = jnp.asarray(step)
        first = step == 1
        size, std = self.estimator.release_dim, self.noise_std
        term = self.arithmetic.snap(increment, std)
        running = jnp.where(first, term, state.running + term)
        if isinstance(key, NoiseAhead):
            draw = key.of(block * self.schedule.period + step - 1)
        else:
            draw = self.arithmetic.draw(key, block, step, size, std)
        fresh = self.mechanism.init(size)
        noise_state, noise = self.mechanism.next(jnp.where(first, fresh, state.noise), draw, step)
        released = self.arithmetic.value(running + noise, std)
        released = jnp.where(step <= self.mechanism.steps, released, jnp.nan)
        return OracleState(running, noise_state), released
