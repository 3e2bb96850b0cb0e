"""The registry of methods: what `benchmarks.utility` compares. Add a row by adding an entry.

A method has a list of settings for each problem, and a function that trains with one of them. The
baselines' settings are `baselines.Setting`; blindstep's own are keyword arguments of
`blindstep.plan` (presets, oracles, horizons, ...), or anything that can be turned into a plan.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import blindstep as bs
from benchmarks import baselines, grids
from benchmarks.baselines import SAMPLING, Outcome
from benchmarks.calibration import ADD_REMOVE, REPLACE
from benchmarks.data import Records
from benchmarks.problems import Problem
from blindstep.drivers.pytrees import count_records

Run = Callable[[Problem, Records, bs.Privacy, Any, int], Outcome]


@dataclass(frozen=True)
class Method:
    """One row of the results.

    Attributes:
        description: in one line, for the table.
        relation: the neighbouring relation of its epsilon; "none" without privacy.
        settings: what may be chosen for a problem; empty if the method does not apply.
        run: trains on records with one setting and a seed.
    """

    description: str
    relation: str
    settings: Callable[[Problem], list[Any]]
    run: Run


def grid(name: str) -> Callable[[Problem], list[Any]]:
    """The settings of a baseline for each problem."""

    def settings(problem: Problem) -> list[Any]:
        if problem.name == "synthetic":
            return list(grids.synthetic(problem.dim).get(name, []))
        return list(grids.GRIDS[problem.name].get(name, []))

    return settings


def private_baseline(sampling: str) -> Run:
    """A baseline that spends the whole budget."""

    def run(
        problem: Problem, records: Records, privacy: bs.Privacy, setting: Any, seed: int
    ) -> Outcome:
        return baselines.run(problem, records, privacy, setting, seed, sampling)

    return run


def free_baseline(
    problem: Problem, records: Records, privacy: bs.Privacy, setting: Any, seed: int
) -> Outcome:
    """A reference without privacy; a gradient is that of the reference loss."""
    if setting.directions == 0:
        problem = dataclasses.replace(problem, loss=problem.reference_loss)
    return baselines.run(problem, records, None, setting, seed)


def run_plan(problem: Problem, records: Records, plan: bs.Plan, seed: int) -> Outcome:
    """blindstep itself, by a ready plan. The answer is the last round's mean."""
    began = time.perf_counter()
    result = bs.minimize(problem.loss, problem.start(seed), records, plan=plan, seed=seed)
    return Outcome(
        params=result.params,
        path=result.means,
        noise_std=plan.noise_std,
        relation=REPLACE,
        evaluations=plan.evaluations,
        seconds=time.perf_counter() - began,
    )


def planned(
    problem: Problem, records: Records, privacy: bs.Privacy, choices: Any, seed: int
) -> Outcome:
    """blindstep itself; `choices` are keyword arguments of `blindstep.plan`."""
    plan = bs.plan(
        records=count_records(records),
        dim=problem.dim,
        privacy=privacy,
        bounds=problem.bounds,
        lipschitz=problem.lipschitz,
        gap=problem.gap,
        **choices,
    )
    return run_plan(problem, records, plan, seed)


def paper_settings(oracle: str, problem: Problem) -> list[Any]:
    """The paper's parameters: horizons fixed, since at these sizes its theorem promises nothing.

    Smoothing, radius and reach x horizon are tied in this preset. On the synthetic problem the
    radius is given and the horizon is chosen. On the others there is nothing to choose between: the
    noise drowns everything, so one setting stands for all.
    """
    given = {"preset": "paper", "oracle": oracle}
    if problem.name == "synthetic":
        # At d = 10 horizon 256 won from 30,000 records on; larger problems take that one.
        horizons = (16, 4, 64, 256) if problem.dim <= 10 else (256,)
        return [{**given, "radius": 0.1, "horizon": horizon} for horizon in horizons]
    return [{**given, "radius": 4.0, "horizon": 20}]


def tight_planned(
    problem: Problem, records: Records, privacy: bs.Privacy, choices: Any, seed: int
) -> Outcome:
    """Preset tight: by the explicit bound where L is known, else by a clip norm (`grids.tight`)."""
    if "clip" not in choices:
        return planned(problem, records, privacy, choices, seed)
    fixed = {**choices, "first_batch": count_records(records) // choices["batches"]}
    del fixed["batches"]
    plan = bs.plan(
        records=count_records(records),
        dim=problem.dim,
        privacy=privacy,
        bounds=bs.Clip(fixed.pop("clip")),
        radius=fixed.get("smoothing", 0.0) + fixed["horizon"] * fixed["reach"],
        **fixed,
    )
    return run_plan(problem, records, plan, seed)


METHODS: dict[str, Method] = {
    "tight": Method("blindstep, preset tight", REPLACE, grids.tight, tight_planned),
    "tight, 20 passes": Method(
        "the same, 20 passes", REPLACE, grids.tight_20_passes, tight_planned
    ),
    "first-order": Method(
        "preset tight on gradients", REPLACE, grids.gradients, tight_planned
    ),
    "first-order, 20 passes": Method(
        "the same, 20 passes", REPLACE,
        functools.partial(grids.gradients, of_values=grids.tight_20_passes), tight_planned,
    ),
    "first-order, Poisson": Method(
        "DP-SGD, Poisson batches, same relation", REPLACE, grid("first-order, Poisson"),
        private_baseline(SAMPLING[1]),
    ),
    "first-order, Poisson, add or remove": Method(
        "DP-SGD as usually quoted: a weaker promise", ADD_REMOVE, grid("first-order, Poisson"),
        private_baseline(SAMPLING[2]),
    ),
    "DPZero": Method(
        "one direction, scalar clipped", REPLACE, grid("DPZero"), private_baseline(SAMPLING[0])
    ),
    "DPZero, 20 passes": Method(
        "the same, 20 passes",
        REPLACE,
        grid("DPZero, 20 passes"),
        private_baseline(SAMPLING[0]),
    ),
    "DP-AggZO": Method(
        "K directions, K-vector clipped", REPLACE, grid("DP-AggZO"), private_baseline(SAMPLING[0])
    ),
    "DP-AggZO, 20 passes": Method(
        "the same, 20 passes",
        REPLACE,
        grid("DP-AggZO, 20 passes"),
        private_baseline(SAMPLING[0]),
    ),
    "paper": Method(
        "blindstep, preset paper", REPLACE,
        functools.partial(paper_settings, "variance-reduced"), planned,
    ),
    "naive": Method(
        "blindstep, preset paper, naive oracle", REPLACE,
        functools.partial(paper_settings, "naive"), planned,
    ),
    "Adam": Method("no privacy, gradients", "none", grid("Adam"), free_baseline),
    "zeroth-order": Method(
        "no privacy, function values", "none", grid("zeroth-order"), free_baseline
    ),
}  # fmt: skip
