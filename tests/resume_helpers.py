"""A small run, by each of the drivers, that the tests of resuming share."""

import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import compiled, host, optimizer
from blindstep.drivers.session import Session
from blindstep.drivers.storage import SavingInterval
from losses import capped_distance, capped_distance_numpy

DRIVERS = ("compiled", "host", "ask")

DATA = np.random.default_rng(0).normal(size=(96, 2))
HORIZON = 4
CHOICES = {"preset": "tight", "privacy": bs.Privacy(rho=1.0), "radius": 0.5, "lipschitz": 1.0}
CHOICES |= {"oracle": "variance-reduced", "horizon": HORIZON, "period": HORIZON, "passes": 2}
CHOICES |= {"first_batch": 6, "diff_batch": 2, "directions": 2, "sampler": "haar"}


def small_run(
    directory=None, *, driver="compiled", loss=None, data=DATA, start=None, seed=7, **choices
):
    """The run: 16 epochs of 4 steps in two passes."""
    start = np.zeros(2) if start is None else start
    options = {"checkpoint": directory, "seed": seed}
    if driver == "compiled":
        loss = capped_distance if loss is None else loss
        return bs.minimize(loss, start, data, **options, **CHOICES | choices)
    loss = capped_distance_numpy if loss is None else loss
    if driver == "host":
        return bs.host.minimize(loss, start, data, **options, **CHOICES | choices)
    options |= {name: choices.pop(name) for name in ("ledger", "budget") if name in choices}
    plan = bs.plan(records=len(data), dim=2, **CHOICES | choices)
    with bs.Optimizer(plan, start, records="survey", **options) as opt:
        answer_in_parts(opt, loss, data)
        return opt.result()


def answer_in_parts(opt, loss=capped_distance_numpy, data=DATA):
    """Tell what is missing, in two parts for each step."""
    while not opt.done:
        query, left = opt.ask(), opt.unanswered()
        for part in (left[::2], left[1::2]):
            pairs = zip(query.points[part], data[query.record[part]], strict=True)
            opt.tell(query, [loss(x, z) for x, z in pairs], where=part)


def same(one, two):
    """Whether two results are the same, bit for bit (the clock apart)."""
    pairs = [(one.means, two.means), (one.params, two.params), (one.final, two.final)]
    pairs += [(one.last, two.last), (one.history.gradient_norm, two.history.gradient_norm)]
    pairs += [(one.history.move_norm, two.history.move_norm)]
    return one.privacy == two.privacy and all(np.array_equal(a, b) for a, b in pairs)


class Killed(Exception):
    """What stands for kill -9 inside one process."""


def evaluations(monkeypatch):
    """A list that grows whenever anything is evaluated or released, by any driver: what was called."""
    done = []

    def counted(name, real):
        def call(*arguments):
            done.append(name)
            return real(*arguments)

        return call

    for module, name in ((compiled, "run_epoch"), (host, "tasks_of"), (optimizer, "release")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return done


def cut_after(monkeypatch, directory, epochs, *, share, before_saving=False, **changes):
    """Run, and stop as by a crash after so many epochs of this session."""
    left, real = [epochs * changes.get("horizon", HORIZON)], Session.after
    with monkeypatch.context() as patch:
        patch.setattr(SavingInterval, "due", lambda interval: share == 1)

        def after(session, state, position, collect):
            left[0] -= position - session.position
            if left[0] == 0 and before_saving:
                raise Killed
            saved = real(session, state, position, collect)
            if left[0] == 0:
                raise Killed
            return saved

        patch.setattr(Session, "after", after)
        with pytest.raises(Killed):
            small_run(directory, **changes)
