"""Who competes in `benchmarks.no_knobs`, with which settings, on a problem with data.

Only "blindstep", "first-order" and "0.1 defaults" could be run as they are on private records: they
choose nothing. First order is blindstep itself with `estimate="gradient"`, so that these two differ in
the estimate alone. The others take the best of 24 settings or more by validation, *which no epsilon
counts*: they are unfair references. All private methods promise the same: replace one record, the same
epsilon and delta.

Rates are in the units of `benchmarks.grids`. Function-value methods are bounded in evaluations: at most
2 x 2,048 for each record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

import blindstep as bs
from benchmarks import baselines, grids, methods
from benchmarks import no_knobs_problems as problems
from benchmarks.baselines import Setting
from benchmarks.data import Records
from benchmarks.problems import Problem
from benchmarks.utility import score
from blindstep.drivers.pytrees import count_records

BLINDSTEP, FIRST_ORDER, FREE = "blindstep", "first-order", "no privacy"
AGGREGATED, ONE_DIRECTION, BEFORE = "DP-AggZO", "DPZero", "0.1 defaults"
METHODS = (BLINDSTEP, FIRST_ORDER, AGGREGATED, ONE_DIRECTION, BEFORE, FREE)
MOST_EVALUATIONS = 2 * 2048

_LAYOUTS = [(16, 40), (16, 128), (64, 10), (64, 32)]  # (directions, passes)
_PASSES = [(300, 1), (100, 1), (1000, 1)]


@dataclass(frozen=True)
class Entrant:
    """One method on one problem.

    Attributes:
        settings: what it may choose from; the first is taken where nothing is chosen.
        points: of one run with a setting, a budget (None: no privacy), a seed, and whether it is a
            trial (judged by validation) or counts (judged by test).
        private: whether it spends a budget; without one its result is the same for every epsilon.
    """

    settings: Sequence[Any]
    points: Callable[[Any, bs.Privacy | None, int, bool], float]
    private: bool = True


@dataclass(frozen=True)
class Contest:
    """One problem with all who compete on it.

    Attributes:
        name: of the problem.
        records: in a run that counts.
        dim: number of parameters.
        delta: for all methods and every epsilon.
        entrants: by name of the method; those that do not apply are missing.
    """

    name: str
    records: int
    dim: int
    delta: float
    entrants: dict[str, Entrant]


def _network(problem: Problem) -> bool:
    return len(jax.tree.leaves(problem.start(0))) > 1


def _flat(problem: Problem) -> bool:
    """Whether the loss has no slope, so that gradients are those of a surrogate."""
    return problem.loss is not problem.reference_loss


# What each may choose from.


def aggregated_settings(problem: Problem) -> list[Setting]:
    """32 settings or more; a 0/1 loss is looked at from afar."""
    if _flat(problem):
        return grids.aggzo(_LAYOUTS, [0.3, 0.1], [100.0, 10.0, 30.0, 300.0, 1000.0], 1.0)
    return grids.aggzo(_LAYOUTS, [1.0, 0.3], [3.0, 0.3, 1.0, 10.0, 30.0], 1e-3)


def one_direction_settings(problem: Problem) -> list[Setting]:
    """24 settings. Of a 0/1 loss all differences are -1/2, 0 or 1/2: another clip is another rate."""
    if _flat(problem):
        rates = [3.0, 0.1, 0.3, 1.0, 10.0, 30.0, 100.0, 300.0]
        return grids.dpzero(_PASSES, [0.5], rates, 1.0)
    return grids.dpzero(_PASSES, [3.0, 1.0], [0.1, 0.03, 0.3, 1.0], 1e-3)


def free_settings(problem: Problem) -> list[Setting]:
    """Adam on gradients."""
    return grids.adam([(40, 40)], [1e-2, 1e-3, 3e-3, 3e-2, 1e-1])


# How each is run.


def version_0_1(problem: Problem, records: Records, privacy: bs.Privacy) -> bs.Plan:
    """The plan that version 0.1's estimators made: 160 full passes, 64 directions, clip 1."""
    reach = 0.3 if _network(problem) else 0.1
    smoothing = 0.3 if _flat(problem) else 0.01
    number = count_records(records)
    return bs.plan(
        records=number,
        dim=problem.dim,
        privacy=privacy,
        preset="tight",
        radius=smoothing + 10 * reach,
        bounds=bs.Clip(1.0) & bs.Range(0, 1) if _flat(problem) else bs.Clip(1.0),
        oracle="naive",
        horizon=10,
        passes=160,
        first_batch=number,
        directions=min(64, problem.dim),
        smoothing=smoothing,
        reach=reach,
    )


def contest(problem: Problem) -> Contest:
    """All methods on a problem with data."""
    differentiable = dataclasses.replace(problem, loss=problem.reference_loss)

    def entrant(
        settings: Sequence[Any],
        run: Callable[[Records, bs.Privacy | None, Any, int], Any],
        private: bool = True,
    ) -> Entrant:
        def points(setting: Any, privacy: bs.Privacy | None, seed: int, trial: bool) -> float:
            split = problem.split
            params = run(split.fit if trial else split.train, privacy, setting, seed)
            return score(problem, params, split.validation if trial else split.test)

        return Entrant(settings, points, private)

    def baseline(of: Problem) -> Callable[[Records, bs.Privacy | None, Any, int], Any]:
        return lambda records, privacy, setting, seed: (
            baselines.run(of, records, privacy, setting, seed).params
        )

    def before(records: Records, privacy: bs.Privacy | None, _: Any, seed: int) -> Any:
        assert privacy is not None
        return methods.run_plan(
            problem, records, version_0_1(problem, records, privacy), seed
        ).params

    def now(of: Problem, **options: Any) -> Callable[..., Any]:
        return lambda records, privacy, _, seed: (
            bs.minimize(of.loss, of.start(seed), records, privacy=privacy, **options).params
        )

    records = count_records(problem.split.train)
    return Contest(
        problem.name,
        records,
        problem.dim,
        problems.delta_for(records),
        {
            BLINDSTEP: entrant([None], now(problem)),
            FIRST_ORDER: entrant([None], now(differentiable, estimate="gradient")),
            AGGREGATED: entrant(aggregated_settings(problem), baseline(problem)),
            ONE_DIRECTION: entrant(one_direction_settings(problem), baseline(problem)),
            BEFORE: entrant([None], before),
            FREE: entrant(free_settings(problem), baseline(differentiable), private=False),
        },
    )
