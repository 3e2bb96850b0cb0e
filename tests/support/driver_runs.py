"""One small run by each of the drivers: what the tests of drivers share.

Tests that take this plan and these shapes share compiled programs.
"""

import contextlib
import dataclasses

import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger.ledger import Ledger
from blindstep.ledger.session import Session
from blindstep.ledger.storage import SavingInterval
from blindstep.run import ask_tell, compiled, host
from losses import capped_distance, capped_distance_numpy
from plans import plan_of

DRIVERS = ("compiled", "host", "ask")

# 4 rounds of 4 steps, in two passes over 24 records.
ROUNDS, HORIZON, STEPS = 4, 4, 16
DATA = np.random.default_rng(0).normal(size=(24, 2))
BUDGET = {"privacy": bs.Privacy(mu=1.0), "radius": 0.5}
CHOICES = {
    **BUDGET,
    **{"lipschitz": 1.0, "horizon": HORIZON, "period": HORIZON, "passes": 2, "mechanism": "tree"},
    **{"smoothing": 0.25, "reach": 0.1},
    **{"first_batch": 6, "diff_batch": 2, "directions": 2, "sampler": "haar", "sharing": "record"},
}
PLAN = plan_of(records=24, dim=2, **CHOICES)
# The same in one pass: 8 steps.
SHORT = plan_of(records=24, dim=2, **CHOICES | {"passes": 1})
# Naive, with a frame for a block, whose programs compile in a third of the time.
NAIVE = {
    **BUDGET,
    **{
        "bounds": bs.Bounds(clip=1.0),
        "horizon": 2,
        "period": 1,
        "first_batch": 12,
        "directions": 1,
    },
    **{"sharing": "block", "passes": 2},
}
NAIVE_PLAN = plan_of(records=24, dim=2, **NAIVE)
HOST = {each.name for each in dataclasses.fields(bs.Host)}


def run(
    driver="compiled", directory=None, *, plan=PLAN, data=DATA, start=None, loss=None, **options
):
    """The run by one of the drivers; `loss` is of NumPy, but for the compiled driver.

    Options of `bs.Host` are options, too.
    """
    start = np.zeros(plan.dim) if start is None else start
    options = {"seed": 7, "checkpoint": directory, **options}
    if driver == "compiled":
        return bs.minimize(loss or capped_distance, start, data, method=plan, **options)
    loss = loss or capped_distance_numpy
    if driver == "host":
        how = bs.Host(**{name: options.pop(name) for name in HOST & options.keys()})
        return bs.minimize(loss, start, data, method=plan, evaluate=how, **options)
    with bs.Optimizer(plan, start, cohort="survey", **options) as opt:
        answer_in_parts(opt, loss, data)
        return opt.result()


def answer_in_parts(opt, loss=capped_distance_numpy, data=DATA):
    """Tell what is missing, in two parts for each step."""
    while not opt.done:
        query, left = opt.ask(), opt.unanswered()
        for part in (left[::2], left[1::2]):
            points, records = map(query.parameters, query.points[part]), data[query.record[part]]
            opt.tell(query, [loss(*pair) for pair in zip(points, records, strict=True)], where=part)


def same(one, two):
    """Whether two results are the same, bit for bit."""
    pairs = [(one.means, two.means), (one.params, two.params)]
    pairs += [(one.history.gradient_norm, two.history.gradient_norm)]
    pairs += [(one.history.move_norm, two.history.move_norm)]
    public = (one.privacy, one.random_round) == (two.privacy, two.random_round)
    return public and all(np.array_equal(a, b) for a, b in pairs)


class Killed(Exception):
    """What stands for kill -9 inside one process."""


def events(monkeypatch):
    """A list of (name, steps) that grows with every charge, evaluation and release of any driver."""
    seen = []

    def noted(place, name, steps):
        real = getattr(place, name)

        def call(*arguments, **named):
            seen.append((name, steps(*arguments)))
            return real(*arguments, **named)

        monkeypatch.setattr(place, name, call)

    noted(Ledger, "begin", lambda ledger, run, first, count=1: count)
    noted(host, "tasks_of", lambda *_: 0)
    noted(compiled, "run_part", lambda machine, *rest: rest[-2] * machine.period)
    noted(ask_tell, "step_from_answers", lambda *_: 1)
    return seen


@contextlib.contextmanager
def saving(monkeypatch, always):
    """Checkpoints after every release, or after none but the last."""
    with monkeypatch.context() as patch:
        patch.setattr(SavingInterval, "due", lambda interval: always)
        yield patch


def cut_after(monkeypatch, steps, *arguments, always=True, before_saving=False, **options):
    """Run, and stop as by a crash after so many steps of this session."""
    left, real = [steps], Session.after

    def after(session, state, position, *rest):
        left[0] -= position - session.position
        if left[0] <= 0 and before_saving:
            raise Killed
        saved = real(session, state, position, *rest)
        if left[0] <= 0:
            raise Killed
        return saved

    with saving(monkeypatch, always) as patch:
        patch.setattr(Session, "after", after)
        with pytest.raises(Killed):
            run(*arguments, **options)
