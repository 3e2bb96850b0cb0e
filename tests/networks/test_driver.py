"""The network driver against the compiled one, after crashes, over processes, and under audit."""

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import blindstep as bs
import blindstep.torch as tuning
from blindstep.errors import InvalidArgument
from blindstep.estimate.directions import Signs
from blindstep.insight.report import report_run_directory
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses.pytrees import ParameterSpace
from blindstep.optimize.learners import Choice, Learner
from blindstep.run.calibration import calibrate_on_answers
from blindstep.run.compiled import prepare, run_part
from blindstep.torch.replay import Replay
from small_networks import (
    DIM,
    METHOD,
    NUMBER,
    PRIVACY,
    ROWS,
    Line,
    bits,
    same,
    transformer,
    tune,
    uncompared,
)

HERE = Path(__file__).parent


def line_loss(model, batch):
    return model(batch["x"])


def nothing():
    """The fingerprints of a session that is about nothing."""
    return Fingerprints("", "", "", "")


def in_jax(point, row):
    return jnp.log1p((row @ point - 1.0) ** 2)


def _round(machine, *run):
    """A whole round of the compiled driver."""
    memory, state, info = run_part(machine, *run, machine.horizon, None)
    state, mean = machine.end_round(state)
    return memory, (state, mean, info)


class HeavyBall(Learner):
    """Momentum, as somebody might write it: nine tenths of the last move go on."""

    name = "heavy ball of a test"
    persists_across_rounds = True
    rest: float = 0.9

    def update(self, state, seen, pace):
        norm = jnp.sqrt(seen.gradient_square)
        length = (1.0 - self.rest) * pace.reach * jnp.maximum(1.0 - state / pace.steps, 0.0)
        return Choice(state + 1.0, self.rest, -jnp.where(norm > 0, length / norm, 0.0))

    def place(self, uniform):
        return 1.0


class Halfway(HeavyBall):
    """The same, afresh in each round, forgetting a move that climbs; gradients are from midway."""

    name = "halfway of a test"
    persists_across_rounds = False

    def update(self, state, seen, pace):
        choice = super().update(state, seen, pace)
        rest = self.rest * jnp.where(seen.product > 0, 0.25, 1.0)
        far = jnp.sqrt(seen.move_square) > 0.5 * pace.reach
        return choice._replace(keep=rest * jnp.where(far, 0.5, 1.0))

    def place(self, uniform):
        return 0.5


with_memory = pytest.mark.parametrize("learner", [HeavyBall(), Halfway()], ids=lambda it: it.name)


def planned(method):
    """A plan that goes wherever it leads: in noise, a comparison would go back to the start."""
    return uncompared(Line(), NUMBER, PRIVACY, method)


def plan_of(learner):
    """Rounds of several steps, so that there is something to remember."""
    return planned(bs.Auto(evaluations=20_000, directions=4, learner=learner))


@with_memory
def test_the_compiled_driver_agrees_on_learners_with_memory(learner):
    made = plan_of(learner)
    assert made.horizon > 2
    check_agreement(made)


def test_the_compiled_driver_agrees_on_the_same_directions():
    check_agreement(planned(bs.Auto(evaluations=6000, directions=8)))


def secret_plan():
    """Secret batches of five records on the mean, one of eight in a pass."""
    made = planned(bs.Auto(evaluations=6000, directions=8))
    return dataclasses.replace(made, secret=True, first_batch=5, diff_batch=5)


@pytest.mark.slow
def test_the_compiled_driver_agrees_on_secret_batches():
    made = secret_plan()
    assert made.schedule.secret
    assert made.schedule.blocks_per_pass == 8
    check_agreement(made)


@pytest.mark.slow
def test_a_run_with_secret_batches_that_was_cut_short_goes_on_with_the_same_bits(
    tmp_path, monkeypatch
):
    def tuned(model, **options):
        given = {"method": secret_plan(), "batch": NUMBER, "seed": 5}
        return tuning.minimize(model, line_loss, {"x": ROWS}, **given, **options)

    whole, model = Line(), Line()
    wanted = tuned(whole)
    assert wanted.privacy.secrecy > 0.0
    for number in (2, 9):
        with stopping(monkeypatch, number):
            tuned(model, checkpoint=tmp_path / "run")
    found = tuned(model, checkpoint=tmp_path / "run")
    assert same(bits(model), bits(whole))
    np.testing.assert_array_equal(found.history.move_norm, wanted.history.move_norm)


def check_agreement(made):
    """The same state machine, noise and signs, with the loss in JAX: the same points to rounding."""
    assert made.sides == 2
    model = Line()
    result = tuning.minimize(model, line_loss, {"x": ROWS}, method=made, batch=NUMBER, seed=5)
    replay = result._road.replay
    lengths = np.repeat(replay.lengths, [5, 7])
    start = np.concatenate([np.full(5, 0.1), np.full(7, -0.2)])

    def natural(point, row):
        return in_jax(start + lengths * point, row) / replay.unit

    machine = made.build(jumps=replay.jumps)
    signs = dataclasses.replace(machine.estimator, sampler=Signs((5, 7)))
    machine = eqx.tree_at(lambda m: m.estimator, machine, signs)
    space = ParameterSpace.of(np.zeros(DIM))
    begun = machine.begin(jnp.zeros(DIM))
    session = Session(made.terms, made.to_dict(), begun, Storage(None, None, None), nothing, seed=5)
    machine, state, means = prepare(machine, space), begun, []
    for _ in range(made.rounds):
        state, mean, told = session.gate.through(
            lambda permit, memory, state=state: _round(
                machine,
                natural,
                space,
                permit,
                memory,
                state,
                jnp.asarray(ROWS),
                session.gate.public,
            ),
            made.horizon,
        )
        means.append(np.asarray(mean))
        session.after(state, session.gate.position, dict)
    wanted = start + lengths * means[result.best_round]
    found = np.concatenate([model.one.detach().numpy(), model.two.detach().numpy()])
    moved = np.linalg.norm(wanted - start)
    # Whole numbers of 24 bits stand for each move, and the point moves in them.
    assert np.linalg.norm(found - wanted) < 1e-4 * moved
    np.testing.assert_allclose(result.history.gradient_norm[-1], told.gradient_norm, rtol=1e-3)


@contextlib.contextmanager
def stopping(monkeypatch, number):
    """The machine is gone when the weights are to move for this time, those of a replay included."""
    original, left = Replay.moves, [number]

    def moves(self, *given):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the machine is gone")
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "moves", moves)
        with pytest.raises(RuntimeError, match="gone"):
            yield


@with_memory
def test_a_learner_with_memory_goes_on_after_crashes_and_comes_back_from_a_file(
    tmp_path, monkeypatch, learner
):
    def tuned(model, **options):
        data, plan = {"x": ROWS}, plan_of(learner)
        return tuning.minimize(model, line_loss, data, method=plan, batch=NUMBER, seed=5, **options)

    whole, model = Line(), Line()
    wanted = tuned(whole)
    assert not same(bits(whole), bits(model))
    horizon = wanted.plan.horizon
    for number in (2, 2 * horizon + 1, 5 * horizon):  # within a round, after one, at the end of one
        with stopping(monkeypatch, number):
            tuned(model, checkpoint=tmp_path / "run")
        assert same(bits(model), bits(Line()))
    found = tuned(model, checkpoint=tmp_path / "run")
    assert same(bits(model), bits(whole))
    np.testing.assert_array_equal(found.history.move_norm, wanted.history.move_norm)
    found.save(tmp_path / "tuned")
    loaded = Line()
    tuning.load(loaded, tmp_path / "tuned")
    assert same(bits(loaded), bits(whole))


def no_loss(model, batch):
    raise AssertionError("nobody should ask")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_that_was_cut_short_goes_on_with_the_same_bits(tmp_path, monkeypatch, dtype):
    whole = transformer(dtype)
    wanted = tune(whole, seed=3)
    model = transformer(dtype)
    with stopping(monkeypatch, 9):
        tune(model, seed=3, checkpoint=tmp_path / "run")
    assert same(bits(model), bits(transformer(dtype)))
    found = tune(model, seed=3, checkpoint=tmp_path / "run")
    assert same(bits(model), bits(whole))
    np.testing.assert_array_equal(found._road.path.releases, wanted._road.path.releases)
    # A finished run comes back without an evaluation.
    again = transformer(dtype)
    tune(again, seed=3, checkpoint=tmp_path / "run", loss=no_loss, rehearse=False)
    assert same(bits(again), bits(whole))


def start_child(*words, **more):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE.parent / "support" / "network_child.py"), *map(str, words)]
    return subprocess.Popen(command, env={**environment, **more})


def test_kill_9_and_go_on_with_the_same_bits(tmp_path):
    assert start_child("alone", tmp_path / "whole.pt", tmp_path / "whole").wait() == 0
    run = tmp_path / "run"
    chance = np.random.default_rng(4)
    for _ in range(2):
        child = start_child("slowly", tmp_path / "killed.pt", run)
        deadline = time.monotonic() + 60
        while not (run / "checkpoint.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(chance.uniform(0.1, 1.5))
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert start_child("alone", tmp_path / "killed.pt", run).wait() == 0
    whole, killed = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "killed"))
    assert same(whole, killed)
    # A user has not chosen 64 bits for JAX, as tests have; releases are of 64 bits all the same.
    with np.load(max(run.glob("state-*.npz"))) as state:
        kinds = {state[name].dtype for name in state.files if "releases" in name}
    assert kinds == {np.dtype(np.float64)}


def test_two_processes_give_what_one_gives(tmp_path):
    assert start_child("alone", tmp_path / "one.pt", "-").wait() == 0
    meeting = f"file://{tmp_path / 'meeting'}"
    pair = [
        start_child("together", tmp_path / f"{rank}.pt", "-", RANK=str(rank), MEETING=meeting)
        for rank in range(2)
    ]
    assert [child.wait(timeout=300) for child in pair] == [0, 0]
    one, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("one", "0", "1"))
    assert same(one, first)
    assert same(one, second)


def test_fewer_answers_than_records_are_refused():
    made = tuning.plan(transformer(), 48, PRIVACY, METHOD)
    begun = jnp.zeros((made.calibrations, made.calibration_query.size))
    session = Session(made.calibration_terms, {}, begun, Storage(None, None, None), nothing)
    release = calibrate_on_answers(
        session,
        made.calibration_query,
        lambda *_: np.zeros((47, made.calibration_query.evaluations)),
    )
    with pytest.raises(InvalidArgument, match="answers for another number of records"):
        release(None, 1.0)


class Lever(torch.nn.Module):
    """One parameter that a canary pulls with all its might."""

    def __init__(self):
        super().__init__()
        self.lever = torch.nn.Parameter(torch.ones(64, dtype=torch.float64))

    def forward(self, rows):
        # Nobody else has a slope. A canary's is beyond every clip, whatever was learned before, and so
        # is its loss.
        return rows[:, 0] * 1e20 * (1e3 + self.lever[:32].sum() - self.lever[32:].sum())


def releases_with(first, seed, monkeypatch):
    """All releases of a run whose first record is `first`, in units of their noise."""
    seen = []
    original = Session.after

    def watched(self, state, position, *others):
        seen.append((np.array(jax.tree.leaves(state)[0])[position - 1], self.gate.terms.noise_std))
        return original(self, state, position, *others)

    rows = np.zeros((30, 1))
    rows[0] = first
    with monkeypatch.context() as patch:
        patch.setattr(Session, "after", watched)
        result = tuning.minimize(
            Lever(),
            lambda model, batch: model(batch["x"]),
            {"x": rows},
            PRIVACY,
            method=bs.Auto(evaluations=8192, secret=False),
            batch=30,
            seed=seed,
            rehearse=False,
        )
    return [release / std for release, std in seen], result


@pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan")
def test_audit_neighbours_are_as_far_apart_as_claimed_and_no_farther(monkeypatch):
    """With the same noise, releases of neighbours differ by what replacing a record does alone.

    The distance over all releases, in standard deviations of the noise, is mu: a canary that pulls
    against one that pulls the other way reaches at least 0.9 of what is claimed, and nothing more.
    """
    (one, result), (other, _) = (releases_with(first, 11, monkeypatch) for first in (1.0, -1.0))
    plan = result.plan
    first, last = plan.calibrations, plan.calibrations + plan.schedule.releases
    assert len(one) == len(other) == last + plan.comparisons
    squares = [float(np.sum((a - b) ** 2)) for a, b in zip(one, other, strict=True)]
    steps = math.sqrt(sum(squares[first:last]))
    assert 0.9 * result.plan.terms.mu() <= steps <= result.plan.terms.mu()
    assert math.sqrt(sum(squares)) <= result.plan.mu * (1 + 1e-9)


def test_a_report_of_the_run_directory_shows_the_run(tmp_path):
    tune(transformer(), checkpoint=tmp_path / "run")
    report_run_directory(tmp_path / "run", tmp_path / "run.html")
    assert "epsilon" in (tmp_path / "run.html").read_text()
