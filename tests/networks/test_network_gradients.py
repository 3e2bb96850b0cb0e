"""Runs on gradients: the same run as JAX's, record by record, after crashes, and under audit."""

import copy
import dataclasses
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import blindstep as bs
import blindstep.torch as tuning
from blindstep.errors import CheckpointMismatch, HopelessPlan, InvalidArgument
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses.pytrees import ParameterSpace
from blindstep.private.gate import Permit
from blindstep.run.compiled import prepare, run_part
from blindstep.run.outcome import Kind
from blindstep.torch import run as torch_run
from blindstep.torch.first_order import Points
from blindstep.torch.gradients import Differentiator
from blindstep.torch.group import ModelGroup
from blindstep.torch.records import Records
from blindstep.torch.weights import Weights
from small_networks import (
    DIM,
    NUMBER,
    PRIVACY,
    ROWS,
    Line,
    bits,
    loss,
    same,
    texts,
    transformer,
    tune,
    uncompared,
)

# Few records, so that runs are short.
pytestmark = pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan")
METHOD = bs.Auto(evaluations=8192, passes=20, estimate="gradient")
FLAT, SEQUENCES, PICTURES = torch.randn(3, 8), torch.randn(3, 5, 8), torch.randn(3, 2, 6, 6)
MODULES = {
    "linear": (torch.nn.Linear(8, 4), FLAT),
    "convolution": (torch.nn.Conv2d(2, 3, 3), PICTURES),
    "batch norm": (torch.nn.BatchNorm2d(2), PICTURES),
    "embedding": (torch.nn.Embedding(9, 4), torch.tensor([[1, 2], [8, 0], [3, 3]])),
    "lstm": (torch.nn.LSTM(8, 4, 2, batch_first=True), SEQUENCES),
    "gru": (torch.nn.GRU(8, 4, bidirectional=True, batch_first=True), SEQUENCES),
    "encoder": (torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SEQUENCES),
}


def squares(model, batch):
    made = model(batch["x"])
    made = made[0] if isinstance(made, tuple) else made
    return made.flatten(1).square().sum(1)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", MODULES)
def test_each_record_has_the_gradient_that_it_has_alone(name):
    module, given = copy.deepcopy(MODULES[name])
    module.eval()
    found = Differentiator(Weights(module), squares, Records({"x": given}), 2)
    rows = [found.gradients(np.array(some)) for some in ([0, 1], [2])]
    for row, made in enumerate(np.concatenate(rows)):
        module.zero_grad()
        value = squares(module, {"x": given[row : row + 1]}).sum()
        value.backward()
        value = value.detach()
        wanted = torch.cat([each.grad.flatten() for each in module.parameters()]).numpy()
        assert made[0] == pytest.approx(float(value), rel=1e-5)
        np.testing.assert_allclose(made[1:], wanted, atol=1e-5 * np.abs(wanted).max())


class Odd(torch.autograd.Function):
    """An operation that PyTorch cannot do for many records at once."""

    @staticmethod
    def forward(ctx, x):
        return 3.0 * x

    @staticmethod
    def backward(ctx, back):
        return 3.0 * back


def test_what_cannot_go_together_goes_one_by_one():
    def odd(model, batch):
        return Odd.apply(squares(model, batch))

    records = Records({"x": FLAT})
    model = torch.nn.Linear(8, 4)
    together, alone = (Differentiator(Weights(model), of, records, 3) for of in (squares, odd))
    assert together.together
    assert not alone.together
    rows = np.arange(3)
    np.testing.assert_allclose(alone.gradients(rows), 3.0 * together.gradients(rows), rtol=1e-5)


def test_a_record_that_fails_is_none_and_touches_nobody():
    data = texts(6)
    model = transformer().eval()
    wanted = Differentiator(Weights(model), loss, Records(data), 4).gradients(np.arange(4))
    data["label"][2] = 99  # raises: there are not so many classes
    found = Differentiator(Weights(model), loss, Records(data), 4).gradients(np.arange(4))
    assert np.all(np.isnan(found[2]))
    others = [0, 1, 3]
    np.testing.assert_array_equal(found[others], wanted[others])


def test_a_record_without_a_finite_gradient_counts_0():
    def nowhere(model, batch):  # a root of 0 has no finite slope
        first, nothing = batch["label"] == 0, 0.0 * model(batch["text"])[:, 0]
        return loss(model, batch) + torch.where(first, nothing, 1.0).sqrt() - ~first * 1.0

    def flat(model, batch):
        found = loss(model, batch)
        return torch.where(batch["label"] == 0, found.detach(), found)

    # Without the share for the loss: 0 in all coordinates, or in those of the slopes, is the same.
    plan = dataclasses.replace(uncompared(transformer(), 48, PRIVACY, METHOD), curve=0.0)
    model, void = transformer(), transformer()
    tune(model, loss=nowhere, method=plan)
    tune(void, loss=flat, method=plan)
    one, two, start = (Weights(each).copies() for each in (model, void, transformer()))
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(one, two, strict=True))
    assert not all(torch.allclose(*pair, atol=1e-2) for pair in zip(one, start, strict=True))


def test_a_person_has_the_mean_gradient_of_the_rows_that_count():
    data, who = {"x": torch.randn(5, 8)}, np.array([7, 7, 8, 9, 9])
    model = torch.nn.Linear(8, 4)
    people = Records(data, None, bs.People(who, rows=2))
    rows = Differentiator(Weights(model), squares, Records(data), 5).gradients(np.arange(5))
    found = Differentiator(Weights(model), squares, people, 3).gradients(np.arange(3))
    means = [rows[who == person].mean(0) for person in (7, 8, 9)]
    np.testing.assert_allclose(
        np.sort(found[:, 0]), np.sort([each[0] for each in means]), rtol=1e-5
    )
    np.testing.assert_allclose(found.sum(0), np.sum(means, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("secret", [False, True])
def test_the_compiled_driver_agrees(secret, monkeypatch):
    """The same machine, gate and noise, with the loss in JAX: the same points to rounding."""
    method = bs.Auto(evaluations=20_000, passes=10, estimate="gradient", secret=secret)
    made = tuning.plan(Line(), NUMBER, PRIVACY, method)
    assert made.secret is secret
    kept, stepping = [], torch_run.stepping
    monkeypatch.setattr(
        torch_run, "stepping", lambda *given: kept.append(given) or stepping(*given)
    )
    result = tuning.minimize(
        Line(), lambda m, b: m(b["x"]), {"x": ROWS}, method=made, batch=7, seed=5
    )
    road, start = result._road, np.concatenate([np.full(5, 0.1), np.full(7, -0.2)])
    # Of a record's loss and slopes the gate sees a multiple each, which calibrations found.
    ((_, vectors),) = kept
    unit, slope = vectors.unit, vectors.slope

    def natural(point, row):
        value = jnp.log1p((row @ (start + road.length * point) - 1.0) ** 2)
        slopes = value / (road.length * slope)
        return slopes + jax.lax.stop_gradient(value / unit - slopes)

    machine = made.build()
    space = ParameterSpace.of(np.zeros(DIM))
    begun = machine.begin(jnp.zeros(DIM))
    about = (made.terms, made.to_dict(), begun, Storage(None, None, None))
    session = Session(*about, lambda: Fingerprints("", "", "", ""), seed=5)
    machine, state, means = prepare(machine, space), begun, []
    for _ in range(made.rounds):

        def program(permit, memory, state=state):
            given = (natural, space, permit, memory, state, jnp.asarray(ROWS), session.gate.public)
            memory, state, _ = run_part(machine, *given, machine.horizon, None)
            return memory, machine.end_round(state)

        state, mean = session.gate.through(program, made.horizon)
        means.append(np.asarray(mean))
        session.after(state, session.gate.position, dict)
    np.testing.assert_allclose(road.means, means, atol=1e-9)


def cut_short(monkeypatch, owner, name, number, **options):
    original, left = getattr(owner, name), [number]

    def stops(self, *given):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the machine is gone")
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stops)
        with pytest.raises(RuntimeError, match="gone"):
            tune(transformer(), method=METHOD, **options)


def test_a_run_goes_on_with_the_same_bits_and_with_no_other_loss(tmp_path, monkeypatch):
    whole, model = transformer(), transformer()
    wanted = tune(whole, method=METHOD, seed=3)
    assert wanted.plan.horizon * wanted.plan.rounds > 9
    # In the second step and a later one; then within the comparison.
    for owner, name, number in (
        (ModelGroup, "place", 2),
        (ModelGroup, "gradients", 9),
        (Points, "to", 5),
    ):
        cut_short(monkeypatch, owner, name, number, seed=3, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointMismatch, match="another loss"):
        tune(
            transformer(),
            method=METHOD,
            seed=3,
            loss=lambda model, batch: 1.001 * loss(model, batch),
            checkpoint=tmp_path / "run",
        )
    found = tune(model, method=METHOD, seed=3, checkpoint=tmp_path / "run")
    assert same(bits(model), bits(whole))
    np.testing.assert_array_equal(found.history.move_norm, wanted.history.move_norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_holds_the_weights(tmp_path, dtype):
    model, other = transformer(dtype), transformer(dtype)
    result = tune(model, method=uncompared(model, 48, PRIVACY, METHOD))
    assert not same(bits(model), bits(other))
    result.save(tmp_path / "tuned")
    with torch.no_grad():
        other.head.weight.zero_()  # whatever it was before
    assert tuning.load(other, tmp_path / "tuned") == str(result.privacy)
    assert same(bits(model), bits(other))
    with pytest.raises(InvalidArgument, match="requires_grad"):
        tuning.load(torch.nn.Linear(2, 2), tmp_path / "tuned")


def test_a_loss_without_a_gradient_is_refused_before_anything_is_spent(tmp_path):
    def errors(model, batch):
        return (model(batch["text"]).argmax(1) != batch["label"]).float()

    with pytest.raises(InvalidArgument, match="has no gradient"):
        tune(transformer(), method=METHOD, loss=errors, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_layers_that_mix_records_are_refused():
    class Centred(torch.nn.Linear):
        def forward(self, features):
            made = super().forward(features)
            return made - made.mean(0)

    data = {"x": torch.randn(48, 6)}
    with pytest.raises(InvalidArgument, match="beside it"):
        tune(Centred(6, 2), data, method=METHOD, loss=squares)
    norm = torch.nn.BatchNorm1d(6, track_running_stats=False)
    with pytest.raises(InvalidArgument, match="normalises a record by the records beside"):
        tune(norm, data, method=METHOD, loss=squares)


@pytest.mark.parametrize("estimate", ["values", "gradient"])
def test_the_model_stays_as_it_was_where_nothing_better_is_found(estimate):
    model = torch.nn.Linear(3, 1)
    before, chance = bits(model), np.random.default_rng(0)
    data = {"x": chance.normal(size=(60, 3)).astype(np.float32)}

    def away(model, batch):  # slopes of all records add up to little: the start is nearly the best
        off = model.weight - before["weight"]
        return 5.0 + torch.sign(batch["x"][:, 0]) * off.sum() + 9.0 * off.square().sum()

    method = bs.Auto(evaluations=4096, estimate=estimate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HopelessPlan)
        result = tuning.minimize(
            model, away, data, bs.Privacy(1, 1e-4), method=method, seed=1, batch=60
        )
    assert result.best_round is None
    assert result.outcome.kind is Kind.NOTHING_BETTER
    assert same(before, bits(model))
    assert "as it was at the start" in str(result)


class Lever(torch.nn.Module):
    """One parameter that a canary pulls with all its might."""

    def __init__(self):
        super().__init__()
        self.lever = torch.nn.Parameter(torch.ones(64, dtype=torch.float64))

    def forward(self, rows):
        return rows[:, 0] * 1e20 * (1e3 + self.lever[:32].sum() - self.lever[32:].sum())


def releases_with(first, monkeypatch):
    """All releases of a run whose first record is `first`, in units of their noise."""
    released, release = [], Permit.release

    def kept(self, *given):
        memory, made = release(self, *given)
        if not isinstance(made, jax.core.Tracer):
            released.append(np.asarray(made) / float(self.terms.noise_std))
        return memory, made

    rows = np.zeros((30, 1))
    rows[0] = first
    with monkeypatch.context() as patch:
        patch.setattr(Permit, "release", kept)
        result = tuning.minimize(
            Lever(),
            lambda model, batch: model(batch["x"]),
            {"x": rows},
            PRIVACY,
            method=bs.Auto(evaluations=4096, passes=20, estimate="gradient", secret=False),
            batch=30,
            seed=11,
            rehearse=False,
        )
    return released, result


@pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan")
def test_audit_neighbours_are_as_far_apart_as_claimed_and_no_farther(monkeypatch):
    """With the same noise, releases of neighbours differ by what replacing a record does alone."""
    (one, result), (other, _) = (releases_with(first, monkeypatch) for first in (1.0, -1.0))
    assert len(one) == len(other) == result.plan.schedule.releases
    far = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in zip(one, other, strict=True)))
    assert 0.9 * result.plan.terms.mu() <= far <= result.plan.terms.mu()
