"""Losses with randomness of their own: `loss(params, record, key)`, or `seed` on the host.

A simulator draws random numbers. If each evaluation drew its own, the difference of a pair would be
mostly theirs. So a record has one stream, the same at every evaluation: the two points of a pair, all
steps, calibrations and the comparison with the start see the same draws, and differ in their parameters
alone. What is minimized is the mean over the records, each at its own draws.

Guarantee: the stream of a record is a fixed public function of its place in the data; of a person's
slot, of the person's place and the slot. So another record, or another person's rows, changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int, PyTree

from blindstep.errors import InvalidArgument
from blindstep.losses.portable import SeededLoss
from blindstep.losses.pytrees import count_records, over_records, place

# What the third argument of such a loss is called.
_NAMES = ("key", "seed")


class KeyedLoss(eqx.Module):
    """A loss of parameters and (record, number): the key is a function of the number alone.

    Attributes:
        loss: of parameters, a record and a key.
        seeded: whether it takes the number itself for a seed.
    """

    loss: Callable[[PyTree, PyTree, Any], Any]
    seeded: bool = eqx.field(static=True, default=False)

    def __call__(self, params: PyTree, numbered: tuple[PyTree, Any]) -> Any:
        """The loss of one record, at its own draws."""
        record, number = numbered
        if self.seeded:
            return self.loss(params, record, number)
        first = jax.random.key(0, impl="threefry2x32")  # of the kind that a batch draws one by one
        return self.loss(params, record, jax.random.fold_in(first, number))


def with_streams(
    loss: Callable[..., Any], data: PyTree, *, host: bool = False
) -> tuple[Callable[..., Any], PyTree]:
    """Loss and data of a loss that takes a key, records with their numbers; any other as it is."""
    name = third_name(loss)
    _check_signature(loss, 3 if name in _NAMES else 2)
    if name not in _NAMES:
        return loss, data
    numbers = _like(data, np.arange(count_records(data), dtype=np.int32))
    return SeededLoss(loss) if host else KeyedLoss(loss, name == "seed"), (data, numbers)


def _check_signature(loss: object, number: int) -> None:
    """A function of as many arguments as it is called with, as far as Python can tell."""
    if not callable(loss):
        raise InvalidArgument(
            f"the loss is {loss!r}: give a function of parameters and one record, which returns one "
            "number."
        )
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):
        return  # some built-in functions have none
    try:
        signature.bind(*[None] * number)
    except TypeError:
        raise InvalidArgument(
            f"the loss takes {signature}, but it is called as loss(params, record)."
        ) from None


def in_slots(
    loss: Callable[..., Any], slots: PyTree, index: Int[np.ndarray, "people rows"]
) -> PyTree:
    """Rows in slots, with numbers of the slots in the place of those of the rows in the table.

    Where a row stands in the table depends on how many rows other people have.
    """
    if not isinstance(loss, KeyedLoss | SeededLoss):
        return slots
    rows, numbers = slots
    return rows, _like(numbers, np.arange(index.size, dtype=np.int32).reshape(index.shape))


def third_name(loss: Callable[..., Any]) -> str | None:
    """What a loss calls its third argument; None if it has no third one."""
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return None  # some built-in functions have no signature
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters if each.kind in kinds]
    return names[2] if len(names) > 2 else None


def _like(data: PyTree, numbers: Int[np.ndarray, "..."]) -> Any:
    """Numbers of the records, on the devices over which these are spread."""
    sharding = over_records(place(data)) if over_records(data) is not None else None
    if sharding is None:
        return numbers
    return jax.make_array_from_callback(numbers.shape, sharding, lambda part: numbers[part])
