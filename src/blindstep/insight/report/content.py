"""What a report tells: public quantities only, from a result or from a run directory.

A run directory holds secrets (noise key, sums without noise, answers). What is taken from it is
named here, one by one: the sealed public description of the checkpoint, and from its arrays the
norms of *released* gradients and whether a seed was used. Nothing else is looked at.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Float

from blindstep.drivers import fingerprints
from blindstep.drivers.plan_file import PLAN, read_plan
from blindstep.drivers.result import Result
from blindstep.drivers.storage import LEDGER
from blindstep.errors import InvalidArgument
from blindstep.insight.certificate import Certificate
from blindstep.insight.spending import read_spending, spending_numbers
from blindstep.optimize.plan import Plan, build_oracle
from blindstep.trusted.checkpoint import CURRENT, Arrays, Checkpoint
from blindstep.trusted.privacy import Statement, statement


@dataclass(frozen=True)
class Content:
    """Everything that the page shows.

    Attributes:
        title: the heading.
        plan: the plan of the run.
        privacy: the statement for the whole run.
        steps_done: steps that the run has made.
        gradient_norm: norm of each released gradient, in order, as far as it is known.
        noise_norm: root mean square norm of the noise in each of them, known from the plan.
        spending: the ledger's numbers; None if there is no ledger to show.
        run: this run's name in that ledger.
        certificate: how stationary the answer is, measured; None if it was not.
        public_utility: names and values on data declared public.
        source: where all this was read from, in words.
        made: when the report was made.
        versions: of what made it.
    """

    title: str
    plan: Plan
    privacy: Statement
    steps_done: int
    gradient_norm: Float[np.ndarray, " steps"]
    noise_norm: Float[np.ndarray, " steps"]
    spending: Mapping[str, Any] | None
    run: str | None
    certificate: Certificate | None
    public_utility: Mapping[str, float | str]
    source: str
    made: datetime
    versions: Mapping[str, str]

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.plan.epochs * self.plan.horizon

    @property
    def finished(self) -> bool:
        """Whether the run made all its steps."""
        return self.steps_done == self.steps


def of_result(
    result: Result,
    *,
    title: str,
    public_utility: Mapping[str, float | str] | None,
    ledger: str | os.PathLike[str] | None,
) -> Content:
    """What a result says of itself, with the spending of a ledger if one is named."""
    norms = result.history.gradient_norm.ravel()
    return Content(
        title=title,
        plan=result.plan,
        privacy=result.privacy,
        steps_done=norms.size,
        gradient_norm=norms,
        noise_norm=noise_norms(result.plan, norms.size),
        spending=None if ledger is None else _spending(ledger, result.plan.delta),
        run=None,
        certificate=result.certificate,
        public_utility=dict(public_utility or {}),
        source="the result of the run",
        made=datetime.now(UTC),
        versions=versions(),
    )


def of_run_directory(
    directory: str | os.PathLike[str], *, title: str, ledger: str | os.PathLike[str] | None = None
) -> Content:
    """What a run directory says, finished or not. Reads only; takes no lock."""
    directory = os.path.abspath(directory)
    found = Checkpoint(directory).load() if os.path.isdir(directory) else None
    if found is None:
        raise InvalidArgument(
            f"{directory} is no run directory: it has no {CURRENT}. Give the directory that a run "
            "was given as checkpoint=."
        )
    arrays, meta = found
    plan = _plan(os.path.join(directory, PLAN), meta.plan)
    norms = _released_norms(arrays)
    own = os.path.join(directory, LEDGER)
    path = ledger if ledger is not None else own if os.path.exists(own) else None
    return Content(
        title=title,
        plan=plan,
        privacy=statement(build_oracle(plan), plan.delta, seeded=bool(arrays["key.seeded"])),
        steps_done=meta.position,
        gradient_norm=norms,
        noise_norm=noise_norms(plan, norms.size),
        spending=None if path is None else _spending(path, plan.delta),
        run=meta.run,
        certificate=None,
        public_utility={},
        source=f"the run directory {os.path.basename(directory)}",
        made=datetime.now(UTC),
        versions=versions(),
    )


def noise_norms(plan: Plan, steps: int) -> Float[np.ndarray, " steps"]:
    """Root mean square norm of the noise in each release: sqrt(n) sigma |row t of B|, n its length.

    Known before the run: it depends on the plan alone.
    """
    oracle = build_oracle(plan)
    one = math.sqrt(oracle.estimator.release_dim) * plan.noise_std * oracle.mechanism.row_norms()
    return np.resize(one, steps)


def versions() -> dict[str, str]:
    """What computed this, by name."""
    return {
        "blindstep": version("blindstep"),
        "Python": platform.python_version(),
        "jax": version("jax"),
        "numpy": version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _plan(path: str, fingerprint: str) -> Plan:
    try:
        plan = read_plan(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{path} cannot be read ({error}): delete it and resume the run once, and it is written "
            "anew."
        ) from error
    if fingerprints.of_plan(plan) != fingerprint:
        raise InvalidArgument(
            f"{path} is not the plan that the run was made with: delete it and resume the run once; "
            "it is a copy for people, and is written anew."
        )
    return plan


def _released_norms(arrays: Arrays) -> Float[np.ndarray, " steps"]:
    """The norms of released gradients, as the compiled driver or ask/tell saved them."""
    if "saved.gradient_norm" in arrays:
        return arrays["saved.gradient_norm"].ravel()
    if "saved.norms" in arrays:
        return np.ascontiguousarray(arrays["saved.norms"][:, 0])
    return np.zeros(0)


def _spending(path: str | os.PathLike[str], delta: float) -> Mapping[str, Any]:
    return spending_numbers(read_spending(os.fspath(path)), delta)
