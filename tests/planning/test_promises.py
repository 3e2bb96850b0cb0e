"""What a plan certifies, put to the test: runs on problems that are built to make the promise fail.

The loss is L |<a, x> - z|, so that F is a piecewise linear function of <a, x> and its Goldstein norm
has an exact formula. A run gives the mean of that norm over its rounds, which is its mean over the
choice of a random round. The promise is about the mean over runs (and, for the population, over draws
of the records): it must lie below the tolerance at 99% confidence.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import t as student

import blindstep as bs
from blindstep.planning.method import Problem
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan as make_plan
from blindstep.planning.search import Search
from blindstep.planning.statement import statement
from blindstep.planning.tight import Tight
from plans import plan_of

POPULATION, RECORDS = "the population", "the mean over the records"
RUNS = 4


@dataclass(frozen=True)
class Line:
    """F(x) = L mean |<a, x> - z| for z at these places, in these shares."""

    lipschitz: float
    places: np.ndarray
    shares: np.ndarray

    def norms(self, along, radius):
        """Goldstein norms where <a, x> is `along`: slopes rise, so the ends of the ball decide."""
        left = (self.places <= along[:, None] - radius) @ self.shares
        right = (self.places < along[:, None] + radius) @ self.shares
        return self.lipschitz * np.maximum(0.0, np.maximum(2 * left - 1, 1 - 2 * right))

    def drop(self):
        """F(0) - inf F: the infimum is at a kink."""
        values = np.abs(self.places[:, None] - np.append(self.places, 0.0)).T @ self.shares
        return self.lipschitz * (values[-1] - values.min())


def far(plan):
    """The minimum is as far away as the gap allows: the slope is L all the way."""
    return Line(plan.lipschitz, np.array([plan.gap / plan.lipschitz]), np.ones(1))


def leaning(plan):
    """A long way down a slope that is hardly more than the tolerance, on which records disagree."""
    lean = min(0.9, 1.5 * plan.tolerance / plan.lipschitz)
    up = (1 + lean) / 2
    if plan.certifies == RECORDS:
        up = math.ceil(up * plan.records) / plan.records
    end = plan.gap / ((2 * up - 1) * plan.lipschitz)
    return Line(plan.lipschitz, np.array([-end, end]), np.array([1 - up, up]))


def drawn(line, plan, rng):
    """Records: draws from the population, or as many of each place as its share says."""
    if plan.certifies == POPULATION:
        return rng.choice(line.places, plan.records, p=line.shares)
    counts = np.rint(line.shares * plan.records).astype(int)
    return np.repeat(line.places, counts)


class Runs:
    """Runs of one plan, on any records; the same program for all."""

    def __init__(self, plan, rng):
        direction = rng.standard_normal(plan.dim)
        self.plan, self._direction = plan, direction / np.linalg.norm(direction)
        slope, towards = plan.lipschitz, jnp.asarray(self._direction)
        self._loss = lambda x, z: slope * jnp.abs(jnp.vdot(towards, x) - z)

    def along(self, records, seed):
        """<a, x> at the means of all rounds of a run."""
        start = np.zeros(self.plan.dim)
        made = bs.minimize(self._loss, start, records, method=self.plan, seed=seed)
        return made.means @ self._direction

    def mean_norm(self, line, records, seed):
        """The mean over the rounds of one run of the norm of their means."""
        return line.norms(self.along(records, seed), self.plan.radius).mean()


def sure(values):
    """How far the mean of these may be off, at 99% confidence to each side."""
    return student.ppf(0.99, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))


def check(plan, seed):
    """The promise of a plan holds on both problems; gives the largest mean norm / tolerance."""
    assert plan.certifies in (POPULATION, RECORDS)
    assert plan.tolerance < plan.lipschitz
    rng, ratios = np.random.default_rng(seed), []
    runs = Runs(plan, rng)
    for line, number in ((far(plan), RUNS - 1), (leaning(plan), RUNS)):
        assert line.drop() <= plan.gap * (1 + 1e-9)
        values = [runs.mean_norm(line, drawn(line, plan, rng), s) for s in range(number)]
        assert np.mean(values) + sure(values) < plan.tolerance
        ratios.append(np.mean(values) / plan.tolerance)
    return max(ratios)


def random_plan(number):
    """The plan of a random request that promises something: every method, one pass and several."""
    rng = np.random.default_rng(number)
    preset = ("tight", "klt", "tight", "paper")[number // 2 % 4]
    several = number % 2 == 1 and preset != "paper"
    other = {"mechanism": "independent"} if several else {"oracle": "variance-reduced"}
    fixed = [{}, {"sharing": "block"}, {"sampler": "sphere"}, other]
    while True:
        lipschitz, radius = 10 ** rng.uniform(-0.5, 0.5, 2)
        asked = {
            "method": preset,
            "dim": int(rng.integers(1, 4)),
            "records": int(10 ** (rng.uniform(1.2, 1.8) if several else rng.uniform(4.0, 4.6))),
            "privacy": bs.Privacy(mu=float(rng.uniform(4, 10))),
            "radius": radius,
            "lipschitz": lipschitz,
            "gap": lipschitz * radius * 1.2 ** rng.uniform(1, 10),
        }
        if several:
            asked["passes"] = int(10 ** rng.uniform(2.3, 2.9))
        if preset == "tight":
            asked |= fixed[(number // 8 + number // 4) % 4]
        if preset == "paper" and number % 2 == 1:
            asked["oracle"] = "naive"
        try:
            made = plan_of(**asked)
        except bs.errors.VacuousPlan:
            continue
        if not made.vacuous:
            return made


@pytest.mark.parametrize(
    ("whose", "records", "passes"), [(POPULATION, 2500, 1), (RECORDS, 12, 150)]
)
def test_small_promises_hold(whose, records, passes):
    given = {"dim": 1, "radius": 1.0, "lipschitz": 1.0, "gap": 2.0, "oracle": "naive"}
    plan = plan_of(**given, records=records, passes=passes, privacy=bs.Privacy(mu=10.0))
    assert plan.certifies == whose
    assert check(plan, records) < 1


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_forty_promises_hold(number):
    assert check(random_plan(number), number) < 1


# -- promises that are too good must be caught ------------------------------------------------


@pytest.mark.slow
def test_two_thirds_of_a_tolerance_are_refuted():
    # Twenty radii to go in forty rounds, at full slope: most of the bound is used up.
    given = {"dim": 1, "records": 12_000, "rounds": 40, "horizon": 300, "radius": 1.0, "period": 1}
    plan = plan_of(**given, lipschitz=1.0, gap=20.0, privacy=bs.Privacy(mu=10.0))
    rng, line = np.random.default_rng(0), far(plan)
    runs = Runs(plan, rng)
    values = [runs.mean_norm(line, drawn(line, plan, rng), seed) for seed in range(2)]
    assert 2 / 3 * plan.tolerance < np.mean(values) - sure(values)
    assert np.mean(values) + sure(values) < plan.tolerance


@pytest.mark.slow
def test_what_holds_for_the_records_is_refuted_for_the_population(monkeypatch):
    """REVIEW 6.1: hardly any noise, few records, many passes. The mean over them says too little."""
    # An epsilon of 500,000 cannot be stated: another statement takes its place.
    other = make_plan(
        Tight(radius=0.5, bounds=bs.Bounds(clip=1.0), horizon=1),
        dim=1,
        records=2,
        privacy=bs.Privacy(mu=1.0),
    )
    stated = statement(other.terms, 1e-5, seeded=True)
    monkeypatch.setattr(Plan, "statement", lambda *_, **__: stated)
    given = Tight(0.5, lipschitz=1.0, gap=1.0, passes=5000)
    search = Search(given, Problem(1, 2, bs.Privacy(mu=1e3)))
    plan = search.plan_at(search.best())
    assert plan.certifies == RECORDS
    rng, lean = np.random.default_rng(0), 0.5
    population = Line(1.0, np.array([-1.0, 1.0]), np.array([1 - lean, 1 + lean]) / 2)
    runs, mean, off = Runs(plan, rng), 0.0, 0.0
    for ups, chance in ((0, 1 / 16), (1, 6 / 16), (2, 9 / 16)):  # of two records
        mine = Line(1.0, population.places, np.array([2 - ups, ups]) / 2)
        assert mine.drop() <= plan.gap
        ends = [runs.along(drawn(mine, plan, rng), seed) for seed in range(2)]
        held, broken = (
            [line.norms(end, plan.radius).mean() for end in ends] for line in (mine, population)
        )
        assert np.mean(held) + sure(held) < plan.tolerance
        mean, off = mean + chance * np.mean(broken), off + chance * sure(broken)
    assert mean - off > plan.tolerance
