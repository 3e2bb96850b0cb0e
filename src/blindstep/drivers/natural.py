"""A loss in natural units, so that one plan fits every problem."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from blindstep.drivers.pytrees import ParameterSpace
from blindstep.estimate.scales import Scales


class InNaturalUnits(eqx.Module):
    """The loss of natural coordinates v: loss(origin + A v) / unit.

    Its arrays are traced, so that runs with other scales share a compiled program.
    """

    loss: Any
    space: ParameterSpace = eqx.field(static=True)
    scales: Scales

    def __call__(self, natural: Float[Array, " dim"], record: PyTree) -> Any:
        """The loss of one record."""
        value = self.loss(self.space.unflatten(self.scales.place(natural)), record)
        return value / self.scales.unit


def natural_start(space: ParameterSpace) -> Float[np.ndarray, " dim"]:
    """The start in natural coordinates: 0, in the precision of the user's parameters."""
    return np.zeros(space.dim, np.result_type(np.float32, *space.dtypes))
