"""The processes of a run on a model: each has a copy, all evaluate their share, and all move alike.

Batches are cut by size alone and dealt out in turn, so that the values, and with them the result, do
not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from blindstep.errors import InvalidArgument
from blindstep.processes.torch_group import TorchGroup
from blindstep.torch.evaluate import ModelEvaluator, Shift
from blindstep.torch.gradients import Differentiator
from blindstep.torch.weights import Move, Weights

Rows = Int[np.ndarray, " batch"]


class ModelGroup(TorchGroup):
    """The processes of a run on a model, seen from one of them.

    Attributes:
        weights: those of this process's copy of the model.
        evaluator: evaluates records with this process's copy.
        differentiator: differentiates them, in a run on gradients.
    """

    evaluator: ModelEvaluator
    differentiator: Differentiator

    def __init__(self, weights: Weights) -> None:
        """Take part; the model must be the same in all processes."""
        super().__init__()
        self.weights, self._start = weights, weights.copies()

    def values(self, rows: Rows, shifts: Sequence[Shift]) -> Float[np.ndarray, "batch shifts"]:
        """The loss of these records at each shift, evaluated by all processes. Process 0 asks."""
        if not len(rows):  # an empty secret batch
            return np.empty((0, len(shifts)))
        return self._do("values", rows, shifts)

    def gradients(self, rows: Rows) -> Float[np.ndarray, "batch width"]:
        """The loss and the gradient of these records, by all processes. Process 0 asks."""
        return self._do("gradients", rows)

    @property
    def at_a_time(self) -> int:
        """How many records all processes differentiate together."""
        return self.number * self.differentiator.batch

    def move(self, move: Move) -> None:
        """Move the weights in all processes."""
        self._do("move", move)

    def place(self, moved: Float[np.ndarray, " dim"]) -> None:
        """Put the weights of all processes so far away from where they were at first."""
        self._do("place", moved)

    def put_back(self) -> None:
        """Put the weights of all processes back to where they were at first."""
        self._do("put back")

    def _do(self, word: str, *about: Any) -> Any:
        self.order(word, *about)
        return self.obey(word, *about)

    def obey(self, word: str, *about: Any) -> Any:
        """Evaluate or move, as process 0 does."""
        if word == "values":
            return self._share(self.evaluator.batch, self.evaluator.values, *about)
        if word == "gradients":
            return self._share(self.differentiator.batch, self.differentiator.gradients, *about)
        if word == "move":
            return self.weights.move(*about)
        return self.weights.put_back(self._start, *about)

    def __enter__(self) -> ModelGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """After an error the weights are as they were, and the others stop, too."""
        if kind is not None:
            self.weights.put_back(self._start)
        super().__exit__(kind, error, trace)

    def _share(
        self, size: int, of: Callable[..., np.ndarray], rows: Rows, *about: Any
    ) -> Float[np.ndarray, "batch each"]:
        """What `of` gives for these records, `size` at a time, in process 0; nothing in the others."""
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        own = [of(each, *about) for each in batches[self.rank :: self.number]]
        every = self.gather("values", own)
        if every is None:
            return np.empty((0, 0))
        dealt = [every[n % self.number][n // self.number] for n in range(len(batches))]
        if any(len(part) != len(own) for part, own in zip(dealt, batches, strict=True)):
            raise InvalidArgument(
                "a process gave the values of other records than it was asked for."
            )
        return np.concatenate(dealt)
