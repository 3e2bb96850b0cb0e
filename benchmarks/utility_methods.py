"""Who competes in `benchmarks.utility`, with which settings, on a problem with data.

"blindstep", "blindstep, gradients", "Opacus" and "diffprivlib" could be run as they are on private
records: they choose nothing; blindstep's two differ in the estimate alone, and the other two are what
people would pick instead (`untuned`). The others take the best of `SETTINGS` settings by validation,
*which no epsilon counts*: they are unfair references. All private methods promise the same: one record
is replaced by any other, the same epsilon and delta. All are held to the same number of evaluations of
a record (`most_evaluations`).

Spans were set by validation, by hand, and not equally often for all (docs/benchmarks.md). Lengths are
sums, so that they do not depend on the number of steps: a baseline's rates fall linearly to 0 and add
up to half of `length`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

import blindstep as bs
from benchmarks import baselines
from benchmarks import untuned as others
from benchmarks import utility_problems as problems
from benchmarks.baselines import Outcome, Setting
from benchmarks.data import Records
from benchmarks.problems import Problem
from blindstep.losses.pytrees import ParameterSpace, count_records
from blindstep.planning.method import EstimateKind

BLINDSTEP, GRADIENTS = "blindstep", "blindstep, gradients"
FIRST_ORDER = "first order, tuned"
AGGREGATED, ONE_DIRECTION, FREE = "DP-AggZO", "DPZero", "no privacy"
OPACUS, DIFFPRIVLIB = "Opacus", "diffprivlib"
# With nothing tuned first, then what was tuned.
NOTHING_TUNED = (BLINDSTEP, GRADIENTS, OPACUS, DIFFPRIVLIB)
METHODS = (*NOTHING_TUNED, AGGREGATED, ONE_DIRECTION, FIRST_ORDER, FREE)
# Rows of these do not depend on blindstep's version.
INDEPENDENT = (OPACUS, DIFFPRIVLIB, AGGREGATED, ONE_DIRECTION, FREE)
# Those that see values of the loss alone: what they need of these is counted.
ZEROTH_ORDER = (BLINDSTEP, AGGREGATED, ONE_DIRECTION)
# What every tuned method chooses from.
SETTINGS = 12
# Here a run takes half a minute, and methods end within about a point of one another: nothing is tuned.
UNTUNED = ("bank network",)
# A run is looked at in so many places at most.
_PLACES = 16

Path = tuple[list[float], list[float]]


class Scored(NamedTuple):
    """Points of one run, and how many evaluations of a record it made (a gradient counts as three)."""

    points: float
    evaluations: float


@dataclass(frozen=True)
class Entrant:
    """One method on one problem.

    Attributes:
        settings: what it may choose from; one where nothing is chosen.
        points: of one run with a setting, a budget (None: no privacy), a seed, and whether it is a
            trial (judged by validation) or counts (judged by test).
        path: of one trial: evaluations of a record up to each place that is looked at, the start first,
            and points there.
        private: whether it spends a budget; without one its result is the same for every epsilon.
    """

    settings: Sequence[Any]
    points: Callable[[Any, bs.Privacy | None, int, bool], Scored]
    path: Callable[[Any, bs.Privacy | None, int], Path]
    private: bool = True


@dataclass(frozen=True)
class Contest:
    """One problem with all who compete on it.

    Attributes:
        name: of the problem.
        records: in a run that counts.
        dim: number of parameters.
        delta: for all methods and every epsilon.
        evaluations: the most that anybody may make of a record.
        entrants: by name of the method; those that do not apply are missing.
    """

    name: str
    records: int
    dim: int
    delta: float
    evaluations: int
    entrants: dict[str, Entrant]


@dataclass(frozen=True)
class Turned:
    """The plan that blindstep makes by itself, with three of its numbers turned.

    Attributes:
        reach: the longest step, in multiples of what it would be.
        clip: of a record's vector, likewise.
        steps: how many of the steps are made.
    """

    reach: float
    clip: float
    steps: float


def most_evaluations(records: int) -> int:
    """Of each record, for everybody: more where there are few, for a run costs as much then."""
    return 2**14 if records <= 10_000 else 2**13


def _network(problem: Problem) -> bool:
    return len(jax.tree.leaves(problem.start(0))) > 1


def _flat(problem: Problem) -> bool:
    """Whether the loss has no slope, so that gradients are those of a surrogate."""
    return problem.loss is not problem.reference_loss


# What each may choose from.


def turned_settings() -> list[Turned]:
    """Around the plan that is made without tuning, which is one of them."""
    return [Turned(*each) for each in itertools.product((0.5, 1.0, 2.0), (1.0, 2.5), (1.0, 0.4))]


def aggregated_settings(problem: Problem, most: int) -> list[Setting]:
    """16 or 64 directions; the joint clip of K differences grows as sqrt(K), as their norm does.

    A 0/1 loss does not change when parameters are scaled, so it is looked at from as far as one likes.
    """
    h, pairs = 1e-3, [(30, 1.0), (120, 1.0), (400, 1.0), (400, 0.3), (1200, 0.3), (4000, 0.3)]
    if _flat(problem):
        h = 1.0
        pairs = [(1e3, 0.3), (4e3, 0.3), (1.2e4, 0.3), (4e4, 0.3), (4e3, 0.1), (1.2e4, 0.1)]
    layouts = [(k, most // (2 * k)) for k in (16, 64)]
    return [
        Setting(passes, 1, clip * math.sqrt(k), length / passes, k, h)
        for (k, passes), (length, clip) in itertools.product(layouts, pairs)
    ]


def one_direction_settings(problem: Problem, most: int) -> list[Setting]:
    """All evaluations or a quarter. Of a 0/1 loss differences are -1/2, 0 or 1/2: one clip."""
    h, pairs = 1e-3, [(30, 1.0), (100, 1.0), (300, 1.0), (1000, 1.0), (100, 3.0), (300, 3.0)]
    if _flat(problem):
        h, pairs = 1.0, [(length, 0.5) for length in (3e2, 1e3, 3e3, 1e4, 3e4, 1e5)]
    return [
        Setting(passes, 1, clip, length / passes, 1, h)
        for passes, (length, clip) in itertools.product((most // 2, most // 8), pairs)
    ]


def free_settings() -> list[Setting]:
    """Adam on gradients."""
    rates = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    return [
        Setting(passes, 40, math.inf, rate, adam=True)
        for passes, rate in itertools.product((40, 10), rates)
    ]


# How each is run.


def turned_plan(
    problem: Problem,
    records: int,
    privacy: bs.Privacy,
    setting: Turned,
    most: int,
) -> bs.Plan:
    """The plan of a setting: blindstep's own on gradients, turned."""
    sizes: dict[str, Any] = {
        "records": records,
        "dim": problem.dim,
        "leaves": ParameterSpace.of(problem.start(0)).sizes,
        "privacy": privacy,
    }
    method = bs.Auto(evaluations=most * records, estimate="gradient")
    plan = bs.plan(method, **sizes)
    if setting.steps < 1:
        passes = plan.schedule.releases * plan.first_batch / records
        method = dataclasses.replace(method, passes=max(1, round(setting.steps * passes)))
        plan = bs.plan(method, **sizes)
    clip = setting.clip * plan.bounds.clip
    reach = setting.reach * plan.reach
    return dataclasses.replace(
        plan,
        reach=reach,
        radius=plan.smoothing + plan.horizon * reach,
        bounds=bs.Bounds(clip=clip),
    )


def outcome(result: bs.Result) -> Outcome:
    """The path of a run of blindstep: the means of its rounds. Looks count from the start."""
    plan, rounds = result.plan, np.arange(1, len(result.means) + 1)
    asked, calibrations = plan.calibration, 0
    if asked is not None:
        calibrations = asked.number * asked.batch * plan.calibration_query.evaluations
    made = calibrations + (plan.evaluations - calibrations) * rounds / len(rounds)
    return Outcome(result.params, result.means, made / plan.records)


def points_of(problem: Problem, params: Any, records: Records) -> float:
    """The problem's score; parameters that are not finite score as those of the start."""
    finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))
    return problem.score(params if finite else problem.start(0), records)


def places(number: int) -> list[int]:
    """At most 16 of so many points of a path, equally far apart, the last among them."""
    few = min(number, _PLACES)
    return [math.ceil((k + 1) * number / few) - 1 for k in range(few)]


Run = Callable[[Records, bs.Privacy | None, Any, int], Outcome]


def contest(problem: Problem) -> Contest:
    """All methods on a problem with data."""
    differentiable = dataclasses.replace(problem, loss=problem.reference_loss)
    split, records = problem.split, count_records(problem.split.train)
    most = most_evaluations(records)

    def entrant(settings: Sequence[Any], run: Run, private: bool = True) -> Entrant:
        def points(setting: Any, privacy: bs.Privacy | None, seed: int, trial: bool) -> Scored:
            found = run(split.fit if trial else split.train, privacy, setting, seed)
            judged = split.validation if trial else split.test
            return Scored(points_of(problem, found.params, judged), float(found.evaluations[-1]))

        def path(setting: Any, privacy: bs.Privacy | None, seed: int) -> Path:
            found = run(split.fit, privacy, setting, seed)
            space, at = ParameterSpace.of(problem.start(0)), places(len(found.path))
            seen = [problem.start(seed), *(space.unflatten(found.path[k]) for k in at)]
            made = [0.0, *(float(found.evaluations[k]) for k in at)]
            return made, [points_of(problem, params, split.validation) for params in seen]

        return Entrant(settings, points, path, private)

    def baseline(of: Problem) -> Run:
        return lambda records, privacy, setting, seed: baselines.run(
            of, records, privacy, setting, seed
        )

    def untuned(of: Problem, estimate: EstimateKind) -> Run:
        def run(records: Records, privacy: bs.Privacy | None, _: Any, seed: int) -> Outcome:
            cap = most * count_records(records)
            method = bs.Auto(evaluations=cap, estimate=estimate)
            return outcome(bs.minimize(of.loss, of.start(seed), records, privacy, method=method))

        return run

    def turned(records: Records, privacy: bs.Privacy | None, setting: Any, seed: int) -> Outcome:
        assert privacy is not None
        plan = turned_plan(problem, count_records(records), privacy, setting, most)
        return outcome(
            bs.minimize(problem.reference_loss, problem.start(seed), records, method=plan)
        )

    def library(setting: Any, privacy: bs.Privacy | None, seed: int, trial: bool) -> Scored:
        judged = split.validation if trial else split.test
        given = split.fit if trial else split.train
        return Scored(others.diffprivlib_points(problem, given, privacy, judged, seed), math.nan)

    entrants = {
        BLINDSTEP: entrant([None], untuned(problem, "values")),
        GRADIENTS: entrant([None], untuned(differentiable, "gradient")),
        OPACUS: entrant([None], functools.partial(others.opacus, problem)),
        DIFFPRIVLIB: Entrant([None], library, lambda *_: ([], [])),
        AGGREGATED: entrant(aggregated_settings(problem, most), baseline(problem)),
        ONE_DIRECTION: entrant(one_direction_settings(problem, most), baseline(problem)),
        FIRST_ORDER: entrant(turned_settings(), turned),
        FREE: entrant(free_settings(), baseline(differentiable), private=False),
    }
    if problem.name in UNTUNED:
        entrants = {name: entrants[name] for name in (*NOTHING_TUNED, FREE)}
    if not others.has_diffprivlib(problem):
        del entrants[DIFFPRIVLIB]
    delta = problems.delta_for(records)
    return Contest(problem.name, records, problem.dim, delta, most, entrants)
