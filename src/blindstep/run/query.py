"""What one step asks the outside world: which record is to be evaluated at which point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from blindstep.errors import InvalidArgument
from blindstep.estimate.estimators import Query, ValueEstimator
from blindstep.estimate.probing import probe_points
from blindstep.estimate.scales import Scales
from blindstep.losses.isolation_worker import number
from blindstep.losses.pytrees import ParameterSpace

points_at = eqx.filter_jit(probe_points)


@dataclass(frozen=True, eq=False)
class BatchQuery:
    """All questions of one step. It follows from past releases and public randomness.

    So it is public, but for `rows` and `record` where batches are secret (`Plan.secret`): these, and
    how many they are, are for whoever asks the records, and for nobody else.

    Question number i wants the loss of record `record[i]` at the point `points[i]`; `question(i)` is
    the same for JSON. The questions of one record are neighbours; the array of all of them has the
    shape (batch, 2, directions).

    Attributes:
        run: which run asks; no two runs have the same.
        round: rounds finished before this step.
        step: steps finished before this one in its round.
        rows: row numbers, in the caller's data, of the records of this step's batch.
        space: how points map to parameters.
    """

    run: str
    round: int
    step: int
    rows: Int[np.ndarray, " batch"] = field(repr=False)
    space: ParameterSpace
    _estimator: ValueEstimator = field(repr=False)
    _query: Query = field(repr=False)
    _scales: Scales | None = field(default=None, repr=False)

    @property
    def id(self) -> tuple[int, int]:
        """(round, step): the name of this query within its run."""
        return self.round, self.step

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, 2, directions): how the questions are laid out."""
        return len(self.rows), 2, self._estimator.directions

    def __len__(self) -> int:
        return len(self.rows) * 2 * self._estimator.directions

    @property
    def shared(self) -> bool:
        """Whether all records are asked at the same points."""
        return self._estimator.shared

    @cached_property
    def record(self) -> Int[np.ndarray, " n"]:
        """The row number of the record that answers each question."""
        return np.repeat(self.rows, 2 * self._estimator.directions)

    @cached_property
    def points(self) -> Float[np.ndarray, "n dim"]:
        """The point of each question, as a flat vector of parameters."""
        sets = self.points_of(0, len(self.rows))
        every = np.broadcast_to(sets, (len(self.rows), *sets.shape[1:]))
        return every.reshape(len(self), self.space.dim)

    def question(self, number: int) -> dict[str, Any]:
        """One question in plain numbers and lists, ready for JSON; answer it with where=[number]."""
        if not 0 <= number < len(self):
            raise InvalidArgument(
                f"nobody asked question {number}: this query has 0 .. {len(self) - 1}."
            )
        return {
            "run": self.run,
            "round": self.round,
            "step": self.step,
            "question": int(number),
            "record": int(self.record[number]),
            "point": self.points[number].tolist(),
        }

    def points_of(self, start: int, size: int) -> Float[np.ndarray, "sets each dim"]:
        """The points of up to `size` records from place `start` of the batch on, in little memory.

        One set of points for each record; where they are shared, one set for all.
        """
        with jax.enable_x64(True):
            # Places past the end are computed and cut off: one shape, one compilation. So is the one
            # set for all, where secret batches are each of another size.
            places = start + np.arange(1 if self.shared else max(size, 1))
            sets = np.asarray(points_at(self._estimator, self._query, jnp.asarray(places)))
        if self._scales is not None:
            sets = np.asarray(self._scales.place(sets))
        kept = 1 if self.shared else min(size, len(self.rows) - start)
        return sets.reshape(len(sets), -1, self.space.dim)[:kept]

    def places(
        self, number: int, where: Sequence[Any] | np.ndarray | None
    ) -> Int[np.ndarray, " number"]:
        """The questions that `number` answers are for: all, or those that `where` names."""
        places = np.arange(len(self)) if where is None else np.asarray(where)
        if places.size == 0:
            places = places.astype(np.int64)
        if places.dtype.kind not in "iu" or places.shape != (number,):
            raise InvalidArgument(
                f"{number} values for {places.shape} questions of type {places.dtype}: give one "
                f"value for each of the query's {len(self)}, or say with `where` which questions "
                "are answered, one whole number for each value."
            )
        wrong = places[(places < 0) | (places >= len(self))]
        if wrong.size:
            raise InvalidArgument(
                f"nobody asked question {int(wrong[0])}: this query has 0 .. {len(self) - 1}."
            )
        return places

    def parameters(self, vector: Float[np.ndarray | Array, " dim"]) -> PyTree:
        """A point as parameters of the structure that the run started from."""
        return self.space.unflatten(vector)


def numbers(values: Sequence[Any] | Shaped[np.ndarray | Array, " some"]) -> Float[np.ndarray, " n"]:
    """Answers as float64; NaN for whatever is not a real number. Never raises on a value."""
    plain = isinstance(values, np.ndarray | jax.Array) and np.asarray(values).dtype.kind in "biuf"
    if plain or all(type(value) is float for value in values):
        return np.asarray(values, dtype=np.float64)
    return np.asarray([number(value) for value in values], dtype=np.float64)
