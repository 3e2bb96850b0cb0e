"""The plan of a run: every number of it, public, immutable, readable, and turned into a machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from blindstep.errors import InvalidArgument
from blindstep.optimize.conversion import Conversion
from blindstep.optimize.learners import AdaptiveStep, ConstantStep
from blindstep.optimize.plan_json import read_fields
from blindstep.trusted.arithmetic import Arithmetic, Float64, Lattice
from blindstep.trusted.blt import BLT
from blindstep.trusted.bounds import Bounds
from blindstep.trusted.directions import Directions, Sphere
from blindstep.trusted.estimators import Estimator, Sharing
from blindstep.trusted.frames import Haar, Structured
from blindstep.trusted.oracle import Oracle
from blindstep.trusted.prefix import BinaryTree, Independent, Prefix
from blindstep.trusted.schedule import Schedule
from blindstep.trusted.toeplitz import SquareRoot

MECHANISMS: dict[str, type[Prefix]] = {
    cls.name: cls for cls in (Independent, BinaryTree, SquareRoot, BLT)
}
ARITHMETICS: dict[bool, Arithmetic] = {False: Float64(), True: Lattice()}  # by Plan.secure
SAMPLERS: dict[str, type[Directions]] = {cls.name: cls for cls in (Sphere, Haar, Structured)}


@dataclass(frozen=True)
class Plan:
    """Everything that determines a run, except the loss, the data and the keys.

    Attributes:
        preset: whose parameters these are.
        oracle: "variance-reduced" or "naive".
        mechanism: the prefix noise.
        sampler: the probing directions.
        sharing: whether each "record" has its own directions, or a "batch" or "block" shares them.
        records: records the plan is made for.
        dim: number of parameters.
        horizon: T, steps in an epoch.
        period: releases from one GRAD to the next.
        epochs: K, over all passes.
        passes: times the records are gone through.
        first_batch: B1, records of a GRAD.
        diff_batch: B2, records of a DIFF.
        directions: q, directions for each record.
        smoothing: the paper's delta.
        radius: the Goldstein radius that is certified, 2 x smoothing in preset `paper`.
        reach: D, bound on one step.
        step: eta; None means adaptive.
        bounds: what is enforced on each record.
        lipschitz: L as declared; None if unknown.
        gap: F* as declared; None if unknown.
        sensitivity: the largest sensitivity among the increments of a block.
        noise_std: standard deviation of one noise draw, per coordinate.
        release_std_max: of the noise on a released gradient per coordinate, worst step.
        release_std_mean: the same, root mean square over the steps.
        rho: the Gaussian-DP budget asked for.
        mu: what the run spends of it, exactly.
        epsilon: of (epsilon, delta)-DP at the budget rho.
        delta: where epsilon is quoted.
        tolerance: bound on the expected Goldstein norm at `radius`; None if nothing is known.
        vacuous: whether that bound is no better than `lipschitz`, so that it promises nothing.
        notes: what a reader should know, one sentence each.
        secure: whether sums and noise are exact on a lattice, so that no last bit tells anything.
    """

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
    passes: int
    first_batch: int
    diff_batch: int
    directions: int
    smoothing: float
    radius: float
    reach: float
    step: float | None
    bounds: Bounds
    lipschitz: float | None
    gap: float | None
    sensitivity: float
    noise_std: float
    release_std_max: float
    release_std_mean: float
    rho: float
    mu: float
    epsilon: float
    delta: float
    tolerance: float | None
    vacuous: bool
    notes: tuple[str, ...]
    secure: bool = False

    def build(self) -> Conversion:
        """The state machine of this plan. Its privacy is computed anew, from what it really does."""
        oracle = build_oracle(self)
        if not oracle.mu() <= self.rho:  # a NaN is no budget
            raise InvalidArgument(
                f"the plan's noise_std {self.noise_std:g} spends mu = {oracle.mu():g}, above its "
                f"budget rho = {self.rho:g}: make the plan with blindstep.plan."
            )
        reach = float(self.reach)
        learner = (
            AdaptiveStep(reach) if self.step is None else ConstantStep(reach, float(self.step))
        )
        return Conversion(oracle=oracle, learner=learner, horizon=self.horizon)

    def rows(self) -> list[tuple[str, str, str]]:
        """The plan as (name, value, meaning): what a table shows."""
        step = "adaptive" if self.step is None else f"{self.step:.4g}"
        tolerance = "nothing certified" if self.tolerance is None else f"{self.tolerance:.4g}"
        if self.vacuous:
            tolerance += "  (vacuous: no better than L)"
        return [
            (
                "preset",
                self.preset,
                f"{self.oracle} oracle, {self.sampler} directions for each {self.sharing}",
            ),
            ("records", f"{self.records:,}", "people in the data set"),
            ("dim", f"{self.dim:,}", "parameters"),
            ("horizon", f"{self.horizon:,}", f"T: steps in an epoch, a GRAD every {self.period:,}"),
            ("epochs", f"{self.epochs:,}", f"K, over {self.passes} pass(es) over the records"),
            ("first_batch", f"{self.first_batch:,}", "B1: records of a GRAD"),
            ("diff_batch", f"{self.diff_batch:,}", "B2: records of a DIFF"),
            ("directions", f"{self.directions:,}", "for each record"),
            ("smoothing", f"{self.smoothing:.4g}", "radius of the smoothed loss (paper's delta)"),
            ("reach", f"{self.reach:.4g}", "D: longest step"),
            ("step", step, "eta of the online learner"),
            ("sensitivity", f"{self.sensitivity:.4g}", "of the most sensitive increment"),
            (
                "noise_std",
                f"{self.noise_std:.4g}",
                f"of one draw, {self.mechanism} mechanism" + (", on a lattice" * self.secure),
            ),
            (
                "release_std",
                f"{self.release_std_mean:.4g} .. {self.release_std_max:.4g}",
                "noise on a released gradient per coordinate: mean, worst step",
            ),
            ("rho", f"{self.rho:.6g}", f"budget; the run spends exactly mu = {self.mu:.6g}"),
            ("epsilon", f"{self.epsilon:.6g}", f"at delta = {self.delta:g}"),
            ("radius", f"{self.radius:.4g}", "Goldstein radius of the answer"),
            ("tolerance", tolerance, "bound on the Goldstein norm, in expectation"),
        ]

    def explain(self) -> str:
        """Which theorem, which constants, what binds: one line for each note."""
        return "\n".join(self.notes)

    def __str__(self) -> str:
        lines = [f"{name:<12} {value:>22}   {meaning}" for name, value, meaning in self.rows()]
        return "\n".join([*lines, "", self.explain()])

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON; bounds not in force are left out."""
        out = asdict(self)
        out["bounds"] = {k: v for k, v in out["bounds"].items() if v != float("inf")}
        out["notes"] = list(self.notes)
        return out

    def to_json(self) -> str:
        """The plan as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote; anything else is refused."""
        return cls(**read_fields(text, cls))


def build_oracle(plan: Plan) -> Oracle:
    """The trusted oracle of a plan."""
    kinds = {"sampler": SAMPLERS, "mechanism": MECHANISMS, "sharing": [s.value for s in Sharing]}
    for name, known in kinds.items():
        if getattr(plan, name) not in known:
            raise InvalidArgument(
                f"{name} must be one of {', '.join(known)}, got {getattr(plan, name)!r}: make the "
                "plan with blindstep.plan."
            )
    return Oracle(
        estimator=Estimator(
            dim=plan.dim,
            number=plan.directions,
            sampler=SAMPLERS[plan.sampler](),
            smoothing=plan.smoothing,
            reach=plan.reach,
            bounds=plan.bounds,
            sharing=Sharing(plan.sharing),
        ),
        mechanism=MECHANISMS[plan.mechanism](plan.period),
        schedule=Schedule(
            records=plan.records,
            first_batch=plan.first_batch,
            diff_batch=plan.diff_batch,
            period=plan.period,
            blocks=plan.epochs * (plan.horizon // plan.period),
        ),
        noise_std=float(plan.noise_std),
        arithmetic=ARITHMETICS[plan.secure],
    )
