"""Small networks and their records: what the tests of `blindstep.torch` share.

Runs that take these records and `METHOD` share a plan, and so compiled programs.
"""

import dataclasses

import numpy as np
import torch

import blindstep as bs
import blindstep.torch as tuning

PRIVACY = bs.Privacy(epsilon=4, delta=1e-4)
RECORDS, WORDS, LENGTH = 48, 12, 6
EVALUATIONS = 4096
METHOD = bs.Auto(evaluations=EVALUATIONS, secret=False)


class Transformer(torch.nn.Module):
    """Attention, layer norms, and a head that is tied to the embedding."""

    def __init__(self, width=8, classes=WORDS):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.words = torch.nn.Embedding(WORDS, width)
        self.layers = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, classes, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text):
        return self.head(self.layers(self.words(text)).mean(1))


class Adapted(torch.nn.Module):
    """A linear layer wrapped as LoRA wraps it: the layer stays, a product of low rank is tuned."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Parameter(0.3 * torch.randn(rank, layer.in_features))
        self.up = torch.nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, features):
        return self.layer(features) + features @ self.down.T @ self.up.T


DIM, NUMBER = 12, 40
ROWS = np.random.default_rng(3).normal(size=(NUMBER, DIM))


class Line(torch.nn.Module):
    """A model of two tensors in float64, whose loss JAX computes as well."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.full((5,), 0.1, dtype=torch.float64))
        self.two = torch.nn.Parameter(torch.full((7,), -0.2, dtype=torch.float64))

    def forward(self, rows):
        return torch.log1p((rows @ torch.cat([self.one, self.two]) - 1.0) ** 2)


def transformer(dtype=torch.float32):
    torch.manual_seed(0)
    return Transformer().to(dtype)


def texts(number=RECORDS, seed=1):
    """Texts whose label is their most frequent word."""
    chance = np.random.default_rng(seed)
    label = chance.integers(WORDS, size=number)
    text = chance.integers(WORDS, size=(number, LENGTH))
    text[:, : LENGTH // 2] = label[:, None]
    return {"text": text, "label": label}


def loss(model, batch):
    logits = model(batch["text"]).float()
    return torch.nn.functional.cross_entropy(logits, batch["label"], reduction="none")


def uncompared(model, records, privacy, method):
    """A plan that goes wherever it leads: in noise, a comparison would go back to the start."""
    made = tuning.plan(model, records, privacy, method)
    return dataclasses.replace(made, comparison=None)


def tune(model, data=None, *, loss=loss, method=METHOD, **options):
    data = texts() if data is None else data
    number = len(next(iter(data.values())))
    if method is METHOD and number == RECORDS and "people" not in options:
        method = uncompared(model, number, PRIVACY, method)
    privacy = None if isinstance(method, bs.Plan) else PRIVACY
    return tuning.minimize(
        model, loss, data, privacy, method=method, **{"batch": 16, "seed": 7, **options}
    )


def bits(model):
    """All numbers of a model."""
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
