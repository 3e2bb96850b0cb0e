"""Choosing among a few candidates, with the choice paid for.

    tuned = blindstep.tune(loss, params, data, [{"evaluations": 2**26}, {"params": other_start}],
                           privacy=blindstep.Privacy(epsilon=1, delta=1e-6))

Trying several settings and keeping the best is a release of its own, and each try is one. Here one
budget covers all of it: with K candidates, mu^2 is split into 10% for the choice and equal parts of
the rest for the runs. The choice looks at private mean losses (`values.measure`), released once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from blindstep.errors import InvalidArgument
from blindstep.ledger import fingerprints
from blindstep.ledger.storage import Storage, require_room
from blindstep.losses.data_frames import arrays_of
from blindstep.losses.people import by_person
from blindstep.losses.pytrees import Loss, ParameterSpace, count_records
from blindstep.planning.checks import check_delta
from blindstep.private.noise import second_seed
from blindstep.private.statement import Privacy, Statement, compose_statements
from blindstep.run import compiled
from blindstep.run.progress import ends_in_one_line
from blindstep.run.result import Result
from blindstep.run.value import losses_of, measure

# The share of mu^2 that the choice spends.
CHOICE = 0.1
_OWN = ("data", "privacy", "people", "rows", "checkpoint", "ledger", "budget", "seed")


@dataclass(frozen=True)
class Tuned:
    """What tuning gave. Everything in it is released: reading all of it costs nothing more.

    Attributes:
        best: the result of the candidate that was chosen. Its own statement is for its own run.
        chosen: the number of that candidate, from 0.
        values: the private mean score of each candidate; smaller is better.
        std: the standard deviation of the noise on each of these.
        results: the results of all candidates.
        privacy: the statement of all runs and the choice together. Quote this one.
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

    def __str__(self) -> str:
        listed = ", ".join(f"{value:.4g}" for value in self.values)
        return (
            f"Candidate {self.chosen + 1} of {len(self.values)}: mean scores {listed}, noise "
            f"{self.std:.2g}.\n{self.best.outcome}\n{self.privacy}"
        )


@ends_in_one_line
def tune(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    candidates: Sequence[Mapping[str, Any]],
    *,
    privacy: Privacy,
    score: Loss | None = None,
    minimize: Callable[..., Result] | None = None,
    people: ArrayLike | None = None,
    rows: int | None = None,
    seed: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
    **common: Any,
) -> Tuned:
    """Minimize with each of a few candidates, and choose the best by private values, in one budget.

    Args:
        loss: as for `minimize`.
        params: as for `minimize`.
        data: as for `minimize`.
        candidates: what differs: mappings of keywords of `minimize`, or "loss" and "params". Each
            run gets (1 - 10%) / K of mu^2, so few candidates are better than many.
        privacy: the budget of everything together.
        score: what candidates are compared by, a function of parameters and one record; the loss if
            left out. Needed where candidates have different losses.
        minimize: the driver: `blindstep.minimize`, or `blindstep.host.minimize`.
        people: an identifier for each row, if people have several rows.
        rows: how many rows of a person are used at most, 8 by default.
        seed: for reproduction only: not private against anyone who knows or can guess it.
        checkpoint: a directory: each run has a folder in it, and all share one ledger.
        ledger: a file in which runs on the same people add up what they spend.
        budget: what all runs in the ledger together may spend.
        common: keywords of `minimize` for all candidates.

    Returns:
        The chosen result, all others, their private scores and one statement.
    """
    tried = [dict(each) for each in candidates]
    _check(tried, score)
    data = arrays_of(data)
    records = count_records(by_person(loss, params, data, people, rows)[1])
    check_delta(privacy, records)
    storage = Storage(checkpoint, ledger, budget)
    require_room(storage, privacy.mu)
    kept = storage.ledger_as_given if storage else None
    share = privacy.mu * math.sqrt((1.0 - CHOICE) / len(tried))
    run, results, judged, unit = minimize or compiled.minimize, [], [], ""
    for number, candidate in enumerate(tried):
        options = {**common, **candidate}
        own = {
            name: options.pop(name, given) for name, given in (("loss", loss), ("params", params))
        }
        directory = None if checkpoint is None else os.path.join(checkpoint, f"run-{number + 1}")
        results.append(
            run(
                own["loss"],
                own["params"],
                data,
                privacy=Privacy(mu=share, delta=privacy.delta),
                people=people,
                rows=rows,
                seed=second_seed(seed, str(number)),
                checkpoint=directory,
                ledger=kept,
                budget=budget,
                **options,
            )
        )
        judge, grouped, unit = by_person(score or own["loss"], own["params"], data, people, rows)
        judged.append((judge, results[-1], grouped))
    choice = None if checkpoint is None else os.path.join(checkpoint, "choice")
    means, std, _, said = measure(
        lambda: np.stack([_losses(*each) for each in judged], axis=1),
        records,
        len(judged),
        Privacy(mu=privacy.mu * math.sqrt(CHOICE), delta=privacy.delta),
        Storage(choice, kept, budget),
        lambda: fingerprints.of_questions(None, [result.params for result in results], data),
        None,
        second_seed(seed, "choice"),
        unit,
    )
    chosen = int(np.argmin(means))
    everything = compose_statements([*(result.privacy for result in results), said])
    return Tuned(results[chosen], chosen, tuple(means), std, tuple(results), everything)


def _losses(score: Loss, result: Result, data: PyTree) -> np.ndarray:
    return losses_of(score, result.params, ParameterSpace.of(result.params), data)


def _check(candidates: list[dict[str, Any]], score: Loss | None) -> None:
    """Refuse what cannot be compared, or would spend outside of the budget."""
    if not candidates:
        raise InvalidArgument(
            "no candidates: give a list of keywords, such as [{}, {'passes': 20}]."
        )
    for candidate in candidates:
        for name in _OWN:
            if name in candidate:
                raise InvalidArgument(
                    f"a candidate has {name}: it is the same for all of them. Give it to tune itself."
                )
    if score is None and any("loss" in candidate for candidate in candidates):
        raise InvalidArgument(
            "candidates with different losses cannot be compared by them: give score=, a function of "
            "parameters and one record that all are judged by."
        )
