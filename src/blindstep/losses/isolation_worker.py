"""The supervisor: a small process that evaluates every record in a process of its own, a *sandbox*.

`isolation.py` starts this file by its path, so it imports the standard library and nothing else: a
supervisor holds what the loss needs, no JAX unless the loss does. For each record its one thread

    forks a sandbox -> reads the values that the sandbox writes, each within the time limit -> kills the
    sandbox and all that it started -> answers, NaN where a value is missing

Guarantee: what a record does in its sandbox (spin, sleep, hoard, exit, crash, raise, print, change the
interpreter) ends with the sandbox. The limit is measured here, where nothing else is done, and a value
that is there is read before its record is called late. So only the machine's total load is shared.

Messages begin with their kind: L loads a loss, P sets the points for all records that follow, R asks
for one record's values.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any

try:
    import resource
except ImportError:  # Windows: there, time limits are refused
    resource = None

NAN = struct.pack("<d", float("nan"))
# Seconds to wait for a killed sandbox to disappear. After that it is left to the kernel.
_PATIENCE = 1.0
# Seconds without a message after which a supervisor ends, so that none is left in a cluster's workers.
_IDLE = 300.0
# Bytes that a sandbox may always have, on machines with many processors and little memory.
_LEAST_ROOM = 2**28
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of Linux's prctl


def number(value: object) -> float:
    """One answer as a float, NaN if it is not one real number. Never raises on a value."""
    try:
        if hasattr(value, "item"):  # arrays of one number: NumPy's, JAX's and others'
            value = value.item()  # pyright: ignore[reportAttributeAccessIssue]
        return float(value) if isinstance(value, Real) else float("nan")
    except BaseException:
        return float("nan")


def numbers_of_rows(value: Any, rows: int) -> Any:
    """A vectorised loss's answer as float64, one for each row; None if it is anything else."""
    import numpy as np

    try:
        values = np.asarray(value)
        if values.shape != (rows,) or values.dtype.kind not in "biuf":
            return None
        return values.astype(np.float64)
    except BaseException:
        return None


# -- a sandbox ------------------------------------------------------------------------------------


def _live(supervisor: Supervisor, record: memoryview, pipe: int) -> None:
    """The whole life of a sandbox: restrict itself, evaluate, and write each value as it comes."""
    os.setsid()  # what it starts is killed with it
    supervisor.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != supervisor.pid:
        return
    supervisor.pipe.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _restrict(supervisor.room)
    if numpy := sys.modules.get("numpy"):
        numpy.seterr(all="ignore")
    if random := sys.modules.get("numpy.random"):
        random.seed()  # else every sandbox would draw the supervisor's next numbers
    held = pickle.loads(record)
    for params in supervisor.points:
        try:
            value = supervisor.loss(params, held)
        except BaseException:  # also an interrupt: nobody but the loss can send one to a sandbox
            value = None
        if supervisor.rows is None:
            answer = struct.pack("<d", number(value))
        else:
            values = numbers_of_rows(value, supervisor.rows)
            answer = NAN * supervisor.rows if values is None else values.tobytes()
        left = memoryview(answer)
        while left:
            left = left[os.write(pipe, left) :]


def _restrict(room: int | None) -> None:
    """Limit memory, and let the kernel kill this process first if memory runs out."""
    if room is None or resource is None:
        return
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")
    # RLIMIT_DATA counts what can be written to. RLIMIT_AS would also count address space that
    # drivers and allocators reserve and never use, and stop losses that need little memory.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = room if hard == resource.RLIM_INFINITY else min(room, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


# -- the supervisor -----------------------------------------------------------------------------------


class Supervisor:
    """One loss, one set of points at a time, and one sandbox at a time."""

    loss: Callable[[Any, Any], Any]
    points: list[Any]  # the parameters of each call of the loss
    rows: int | None  # values of one call of a vectorised loss; None: the loss gives one number
    room: int | None = None  # the most data of a sandbox, in bytes; None where nothing is known
    timeout: float

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.pid = pipe, os.getpid()
        self.prctl: Callable[[int, int], Any] = lambda *_: None
        if sys.platform == "linux":
            self.prctl = ctypes.CDLL(None).prctl
        # Processes that a sandbox leaves behind become children of the supervisor, which kills them.
        self.prctl(_SUBREAPER, 1)
        self._own: set[int] = set()

    def serve(self) -> None:
        """Answer messages until the other side is gone, or has been silent for long."""
        serving = {b"L": self._load, b"P": self._set_points, b"R": self._answer}
        while self.pipe.poll(_IDLE):
            message = memoryview(self.pipe.recv_bytes())
            serving[bytes(message[:1])](message[1:])

    def _load(self, message: memoryview) -> None:
        """Load the loss; answer with the name of the error if it fails, else with nothing."""
        path, self.timeout, sealed = pickle.loads(message)
        sys.path[:] = path
        said = b""
        try:
            # With it come public examples of parameters and records without a row: whatever they
            # need is imported here, once, and not by every sandbox within its time.
            self.loss, *_ = pickle.loads(sealed)
        except BaseException as error:
            said = type(error).__name__.encode()
        self._own = _children()
        gc.collect()
        gc.freeze()  # sandboxes share these pages as long as nobody touches them
        self.pipe.send_bytes(said)

    def _set_points(self, message: memoryview) -> None:
        self.points, self.rows = pickle.loads(message)
        self.room = _room()

    def _answer(self, record: memoryview) -> None:
        mine, theirs = os.pipe()
        sandbox = _fork()
        if sandbox == 0:
            try:
                os.close(mine)
                _live(self, record, theirs)
            finally:
                os._exit(0)
        os.close(theirs)
        count = len(self.points) * (self.rows or 1)
        values = self._collect(mine, count)
        self._clear(sandbox)
        os.close(mine)
        whole = values[: len(values) // 8 * 8]
        self.pipe.send_bytes(bytes(whole) + NAN * (count - len(whole) // 8))

    def _collect(self, pipe: int, count: int) -> bytearray:
        """What the sandbox writes, until all values are there, it is gone, or a call is too late."""
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        waiting.register(self.pipe, 0)  # tells if the other side is gone
        values, one_call = bytearray(), 8 * (self.rows or 1)
        while len(values) < 8 * count:
            wanted, deadline = len(values) // one_call * one_call, time.monotonic() + self.timeout
            while len(values) < wanted + one_call:
                left = deadline - time.monotonic()
                ready = dict(waiting.poll(1000 * max(0.0, left)))
                if self.pipe.fileno() in ready:
                    return values
                if pipe in ready:
                    some = os.read(pipe, 8 * count - len(values))
                    if not some:
                        return values
                    values += some
                elif left <= 0:
                    return values
        return values

    def _clear(self, sandbox: int) -> None:
        """Kill the sandbox, its session, and processes that left the session, until none remains."""
        _kill(os.killpg, sandbox)
        left, until = {sandbox}, time.monotonic() + _PATIENCE
        while left and time.monotonic() < until:
            for process in left:
                _kill(os.kill, process)
                _reap(process)
            left = (_children() | {pid for pid in left if not _reap(pid)}) - self._own
            if left:
                time.sleep(0.0002)


def _fork() -> int:
    """Fork; wait while the machine has no process left, which no record is to blame for."""
    while True:
        try:
            return os.fork()
        except OSError:
            time.sleep(0.05)


def _kill(kill: Callable[[int, int], None], process: int) -> None:
    with contextlib.suppress(OSError):  # gone, or not yet the leader of a session
        kill(process, signal.SIGKILL)


def _reap(process: int) -> bool:
    """Whether the process is gone."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] == process
    except ChildProcessError:
        return True


def _children() -> set[int]:
    """The supervisor's children, where Linux tells."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def _room() -> int | None:
    """Bytes of data that a sandbox may have: what the supervisor has, and a fair share of the memory.

    The share is memory / (processors + 1). It is a public number: no record has a part in it.
    """
    try:
        with open("/proc/self/statm") as file:
            data = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        processors = len(os.sched_getaffinity(0))  # pyright: ignore[reportAttributeAccessIssue]
    except (OSError, AttributeError):
        return None
    return data + max(_LEAST_ROOM, _memory() // (processors + 1))


def _memory() -> int:
    """The machine's memory, or that of the control group that the supervisor is in, if it is less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        groups = []
    for _, controllers, group in groups:
        if controllers == "":
            place, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            place, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the group may be mounted as the root.
        for path in (f"{place}{group}/{name}", f"{place}/{name}"):
            try:
                with open(path) as file:
                    found.append(int(file.read()))
            except (OSError, ValueError):  # not there, or "max"
                continue
    return min(found)


def main() -> None:
    """Run a supervisor: standard input is the pipe to the process that asks."""
    pipe = Connection(os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # whatever the loss prints, from any language
        os.dup2(nowhere, standard)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    logging.disable(sys.maxsize)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Supervisor(pipe).serve()


if __name__ == "__main__":
    try:
        main()
    except (EOFError, OSError):
        os._exit(0)  # the other side is gone
