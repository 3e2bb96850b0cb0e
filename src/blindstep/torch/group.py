"""A copy of the model in each process: all evaluate their share of a batch, and all move alike.

Batches are cut by size alone and dealt out in turn, so that the values, and with them the result, do
not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from blindstep.errors import InvalidArgument
from blindstep.processes.torch_group import TorchGroup
from blindstep.torch.evaluate import ModelEvaluator, Shift
from blindstep.torch.weights import Move, Weights


class ModelGroup(TorchGroup):
    """The processes of a run on a model, seen from one of them.

    Attributes:
        weights: those of this process's copy of the model.
        evaluator: evaluates records with this process's copy.
    """

    evaluator: ModelEvaluator

    def __init__(self, weights: Weights) -> None:
        """Take part; the model must be the same in all processes."""
        super().__init__()
        self.weights, self._start = weights, weights.copies()

    def values(
        self, rows: Int[np.ndarray, " batch"], shifts: Sequence[Shift]
    ) -> Float[np.ndarray, "batch shifts"]:
        """The loss of these records at each shift, evaluated by all processes. Process 0 asks."""
        if not len(rows):  # an empty secret batch
            return np.empty((0, len(shifts)))
        self.order("values", rows, shifts)
        return self._evaluate(rows, shifts)

    def move(self, move: Move) -> None:
        """Move the weights in all processes."""
        self.order("move", move)
        self.weights.move(move)

    def put_back(self) -> None:
        """Put the weights of all processes back to where they were at first."""
        self.order("put back")
        self.weights.put_back(self._start)

    def obey(self, word: str, *about: Any) -> None:
        """Evaluate or move, as process 0 does."""
        if word == "move":
            self.weights.move(*about)
        elif word == "put back":
            self.weights.put_back(self._start)
        else:
            self._evaluate(*about)

    def __enter__(self) -> ModelGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """After an error the weights are as they were, and the others stop, too."""
        if kind is not None:
            self.weights.put_back(self._start)
        super().__exit__(kind, error, trace)

    def _evaluate(
        self, rows: Int[np.ndarray, " batch"], shifts: Sequence[Shift]
    ) -> Float[np.ndarray, "batch shifts"]:
        size = self.evaluator.batch
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        own = [self.evaluator.values(each, shifts) for each in batches[self.rank :: self.number]]
        every = self.gather("values", own)
        if every is None:
            return np.empty((0, len(shifts)))
        dealt = [
            every[number % self.number][number // self.number] for number in range(len(batches))
        ]
        if any(len(part) != len(own) for part, own in zip(dealt, batches, strict=True)):
            raise InvalidArgument(
                "a process gave the values of other records than it was asked for."
            )
        return np.concatenate(dealt)
