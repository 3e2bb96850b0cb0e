"""Gradients of records by the tuned parameters: `method=Auto(estimate="gradient")`.

A record is differentiated with nobody beside it: a batch of records is a batch of models
(`torch.func.vmap`), each with one record, or else records go one by one. So no layer mixes records
here. As many go through at a time as hold their gradients in little memory; the gate clips and adds
them as they come, and no sum of theirs is ever on this side of it.

Guarantee: the gradient of a record depends on that record and on public numbers alone. Which way is
taken, and how many go through, follows from made-up records and shapes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from blindstep.errors import InvalidArgument
from blindstep.losses.silence import interrupt, silence
from blindstep.torch.evaluate import Loss, each_by_itself, one_each
from blindstep.torch.records import KINDS, Batch, Records, leaves, mapped
from blindstep.torch.weights import Weights

# Numbers in the gradients of all records that go through together.
_TOGETHER = 2**22
# How far the two ways may differ, as a share of the largest number.
_ALIKE = 1e-3


def has_gradient(weights: Weights, loss: Loss, records: Records) -> bool:
    """Whether the loss has a gradient in the tuned parameters, as far as made-up records show."""
    try:
        Differentiator(weights, loss, records, 1)
    except InvalidArgument:
        return False
    return True


class Differentiator:
    """The loss of records and its gradient, at the model's weights as they are.

    Attributes:
        batch: how many records go through at a time.
        width: numbers of a record: its loss, then its gradient.
        together: whether they go through as one, or one by one.
    """

    def __init__(self, weights: Weights, loss: Loss, records: Records, batch: int) -> None:
        """Choose a way by made-up records. A loss without a gradient is refused."""
        self._weights, self._loss, self._records = weights, loss, records
        self.batch, self.width = max(1, min(batch, _TOGETHER // weights.dim)), 1 + weights.dim
        self._device = next(weights.model.parameters()).device
        self.together = False
        expected = self._of_made_up(1)
        if not bool(torch.any(expected[:, 1:].nan_to_num(0.0, 0.0, 0.0))):
            raise InvalidArgument(
                "the loss has no gradient in the parameters that are tuned, as far as made-up records "
                "show: is it a metric, or computed outside of PyTorch? Leave out estimate='gradient', "
                "and the model is tuned from values of the loss. Nothing was spent."
            )
        self.together = True
        most = _ALIKE * float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
        self.together = torch.allclose(
            self._of_made_up(self.batch), expected, rtol=0.0, atol=most, equal_nan=True
        )

    def gradients(self, rows: Int[np.ndarray, " few"]) -> Float[np.ndarray, "few width"]:
        """The loss and the gradient of records, at most a batch of them; NaN where there is none."""
        about = (self._records, self._device, self.batch)
        return each_by_itself(self._of, self.width, rows, *about)

    def fingerprint(self) -> str:
        """SHA-256 of the gradients of made-up records: of the loss, versions, devices and threads.

        Steps that are repeated after a crash must come out bit for bit the same.
        """
        return hashlib.sha256(self._of_made_up(self.batch).numpy().tobytes()).hexdigest()

    def _of_made_up(self, number: int) -> torch.Tensor:
        """A made-up record of each kind, so many at a time, this way; NaN where the loss fails."""
        found = []
        with silence(worker=False), interrupt.watched(here=True):
            for kind in KINDS:
                batch = self._records.made_up(number, self._device, [kind])
                try:
                    with torch.random.fork_rng([]):
                        torch.manual_seed(0)
                        found.append(self._of(batch)[:1].double().cpu())
                except Exception:  # some kinds of made-up records fail for good reasons
                    found.append(torch.full((1, self.width), torch.nan, dtype=torch.float64))
            interrupt.passed_on()
        return torch.cat(found)

    def _of(self, batch: Batch) -> torch.Tensor:
        """Losses and gradients, records x width; raises what the loss raises."""
        count = len(leaves(batch.rows)[0])
        used = torch.ones(count, device=self._device) if batch.used is None else batch.used
        number = len(used)
        slots = count // number
        rows = mapped(lambda leaf: leaf.reshape(number, slots, *leaf.shape[1:]), batch.rows)
        own = [each.detach() for each in self._weights.tensors]
        if self.together:
            each = torch.func.grad_and_value(self._mean)
            each = torch.func.vmap(each, in_dims=(None, 0, 0), randomness="same")
            slopes, values = each(own, rows, used)
            return torch.cat([values[:, None], *(slope.flatten(1) for slope in slopes)], dim=1)
        made = []
        for at in range(number):
            record = mapped(lambda leaf, at=at: leaf[at], rows)
            made.append(self._alone([each.requires_grad_() for each in own], record, used[at]))
        return torch.stack(made)

    def _alone(self, own: list[torch.Tensor], rows: Any, used: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            value = self._mean(own, rows, used)
            slopes = torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        return torch.cat([value.detach()[None], *(slope.flatten() for slope in slopes)])

    def _mean(self, own: list[torch.Tensor], rows: Any, used: torch.Tensor) -> torch.Tensor:
        """The loss of one record: the mean over its rows that count."""
        with self._weights.replaced(own, lambda other: other.detach().clone()):
            values = one_each(self._loss, self._weights.model, Batch(rows, None))
        counts = torch.arange(len(values), device=self._device) < used
        return torch.where(counts, values, 0.0).sum() / used
