"""What a loss prints, logs or raises about a record is discarded; only Ctrl-C ends a run.

For evaluations without a time limit, which run inside a worker or the user's own process.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

_PROCESS = secrets.token_hex(8)
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


def this_terminal() -> str:
    """A name of the processes that one Ctrl-C reaches: those of this process group, here."""
    return f"{socket.gethostname()}-{os.getpgrp()}"


def this_process() -> str:
    """A name that no other process has, on any machine; a forked one differs by its number."""
    return f"{_PROCESS}-{os.getpid()}"


class _Nowhere(io.TextIOWrapper):
    """A stream that keeps nothing, and that a loss cannot close for others."""

    def close(self) -> None:
        """Stay open."""


class _Silence:
    """Standard output and error, warnings and logging go nowhere while any thread is inside.

    Threads share these: the first to come in turns them off, and the last to leave turns them on.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._undo = contextlib.ExitStack()

    @contextlib.contextmanager
    def __call__(self, *, worker: bool) -> Iterator[None]:
        """Be silent, and keep other languages from standard output.

        In a worker, whose output is nobody else's, from standard error too: a run shows how far it is
        there.
        """
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._enter(worker)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._undo.close()

    def _enter(self, worker: bool) -> None:
        undo = self._undo
        nowhere = _Nowhere(open(os.devnull, "wb"))  # noqa: SIM115
        undo.callback(io.TextIOWrapper.close, nowhere)
        for name in _STREAMS:
            undo.callback(setattr, sys, name, getattr(sys, name))
            setattr(sys, name, nowhere)
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        undo.callback(logging.disable, logging.root.manager.disable)
        logging.disable(sys.maxsize)
        flush = ctypes.CDLL(None).fflush
        flush(None)  # what C held back before is not of a loss
        for descriptor in (1, 2) if worker else (1,):
            with contextlib.suppress(OSError):  # a worker may have closed it
                kept = os.dup(descriptor)
                undo.callback(os.close, kept)
                undo.callback(os.dup2, kept, descriptor)
                os.dup2(nowhere.fileno(), descriptor)
        undo.callback(flush, None)  # what C holds back now goes nowhere, too


class _Interrupt:
    """Tells the user's Ctrl-C, a signal, from a KeyboardInterrupt that a loss raises."""

    arrived = False

    @contextlib.contextmanager
    def watched(self, *, here: bool) -> Iterator[None]:
        """Watch for the signal, if this is the run's own process and its main thread.

        Anywhere else Ctrl-C is the business of the main thread, and nothing arrives.
        """
        before: Any = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()
        if not (here and main and callable(before)):
            yield
            return

        def arrives(number: int, frame: FrameType | None) -> None:
            try:
                before(number, frame)
            except KeyboardInterrupt:
                self.arrived = True
                raise

        self.arrived = False
        signal.signal(signal.SIGINT, arrives)
        try:
            yield
            self.passed_on()
        finally:
            signal.signal(signal.SIGINT, before)
            self.arrived = False

    def left_to(self, terminal: str) -> None:
        """In a worker that the run's own Ctrl-C reaches too: leave it to the run, from now on.

        A worker that it ends prints pages, also while it waits for work. Engines whose tasks are in
        threads (Dask) keep Python's own switch in a thread that is not ours, so C's is used there.
        """
        if terminal != this_terminal():
            return
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except ValueError:  # not the main thread
            ctypes.CDLL(None).signal(int(signal.SIGINT), ctypes.c_void_p(int(signal.SIG_IGN)))

    def passed_on(self) -> None:
        """End the run if the user wants it, in no words of a loss, and even if a loss caught it."""
        if self.arrived and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt from None


silence, interrupt = _Silence(), _Interrupt()
