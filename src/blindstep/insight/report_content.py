"""What a report tells: public quantities only, from a result or from a run directory.

A run directory holds secrets: the noise key, sums without noise, answers. This module takes three
things from it and looks at nothing else: the sealed public description of the checkpoint, the norms of
*released* gradients, and whether a seed was used.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.errors import InvalidArgument
from blindstep.insight.audit import Audit
from blindstep.insight.certificate import Certificate
from blindstep.insight.tables import read_spending, spending_numbers
from blindstep.ledger import data_ledger, fingerprints, storage
from blindstep.ledger.checkpoint import CURRENT, Checkpoint
from blindstep.planning.plan import Plan
from blindstep.planning.statement import Statement
from blindstep.run.result import Reportable


@dataclass(frozen=True)
class Content:
    """Everything that the page shows."""

    title: str
    plan: Plan
    privacy: Statement  # for the whole run
    steps_done: int
    gradient_norm: Float[np.ndarray, " steps"]  # of each release in order, as far as it is known
    loss: Float[np.ndarray, " rounds"]  # mean loss of each round, as released; empty: it was not
    source: str  # where all this was read from, in words
    spending: Mapping[str, Any] | None  # the ledger's numbers; None if there is no ledger to show
    run: str | None = None  # this run's name in that ledger
    params: Mapping[str, np.ndarray] | None = None  # the answer by its parts; None: it is not here
    outcome: str | None = None  # how it went, in words; None where the result is not here
    certificate: Certificate | None = None
    audit: Audit | None = None
    public_utility: Mapping[str, float | str] = field(default_factory=dict)
    ended_early: bool = False  # by a callback
    made: date = field(default_factory=lambda: datetime.now(UTC).date())

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.plan.schedule.releases

    @property
    def finished(self) -> bool:
        """Whether the run made all its steps."""
        return self.steps_done == self.steps

    @property
    def versions(self) -> dict[str, str]:
        """What computed this, by name."""
        return {
            "blindstep": version("blindstep"),
            "Python": platform.python_version(),
            "jax": version("jax"),
            "numpy": version("numpy"),
            "system": f"{platform.system()} {platform.machine()}",
        }


def of_result(
    result: Reportable,
    title: str,
    public_utility: Mapping[str, float | str] | None,
    ledger: str | os.PathLike[str] | None,
    certificate: Certificate | None,
    audit: Audit | None = None,
) -> Content:
    """What a result says, with a ledger's spending, a certificate and an audit if they are given."""
    if not isinstance(result, Reportable):
        raise InvalidArgument(f"a report is of the result of a run, got {result!r}.")
    norms = result.history.gradient_norm.ravel()
    return Content(
        title=title,
        plan=result.plan,
        privacy=result.privacy,
        steps_done=norms.size,
        gradient_norm=norms,
        loss=np.zeros(0) if result.history.loss is None else result.history.loss.mean(axis=1),
        params=_parts(getattr(result, "params", None)),
        outcome=str(result.outcome),
        source="the result of the run",
        spending=_spending(ledger, result.plan.delta),
        certificate=certificate,
        audit=audit,
        public_utility=dict(public_utility or {}),
        ended_early=norms.size < result.plan.schedule.releases,
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
    plan = _plan(os.path.join(directory, storage.PLAN), meta.plan)
    norms, values = (
        arrays.get(f"saved.{name}", np.zeros(0)) for name in ("gradient_norm", "value")
    )
    whole = len(values) // plan.horizon if plan.curve else 0
    by_round = values[: whole * plan.horizon].reshape(whole, plan.horizon)
    return Content(
        title=title,
        plan=plan,
        privacy=plan.statement(seeded=bool(arrays["key.seeded"]), unit=meta.unit),
        steps_done=meta.position,
        gradient_norm=norms,
        loss=by_round.mean(axis=1),
        source=f"the run directory {os.path.basename(directory)}",
        spending=_spending(ledger or data_ledger.of_run(directory), plan.delta),
        run=meta.run,
    )


def noise_norms(plan: Plan, steps: int) -> Float[np.ndarray, " steps"]:
    """Root mean square norm of the noise in each release: sqrt(n) sigma |row t of B|, n its length.

    Known before the run: it depends on the plan alone.
    """
    return np.resize(math.sqrt(plan.heard) * plan.release_std(), steps)


def _parts(params: PyTree) -> dict[str, np.ndarray] | None:
    """The answer's arrays by their names, for people; None where the answer is a network's weights."""
    if params is None:
        return None
    leaves = jax.tree_util.tree_leaves_with_path(params)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(where) or "params": np.asarray(leaf) for where, leaf in leaves}


def _plan(path: str, fingerprint: str) -> Plan:
    try:
        written = storage.read(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{path} cannot be read ({error}): delete it and resume the run once, and it is written "
            "anew."
        ) from error
    if fingerprints.of_plan(written) != fingerprint:
        raise InvalidArgument(
            f"{path} is not the plan that the run was made with: delete it and resume the run once; "
            "it is a copy for people, and is written anew."
        )
    return Plan.from_json(json.dumps(written))


def _spending(path: str | os.PathLike[str] | None, delta: float) -> Mapping[str, Any] | None:
    return None if path is None else spending_numbers(read_spending(os.fspath(path)), delta)
