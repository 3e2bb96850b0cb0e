"""Record and replay through the real drivers: nothing public moves when a record does."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses import engines
from blindstep.losses.pytrees import ParameterSpace
from blindstep.private.gate import Memory
from blindstep.private.noise import fresh_keys
from blindstep.private.schedule import Schedule
from blindstep.run import compiled
from dataflow import decisions
from hostile import KINDS, PYTHON_KINDS, HostileLoss, traceable
from losses import capped_distance
from plans import plan_of
from replay import check_tapes, public_outputs, read_tape, steps_with, taped

SEED, REPLACED = 3, 7
KEYS = fresh_keys(SEED)
PUBLIC = KEYS.public
DATA = np.random.default_rng(0).normal(size=10)
CHOICES = {
    **{"privacy": bs.Privacy(mu=1.0), "radius": 0.5, "lipschitz": 1.0, "horizon": 4, "period": 4},
    **{"first_batch": 4, "diff_batch": 2, "directions": 2, "smoothing": 0.25},
}
# Two rounds, in two passes. No other test takes this plan: its programs have a tape.
PLAN = plan_of(records=10, dim=2, **CHOICES, sampler="haar", sharing="record", passes=2)


def by_compiled(loss, data):
    with traceable(loss) as traced:
        # No rehearsal: evaluations are counted, and hostile losses fail for everybody.
        return bs.minimize(traced, np.zeros(2), data, method=PLAN, seed=SEED, rehearse=False)


def by_host(loss, data):
    return bs.minimize(
        loss, np.zeros(2), data, method=PLAN, evaluate=bs.Host(), seed=SEED, rehearse=False
    )


def by_ask_and_tell(loss, data):
    """Answers in parts and backwards; what a person cannot answer is an exception object."""
    opt = bs.Optimizer(PLAN, np.zeros(2), seed=SEED)
    while not opt.done:
        query, answers = opt.ask(), []
        for point, record in zip(query.points, query.record, strict=True):
            try:
                answers.append(loss(point, data[record]))
            except (Exception, SystemExit) as error:
                answers.append(error)
        half = len(query) // 2
        opt.tell(query, answers[half:], where=range(half, len(query)))
        assert opt.ask() is query
        opt.tell(query, answers[:half], where=range(half))
    return opt.result()


DRIVERS = {"compiled": by_compiled, "host": by_host, "ask/tell": by_ask_and_tell}
# An exception in a callback of a compiled program ends it: see test_minimize.
CASES = [("compiled", kind) for kind in KINDS if kind not in PYTHON_KINDS]
CASES += [("host", kind) for kind in KINDS]
CASES += [("ask/tell", kind) for kind in ("huge", "call order", "exception", "whole array")]


def recorded(driver, loss, data, frozen=None):
    with taped(frozen):
        result = DRIVERS[driver](loss, data)
        return public_outputs(result), read_tape()


def record_and_replay(driver, make_loss, replaced=REPLACED, allowed=None):
    neighbour = DATA.copy()
    neighbour[replaced] = -5.0 * np.sign(DATA[replaced])
    one, two = make_loss(), make_loss()
    public, tape = recorded(driver, one, DATA)
    public_again, tape_again = recorded(driver, two, neighbour, tape.released)
    assert public == public_again
    assert np.array_equal(one.points, two.points)
    assert len(one.points) == PLAN.rounds * PLAN.schedule.block_size * 2 * PLAN.directions
    allowed = allowed or steps_with(PLAN, PUBLIC, replaced)
    assert len(allowed) == PLAN.passes == 2
    check_tapes(tape, tape_again, PLAN.terms.sensitivities(), allowed)
    return tape, tape_again


@pytest.mark.parametrize(("driver", "kind"), CASES)
def test_a_replaced_record_moves_its_increments_only(driver, kind, capfd):
    record_and_replay(driver, lambda: HostileLoss(kind))
    assert capfd.readouterr() == ("", "")


def test_an_honest_loss_does_move_them():
    """Otherwise all of the above would hold for a run that looks at nobody."""
    for driver in DRIVERS:
        tape, again = record_and_replay(driver, lambda: HostileLoss("honest"))
        assert not np.array_equal(tape.increments, again.increments)


def test_drivers_see_the_same_points():
    losses = [HostileLoss("nan") for _ in DRIVERS]
    tapes = [recorded(name, loss, DATA)[1] for name, loss in zip(DRIVERS, losses, strict=True)]
    points = [np.sort(np.round(loss.points, 9), axis=0) for loss in losses]
    for seen, tape in zip(points[1:], tapes[1:], strict=True):
        np.testing.assert_allclose(seen, points[0], rtol=0, atol=2e-9)
        np.testing.assert_allclose(tape.increments, tapes[0].increments, rtol=0, atol=1e-11)


# -- the same checks must be able to fail --------------------------------------------------------


def test_a_driver_that_asks_a_failing_record_again_is_caught(monkeypatch):
    real = engines.quietly

    def retry(loss, params, record):
        value = real(loss, params, record)
        return real(loss, params, record) if value is None else value

    monkeypatch.setattr(engines, "quietly", retry)
    with pytest.raises(AssertionError):
        record_and_replay("host", lambda: HostileLoss("exception"))


def test_a_record_in_two_batches_is_caught(monkeypatch):
    real = Schedule.rows

    def overlapping(schedule, order, release):
        found = np.array(real(schedule, order, release))
        if release % schedule.period:
            found[0] = real(schedule, order, release - release % schedule.period)[0]
        return found

    twice = int(PLAN.schedule.rows(PLAN.schedule.order(PUBLIC, KEYS.noise, 0), 0)[0])
    allowed = steps_with(PLAN, PUBLIC, twice)
    monkeypatch.setattr(Schedule, "rows", overlapping)
    with pytest.raises(AssertionError, match="does not hold the record"):
        record_and_replay("ask/tell", lambda: HostileLoss("honest"), twice, allowed)


def test_a_loss_with_a_memory_of_other_records_is_caught():
    """Such a loss is not one of single records: the library cannot help, the check sees it."""

    class Remembering(HostileLoss):
        total = 0.0

        def __call__(self, x, z):
            self.total += z
            return super().__call__(x, self.total)

    with pytest.raises(AssertionError, match="does not hold the record"):
        record_and_replay("ask/tell", lambda: Remembering("honest"))


# -- the compiled program cannot decide by data --------------------------------------------------


class Traced(Exception):
    """The program was traced; it need not be run."""


def program(plan, data):
    """The compiled driver's round as a function of everything private: records and noise key."""
    space = ParameterSpace.of(np.zeros(2))
    machine = compiled.prepare(plan.build(), space)
    session = Session(plan.terms, plan.to_dict(), machine.begin(jnp.zeros(2)), Storage(), dict)

    def trace(permit, memory):
        def one_round(data, key, buffers):
            secrets = replace(permit, key=key), Memory(memory.position, buffers)
            rest = (session.state, data, PUBLIC, machine.horizon // machine.period, None)
            _, *out = compiled.run_part(machine, capped_distance, space, *secrets, *rest)
            return jax.tree.leaves(out)

        raise Traced(jax.make_jaxpr(one_round)(data, permit.key, memory.buffers))

    with pytest.raises(Traced) as traced:
        session.gate.through(trace, machine.horizon)
    return traced.value.args[0]


@pytest.mark.parametrize(
    "chosen",
    [
        {"sampler": "sphere", "sharing": "record"},
        {"sampler": "structured", "sharing": "block"},
        {"estimate": "gradient"},
    ],
    ids=["own", "shared", "gradients"],
)
def test_no_branch_of_the_compiled_program_looks_at_records_or_noise(chosen):
    given = CHOICES | {"rounds": 1} | chosen
    if "estimate" in chosen:
        none = {"lipschitz": None, "directions": None, "smoothing": None}
        given |= none | {"bounds": bs.Bounds(clip=1.0, diff_clip=1.0)}
    plan = plan_of(records=10, dim=2, **given)
    assert decisions(program(plan, np.zeros((10, 2))), [True, True, True]) == []


def test_a_branch_on_data_would_be_found():
    def halting(data, public):
        total = jax.lax.fori_loop(0, 3, lambda _, t: t + data.sum(), 0.0)
        total = jax.lax.scan(lambda t, row: (t + row, t), total, data)[0]
        steps = jax.lax.while_loop(lambda s: s < total, lambda s: s + 1.0, public)
        return jax.lax.cond(jax.jit(lambda s: s > 2)(steps), lambda: 1.0, lambda: 2.0)

    closed = jax.make_jaxpr(halting)(jnp.zeros(3), jnp.zeros(()))
    assert sorted(decisions(closed, [True, False])) == ["cond", "while"]
    assert decisions(closed, [False, True]) == ["while", "cond"]
    assert decisions(closed, [False, False]) == []


def test_the_program_is_the_same_for_every_data_set():
    plan = plan_of(records=10, dim=2, **CHOICES, sampler="haar", sharing="record", rounds=1)
    values = (0.0, np.nan, 1e308)
    texts = {str(program(plan, np.full((10, 2), value))) for value in values}
    assert len(texts) == 1
