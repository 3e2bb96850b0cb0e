"""The processes of a run on a model: each has a copy, all evaluate their share, and all move alike.

Batches are cut by size alone and dealt out in turn, so that the values, and with them the result, do
not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from jaxtyping import Float, Int

from blindstep.errors import InvalidArgument
from blindstep.processes import ProcessGroup
from blindstep.torch.evaluate import ModelEvaluator, Shift
from blindstep.torch.gradients import Differentiator
from blindstep.torch.weights import Move, Weights

Made = TypeVar("Made")


class TorchGroup(ProcessGroup):
    """All processes of a run. A subclass says which orders there are, in `obey`."""

    def __init__(self) -> None:
        """Take part, in the group that `torch.distributed` was initialised with, if it was."""
        together = dist.is_available() and dist.is_initialized()
        super().__init__(*((dist.get_world_size(), dist.get_rank()) if together else (1, 0)))

    def led(self, what: str, make: Callable[[], Made]) -> Made:
        """Return in every process what `make` returns in process 0."""
        return self.finish(make()) if self.leads else self.follow()

    def gather(self, what: str, content: Any) -> list[Any] | None:
        """What each process has, in process 0; None in the others."""
        if self.number == 1:
            return [content]
        every: list[Any] | None = [None] * self.number if self.leads else None
        dist.gather_object(content, every)
        return every

    def require_alike(self, what: Callable[[], str]) -> None:
        """Raise, in process 0, unless `what` returns the same in all processes."""
        if self.number > 1:
            every = self.gather("agree", what())
            if every is not None and len(set(every)) > 1:
                raise InvalidArgument(
                    "the processes have different models or data: give all of them the same."
                )

    def finish(self, result: Made) -> Made:
        """End what the others follow: each of them gets the result."""
        self.order("finish", result)
        return result

    def follow(self) -> Any:
        """Do what process 0 orders until it finishes, and return its result."""
        while True:
            heard: list[Any] = [None]
            dist.broadcast_object_list(heard, src=0)
            word, *about = heard[0]
            if word == "finish":
                return about[0]
            if word == "fail":
                raise InvalidArgument(f"the first process has stopped: {about[0]}")
            self.obey(word, *about)

    def order(self, word: str, *about: Any) -> None:
        """Tell the others what to do. Process 0 does it by itself."""
        if self.number > 1:
            dist.broadcast_object_list([[word, *about]], src=0)

    def obey(self, word: str, *about: Any) -> None:
        """Do what process 0 ordered."""
        raise NotImplementedError(word)

    def __enter__(self) -> TorchGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """After an error in process 0 the others stop, too."""
        if kind is not None and self.leads:
            with contextlib.suppress(RuntimeError):  # others may have gone for the same reason
                self.order("fail", f"{kind.__name__}: {error}")


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
