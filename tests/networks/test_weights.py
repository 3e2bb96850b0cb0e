"""Any module computes with shifted weights, and its own are never touched."""

import copy

import numpy as np
import pytest
import torch

from blindstep.errors import InvalidArgument
from blindstep.torch import weights
from blindstep.torch.evaluate import ModelEvaluator, Shift
from blindstep.torch.records import Records
from blindstep.torch.sign_ops import Shifts, add_signs
from blindstep.torch.weights import Move, Weights
from small_networks import Adapted, bits, loss, same, texts, transformer


class Borrower(torch.nn.Module):
    """Uses a layer's weights without calling the layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, features):
        return torch.nn.functional.linear(features, self.layer.weight.T, self.layer.bias)


FLAT, ROWS, PICTURES = torch.randn(3, 8), torch.randn(3, 5, 8), torch.randn(3, 2, 6, 6)
MODULES = {
    "linear": (torch.nn.Linear(8, 4), FLAT),
    "borrowed": (Borrower(), FLAT),
    "bilinear": (torch.nn.Bilinear(8, 8, 3), (FLAT, FLAT)),
    "layer norm": (torch.nn.LayerNorm(8), FLAT),
    "convolution": (torch.nn.Conv2d(2, 3, 3), PICTURES),
    "transposed": (torch.nn.ConvTranspose2d(2, 3, 3), PICTURES),
    "batch norm": (torch.nn.BatchNorm2d(2), PICTURES),
    "group norm": (torch.nn.GroupNorm(2, 2), PICTURES),
    "weight norm": (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 4)), FLAT),
    "embedding": (torch.nn.Embedding(9, 4), torch.tensor([[1, 2], [8, 0]])),
    "embedding bag": (torch.nn.EmbeddingBag(9, 4), torch.tensor([[1, 2], [8, 0]])),
    "lstm": (torch.nn.LSTM(8, 4, 2), ROWS),
    "gru": (torch.nn.GRU(8, 4, bidirectional=True), ROWS),
    "attention": (torch.nn.MultiheadAttention(8, 2, batch_first=True), (ROWS, ROWS, ROWS)),
    "prelu": (torch.nn.PReLU(8), FLAT),
    "encoder": (torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), ROWS),
    "adapted": (Adapted(torch.nn.Linear(8, 4)), FLAT),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_kind_of_layer_computes_with_shifted_weights(name):
    module, given = MODULES[name]
    given = given if isinstance(given, tuple) else (given,)
    module.eval()
    moved, weights = copy.deepcopy(module), Weights(module)
    shifts = Shifts(len(weights.tensors))
    shifts.fill(np.arange(len(weights.tensors)), np.full(len(weights.tensors), 0.01))
    with torch.no_grad():
        tuned = [each for each in moved.parameters() if each.requires_grad]
        for number, each in enumerate(tuned):
            add_signs(each.data, shifts, number, each.data)
    before = bits(module)
    with torch.inference_mode():
        wanted = moved(*given)
        with weights.probed(shifts):
            found = module(*given)
        plain = module(*given)
    first = [each[0] if isinstance(each, tuple) else each for each in (wanted, found, plain)]
    torch.testing.assert_close(first[1], first[0], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(first[1], first[2], rtol=1e-4, atol=1e-4)
    assert same(before, bits(module))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_bit_identical_after_evaluations_that_fail_and_that_do_not(dtype):
    model, calls = transformer(dtype), []

    def failing(model, batch):
        calls.append(len(batch["label"]))
        if len(calls) % 2:
            raise RuntimeError
        return loss(model, batch)

    before, own = bits(model), [id(each) for each in model.parameters()]
    weights = Weights(model)
    evaluator = ModelEvaluator(weights, failing, Records(texts()), 16)
    count = len(weights.tensors)
    shifts = [Shift(np.arange(count), np.full(count, a)) for a in (1e-2, -1e-2)]
    values = evaluator.values(np.arange(16), shifts)
    assert len(calls) > 4
    assert values.shape == (16, 2)
    assert same(before, bits(model))
    assert own == [id(each) for each in model.parameters()]


def test_autocast_computes_with_shifted_weights():
    model = transformer()
    weights = Weights(model)
    count = len(weights.tensors)

    def in_16_bits(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    shift = Shift(np.arange(count), np.full(count, 0.05))
    found, wanted = (
        ModelEvaluator(weights, each, Records(texts()), 16).values(np.arange(16), [shift])
        for each in (in_16_bits, loss)
    )
    plain = ModelEvaluator(weights, loss, Records(texts()), 16)
    plain = plain.values(np.arange(16), [Shift(np.arange(count), np.zeros(count))])
    assert np.max(np.abs(found - wanted)) < 0.2 * np.max(np.abs(wanted - plain))


def test_tied_weights_count_once_and_move_together():
    model = transformer()
    weights = Weights(model)
    assert weights.dim == sum(each.numel() for each in model.parameters())
    assert model.head.weight is model.words.weight
    shifts = Shifts(len(weights.tensors))
    shifts.fill(np.arange(len(weights.tensors)), np.full(len(weights.tensors), 0.1))
    with weights.probed(shifts):
        assert model.head.weight is model.words.weight


def test_what_requires_a_gradient_is_tuned():
    model = torch.nn.Sequential(Adapted(torch.nn.Linear(8, 4)), torch.nn.ReLU())
    assert Weights(model).names == ["0.down", "0.up"]
    model.requires_grad_(False)
    with pytest.raises(InvalidArgument, match="requires a gradient"):
        Weights(model)
    whole = torch.nn.Linear(2, 2)
    with torch.no_grad():
        whole.weight[0, 0] = np.nan
    with pytest.raises(InvalidArgument, match="not finite"):
        Weights(whole)


def test_several_shifts_together_give_what_each_gives_alone():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    data = {"x": torch.randn(32, 6), "y": torch.randint(3, (32,))}

    def of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    def of_one_at_a_time(model, batch):
        bool(next(model.parameters()).sum() > 0)  # vmap cannot do this
        return of(model, batch)

    weights, records = Weights(model), Records(data)
    together, alone = (
        ModelEvaluator(weights, each, records, 32) for each in (of, of_one_at_a_time)
    )
    assert (together.way, alone.way) == ("together", "layer by layer")
    shifts = [Shift(np.arange(4) + place, np.full(4, 0.1)) for place in range(70)]
    found, wanted = (each.values(np.arange(32), shifts) for each in (together, alone))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_parameter_is_moved_part_by_part_as_in_one(dtype, monkeypatch):
    def moved():
        torch.manual_seed(0)
        own = Weights(torch.nn.Linear(50, 9, dtype=dtype))
        chance = np.random.default_rng(0)
        seeds = chance.integers(2**63, size=(4, 2))
        whole = np.rint(1e3 * chance.normal(size=(3, 2)))
        norm = own.norm(seeds[:3], whole[:, 0])
        own.move(Move(seeds[:3], whole, np.full(2, 2.0**-14), seeds[3]))
        return norm, own.copies(), own.lengths()

    norm, whole, lengths = moved()
    monkeypatch.setattr(weights, "_PART", 64)  # of 450 numbers
    of_parts, parts, as_before = moved()
    assert of_parts == pytest.approx(norm, rel=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    np.testing.assert_allclose(as_before, lengths, rtol=1e-12)
