"""A loss that raises while a compiled program runs: in a callback.

Also by `equinox.error_if`, in a version of equinox whose checks `error_checks` cannot replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax

from blindstep.errors import BlindstepError

Value = TypeVar("Value")


class LossFailed(BlindstepError):
    """The loss raised inside the compiled program. The steps it was computing are not released."""


def telling_failures(run: Callable[[], Value]) -> Value:
    """`run()`; of such a failure, say what to do, without its words: they may hold a record.

    That it ended the run tells something about the records all the same, and no noise hides it. A
    compiled program cannot go on past an error, so the remedy is the host driver.
    """
    try:
        return run()
    except eqx.EquinoxRuntimeError:
        pass
    except jax.errors.JaxRuntimeError as error:
        if "callback" not in str(error).lower():
            raise  # the device's own failure, such as too little memory
    # Raised out here, so that it does not carry the first error along.
    raise LossFailed(
        "the loss raised an exception for some record while the program ran: nothing of this round "
        "was released. Use blindstep.host.minimize, where such a record counts 0, or return NaN "
        "where the loss would raise."
    )
