"""Losses that raise inside a compiled program: by `equinox.error_if`, or in a callback.

Left alone, equinox ends the whole program when the check of one record fails, which reveals something
about that record that no noise hides. Its mode "nan" would void all records of the batch. So while a
loss is traced, a check becomes an operation on its own record: `where(failed, NaN, value)`.

Guarantee: under `vmap` such an operation acts on each record separately, so the value of a record
depends on that record alone, and no exception and no callback is left in the program.

Callbacks that raise, and checks in a version of equinox that this module cannot change, end the run
with `LossFailed`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from blindstep.errors import LossFailed

# Equinox's public functions look these two up in their own module when they are called.
_IMPLEMENTATIONS = ("branched_error_if_impl", "branched_error_if_impl_jit")
_PLACES = (jax.extend.core, jax.core)
_lock = threading.RLock()


def _equinox_errors() -> ModuleType | None:
    """The module whose checks can be replaced; None in a version of equinox that has moved them."""
    try:
        found = importlib.import_module("equinox._errors")
    except ImportError:
        return None
    known = all(callable(getattr(found, name, None)) for name in _IMPLEMENTATIONS)
    return found if known and hasattr(found, "EQX_ON_ERROR") else None


def _trace_state() -> Callable[..., Any] | None:
    """What tells which program JAX traces; versions have it in two places. None where it is gone."""
    found = (getattr(place, "get_opaque_trace_state", None) for place in _PLACES)
    return next((each for each in found if each is not None), None)


_ERRORS, _STATE = _equinox_errors(), _trace_state()
# Part of the key of JAX's caches: a jitted part of the loss that was traced before, with checks that
# raise, is traced anew; and one that is traced here goes on raising when the user calls it.
_replaced = jax.make_user_context(False)


def voiding(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss, whose value is NaN for a record that fails one of its checks.

    A check in the loss itself voids its record whatever becomes of the checked value. One inside a
    loop, a branch or a jitted part makes that value NaN (an integer its largest), and the loss goes on
    from there. Where equinox or JAX have moved what this needs, the loss stays as it is, and a failing
    check ends the run with `LossFailed`.
    """
    if _ERRORS is None or _STATE is None:
        return loss
    errors, program = _ERRORS, functools.partial(_STATE, convention="blindstep")

    def voided(*args: Any) -> Any:
        failures: list[Any] = []
        with _lock, _replaced(True), _replacing(errors, program, failures):
            value = loss(*args)
        for failed in failures:
            value = jnp.where(failed, jnp.nan, value)
        return value

    return voided


@contextlib.contextmanager
def _replacing(
    errors: ModuleType, program: Callable[[], Any], failures: list[Any]
) -> Iterator[None]:
    """While this lasts, checks that this thread traces raise nothing.

    Those of the loss itself are noted in `failures`. A check of an inner program (a loop, a branch, a
    jitted part) cannot be: its predicate does not exist outside.
    """
    before = {name: getattr(errors, name) for name in _IMPLEMENTATIONS}
    mine, outside = threading.get_ident(), program()

    def instead_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def check(x: Any, pred: Any, index: Any, msgs: Sequence[str], *, on_error: str) -> Any:
            # What is known before the program runs is no record: a wrong shape should be told.
            if threading.get_ident() != mine or not isinstance(pred, jax.core.Tracer):
                return original(x, pred, index, msgs, on_error=on_error)
            if (errors.EQX_ON_ERROR if on_error == "default" else on_error) == "off":
                return x
            failed = jnp.any(pred)
            if program() == outside:
                failures.append(failed)
            return jax.tree.map(lambda leaf: _void(failed, leaf), x)

        return check

    try:
        for name, original in before.items():
            setattr(errors, name, instead_of(original))
        yield
    finally:
        for name, original in before.items():
            setattr(errors, name, original)


def _void(failed: Any, leaf: Any) -> Any:
    """`leaf`, or NaN of its type where the check failed; the largest number where there is no NaN."""
    if not isinstance(leaf, np.ndarray | jax.Array):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.where(failed, jnp.asarray(jnp.nan, leaf.dtype), leaf)
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return jnp.where(failed, jnp.asarray(jnp.iinfo(leaf.dtype).max, leaf.dtype), leaf)
    return leaf


Value = TypeVar("Value")


def telling_failures(run: Callable[[], Value]) -> Value:
    """`run()`; of such a failure, say what to do, without its words: they may hold a record.

    JAX's own search for NaN (`jax_debug_nans`) is off meanwhile: it would end the run at the first
    record whose loss is not finite, and such a record counts 0.
    """
    try:
        with jax.debug_nans(False), jax.debug_infs(False):
            return run()
    except eqx.EquinoxRuntimeError:
        pass
    except jax.errors.JaxRuntimeError as error:
        if "callback" not in str(error).lower():
            raise  # the device's own failure, such as too little memory
    # Raised out here, so that it does not hold the first error.
    raise LossFailed(
        "the loss raised an exception for some record while the program ran: nothing of this round "
        "was released. Give evaluate=blindstep.Host(), where such a record counts 0, or return NaN "
        "where the loss would raise."
    )
