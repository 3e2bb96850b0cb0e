"""Processes of `torch.distributed`: process 0 says what to do, and the others follow.

Only process 0 gets what is gathered: losses travel to it, and public numbers from it.

*Losses travel without noise*: the network between the processes must be as safe as the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from blindstep.errors import InvalidArgument
from blindstep.processes import ProcessGroup

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
