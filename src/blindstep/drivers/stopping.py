"""Ctrl-C: a run that the user stops ends in one line that says how to go on.

What is raised is still a KeyboardInterrupt, so that notebooks, frameworks and shells see what they
expect. It comes without the frames it was pressed in, which belong to compilers and engines, and with a
sentence. Where nobody catches it, Python prints that sentence alone.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from blindstep.ledger.storage import Storage

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_Path = str | os.PathLike[str]


def how_to_go_on(checkpoint: _Path | None, ledger: _Path | None = None, call: str = "call") -> str:
    """What a stopped run has spent, and how it goes on; `call` is what the user would repeat."""
    if checkpoint is None:
        kept = "" if ledger is None else f" ({os.fspath(ledger)} has it)"
        return (
            f"Stopped. What was released is spent{kept}, and this run cannot go on: it has no "
            "checkpoint. With checkpoint='run' the next one can."
        )
    if not Storage(checkpoint).begun:
        return f"Stopped before anything was released or spent; the same {call} starts the run."
    return f"Stopped; the same {call} goes on where it was, from {os.fspath(checkpoint)}."


def stopped(words: str) -> KeyboardInterrupt:
    """The interrupt to raise in place of the user's: in these words, printed as one line."""
    stop = KeyboardInterrupt(words)
    sys.excepthook = functools.partial(_print_one_line, stop, sys.excepthook)
    return stop


def _print_one_line(
    stop: KeyboardInterrupt,
    before: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if error is stop:
        print(f"blindstep: {stop}", file=sys.stderr)
    else:
        before(kind, error, trace)


def ends_in_one_line(function: Callable[_Arguments, _Answer]) -> Callable[_Arguments, _Answer]:
    """The same driver; Ctrl-C in it ends in one line. Its `checkpoint` and `ledger` are keywords."""

    @functools.wraps(function)
    def driver(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            given = cast("dict[str, Any]", kwargs)
        # Raised out here, so that it does not carry the first one and its frames along.
        raise stopped(how_to_go_on(given.get("checkpoint"), given.get("ledger")))

    return driver
