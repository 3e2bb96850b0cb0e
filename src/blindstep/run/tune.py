"""Choosing among a few candidates, with the choice paid for.

    tuned = bs.tune(loss, params, data, [bs.Auto(evaluations=2**26), {"params": other_start}],
                    bs.Privacy(epsilon=1, delta=1e-6))

Trying several settings and keeping the best is a release of its own, and each try is one. Here one
budget covers all of it: with K candidates, mu^2 is split into 10% for the choice and equal parts of
the rest for the runs. The choice looks at private mean losses (`values.measure`), released once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from blindstep.display import Displayed
from blindstep.errors import InvalidArgument, answers_typos
from blindstep.ledger import fingerprints
from blindstep.ledger.budget import Privacy
from blindstep.ledger.storage import Storage, require_room
from blindstep.losses.data_frames import arrays_of
from blindstep.losses.engines import Host
from blindstep.losses.people import People, by_person, people_of
from blindstep.losses.pytrees import Loss, ParameterSpace, count_records
from blindstep.planning.checks import check_delta
from blindstep.planning.method import Method
from blindstep.planning.plan import Plan
from blindstep.planning.planner import require_method
from blindstep.planning.statement import Statement, compose_statements
from blindstep.private import accounting
from blindstep.private.noise import second_seed
from blindstep.run.compiled import run_compiled
from blindstep.run.host import run_on_host
from blindstep.run.outcome import Outcome
from blindstep.run.planned import Call
from blindstep.run.progress import ends_in_one_line
from blindstep.run.result import History, Result
from blindstep.run.value import losses_of, measure

# The share of mu^2 that the choice spends.
CHOICE = 0.1
# More than the total variation that the noise of all runs together may cost.
_SLACK = 1e-40
# What may differ between candidates.
_OWN = ("method", "loss", "params")


@dataclass(frozen=True)
class Tuned(Displayed):
    """What tuning gave. Everything in it is released: reading all of it costs nothing more.

    Attributes:
        best: the result of the candidate that was chosen, with the statement of everything.
        chosen: the number of that candidate, from 0.
        values: the private mean score of each candidate; smaller is better.
        std: the standard deviation of the noise on each of these.
        results: the results of all candidates, each with the statement of everything: what one of
            them spent by itself (`result.plan.mu`) is not what it costs to see it chosen.
        privacy: the statement of all runs and the choice together.
    """

    best: Result
    chosen: int
    values: tuple[float, ...]
    std: float
    results: tuple[Result, ...]
    privacy: Statement

    @property
    def params(self) -> PyTree:
        """The parameters of the chosen candidate."""
        return self.best.params

    @property
    def plan(self) -> Plan:
        """The plan of the chosen candidate, whose budget was its share."""
        return self.best.plan

    @property
    def history(self) -> History:
        """Public quantities over the run of the chosen candidate."""
        return self.best.history

    @property
    def outcome(self) -> Outcome:
        """How the run of the chosen candidate went."""
        return self.best.outcome

    def __str__(self) -> str:
        listed = ", ".join(f"{value:.4g}" for value in self.values)
        return (
            f"Candidate {self.chosen + 1} of {len(self.values)}: mean scores {listed}, noise "
            f"{self.std:.2g}.\n{self.best.outcome}\n{self.privacy}"
        )


@dataclass(frozen=True)
class _Candidate:
    """One of the settings that are tried."""

    loss: Loss
    params: PyTree
    method: Method | None

    def run(self, data: PyTree, call: Call, evaluate: Host | None) -> Result:
        if evaluate is None:
            return run_compiled(self.loss, self.params, data, call)
        return run_on_host(self.loss, self.params, data, call, evaluate)


@answers_typos
@ends_in_one_line
def tune(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    candidates: Sequence[Method | Mapping[str, Any]],
    privacy: Privacy,
    *,
    score: Loss | None = None,
    evaluate: Host | None = None,
    people: People | ArrayLike | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
) -> Tuned:
    """Minimize with each of a few candidates, and choose the best by private values, in one budget.

        tuned = bs.tune(loss, params, data, [bs.Auto(), bs.Auto(passes=4)], bs.Privacy(epsilon=1))
        tuned.params

    Args:
        loss: as for `minimize`.
        params: as for `minimize`.
        data: as for `minimize`.
        candidates: methods; or mappings with what differs: "method", "loss" and "params". Each run gets
            (1 - 10%) / K of mu^2, so few candidates are better than many.
        privacy: the budget of everything together.
        score: what candidates are compared by, a function of parameters and one record; the loss if
            left out. Needed where candidates have different losses.
        people: an identifier for each row, if people have several rows, or `People(...)`.
        evaluate: as for `minimize`.
        checkpoint: a directory: each run has a folder in it, and all share one ledger.
        ledger: a file in which runs on the same people add up what they spend.
        budget: what all runs in the ledger together may spend.
        seed: for reproduction only: not private against anyone who knows or can guess it.
        progress: as for `minimize`.

    Returns:
        The chosen result, all others, their private scores and one statement.
    """
    tried, data, whose = (
        _candidates(candidates, loss, params, score),
        arrays_of(data),
        people_of(people),
    )
    records = count_records(by_person(loss, params, data, whose)[1])
    check_delta(privacy, records)
    storage = Storage(checkpoint, ledger, budget)
    require_room(storage, privacy.mu)
    accounting.epsilon(privacy.mu, privacy.delta, _SLACK)  # raises now, not after all was spent
    kept = storage.ledger_as_given if storage else None
    # What secret batches cost beside mu adds up as well: each candidate may take its part of delta.
    share = _part(privacy, (1.0 - CHOICE) / len(tried), privacy.delta / len(tried))
    results, judged, unit = [], [], ""
    for number, each in enumerate(tried):
        directory = None if checkpoint is None else os.path.join(checkpoint, f"run-{number + 1}")
        seeded = second_seed(seed, str(number))
        own = Storage(directory, kept, budget)
        call = Call(share, each.method, whose, own, seeded, progress)
        results.append(each.run(data, call, evaluate))
        judge, grouped, unit = by_person(score or each.loss, each.params, data, whose)
        judged.append((judge, results[-1], grouped))
    choice = None if checkpoint is None else os.path.join(checkpoint, "choice")
    means, std, _, said = measure(
        lambda: np.stack([_losses(*each) for each in judged], axis=1),
        records,
        len(judged),
        _part(privacy, CHOICE, privacy.delta),
        Storage(choice, kept, budget),
        lambda: fingerprints.of_values(
            [(judge, result.params, grouped) for judge, result, grouped in judged], data
        ),
        None,
        second_seed(seed, "choice"),
        unit,
    )
    chosen = int(np.argmin(means))
    everything = compose_statements([said, *(result.privacy for result in results)])
    whole = tuple(replace(result, privacy=everything) for result in results)
    return Tuned(whole[chosen], chosen, tuple(means), std, whole, everything)


def _part(privacy: Privacy, share: float, delta: float) -> Privacy:
    """A share of mu^2 of a budget, quoted at `delta`."""
    mu = privacy.mu_beside_room * math.sqrt(share)
    return Privacy(mu=mu, delta=delta, neighbours=privacy.neighbours)


def _losses(score: Loss, result: Result, data: PyTree) -> np.ndarray:
    return losses_of(score, result.params, ParameterSpace.of(result.params), data)


def _candidates(
    given: Sequence[Method | Mapping[str, Any]], loss: Loss, params: PyTree, score: Loss | None
) -> list[_Candidate]:
    """The candidates, refused where they cannot be compared, or would spend outside of the budget."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise InvalidArgument(
            f"candidates must be a list of methods, got {given!r}: it is tune(loss, params, data, "
            "candidates, privacy)."
        )
    if not given:
        raise InvalidArgument(
            "no candidates: give a list of methods, such as [Auto(), Auto(passes=20)]."
        )
    tried = []
    for each in given:
        own: dict[str, Any] = dict(each) if isinstance(each, Mapping) else {"method": each}
        if unknown := [name for name in own if name not in _OWN]:
            raise InvalidArgument(
                f"a candidate has {', '.join(unknown)}: it has {', '.join(_OWN)}, and all else is the "
                "same for all of them. Give it to tune itself."
            )
        if "loss" in own and score is None:
            raise InvalidArgument(
                "candidates with different losses cannot be compared by them: give score=, a function "
                "of parameters and one record that all are judged by."
            )
        method = own.get("method")
        if isinstance(method, Plan):
            raise InvalidArgument(
                "a candidate is a ready plan, which has a budget of its own: give its method."
            )
        if method is not None:
            require_method(method)
        tried.append(_Candidate(own.get("loss", loss), own.get("params", params), method))
    return tried
