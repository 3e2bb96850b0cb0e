"""From a layout of the run to a finished plan: noise, privacy, step size and what is certified."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from blindstep.errors import count
from blindstep.optimize.plan import Plan, build_oracle
from blindstep.optimize.theory import Problem, Terms, explicit_bound, sphere_moments
from blindstep.trusted import accounting
from blindstep.trusted.bounds import Bounds
from blindstep.trusted.privacy import Privacy


@dataclass(frozen=True)
class Layout:
    """The choices of a plan; names as in `Plan`."""

    preset: str
    oracle: str
    mechanism: str
    sampler: str
    records: int
    dim: int
    horizon: int
    period: int
    epochs: int
    passes: int
    first_batch: int
    diff_batch: int
    directions: int
    smoothing: float
    radius: float
    reach: float


def assemble(
    layout: Layout, privacy: Privacy, bounds: Bounds, lipschitz: float | None, gap: float | None
) -> Plan:
    """Calibrate the noise, then say what the run costs and certifies.

    Noise: sigma = s |C| / rho with s the largest sensitivity of a block's increments and |C| the
    largest column norm: Corollary cor:privacy with the exact node count in place of 2 ln T.
    """
    count("epochs", layout.epochs)
    draft = Plan(
        **asdict(layout),
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
    unit = build_oracle(draft)
    worst = max(unit.sensitivities())
    columns, rows = unit.mechanism.column_norms(), unit.mechanism.row_norms()
    per_pass = privacy.rho / math.sqrt(layout.passes)
    noise_std = accounting.noise_std_for(per_pass, worst, float(columns.max()))
    release = noise_std * rows
    made = replace(
        draft,
        sensitivity=worst,
        noise_std=noise_std,
        release_std_max=float(release.max()),
        release_std_mean=float(np.sqrt(np.mean(release**2))),
    )
    made = replace(made, mu=build_oracle(made).mu())
    if lipschitz is None:
        note = "Without a Lipschitz bound nothing is certified about stationarity; privacy is."
        return replace(made, notes=(note,))
    terms = _terms(layout, privacy, lipschitz, gap or 0.0, release)
    step = layout.reach / (math.sqrt(layout.horizon) * terms.gradient_rms)
    made = replace(made, step=step)
    if gap is None:
        note = "Without a bound on the gap nothing is certified about stationarity; privacy is."
        return replace(made, notes=(note,))
    vacuous = terms.total >= lipschitz
    return replace(
        made, tolerance=terms.total, vacuous=vacuous, notes=_verdict(terms, lipschitz, layout)
    )


def _terms(
    layout: Layout, privacy: Privacy, lipschitz: float, gap: float, release: np.ndarray
) -> Terms:
    problem = Problem(
        dim=layout.dim,
        records=layout.records,
        lipschitz=lipschitz,
        gap=gap,
        smoothing=layout.smoothing,
        rho=privacy.rho,
    )
    return explicit_bound(
        problem,
        horizon=layout.horizon,
        period=layout.period,
        epochs=layout.epochs,
        first_batch=layout.first_batch,
        diff_batch=layout.diff_batch,
        moments=sphere_moments(layout.dim, layout.directions),
        reach=layout.reach,
        release_std=release,
    )


def _verdict(terms: Terms, lipschitz: float, layout: Layout) -> tuple[str, ...]:
    parts = (
        f"Tolerance {terms.total:.4g} = progress {terms.progress:.3g} + regret {terms.regret:.3g} "
        f"+ estimation {terms.estimation:.3g} + noise {terms.noise:.3g}; {terms.binding} binds."
    )
    if terms.total < lipschitz:
        return (parts,)
    return (
        parts,
        f"VACUOUS: the bound {terms.total:.4g} is no better than L = {lipschitz:g}, which holds at "
        f"every point: nothing is certified about stationarity with {layout.records} records. "
        "The privacy guarantee is not affected.",
    )
