"""Several processes on one run (`jax.distributed`): process 0 keeps its files, the others wait for it.

Process 0 alone opens ledger and checkpoint, charges and saves. The processes exchange two things:

- *messages*, which are public: what process 0 has done, and why a process stopped. They are in the
  key-value store of JAX's coordination service, which lives in process 0. A process can wait there
  without a limit, until process 0 ends.
- *arrays*, which are secret: the noise key, sums without noise, fingerprints of data. They go from
  device to device, as the sums over records do, because anyone who reaches the port of the store can
  read it. On a processor, devices wait for each other for half a minute only, so the processes first
  meet by messages.

Guarantee. Processes other than 0 continue from `led` only with process 0's message about that very
step. If process 0 refuses, all of them raise the same refusal.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from blindstep.errors import BlindstepError, InvalidArgument, ProcessLost, warn
from blindstep.processes import ProcessGroup

Made = TypeVar("Made")
# Every process numbers its groups in the same order, so that no message is received in another one.
_groups = itertools.count()
# A wait is made of short ones, so that Ctrl-C is heard; after some of them comes a warning.
_WAIT_MS, _QUIET_WAITS = 2_000, 30
_AGAIN = (
    "start all processes again, and the run goes on from the checkpoint of process 0, if it has one, "
    "with the same result."
)


class JaxGroup(ProcessGroup):
    """All processes of a run, seen from one of them. A single process waits for nobody."""

    _swept = 0  # the first group whose messages are still in the store

    def __init__(self) -> None:
        """Take part: every process of the run makes its groups in the same order."""
        super().__init__(jax.process_count(), jax.process_index())
        self._turn = next(_groups)
        self._sent, self._received = 0, [0] * self.number
        self._known: BaseException | None = None  # the error that the others know of

    def led(self, what: str, make: Callable[[], Made]) -> Made:
        """Return in every process what `make` returns in process 0 (JSON). All raise its error."""
        if self.number == 1:
            return make()
        if not self.leads:
            return self._receive(0, what)
        with self:
            made = make()
        self._send({"what": what, "made": made})
        return made

    def gather(self, what: str, content: np.ndarray) -> np.ndarray:
        """Stack the arrays of all processes, one row for each, in every process. Secret."""
        if self.number == 1:
            return content[None]
        self._meet(what)
        return np.asarray(multihost_utils.process_allgather(content))

    def share(self, what: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Copy the arrays of process 0 to the others, which pass arrays of the same shapes. Secret."""
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

    def __enter__(self) -> JaxGroup:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """After an error, tell the others that this process has stopped; they stop, too."""
        if self.number == 1 or error is None or error is self._known:
            return
        self._known, ours = error, isinstance(error, BlindstepError)
        if not ours:
            error.add_note(f"If another process of this run is gone, {_AGAIN}")
        # The text of other errors may hold a record.
        message = {"stopped": type(error).__name__, "text": str(error) if ours else ""}
        with contextlib.suppress(ProcessLost):
            self._send(message)

    def _meet(self, what: str) -> None:
        """Wait until all processes are here; if one has stopped, all stop."""
        if not self.leads:
            self._send({"what": what, "made": None})
            self._receive(0, what)
            return
        with self:
            for place in range(1, self.number):
                self._receive(place, what)
        self._send({"what": what, "made": None})
        # All have received what was sent in the groups before this one.
        for turn in range(JaxGroup._swept, self._turn):
            _store().key_value_delete(f"blindstep/{turn}/")
        JaxGroup._swept = self._turn

    def _send(self, message: dict[str, Any]) -> None:
        address = self._address(self.rank, self._sent)
        try:
            _store().key_value_set(address, json.dumps(message))
        except jax.errors.JaxRuntimeError as error:
            raise self._lost(0) from error
        self._sent += 1

    def _receive(self, place: int, what: str) -> Any:
        """The next message of a process, which must be about `what`."""
        message = json.loads(self._wait_for(place))
        self._received[place] += 1
        if "stopped" in message:
            error = _refusal(place, message)
            if not self.leads:
                self._known = error
            raise error
        if message["what"] != what:
            raise InvalidArgument(
                f"process {place} is at {message['what']!r}, and process {self.rank} at {what!r}: all "
                "processes must make the same calls with the same arguments."
            )
        return message["made"]

    def _wait_for(self, place: int) -> str:
        address = self._address(place, self._received[place])
        for waits in itertools.count(1):
            try:
                return _store().blocking_key_value_get(address, _WAIT_MS)
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise self._lost(place) from error
            if waits == _QUIET_WAITS:
                warn(
                    f"process {self.rank} has waited for process {place} for "
                    f"{waits * _WAIT_MS // 1000} seconds, and goes on waiting: all processes must "
                    "make the same calls of blindstep."
                )
        raise AssertionError  # an endless loop

    def _lost(self, place: int) -> ProcessLost:
        return ProcessLost(
            f"process {self.rank} does not reach process {place} any more, and does not go on "
            f"without it: {_AGAIN}"
        )

    def _address(self, place: int, number: int) -> str:
        return f"blindstep/{self._turn}/{place}/{number}"


def _refusal(place: int, message: dict[str, str]) -> BlindstepError:
    """The error that another process stopped with; of one that is not ours, that it stopped."""
    kinds = {kind.__name__: kind for kind in _kinds(BlindstepError)}
    if message["stopped"] in kinds and message["text"]:
        return kinds[message["stopped"]](message["text"])
    return ProcessLost(f"process {place} has stopped ({message['stopped']}): {_AGAIN}")


def _kinds(kind: type[BlindstepError]) -> Iterator[type[BlindstepError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _store() -> Any:
    """The key-value store that all processes reach. JAX has no public name for it: it may move."""
    try:
        state = importlib.import_module("jax._src.distributed").global_state
        client = state.client
    except (ImportError, AttributeError):
        raise InvalidArgument(
            f"JAX {jax.__version__} does not have the key-value store where blindstep looks for it, "
            "so several processes cannot make one run with it: run in one process, or with a version "
            "of JAX that blindstep is tested on (its dependencies name them)."
        ) from None
    if client is None:
        raise InvalidArgument(
            f"there are {jax.process_count()} processes, and none can reach another one: call "
            "jax.distributed.initialize first."
        )
    return client
