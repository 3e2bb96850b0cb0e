"""Record and replay through the real drivers: nothing public moves when a record does."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep import host
from blindstep.drivers import tasks
from blindstep.drivers.callbacks import LossFailed, telling_failures
from blindstep.drivers.compiled import run_epoch
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.trusted.randomness import fresh_keys
from blindstep.trusted.schedule import Schedule
from dataflow import decisions
from hostile import KINDS, PYTHON_KINDS, HostileLoss, traceable
from losses import capped_distance
from replay import (
    check_tapes,
    forget_tape,
    public_outputs,
    read_tape,
    sensitivities,
    steps_with,
    taped,
)

SEED, REPLACED = 3, 7
PUBLIC = fresh_keys(SEED).public
DATA = np.random.default_rng(0).normal(size=20)
PLAN = bs.plan(records=20, dim=2, privacy=bs.Privacy(rho=1.0), radius=0.5, lipschitz=1.0,
               oracle="variance-reduced", horizon=4, period=4, passes=2, epochs=4,
               first_batch=4, diff_batch=2, directions=2, sampler="haar")  # fmt: skip


def compiled(plan, loss, data):
    with traceable(loss) as traced:
        return bs.minimize(traced, np.zeros(2), data, plan=plan, seed=SEED)


def on_host(plan, loss, data):
    return host.minimize(loss, np.zeros(2), data, plan=plan, seed=SEED)


def ask_tell(plan, loss, data):
    """Answers in parts and backwards; what a person cannot answer is an exception object."""
    opt = bs.Optimizer(plan, np.zeros(2), seed=SEED)
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


DRIVERS = {"compiled": compiled, "host": on_host, "ask/tell": ask_tell}
# An exception in a callback of a compiled program ends it: see the test of that.
CASES = [
    (driver, kind)
    for driver, kind in itertools.product(DRIVERS, KINDS)
    if driver != "compiled" or kind not in PYTHON_KINDS
]


def recorded(driver, loss, data, frozen=None):
    result = DRIVERS[driver](taped(PLAN, frozen), loss, data)
    return public_outputs(result), read_tape()


def record_and_replay(driver, make_loss, replaced=REPLACED, allowed=None):
    neighbour = DATA.copy()
    neighbour[replaced] = -5.0 * np.sign(DATA[replaced])
    one, two = make_loss(), make_loss()
    public, tape = recorded(driver, one, DATA)
    public_again, tape_again = recorded(driver, two, neighbour, tape.released)
    assert public == public_again
    assert np.array_equal(one.points, two.points)
    machine = PLAN.build()
    batches = [machine.oracle.schedule.first_batch] + [machine.oracle.schedule.diff_batch] * 3
    assert len(one.points) == 4 * sum(batches) * 2 * PLAN.directions
    allowed = allowed or steps_with(machine, PUBLIC, replaced)
    assert len(allowed) == PLAN.passes
    check_tapes(tape, tape_again, sensitivities(machine), allowed)
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
        np.testing.assert_allclose(tape.increments, tapes[0].increments, rtol=0, atol=1e-12)


def test_an_exception_inside_a_compiled_program_tells_nothing(capfd, caplog):
    with pytest.raises(LossFailed, match=r"nothing of this epoch was released. Use") as failure:
        recorded("compiled", HostileLoss("exception"), DATA)
    assert failure.value.__context__ is None
    assert "secret" not in f"{failure.value}{capfd.readouterr()}{caplog.text}"
    forget_tape()


def test_other_failures_of_a_device_are_told_as_they_are():
    def exhausted():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        telling_failures(exhausted)


# -- the same checks must be able to fail --------------------------------------------------------


def test_a_driver_that_asks_a_failing_record_again_is_caught(monkeypatch):
    real = tasks._quietly

    def retry(loss, params, record):
        value = real(loss, params, record)
        return real(loss, params, record) if value is None else value

    monkeypatch.setattr(tasks, "_quietly", retry)
    with pytest.raises(AssertionError):
        record_and_replay("host", lambda: HostileLoss("exception"))


def test_a_record_in_two_batches_is_caught(monkeypatch):
    real = Schedule.split

    def overlapping(schedule, rows):
        first, diffs = real(schedule, rows)
        diffs = diffs.copy()
        diffs[:, 0] = first[0]
        return first, diffs

    schedule = PLAN.build().oracle.schedule
    twice = int(schedule.rows(schedule.order(PUBLIC, 0), 0)[0])
    allowed = steps_with(PLAN.build(), PUBLIC, twice)
    monkeypatch.setattr(Schedule, "split", overlapping)
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


def program(machine, loss, data, noise):
    """The compiled driver's epoch as a function of everything private: records and noise key."""
    keys, schedule = fresh_keys(SEED), machine.oracle.schedule
    first, diffs = schedule.split(schedule.rows(schedule.order(keys.public, 0), 0))
    space, state = ParameterSpace.of(np.zeros(2)), machine.begin(jnp.zeros(2))

    def epoch(data, noise):
        return run_epoch(
            machine, loss, space, state, data, first[None], diffs[None], keys.public, noise
        )

    return jax.make_jaxpr(epoch)(data, noise)


@pytest.mark.parametrize("sampler", ["sphere", "haar", "structured"])
def test_no_branch_of_the_compiled_program_looks_at_records_or_noise(sampler):
    choices = {"sampler": sampler, "sharing": "record" if sampler == "sphere" else "block"}
    machine = bs.plan(records=20, dim=2, privacy=bs.Privacy(rho=1.0), radius=0.5, lipschitz=1.0,
                      oracle="variance-reduced", horizon=4, period=4, first_batch=4, diff_batch=2,
                      directions=2, **choices).build()  # fmt: skip
    data = np.zeros((20, 2))
    closed = program(machine, capped_distance, data, fresh_keys(SEED).noise)
    assert decisions(closed, [True, True]) == []


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
    machine, noise = PLAN.build(), fresh_keys(SEED).noise
    texts = {str(program(machine, capped_distance, data, noise)) for data in
             (np.zeros((20, 2)), np.full((20, 2), np.nan), np.full((20, 2), 1e308))}  # fmt: skip
    assert len(texts) == 1
