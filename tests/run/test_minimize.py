"""The compiled driver as a user meets it: clear errors, one compilation, bounded memory, no leaks."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses.error_checks import telling_failures
from blindstep.losses.pytrees import ParameterSpace
from blindstep.run import compiled
from driver_runs import BUDGET, CHOICES, DATA, NAIVE, NAIVE_PLAN, PLAN, run, same
from plans import method_of, plan_of

START = np.zeros(2)


def test_it_gets_closer():
    target = np.array([0.3, -0.4])
    people = target + 0.1 * np.random.default_rng(1).normal(size=(24, 2))
    plan = plan_of(records=24, dim=2, **CHOICES | {"privacy": bs.Privacy(mu=8.0)})
    result = run(plan=plan, data=people)
    assert np.linalg.norm(result.params - target) < 0.3
    assert result.privacy.mu <= 8.0


def test_a_second_call_compiles_nothing_whatever_data_start_budget_and_seed():
    traces = []

    def loss(p, z):
        traces.append(1)
        return jnp.sum(jnp.abs(p - z))

    def call(start, data, mu):
        method = method_of(**{name: at for name, at in NAIVE.items() if name != "privacy"})
        bs.minimize(loss, start, data, bs.Privacy(mu=mu), method=method)

    call(START, DATA, 1.0)
    first = len(traces)
    call(START + 1, DATA * 2, 1.0)
    call(START, DATA, 0.3)
    # Shapes alone are checked again, and those twice (for the result's number).
    assert len(traces) <= first + 2


def test_all_steps_of_a_run_are_one_program(monkeypatch):
    """A learner's state has one type in all of them: else the second step has a program of its own."""
    traces, real = [], compiled.run_blocks
    monkeypatch.setattr(compiled, "run_blocks", lambda *run: traces.append(1) or real(*run))
    plan = bs.plan(bs.Auto(passes=8), dim=2, records=24, privacy=bs.Privacy(mu=4.0))
    assert plan.rounds > 1
    run(plan=plan, loss=lambda p, z: jnp.sum(jnp.abs(p - z)))
    assert len(traces) == 1


def test_memory_is_bounded_by_a_chunk():
    records, dim = 100_000, 1000
    plan = plan_of(
        records=records,
        dim=dim,
        **BUDGET,
        method="paper",
        lipschitz=1.0,
        gap=1.0,
        horizon=2,
        first_batch=records - 1,
        diff_batch=1,
        rounds=1,
    )
    space, data = ParameterSpace.of(np.zeros(dim)), jnp.zeros((records, 1))
    machine = compiled.prepare(plan.build(), space)
    session = Session(plan.terms, plan.to_dict(), machine.begin(jnp.zeros(dim)), Storage(), dict)

    def loss(p, z):
        return jnp.abs(jnp.sum(p) - z[0])

    class Measured(Exception):
        pass

    def program(permit, memory):
        lowered = compiled.run_part.lower(
            *(machine, loss, space, permit, memory, session.state, data),
            *(session.gate.public, machine.horizon // machine.period, None),
        )
        raise Measured(lowered.compile().compiled.memory_analysis().temp_size_in_bytes)

    with pytest.raises(Measured) as measured:
        session.gate.through(program, 2)
    # Records x d alone would be 800 MB, records x d x d 800 GB.
    assert measured.value.args[0] < 100e6


def test_neighbours_with_the_same_noise_differ_at_most_by_the_sensitivity():
    """The first release that differs does so by little, and all before it are identical."""
    neighbour = DATA.copy()
    neighbour[13] = 1e9
    one, two = (run(data=data).history.gradient_norm.ravel() for data in (DATA, neighbour))
    change = np.abs(one - two)
    first = int(np.argmax(change > 0))
    assert np.all(change[:first] == 0)
    assert 0 < change[first] <= PLAN.sensitivity * 1.001  # snapping moves it a little more


def test_progress_shows_steps_and_privacy_and_no_loss(capsys):
    run(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"step {PLAN.schedule.releases}/{PLAN.schedule.releases}: epsilon 4.378 of 4.378" in err
    assert "1.5" not in err  # the value of most losses


def test_memory_mapped_records(tmp_path):
    np.save(tmp_path / "records.npy", DATA)
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    assert same(run(data=mapped), run())


# -- a loss that raises inside the program -------------------------------------------------------


def by_callback(p, z):
    def call(value):
        if value > 1.0:
            raise ValueError(f"secret {value}")
        return value

    shape = jax.ShapeDtypeStruct((), z.dtype)
    return p[0] + jax.pure_callback(call, shape, z[0], vmap_method="sequential")


def test_an_exception_inside_a_compiled_program_tells_nothing(capfd, caplog):
    failed = pytest.raises(bs.errors.LossFailed, match=r"nothing of this round was released. Give")
    with failed as failure:
        run(loss=by_callback, plan=NAIVE_PLAN)
    assert failure.value.__context__ is None
    assert "secret" not in f"{failure.value}{capfd.readouterr().out}{caplog.text}"


def test_nor_does_an_error_of_equinox():
    checked = eqx.filter_jit(lambda x: eqx.error_if(x, x > 1.0, "secret"))
    with pytest.raises(bs.errors.LossFailed) as failure:
        telling_failures(lambda: checked(jnp.asarray(2.0)))
    assert failure.value.__context__ is None


def test_other_failures_of_a_device_are_told_as_they_are():
    def exhausted():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        telling_failures(exhausted)


# -- bad input -----------------------------------------------------------------------------------


def branching(p, z):
    return 1.0 if p[0] > z[0] else 0.0


class Frame:
    columns = ("a",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"radius": 0.0}, "radius must be above 0, got 0.0"),
        ({"radius": math.nan}, "radius must be a finite number"),
        ({"lipschitz": -2.0}, "lipschitz must be above 0, got -2.0"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        ({"diff_batch": -3}, "diff_batch"),
        ({"method": "best"}, "method must be a method such as"),
        ({"method": bs.Tight}, "method is the class Tight: make one"),
        ({"evaluate": 2}, r"evaluate must be blindstep\.Host"),
        ({"oracle": "delphi"}, "oracle must be one of"),
        ({"params": jnp.zeros(2, int)}, "params has dtype int.*floating-point"),
        ({"params": jnp.array([0.0, jnp.nan])}, "not finite"),
        ({"params": {}}, "no leaf"),
        ({"params": jnp.zeros((0,))}, "empty"),
        ({"data": np.zeros((0, 2))}, "the data set is empty"),
        (
            {"data": {"a": np.zeros((3, 2)), "b": np.zeros(4)}},
            r"disagree \(data\['a'\]: 3, data\['b'\]: 4\)",
        ),
        ({"data": {}}, "no leaf"),
        ({"data": np.array(3.0)}, "scalar"),
        ({"data": Frame()}, "data is a Frame, not an array: give"),
        ({"loss": lambda p, z: p - z}, r"returned \(2,\), but it must return one number"),
        ({"loss": lambda p, z: (jnp.sum(p), jnp.sum(z))}, "one number"),
        ({"loss": lambda p, z: 1j * jnp.sum(p)}, "real number"),
        ({"loss": branching}, r"cannot trace the loss.*evaluate=blindstep\.Host"),
        ({"privacy": None}, "give privacy"),
    ],
)
def test_bad_input_is_refused_before_any_evaluation(change, says):
    evaluated = []

    def loss(p, z):
        jax.debug.callback(lambda: evaluated.append(1))
        return jnp.sum(jnp.abs(p - z))

    given = {"loss": loss, "params": START, "data": DATA, **CHOICES, **change}
    own = ("loss", "params", "data", "privacy", "method", "evaluate")
    arguments = {name: given.pop(name) for name in own if name in given}
    with pytest.raises(bs.errors.InvalidArgument, match=says):
        bs.minimize(**{"method": bs.Tight(**given), **arguments})
    assert not evaluated
