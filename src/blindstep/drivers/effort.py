"""How many evaluations a run makes unless the user says: about what a laptop does in a minute.

Public: it depends on the loss and on shapes, never on a record's value.
"""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from blindstep.drivers.pytrees import Loss, check_loss

# Operations in a minute on two cores, for losses of small matrices under XLA.
_OPERATIONS = 1.6e12
# An evaluation costs at least so many, whatever is computed.
_LEAST = 64.0
_SECONDS = 60.0
_FEWEST, _MOST = 2**12, 2**34


def of_compiled(loss: Loss, params: PyTree, data: PyTree) -> int:
    """Evaluations of a loss that JAX can trace, by the number of operations that XLA counts."""
    with jax.enable_x64(True):
        check_loss(loss, params, data)
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), params
    )
    found: Any = jax.jit(loss).lower(like, record).cost_analysis()
    counted = found.get("flops", 0.0) if isinstance(found, dict) else 0.0
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(record))
    return _rounded(_OPERATIONS / max(_LEAST, 2.0 * size, float(counted)))


def of_function(call: Any) -> int:
    """Evaluations of a Python function, by how long one call on a made-up record takes."""
    began, calls = time.perf_counter(), 0
    while calls < 3 or (time.perf_counter() - began < 0.02 and calls < 1000):
        call()
        calls += 1
    return _rounded(_SECONDS * calls / (time.perf_counter() - began))


def _rounded(evaluations: float) -> int:
    """Down to a power of two: other numbers would promise too much."""
    return 2 ** int(math.log2(min(max(evaluations, _FEWEST), _MOST)))
