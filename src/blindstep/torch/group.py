"""Several processes on one run (`torch.distributed`): the first leads, the others evaluate.

The first process owns the gate and its ledger. It says what to evaluate and how to move; every process
does its share of the batches and moves its own copy of the model. Only losses travel to the first, and
public numbers from it. Batches are cut by size alone and dealt out in turn, so that the values, and
with them the result, do not depend on how many processes there are.

*Losses travel without noise*: the network between the processes must be as safe as the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from jaxtyping import Float, Int

from blindstep.errors import InvalidArgument
from blindstep.torch.evaluate import ModelEvaluator, Shift
from blindstep.torch.weights import Move, Weights

Made = TypeVar("Made")


class TorchGroup:
    """All processes of a run, seen from one of them.

    Attributes:
        weights: those of this process's copy of the model.
        number: how many processes there are.
        leads: whether this is the first, which owns the gate.
        evaluator: evaluates records with this process's copy.
    """

    evaluator: ModelEvaluator

    def __init__(self, weights: Weights) -> None:
        """Take part; the model must be the same in all processes."""
        self.weights, self._start = weights, weights.copies()
        together = dist.is_available() and dist.is_initialized()
        self.number = dist.get_world_size() if together else 1
        self._place = dist.get_rank() if together else 0
        self.leads = self._place == 0

    def values(
        self, rows: Int[np.ndarray, " batch"], shifts: Sequence[Shift]
    ) -> Float[np.ndarray, "batch shifts"]:
        """The loss of these records at each shift, by all processes. The first one asks."""
        self._tell("values", rows, shifts)
        return self._evaluate(rows, shifts)

    def move(self, move: Move) -> None:
        """Move the weights in all processes."""
        self._tell("move", move)
        self.weights.move(move)

    def put_back(self) -> None:
        """Put the weights of all processes back to where they were at first."""
        self._tell("put back")
        self.weights.put_back(self._start)

    def agree(self, make: Callable[[], Made]) -> Made:
        """What the first process makes, in all processes."""
        return self.finish(make()) if self.leads else self.follow()

    def check_alike(self, what: Callable[[], str]) -> None:
        """Raise, in the first process, unless all have the same: the model and the records."""
        if self.number == 1:
            return
        every: list[Any] | None = [None] * self.number if self.leads else None
        dist.gather_object(what(), every)
        if every is not None and len(set(every)) > 1:
            raise InvalidArgument(
                "the processes have different models or data: give all of them the same."
            )

    def finish(self, result: Made) -> Made:
        """End what the others follow: each of them gets the result."""
        self._tell("finish", result)
        return result

    def __enter__(self) -> TorchGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """After an error the weights are as they were, and the others stop, too."""
        if kind is not None:
            self.weights.put_back(self._start)
        if kind is not None and self.leads:
            with contextlib.suppress(RuntimeError):  # others may have gone for the same reason
                self._tell("fail", f"{kind.__name__}: {error}")

    def follow(self) -> Any:
        """Do what the first process says until it finishes, and give what it gives."""
        while True:
            word, *about = self._hear()
            if word == "finish":
                return about[0]
            if word == "fail":
                raise InvalidArgument(f"the first process has stopped: {about[0]}")
            if word == "move":
                self.weights.move(*about)
            elif word == "put back":
                self.weights.put_back(self._start)
            else:
                self._evaluate(*about)

    def _evaluate(
        self, rows: Int[np.ndarray, " batch"], shifts: Sequence[Shift]
    ) -> Float[np.ndarray, "batch shifts"]:
        size = self.evaluator.batch
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        own = [self.evaluator.values(each, shifts) for each in batches[self._place :: self.number]]
        if self.number == 1:
            return np.concatenate(own)
        every: list[Any] | None = [None] * self.number if self.leads else None
        dist.gather_object(own, every)
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

    def _tell(self, *words: Any) -> None:
        if self.number > 1:
            dist.broadcast_object_list([words], src=0)

    def _hear(self) -> Any:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0)
        return heard[0]
