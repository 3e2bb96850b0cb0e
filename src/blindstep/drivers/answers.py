"""From answers that came from outside to a step of the machine: any object in, nothing raised."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from blindstep.optimize.conversion import Conversion, Released, State
from blindstep.trusted.estimators import Estimator, Kind, Query
from blindstep.trusted.increments import Chunk, chunk_for, increment
from blindstep.trusted.randomness import NoiseKey


@eqx.filter_jit
def release(
    machine: Conversion,
    state: State,
    kind: Kind,
    answers: Float[Array, "batch 2 q"],
    public: Key[Array, ""],
    noise: NoiseKey,
) -> tuple[State, Released]:
    """One step from its answers."""
    moved = combine(machine.oracle.estimator, machine.ask(state, kind, public), answers)
    return machine.tell(state, moved, public, noise)


def combine(
    estimator: Estimator, query: Query, answers: Float[Array, "batch 2 q"]
) -> Float[Array, " release_dim"]:
    """The increment from answers: they stand where the compiled driver has records and a loss."""
    batch, _, number = answers.shape
    # All directions at once: a record's answers are then the evaluation, with nothing to cut.
    chunk = Chunk(chunk_for(batch, 1, estimator.dim * number).records, number)
    return increment(estimator, query, lambda _, values: values, answers, chunk)


def numbers(values: Sequence[Any] | Shaped[np.ndarray | Array, " some"]) -> Float[np.ndarray, " n"]:
    """Answers as float64; NaN for whatever is not a real number. Never raises on a value."""
    if isinstance(values, np.ndarray | jax.Array) and np.asarray(values).dtype.kind in "biuf":
        return np.asarray(values, dtype=np.float64)
    return np.asarray([number(value) for value in values], dtype=np.float64)


def number(value: object) -> float:
    """One answer as a float, NaN if it is not one real number."""
    try:
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            value = value.item()
        return float(value) if isinstance(value, Real) else float("nan")
    except Exception:
        return float("nan")
