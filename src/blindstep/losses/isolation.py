"""Evaluations with a time limit: each record in a sandbox, a process of its own that can be killed.

Each thread that performs tasks (in a worker, or the run itself) has a supervisor, a process that runs
`isolation_worker.py`. It receives the loss once, and then, for each record, parameters and the record.

Guarantee: a record's values depend on the record, the points and the loss, and on whether its own
calls finished in time. A supervisor that dies is replaced and the record in its sandbox is evaluated
once more, alone; if the supervisor dies again, that record has no values. No other record is
evaluated again or voided.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import cloudpickle
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.errors import InvalidArgument
from blindstep.losses import isolation_worker
from blindstep.losses.pytrees import Loss

# Seconds past all time limits after which a supervisor that does not answer counts as dead.
_PATIENCE = 60.0


class _SupervisorLost(Exception):
    """The supervisor is dead or does not answer."""


@dataclass(frozen=True)
class Sealed:
    """A loss as bytes, with public examples of what it is given: it goes to any process."""

    content: bytes


def seal(loss: Loss, params: PyTree, nobody: PyTree) -> Sealed:
    """The loss as bytes; `nobody` is the data without a row. Refuses what cannot be sent."""
    try:
        return Sealed(cloudpickle.dumps((loss, params, nobody)))
    except Exception as error:
        raise InvalidArgument(
            f"the loss cannot be sent to another process ({type(error).__name__}), and with `timeout` "
            "each record is evaluated in a process of its own. Open files, locks, connections and "
            "models on a device inside the loss, not outside of it; or leave `timeout` out."
        ) from None


def check_fork() -> None:
    """Refuse a time limit where no process can be forked."""
    if not hasattr(os, "fork"):
        raise InvalidArgument(
            f"`timeout` needs processes that can be forked, and {sys.platform} has none: leave "
            "`timeout` out and let the loss end by itself, or evaluate on Linux."
        )


def ready(loss: Sealed, timeout: float) -> None:
    """Make sure that this thread has a supervisor with this loss; raise if it cannot be loaded."""
    check_fork()
    held: _Supervisor | None = getattr(_local, "supervisor", None)
    if held is None or not held.serves(loss, timeout):
        dismiss()
        _local.supervisor = _Supervisor(loss, timeout)


def values_apart(
    loss: Sealed, timeout: float, points: bytes, record: PyTree, number: int, *, worker: bool
) -> Float[np.ndarray, " number"]:
    """One record's values, from its own sandbox; NaN from the first call that gave none.

    `points` is what `points_message` made for calls that give `number` values in all. In a worker an
    interrupt is not the user's: the user's own also reaches the run, and ends it there.
    """
    missing = np.full(number, np.nan)
    try:
        message = cloudpickle.dumps(record)
    except BaseException:
        return missing
    for _ in range(2):
        ready(loss, timeout)
        try:
            return _local.supervisor.values(points, message, number)
        except BaseException as error:
            dismiss()  # an answer that is still to come must not be taken for another's
            again = (_SupervisorLost, KeyboardInterrupt) if worker else _SupervisorLost
            if not isinstance(error, again):
                raise
    return missing


def points_message(points: list[PyTree], rows: int | None) -> bytes:
    """The parameters of each call, for `values_apart`; a vectorised one gives `rows` values."""
    return cloudpickle.dumps((points, rows))


def dismiss() -> None:
    """End this thread's supervisor, if it has one."""
    held: _Supervisor | None = getattr(_local, "supervisor", None)
    if held is not None:
        _local.supervisor = None
        held.end()


class _Supervisor:
    """The near end of a supervisor: a process, a pipe, one question at a time."""

    def __init__(self, loss: Sealed, timeout: float) -> None:
        self._loss, self._timeout, self._points = loss, timeout, b""
        self._pipe, far_end = Pipe()
        # By path, and without its folder on the search path: nothing of this package is imported.
        # A session of its own keeps the terminal's Ctrl-C away.
        process = subprocess.Popen(
            [sys.executable, "-P", isolation_worker.__file__],
            stdin=far_end.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        far_end.close()
        self._owner = os.getpid()
        self.end = weakref.finalize(self, _end, process, self._pipe, self._owner)
        try:
            # The loss may import what takes long; how long does not depend on a record.
            self._send(b"L", pickle.dumps((sys.path, timeout, loss.content)))
            said = self._receive(None).decode()
        except _SupervisorLost:
            said = "the process died"
        if said:
            self.end()
            raise InvalidArgument(
                f"the loss cannot be loaded in a fresh process ({said}): define it in a module that "
                "the workers can import, or inside a function, and let it open what it needs itself."
            )

    def serves(self, loss: Sealed, timeout: float) -> bool:
        """Whether this supervisor has that loss and belongs to this process, not to its parent."""
        if (self._owner, self._timeout) != (os.getpid(), timeout) or loss != self._loss:
            return False
        self._loss = loss  # every task brings its own copy; the same object is compared in no time
        return True

    def values(self, points: bytes, record: bytes, number: int) -> Float[np.ndarray, " number"]:
        """Ask for one record's values."""
        if points is not self._points:
            self._send(b"P", points)
            self._points = points
        self._send(b"R", record)
        patience = number * self._timeout + _PATIENCE
        return np.frombuffer(self._receive(patience), dtype="<f8").astype(np.float64)

    def _send(self, kind: bytes, content: bytes) -> None:
        try:
            self._pipe.send_bytes(kind + content)
        except OSError:
            raise _SupervisorLost from None

    def _receive(self, patience: float | None) -> bytes:
        try:
            if self._pipe.poll(patience):
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            pass
        raise _SupervisorLost


def _end(process: subprocess.Popen[bytes], pipe: Connection, owner: int) -> None:
    """End a supervisor: it ends by itself, with its sandbox, when its input does."""
    if os.getpid() != owner:
        return  # a forked copy of the owner; the supervisor is not its own
    pipe.close()
    try:
        process.wait(2 * isolation_worker._PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_local = threading.local()
