"""Several processes on one run (`jax.distributed`): process 0 keeps its files, the others wait for it.

Process 0 alone opens ledger and checkpoint, charges and saves. What the processes tell each other goes
two ways:

- *words*, which are public: what process 0 has done, and why a process stopped. They lie in the
  key-value store of JAX's coordination service, which lives in process 0. One can wait there without
  a limit, and no longer than process 0 lives.
- *shares*, which are secret: the noise key, sums without noise, fingerprints of data. They go from
  device to device, as the records' own sums do: whoever reaches the port of the store can read it.
  Devices wait for each other half a minute on a processor, so the processes first meet by words.

Guarantee. A process that is not the first goes on from `led` only with process 0's word for that very
step. If process 0 refuses, all of them raise the same refusal.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from blindstep.errors import BlindstepError, InvalidArgument, ProcessLost

Made = TypeVar("Made")
# Every process numbers its companies in the same order, so that no word is heard in another one.
_companies = itertools.count()
# A wait is made of short ones, so that Ctrl-C is heard; after some of them somebody is told.
_WAIT_MS, _QUIET_WAITS = 2_000, 30
_AGAIN = (
    "start all processes again, and the run goes on from the checkpoint of process 0, if it has one, "
    "with the same result."
)


class ProcessGroup:
    """All processes of a run, seen from one of them. Of a single process it asks nothing.

    Attributes:
        number: how many processes there are.
        leads: whether this is process 0, which keeps the run's files.
    """

    _swept = 0  # the first company whose words are still in the store

    def __init__(self) -> None:
        """Take part: every process of the run makes its companies in the same order."""
        self.number, self._place = jax.process_count(), jax.process_index()
        self.leads = self._place == 0
        self._turn = next(_companies)
        self._said, self._heard = 0, [0] * self.number
        self._told: BaseException | None = None  # the error that the others know of

    def led(self, what: str, make: Callable[[], Made]) -> Made:
        """What process 0 makes, ready for JSON, in all processes; what it raises, all raise."""
        if self.number == 1:
            return make()
        if not self.leads:
            return self._hear(0, what)
        with self:
            made = make()
        self._say({"what": what, "made": made})
        return made

    def gather(self, what: str, content: np.ndarray) -> np.ndarray:
        """An array of every process, all of one shape, in all processes: one row for each. Secret."""
        if self.number == 1:
            return content[None]
        self._meet(what)
        return np.asarray(multihost_utils.process_allgather(content))

    def share(self, what: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays of process 0, bit for bit, in all processes; others give their like. Secret."""
        if self.number == 1:
            return list(arrays)
        self._meet(what)
        content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        # Whole words: they are added up, and so would numbers lose the sign of a 0.
        words = np.frombuffer(content + bytes(-len(content) % 4), np.uint32)
        content = np.asarray(multihost_utils.broadcast_one_to_all(words)).tobytes()
        ends = itertools.accumulate(array.nbytes for array in arrays)
        return [
            np.frombuffer(content[end - array.nbytes : end], array.dtype).reshape(array.shape)
            for end, array in zip(ends, arrays, strict=True)
        ]

    def require_alike(self, things: Mapping[str, str]) -> None:
        """Raise the same refusal in all processes unless each of these texts is the same in all."""
        if self.number == 1:
            return
        digests = [hashlib.sha256(text.encode()).digest() for text in things.values()]
        own = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        every = self.gather("agree", own)
        for name, column in zip(things, every.swapaxes(0, 1), strict=True):
            for place, digest in enumerate(column):
                if np.any(digest != column[0]):
                    raise InvalidArgument(
                        f"process {place} does not have the {name} of process 0: give all processes "
                        "the same. Nothing was released."
                    )

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """After an error, say to the others that this process has stopped; they stop, too."""
        if self.number == 1 or error is None or error is self._told:
            return
        self._told, ours = error, isinstance(error, BlindstepError)
        if not ours:
            error.add_note(f"If another process of this run is gone, {_AGAIN}")
        # The words of other errors may hold a record.
        word = {"stopped": type(error).__name__, "text": str(error) if ours else ""}
        with contextlib.suppress(ProcessLost):
            self._say(word)

    def _meet(self, what: str) -> None:
        """Wait until all processes are here; if one has stopped, all stop."""
        if not self.leads:
            self._say({"what": what, "made": None})
            self._hear(0, what)
            return
        with self:
            for place in range(1, self.number):
                self._hear(place, what)
        self._say({"what": what, "made": None})
        # All have heard what was said in companies before this one.
        for turn in range(ProcessGroup._swept, self._turn):
            _store().key_value_delete(f"blindstep/{turn}/")
        ProcessGroup._swept = self._turn

    def _say(self, word: dict[str, Any]) -> None:
        address = self._address(self._place, self._said)
        try:
            _store().key_value_set(address, json.dumps(word))
        except jax.errors.JaxRuntimeError as error:
            raise self._lost(0) from error
        self._said += 1

    def _hear(self, place: int, what: str) -> Any:
        """The next word of a process, which must be about `what`."""
        word = json.loads(self._wait_for(place))
        self._heard[place] += 1
        if "stopped" in word:
            error = _refusal(place, word)
            if not self.leads:
                self._told = error
            raise error
        if word["what"] != what:
            raise InvalidArgument(
                f"process {place} is at {word['what']!r}, and process {self._place} at {what!r}: all "
                "processes must make the same calls with the same arguments."
            )
        return word["made"]

    def _wait_for(self, place: int) -> str:
        address = self._address(place, self._heard[place])
        for waits in itertools.count(1):
            try:
                return _store().blocking_key_value_get(address, _WAIT_MS)
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise self._lost(place) from error
            if waits == _QUIET_WAITS:
                warnings.warn(
                    f"process {self._place} has waited for process {place} for "
                    f"{waits * _WAIT_MS // 1000} seconds, and goes on waiting: all processes must "
                    "make the same calls of blindstep.",
                    stacklevel=2,
                )
        raise AssertionError  # an endless loop

    def _lost(self, place: int) -> ProcessLost:
        return ProcessLost(
            f"process {self._place} does not reach process {place} any more, and does not go on "
            f"without it: {_AGAIN}"
        )

    def _address(self, place: int, number: int) -> str:
        return f"blindstep/{self._turn}/{place}/{number}"


def _refusal(place: int, word: dict[str, str]) -> BlindstepError:
    """The error that another process stopped with; of one that is not ours, that it stopped."""
    kinds = {kind.__name__: kind for kind in _kinds(BlindstepError)}
    if word["stopped"] in kinds and word["text"]:
        return kinds[word["stopped"]](word["text"])
    return ProcessLost(f"process {place} has stopped ({word['stopped']}): {_AGAIN}")


def _kinds(kind: type[BlindstepError]) -> Iterator[type[BlindstepError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _store() -> Any:
    """The key-value store that all processes reach. JAX has no public name for it."""
    from jax._src import distributed

    if distributed.global_state.client is None:
        raise InvalidArgument(
            f"there are {jax.process_count()} processes, and none can reach another one: call "
            "jax.distributed.initialize first."
        )
    return distributed.global_state.client
