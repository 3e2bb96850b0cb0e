"""The vectors of a loss that JAX can trace, whichever way they are made."""

from __future__ import annotations

from typing import Any

from jaxtyping import PyTree

from blindstep.estimate.estimators import from_values
from blindstep.estimate.gradients import At, Differentiating, Gradient
from blindstep.estimate.probing import probing_of_loss
from blindstep.estimate.vectors import Estimate, Vectors


def vectors_of_loss(estimate: Estimate, at: At, data: PyTree, spread: Any = None) -> Vectors:
    """The vectors that `estimate` makes of the loss `at(point, record)` on `data`.

    `data` is a pytree of arrays with one row for each record. `spread`, for records on several devices,
    makes evaluations run where the records are.
    """
    if isinstance(estimate, Gradient):
        return Differentiating(estimate, at, data, spread)
    return probing_of_loss(from_values(estimate), at, data, spread)
