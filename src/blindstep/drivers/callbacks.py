"""A loss that calls back into Python from a compiled program, and raises there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

from blindstep.errors import BlindstepError

Value = TypeVar("Value")


class LossFailed(BlindstepError):
    """The loss raised inside the compiled program. The steps it was computing are not released."""


def telling_failures(run: Callable[[], Value]) -> Value:
    """`run()`; of such a failure, say what to do, without its words: they may hold a record.

    That it ended the run tells something about the records all the same, and no noise hides it. A
    compiled program cannot go on past a callback that raised, so the remedy is the host driver.
    """
    try:
        return run()
    except jax.errors.JaxRuntimeError as error:
        if "callback" not in str(error).lower():
            raise  # the device's own failure, such as too little memory
    # Raised out here, so that it does not carry the first error along.
    raise LossFailed(
        "the loss called back into Python, and that raised an exception for some record: nothing of "
        "this epoch was released. Use blindstep.host.minimize, where such a record counts 0, or "
        "catch the exception inside the callback and return NaN."
    )
