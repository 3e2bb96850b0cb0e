"""The losses of records at shifted weights: in batches of one size, in one of three ways.

*Layer by layer*: each operation gets its shifted weights in a scratch buffer. Always works.
*Recorded*: the same on an NVIDIA device, as a CUDA graph: Python starts operations one by one slowly.
*Together*: several shifts of a small model as one batch (`torch.func.vmap`).

Which way is taken follows from sizes, devices and made-up records, never from a record. All batches
have the same shape: the last one repeats its last record.

Guarantee: the values of a record depend on that record and on public numbers alone, if the loss of a
record does not depend on the records beside it (`rehearsal` tries that on made-up ones).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from blindstep.losses.silence import interrupt, silence
from blindstep.torch.records import KINDS, Batch, Records, leaves, mapped, of_people
from blindstep.torch.sign_ops import Shifts
from blindstep.torch.weights import Weights

# From the model and a batch to one number for each record.
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

# Numbers in the weights of all shifts that go through together; of larger models one goes through.
_TOGETHER = 2**22
_MOST_TOGETHER = 64
_SMALL, _SMALL_ON_DEVICE = 2**16, 2**20
_TRIED = 8
# Evaluations before a recording: libraries choose their kernels in the first ones.
_WARM = 3
# How far two ways may differ, as a share of what shifts change, and in roundings of the loss.
_ALIKE, _ROUNDING = 1e-2, 64.0
_FELT = 0.1


class Shift(NamedTuple):
    """Where to evaluate: the weights plus amount x signs, in each tensor."""

    seeds: Int[np.ndarray, " tensors"]
    amounts: Float[np.ndarray, " tensors"]


class ModelEvaluator:
    """Evaluates the loss of records at shifted weights.

    Attributes:
        way: "layer by layer", "recorded" or "together".
        batch: how many records go through the model at a time.
    """

    def __init__(self, weights: Weights, loss: Loss, records: Records, batch: int) -> None:
        """Choose a way; others than layer by layer are tried on made-up records."""
        self._weights, self._loss, self._records = weights, loss, records
        self.batch = batch
        self._device = next(weights.model.parameters()).device
        self._shifts = Shifts(len(weights.tensors))
        self._play: Callable[[Batch], torch.Tensor] | None = None
        self._together = 1
        small = _SMALL_ON_DEVICE if self._device.type == "cuda" else _SMALL
        if weights.dim <= small and self._works_together():
            self.way = "together"
        elif self._device.type == "cuda" and self._works_recorded():
            self.way = "recorded"
        else:
            self.way = "layer by layer"

    def values(
        self, rows: Int[np.ndarray, " few"], shifts: Sequence[Shift]
    ) -> Float[np.ndarray, "few shifts"]:
        """The loss at each shift of records, at most a batch of them; NaN where there is none.

        Raises and says nothing that depends on a record. One for which the loss raises voids its own
        values alone: if a batch fails, each of its records is evaluated with nobody beside it.
        """

        def of(batch: Batch) -> torch.Tensor:
            with torch.inference_mode():
                return self.of_batch(batch, shifts)

        about = (self._records, self._device, self.batch)
        return each_by_itself(of, len(shifts), rows, *about)

    def of_batch(self, batch: Batch, shifts: Sequence[Shift]) -> torch.Tensor:
        """The values of a batch, records x shifts; raises what the loss raises."""
        if self._together > 1:
            groups = range(0, len(shifts), self._together)
            found = [self._at_once(batch, shifts[at : at + self._together]) for at in groups]
            return of_people(torch.cat(found), batch.used).T
        return self._one_by_one(self._play or self._by_layer, batch, shifts)

    def _one_by_one(
        self, way: Callable[[Batch], torch.Tensor], batch: Batch, shifts: Sequence[Shift]
    ) -> torch.Tensor:
        found = []
        for shift in shifts:
            self._shifts.fill(*shift)
            found.append(way(batch))
        return of_people(torch.stack(found), batch.used).T

    def _by_layer(self, batch: Batch) -> torch.Tensor:
        with self._weights.probed(self._shifts):
            return one_each(self._loss, self._weights.model, batch)

    def _at_once(self, batch: Batch, shifts: Sequence[Shift]) -> torch.Tensor:
        def one(own: list[torch.Tensor]) -> torch.Tensor:
            with self._weights.replaced(own, torch.clone):
                return one_each(self._loss, self._weights.model, batch)

        seeds, amounts = np.stack([s.seeds for s in shifts]), np.stack([s.amounts for s in shifts])
        return torch.func.vmap(one)(self._weights.stacked(seeds, amounts))

    def try_out(self) -> int:
        """Evaluate made-up records at a few shifts, and wait for the values. Says how many they are."""
        batch = self._records.made_up(self.batch, self._device, KINDS)
        count = len(self._weights.tensors)
        shifts = [Shift(np.arange(count), np.full(count, 1e-6))] * _TRIED
        with silence(worker=False), torch.inference_mode():
            return self.of_batch(batch, shifts).cpu().numel()

    # -- which way ------------------------------------------------------------------------------

    def _works_together(self) -> bool:
        self._together = min(_MOST_TOGETHER, _TOGETHER // self._weights.dim)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            works = self._agrees()
        # Operations that PyTorch cannot do together it does one by one, which is slower, and says so.
        works &= not any("batching rule" in str(each.message) for each in said)
        self._together = self._together if works else 1
        return works

    def _works_recorded(self) -> bool:
        devices = {each.device for each in self._weights.model.parameters()}
        if len(devices) > 1:
            return False
        try:
            with silence(worker=False), torch.inference_mode():
                self._play = self._recorded()
        except Exception:  # it waits for the device, or allocates where it may not: not recordable
            return False
        if not self._agrees():
            self._play = None
        return self._play is not None

    def _recorded(self) -> Callable[[Batch], torch.Tensor]:
        """The loss of a batch, recorded; tensors of the batch are copied to where it reads them."""
        own = self._records.made_up(self.batch, self._device, KINDS)
        self._shifts.on(self._device)
        aside = torch.cuda.Stream(self._device)
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            for _ in range(_WARM):
                self._by_layer(own)
        graph = torch.cuda.CUDAGraph()
        # On a stream of its own, and that of the warm-up: libraries keep a workspace for each stream
        # that they ran on, and PyTorch may free those of a graph's stream with the graph.
        with torch.cuda.graph(graph, stream=aside):
            values = self._by_layer(own)
        torch.cuda.current_stream(self._device).wait_stream(aside)

        def play(batch: Batch) -> torch.Tensor:
            for to, given in zip(leaves(own), leaves(batch), strict=True):
                to.copy_(given)
            graph.replay()
            return values.clone()

        return play

    def _agrees(self) -> bool:
        """Whether this way gives what layer by layer gives, for made-up records at two shifts."""
        batch = self._records.made_up(self.batch, self._device, KINDS[::-1])
        shifts = self.tried(_FELT, 2)
        try:
            with torch.inference_mode():
                found = self.of_batch(batch, shifts)
                expected = self._one_by_one(self._by_layer, batch, shifts)
        except Exception:
            return False
        found, expected = found.double().cpu(), expected.double().cpu()
        # Both round in another order; next to what the shifts change that is nothing.
        largest = float((expected[:, 1:] - expected[:, :1]).nan_to_num(0.0).abs().max())
        size = float(expected.nan_to_num(0.0).abs().max())
        rounding = _ROUNDING * float(torch.finfo(self._weights.tensors[0].dtype).eps) * size
        most = _ALIKE * largest + rounding
        return torch.allclose(found, expected, rtol=0.0, atol=most, equal_nan=True)

    def tried(self, share: float, number: int) -> list[Shift]:
        """No shift, and `number` shifts by a share of the usual size of each parameter's numbers."""
        chance, amounts = np.random.default_rng(0), share * self._weights.sizes_of_numbers()
        made = [Shift(chance.integers(2**63, size=len(amounts)), amounts) for _ in range(number)]
        return [Shift(made[0].seeds, np.zeros(len(amounts))), *made]

    def of_made_up(self, kinds: Sequence[int], shifts: Sequence[Shift]) -> torch.Tensor:
        """The values of made-up records of these kinds, records x shifts."""
        batch = self._records.made_up(self.batch, self._device, kinds)
        with torch.inference_mode():
            return self.of_batch(batch, shifts).double().cpu()


def each_by_itself(
    of: Callable[[Batch], torch.Tensor],
    width: int,
    rows: Int[np.ndarray, " few"],
    records: Records,
    device: torch.device,
    size: int,
) -> Float[np.ndarray, "few width"]:
    """What `of` makes of records, at most `size` of them, which is that of a batch; NaN where it fails.

    Raises and says nothing that depends on a record. If a batch fails, each of its records is tried
    with nobody beside it.
    """

    def tried(rows: Int[np.ndarray, " size"]) -> Float[np.ndarray, "size width"] | None:
        try:
            # A loss that draws at random draws the same for a batch, whatever failed before.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                made = of(records.batch(rows, device)).double().cpu().numpy()
            made[records.void[rows]] = np.nan
        except BaseException:
            made = None
        interrupt.passed_on()  # the user's own Ctrl-C goes on
        return made

    with silence(worker=False), interrupt.watched(here=True):
        found = tried(np.concatenate([rows, np.full(size - len(rows), rows[-1])]))
        if found is None:
            void = np.full((1, width), np.nan)
            alone = [tried(np.full(size, row)) for row in rows]
            # Each at its own place of the batch, where it is rounded as it would have been.
            own = [void if v is None else v[at : at + 1] for at, v in enumerate(alone)]
            found = np.concatenate(own)
    return found[: len(rows)]


def one_each(loss: Loss, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of a batch, if it is one real number for each of its rows; raises else."""
    value: Any = loss(model, mapped(lambda leaf: leaf, batch.rows))
    number = len(leaves(batch.rows)[0])
    if isinstance(value, torch.Tensor):
        if value.shape == (number,) and not value.is_complex():
            return value
        what = f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    else:
        what = type(value).__name__
    raise ValueError(f"the loss gave {what} for {number} records")
