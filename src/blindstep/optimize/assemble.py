"""From a layout of the run to a finished plan: noise, privacy, step size and what is certified."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from blindstep.errors import count
from blindstep.optimize.plan import ARITHMETICS, MECHANISMS, SAMPLERS, Plan, build_oracle
from blindstep.optimize.theory import (
    Moments,
    Terms,
    clip_bias,
    explicit_bound,
    frame_moments,
    oracle_errors,
    sphere_moments,
)
from blindstep.trusted import accounting
from blindstep.trusted.bounds import Bounds
from blindstep.trusted.oracle import increment_sensitivities
from blindstep.trusted.privacy import Privacy
from blindstep.trusted.schedule import require_period


@dataclass(frozen=True)
class Layout:
    """The choices of a plan; names as in `Plan`."""

    preset: str
    oracle: str
    mechanism: str
    sampler: str
    sharing: str
    records: int
    dim: int
    horizon: int
    period: int
    epochs: int
    first_batch: int
    diff_batch: int
    directions: int
    smoothing: float
    radius: float
    reach: float
    secure: bool = False

    def moments(self) -> Moments:
        """Moments of the estimates along these directions."""
        if SAMPLERS[self.sampler].orthonormal:
            return frame_moments(self.dim, self.directions)
        return sphere_moments(self.dim, self.directions)

    @property
    def release_dim(self) -> int:
        """Coordinates that carry noise."""
        return self.directions if self.sharing == "block" else self.dim


@lru_cache(maxsize=64)
def mechanism_norms(name: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Column norms of C and row norms of B: a planner asks for the same ones again and again."""
    require_period(steps)
    mechanism = MECHANISMS[name](steps)
    return mechanism.column_norms(), mechanism.row_norms()


@lru_cache(maxsize=4096)
def gain_of(sampler: str, directions: int, dim: int) -> float:
    """A sampler's gain, kept: making the sampler takes longer than all the rest of a bound."""
    return SAMPLERS[sampler]().gain(directions, dim)


@lru_cache(maxsize=4096)
def snapping_of(secure: bool, release_dim: int) -> float:
    """What snapping adds to a sensitivity in units of the noise, kept for the same reason."""
    return ARITHMETICS[secure].snapping(release_dim)


def assemble(
    layout: Layout, privacy: Privacy, bounds: Bounds, lipschitz: float | None, gap: float | None
) -> Plan:
    """Calibrate the noise, then say what the run costs and certifies.

    Noise: sigma = max_i s_i |column i of C| / rho, exactly; in preset `paper` the largest s_i times the
    largest column norm, as Corollary cor:privacy has it (with the exact node count). A secure plan's
    s_i contain the rounding to the lattice, which grows with sigma.
    """
    count("epochs", layout.epochs)
    draft = Plan(
        **asdict(layout),
        passes=1,
        step=None,
        bounds=bounds,
        lipschitz=lipschitz,
        gap=gap,
        sensitivity=math.nan,
        noise_std=1.0,
        release_std_max=math.nan,
        release_std_mean=math.nan,
        rho=privacy.rho,
        mu=math.nan,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        tolerance=None,
        vacuous=False,
        notes=(),
    )
    unit, arithmetic = build_oracle(replace(draft, secure=False)), ARITHMETICS[layout.secure]
    sensitivities = increment_sensitivities(unit.estimator, unit.schedule, arithmetic)
    columns, rows = mechanism_norms(layout.mechanism, layout.period)
    if layout.preset == "paper":
        sensitivities, columns = (a.max(keepdims=True) for a in (sensitivities, columns))
    noise_std = arithmetic.noise_std_for(
        privacy.rho, sensitivities, columns, unit.schedule.passes, layout.release_dim
    )
    release = noise_std * rows
    made = replace(
        draft,
        passes=unit.schedule.passes,
        noise_std=noise_std,
        release_std_max=float(release.max()),
        release_std_mean=float(np.sqrt(np.mean(release**2))),
    )
    oracle = build_oracle(made)
    made = replace(made, mu=oracle.mu(), sensitivity=max(oracle.sensitivities()))
    accounting.epsilon(made.mu, made.delta, oracle.slack())  # refuses what could not be stated
    if lipschitz is None:
        note = "Without a Lipschitz bound nothing is certified about stationarity; privacy is."
        return replace(made, notes=(note,))
    terms = bound_terms(layout, bounds, lipschitz, gap or 0.0, release)
    step = layout.reach / (math.sqrt(layout.horizon) * terms.gradient_rms)
    made = replace(made, step=step)
    if gap is None:
        note = "Without a bound on the gap nothing is certified about stationarity; privacy is."
        return replace(made, notes=(note,))
    vacuous = terms.total >= lipschitz
    return replace(
        made, tolerance=terms.total, vacuous=vacuous, notes=_verdict(terms, lipschitz, layout)
    )


def bound_terms(
    layout: Layout,
    bounds: Bounds,
    lipschitz: float,
    gap: float,
    release: Float[np.ndarray, " period"],
) -> Terms:
    """The explicit bound of a layout with this noise on its releases."""
    moments = layout.moments()
    error = oracle_errors(
        moments,
        lipschitz=lipschitz,
        smoothing=layout.smoothing,
        reach=layout.reach,
        period=layout.period,
        first_batch=layout.first_batch,
        diff_batch=layout.diff_batch,
        shared=layout.sharing != "record",
    )
    return explicit_bound(
        lipschitz=lipschitz,
        gap=gap,
        smoothing=layout.smoothing,
        reach=layout.reach,
        horizon=layout.horizon,
        epochs=layout.epochs,
        error=error,
        noise=math.sqrt(layout.release_dim) * release,
        bias=lipschitz * clip_bias(moments, bounds.first_clip / lipschitz),
    )


def _verdict(terms: Terms, lipschitz: float, layout: Layout) -> tuple[str, ...]:
    parts = (
        f"Tolerance {terms.total:.4g} = progress {terms.progress:.3g} + regret {terms.regret:.3g} "
        f"+ estimation {terms.estimation:.3g} + noise {terms.noise:.3g} + bias {terms.bias:.3g}; "
        f"{terms.binding} binds."
    )
    if terms.total < lipschitz:
        return (parts,)
    return (
        parts,
        f"VACUOUS: the bound {terms.total:.4g} is no better than L = {lipschitz:g}, which holds at "
        f"every point: nothing is certified about stationarity with {layout.records} records. "
        "The privacy guarantee is not affected.",
    )
