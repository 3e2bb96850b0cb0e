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
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from blindstep.errors import HorizonExceeded, InvalidArgument, positive
from blindstep.trusted import accounting
from blindstep.trusted.estimators import Estimator, Kind
from blindstep.trusted.prefix import Prefix
from blindstep.trusted.randomness import NoiseKey, gaussian
from blindstep.trusted.schedule import Schedule


class OracleState(eqx.Module):
    """Secret: the running sum without its noise, and the noise now in it."""

    running: Float[Array, " dim"]
    noise: Float[Array, "slots dim"]


class Oracle(eqx.Module):
    """Estimator, noise and schedule of records, with the privacy that follows from them.

    Attributes:
        estimator: GRAD and DIFF with their enforced bounds.
        mechanism: prefix noise for the `period` releases of a block.
        schedule: who answers when.
        noise_std: standard deviation of one noise draw, per coordinate.
    """

    estimator: Estimator
    mechanism: Prefix
    schedule: Schedule = eqx.field(static=True)
    noise_std: float | Float[Array, ""]

    def __check_init__(self) -> None:
        self.estimator.bounds.require_finite(needs_diff=self.schedule.period > 1)
        if self.mechanism.steps != self.schedule.period:
            raise InvalidArgument(
                f"the noise is for {self.mechanism.steps} releases, a block has "
                f"{self.schedule.period}: make them equal."
            )
        if isinstance(self.noise_std, float):
            positive("noise_std", self.noise_std, "a release without noise is not private")

    def sensitivities(self) -> list[float]:
        """Replace-one sensitivity of each increment of a block (Lemmas lem:grad/diff-estimator)."""
        first = self.estimator.sensitivity(Kind.GRAD, self.schedule.first_batch)
        if self.schedule.period == 1:
            return [first]
        later = self.estimator.sensitivity(Kind.DIFF, self.schedule.diff_batch)
        return [first] + [later] * (self.schedule.period - 1)

    def mu_per_pass(self) -> float:
        """Gaussian-DP parameter of one pass: that of one block, since blocks share no record."""
        return accounting.block_mu(
            self.sensitivities(), self.mechanism.column_norms(), float(self.noise_std)
        )

    def mu(self) -> float:
        """Gaussian-DP parameter of the whole run, exactly: passes compose on the same records."""
        return self.mu_per_pass() * math.sqrt(self.schedule.passes)

    def init(self) -> OracleState:
        """The state before a block's first release."""
        size = self.estimator.release_dim
        return OracleState(jnp.zeros(size), self.mechanism.init(size))

    def release(
        self,
        state: OracleState,
        increment: Float[Array, " release_dim"],
        block: Int[Array, ""] | int,
        step: Int[Array, ""] | int,
        key: NoiseKey,
    ) -> tuple[OracleState, Float[Array, " release_dim"]]:
        """Add `increment` to the running sum and release it with noise.

        `block` counts blocks over the whole run, `step` = 1 .. period counts releases in it; step 1
        starts from nothing. Guarantee: a block's releases are mu_per_pass-Gaussian-DP for
        replacing one record, if its increments came from `increments.increment` on the schedule's
        batches. Past the period there is an error (a NaN inside a compiled program), never noise a
        second time.
        """
        if not isinstance(step, Tracer) and not 1 <= int(step) <= self.mechanism.steps:
            raise HorizonExceeded(
                f"release {int(step)} of a block whose noise is calibrated for "
                f"{self.mechanism.steps}: plan a longer period."
            )
        step = jnp.asarray(step)
        first = step == 1
        running = jnp.where(first, increment, state.running + increment)
        fresh = self.mechanism.init(self.estimator.release_dim)
        draw = self.noise_std * gaussian(key, block, step, self.estimator.release_dim)
        noise_state, noise = self.mechanism.next(jnp.where(first, fresh, state.noise), draw, step)
        released = jnp.where(step <= self.mechanism.steps, running + noise, jnp.nan)
        return OracleState(running, noise_state), released
