"""What the columns of C cost: computed for blindstep's mechanisms, measured for all others.

Privacy is read off the columns of C (`terms`). So a mechanism is not believed: `check_mechanism` finds
out how long its columns are, and refuses what claims less. Anyone may call it on a mechanism of theirs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from blindstep.errors import InvalidArgument
from blindstep.private.mechanisms import BLT, BinaryTree, Independent, Mechanism, SquareRoot

# Up to this length a block is measured: in a moment and 8 MiB.
_MOST_MEASURED = 1024


class Columns(NamedTuple):
    """The Euclidean norm of each column of C, never too small, and the number of releases it enters."""

    norms: Float[np.ndarray, " steps"]
    counts: Float[np.ndarray, " steps"]


def check_mechanism(mechanism: Mechanism) -> Columns:
    """What the columns of C cost, as the accounting may count it; refuses what claims too little.

    Guarantee, for C in real numbers: no column is longer than its norm here, no column has more entries
    that are not 0 than its count, and all entries lie between 0 and 1.

    - Independent noise and the tree: by their definitions, C has zeros and ones.
    - SquareRoot and BLT: from their coefficients and their scaling, summed up in whole numbers.
    - Any other class, a subclass of these too, is measured, up to 1,024 releases. A 1 is streamed
      through every column; norms are those seen, raised by the roundings that the mechanism admits to.
      Random increments must give what the matrix seen says: so C is linear and mixes no coordinates.

    Code that behaves differently in a run than here cannot be found by running it: read a mechanism
    before you use it, as you would a loss that has a memory.
    """
    if jax.tree.leaves(mechanism):
        raise _refused(mechanism, "has a field that is not static: use eqx.field(static=True)")
    return _checked(mechanism)


@lru_cache(maxsize=256)
def _checked(mechanism: Mechanism) -> Columns:
    if type(mechanism) in (Independent, BinaryTree):
        return Columns(mechanism.column_norms(), mechanism.column_counts())
    if isinstance(mechanism, SquareRoot | BLT) and type(mechanism) in (SquareRoot, BLT):
        return _computed(mechanism)
    return _measured(mechanism)


def matrix_of(mechanism: Mechanism) -> Float[np.ndarray, "steps steps"]:
    """C as the gate streams it, dense."""
    return _streamed(mechanism, np.eye(mechanism.steps))


def _computed(mechanism: SquareRoot | BLT) -> Columns:
    """Columns of norm at most 1, after comparing the coefficients with the scaling.

    c_k^2 is rounded up and split into whole multiples of 2^-40 and of 2^-80. Below 2^22 of them int64
    adds up exactly, so what is left are the roundings of a few operations, 2^-51 in all.
    """
    coefficients, scaling = mechanism.coefficients(), mechanism.scaling()
    squares = coefficients**2 * (1 + 2.0**-51) * 2.0**40
    fine = np.ceil((squares - np.floor(squares)) * 2.0**40).astype(np.int64)
    coarse = np.floor(squares).astype(np.int64)
    norms = np.sqrt(np.cumsum(coarse) * 2.0**-40 + np.cumsum(fine) * 2.0**-80) * (1 + 2.0**-51)
    if not (np.all(coefficients >= 0) and np.all(coefficients <= 1)):
        raise _refused(mechanism, "has a coefficient that is not between 0 and 1")
    if not np.all(norms[::-1] <= scaling):
        raise _refused(mechanism, "has columns longer than 1: its scaling is too small")
    return Columns(mechanism.column_norms(), mechanism.column_counts())


def _measured(mechanism: Mechanism) -> Columns:
    """The columns that are seen when C streams the identity, rounded up."""
    steps = mechanism.steps
    if steps > _MOST_MEASURED:
        raise _refused(
            mechanism, f"has {steps} releases in a block, and at most {_MOST_MEASURED} are measured"
        )
    matrix = matrix_of(mechanism)
    if not (np.all(matrix >= 0) and np.all(matrix <= 1) and np.all(np.triu(matrix, 1) == 0)):
        raise _refused(mechanism, "has no lower-triangular C with entries between 0 and 1")
    off = mechanism.roundings * 2.0**-53
    random = np.random.default_rng(0)
    increments = random.normal(size=(steps, 4)) * 10.0 ** random.uniform(-6, 6, (steps, 1))
    streamed, size = _streamed(mechanism, increments), matrix @ np.abs(increments)
    if not np.all(np.abs(streamed - matrix @ increments) <= 2 * (off + steps * 2.0**-52) * size):
        raise _refused(
            mechanism, "does not release C m for any m: it is not linear, or rounds more"
        )
    seen = np.linalg.norm(matrix, axis=0) * (1 + (steps + 4) * 2.0**-53)
    counted = np.count_nonzero(matrix, axis=0).astype(np.float64)
    norms, counts = mechanism.column_norms(), mechanism.column_counts()
    for name, said, true in (("long", norms, seen), ("full", counts, counted)):
        if said.shape != (steps,) or not np.all(said >= true * (1 - off - steps * 2.0**-51)):
            raise _refused(mechanism, f"has columns that are not as {name} as it says: more")
    return Columns(np.maximum(norms, seen * (1 + off)), np.maximum(counts, counted))


def _streamed(
    mechanism: Mechanism, increments: Float[np.ndarray, "steps size"]
) -> Float[np.ndarray, "steps size"]:
    def step(state: Array, each: tuple[Array, Array]) -> tuple[Array, Array]:
        return mechanism.next(state, each[1], each[0])

    with jax.enable_x64(True):
        start, places = mechanism.init(increments.shape[1]), jnp.arange(mechanism.steps)
        return np.asarray(jax.lax.scan(step, start, (places, jnp.asarray(increments)))[1])


def _refused(mechanism: Mechanism, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the mechanism {type(mechanism).__name__} {reason}. What a release costs is read off the "
        "columns of C: mend the mechanism, or use one of blindstep's."
    )
