"""Rehearsal: the loss and its gradients are tried on made-up records before anything is charged.

A loss that fails for every record would spend the budget on noise, and the run could not report it,
because what a loss does with a record is secret. A gradient can be missing, because JAX cannot
differentiate the loss, or useless: that of a staircase (a 0/1 loss, an accuracy, ranks) is 0 wherever
it exists.

Guarantee: only names, shapes and dtypes of the data are used, which are public; no value is read.
"""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from blindstep.errors import InvalidArgument, LossNotFinite, warn
from blindstep.losses import isolation
from blindstep.losses.error_checks import voiding
from blindstep.losses.portable import Reporting, Trial, reported, try_loss, words
from blindstep.losses.pytrees import (
    Loss,
    ParameterSpace,
    count_records,
    described,
    refuse_mixing,
    shapes_of,
)
from blindstep.losses.silence import interrupt, silence

# Zeros, ones, random shares in 0 .. 1, random normal numbers, large positive ones, large negative ones.
_NUMBER, _LARGE = 6, 1000.0
# How far from the start the loss is looked at, in units of a parameter's size (at least 1). At the
# start alone a smooth loss may be flat as well: at a saddle, where a network's weights are all 0.
_AWAY = (0.0, 0.01, 0.3, 1.0, 10.0)
# So many times more rows in the parameters than records: perhaps the two were swapped.
_SWAPPED = 10
# Rows of a vectorised call: two show whether there is one number for each.
_ROWS = 2


def made_up(data: PyTree, number: int = _NUMBER) -> PyTree:
    """`number` records with the structure, shapes and dtypes of `data`, and with nothing else of it.

    The first is all 0 (False, empty text), the second all 1 (True, "a"), the third holds numbers
    between 0 and 1, the fifth and sixth numbers of about 1,000 and -1,000, and the others normal ones,
    from fixed seeds. Whole numbers are 0 or 1, in the last two in turns. A price that is compared with
    what people can pay needs the large ones: at a start of 5, records below 1 never see it change.
    """
    leaves, structure = jax.tree.flatten(data)
    rows = [_rows(leaf, number, place) for place, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, rows)


def _rows(leaf: Any, number: int, place: int) -> np.ndarray:
    shape, dtype = (number, *leaf.shape[1:]), np.dtype(leaf.dtype)
    random = np.random.default_rng(place)
    numbers = random.normal(size=shape)
    numbers[2:3] = random.uniform(size=numbers[2:3].shape)
    numbers[0:1], numbers[1:2] = 0.0, 1.0
    numbers[4:5], numbers[5:6] = _LARGE * np.abs(numbers[4:5]), -_LARGE * np.abs(numbers[5:6])
    if dtype.kind in "fc" or jnp.issubdtype(dtype, jnp.floating):
        return numbers.astype(dtype)
    # Two numbers side by side, or in two leaves, differ: a pair of one thing and itself shows nothing.
    turns = (np.arange(numbers[:1].size).reshape(shape[1:]) + place) % 2
    numbers[4:5], numbers[5:6] = turns, 1 - turns
    if dtype.kind in "biu":
        return (numbers > 0.5).astype(dtype)
    if dtype.kind in "Mm":
        return (numbers > 0.5).astype(np.int64).astype(dtype)
    if dtype.kind in "USO":
        texts = np.where(numbers > 0.5, "a", "")
        return texts.astype(object if dtype.kind == "O" else dtype.kind)
    return np.zeros(shape, dtype)


def rehearse(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    *,
    vectorized: bool = False,
    timeout: float | None = None,
) -> None:
    """Try a Python loss on made-up records at the start parameters, as the host driver calls it.

    Raises:
        InvalidArgument: no made-up record got a real number, with what the loss said to the first; or
            the loss does not change with the parameters.
            A loss that gives numbers, none of them finite, is a warning (`LossNotFinite`).
    """
    space, rows = ParameterSpace.of(params), _ROWS if vectorized else None
    records, points = made_up(data), _around(params)

    def attempt(place: int, far: int = 0) -> Trial:
        one = [place] * rows if rows else place
        record = jax.tree.map(lambda leaf: leaf[one], records)
        at = space.unflatten(points[far] if rows is None else np.tile(points[far], (rows, 1)))
        if timeout is None:
            return _here(loss, at, record, rows)
        return _apart(loss, at, record, rows, timeout)

    if rows is None and timeout is None:
        _refuse_swapped(loss, params, data)
    if _judge(attempt, data):
        _refuse_constant(attempt)


def rehearse_compiled(
    loss: Loss, params: PyTree, data: PyTree, *, differentiated: bool = False
) -> None:
    """Try a loss that JAX can trace on made-up records, compiled and in 64-bit mode.

    `check_loss` has seen already that it gives one real number, and `check_gradient`, if it will be
    `differentiated`, that it has a gradient. What is left: a callback that raises for every made-up
    record, a loss that does not change with the parameters, or a gradient that sees nothing of it
    (InvalidArgument), and values or gradients that are never finite (`LossNotFinite`).
    """
    space, records, points = ParameterSpace.of(params), made_up(data), _around(params)

    def attempt(place: int, far: int = 0) -> Trial:
        record = jax.tree.map(lambda leaf: leaf[place], records)
        value, at = functools.partial(_value, loss, differentiated), space.unflatten(points[far])
        return _here(lambda *given: np.asarray(value(*given)), at, record, None)

    _refuse_swapped(lambda *given: np.asarray(loss(*given)), params, data)
    what = "the loss or its gradient" if differentiated else "the loss"
    if _judge(attempt, data, what):
        _refuse_constant(attempt)
        if differentiated:
            refuse_staircase(loss, params, records)


@eqx.filter_jit
def _value(loss: Loss, differentiated: bool, params: PyTree, record: PyTree) -> Any:
    """The value; if it will be differentiated, not finite where the gradient is not."""
    if not differentiated:
        return voiding(loss)(params, record)
    value, gradient = jax.value_and_grad(voiding(loss))(params, record)
    return value + sum(0.0 * jnp.sum(leaf) for leaf in jax.tree.leaves(gradient))


def _here(loss: Loss, params: PyTree, record: PyTree, rows: int | None) -> Trial:
    """One call in this process, silent as in the run. The user's own Ctrl-C goes on."""
    with silence(worker=False), interrupt.watched(here=True), np.errstate(all="ignore"):
        return try_loss(loss, params, record, rows)


def _apart(loss: Loss, params: PyTree, record: PyTree, rows: int | None, timeout: float) -> Trial:
    """One call in a sandbox, within the time limit."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "outcome.json")
        sealed = isolation.seal(Reporting(loss, path, rows), params, record)
        message = isolation.points_message([params], None)
        isolation.values_apart(sealed, timeout, message, record, 1, worker=False)
        return reported(path, f"takes longer than timeout={timeout:g} seconds, or ends its process")


def _refuse_swapped(loss: Loss, params: PyTree, data: PyTree) -> None:
    """Raise if parameters look like records and records like parameters, and the loss takes them so."""
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(params)}
    rows = count_records(data)
    if len(lengths) > 1 or max(lengths) < (_SWAPPED * rows,):
        return
    record = jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)[1:], np.asarray(leaf).dtype), params)
    if _here(loss, made_up(data, rows), record, None).number:
        raise InvalidArgument(
            f"there are {rows} records, and the parameters have {max(lengths)[0]} rows: are the two "
            "swapped? It is minimize(loss, params, data, privacy). Nothing was spent. If they are not, "
            "give rehearse=False."
        )


def _around(params: PyTree) -> Float[np.ndarray, "points dim"]:
    """The start, and points farther and farther from it, as flat vectors."""
    flat = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)]
    start = np.concatenate(flat)
    size = max(1.0, math.sqrt(float(np.mean(start**2))))
    moves = np.random.default_rng(0).normal(size=(len(_AWAY), start.size))
    return start + size * np.asarray(_AWAY)[:, None] * moves


def _refuse_constant(attempt: Callable[[int, int], Trial]) -> None:
    """Raise if each made-up record has one loss wherever the parameters are; one change is enough.

    Random numbers come first: a record of zeros is often 0 wherever it is asked.
    """
    compared = False
    for place in reversed(range(_NUMBER)):
        values = [attempt(place, far) for far in (0, len(_AWAY) - 1)]
        values += [attempt(place, far) for far in range(1, len(_AWAY) - 1) if _equal(values)]
        if not _equal(values):
            return
        compared |= sum(each.finite for each in values) > 1
    if compared:
        raise InvalidArgument(
            "the loss does not change with the parameters: made-up records (zeros, ones, random and "
            f"large numbers) have the same loss at the start and at {len(_AWAY) - 1} points around it, "
            "near and far. So there is nothing to learn. Nothing was spent. Does it use its first "
            "argument? If it does, and made-up records are the reason, give rehearse=False."
        )


def _equal(trials: list[Trial]) -> bool:
    return len({each.value for each in trials if each.finite}) < 2


def _judge(attempt: Callable[[int], Trial], data: PyTree, what: str = "the loss") -> bool:
    """Refuse a loss that never gave a number; warn of one that never gave a finite one.

    Returns whether it gave a finite number. `what` names the thing that is not finite.
    """
    trials: list[Trial] = []
    for place in range(_NUMBER):
        trials.append(attempt(place))
        if trials[-1].finite:  # a loss may fail for some records
            return True
    switch = (
        "If the loss is right, and made-up values are what it cannot take, try it on a record that you "
        "make up yourself, and give rehearse=False."
    )
    if not any(each.number for each in trials):
        raise InvalidArgument(
            f"the loss {trials[0].said}. That was on a made-up record of zeros, which is "
            f"{described(data, of_records=True)}; with ones and random numbers it gave no number "
            f"either, and each record would count 0. Nothing was spent. Correct the loss. {switch}"
        )
    warn(
        f"{what} is not finite at the start parameters, for any of {_NUMBER} made-up records (zeros, "
        f"ones, random and large numbers), and a record for which {what} is not finite counts 0. Look "
        f"for a division by 0, or the logarithm or the root of 0, or start elsewhere. {switch}",
        LossNotFinite,
    )
    return False


_REMEDY = "Nothing was spent. Leave out estimate='gradient': values of the loss are enough."


def check_gradient(loss: Loss, params: PyTree, data: PyTree) -> None:
    """Trace the gradient on shapes alone; it must exist, and do nothing but compute.

    What a gradient prints or calls back with (in a `jax.custom_vjp`) would pass by the noise.
    """
    try:
        traced = jax.make_jaxpr(jax.grad(voiding(loss)))(*shapes_of(params, data))
    except Exception as error:
        raise InvalidArgument(
            f"JAX cannot differentiate the loss: this raises {words(error)}. {_REMEDY}"
        ) from error
    if traced.effects:
        raise InvalidArgument(
            "the gradient of the loss prints, calls back or checks while the program runs "
            "(jax.debug.print, io_callback, checkify.check), and what it says of a record would pass "
            f"by the noise. Take that out. {_REMEDY}"
        )
    refuse_mixing(traced)


def refuse_staircase(loss: Loss, params: PyTree, records: PyTree) -> None:
    """Raise if losses of made-up `records` change, and their gradients are 0 wherever we look."""
    space = ParameterSpace.of(params)
    try:
        values, slopes = map(np.asarray, _looked(loss, space, _around(params), records))
    except jax.errors.JaxRuntimeError:  # a callback fails for one of them, as it may
        return
    finite = np.isfinite(values) & np.isfinite(slopes)
    lowest = np.min(np.where(finite, values, np.inf), axis=0)
    highest = np.max(np.where(finite, values, -np.inf), axis=0)
    if np.any(lowest < highest) and not np.any(slopes[finite]):
        raise InvalidArgument(
            "the loss changes with the parameters, but its gradient is 0: so it was on made-up "
            f"records, at the start and at {len(_AWAY) - 1} points around it. That is a loss of steps, "
            "as of right and wrong answers or of ranks, and a gradient sees none of them. "
            f"{_REMEDY} (If made-up records are the reason, give rehearse=False.)"
        )


@eqx.filter_jit
def _looked(
    loss: Loss,
    space: ParameterSpace,
    points: Float[Array | np.ndarray, "points dim"],
    records: PyTree,
) -> tuple[Float[Array, "points records"], Float[Array, "points records"]]:
    """At each point, the loss of each record and the largest part of its gradient."""
    checked = voiding(loss)

    def at(point: Float[Array, " dim"], record: PyTree) -> Any:
        return checked(space.unflatten(point), record)

    def one(point: Float[Array, " dim"], record: PyTree) -> tuple[Array, Array]:
        value, slopes = jax.value_and_grad(at)(point, record)
        return value, jnp.max(jnp.abs(slopes))

    of_all = jax.vmap(one, in_axes=(None, 0))
    return jax.lax.map(lambda point: of_all(point, records), jnp.asarray(points))
