"""How a record's vector is made: what every way has in common.

There are two ways: from values of the loss (`estimators`, evaluated by `probing`), and by
differentiating it (`gradients`). An `Estimator` says what the vector is; `Vectors` makes those of a
batch. State machine and driver know these two and nothing else. The gate clips whatever comes.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.estimate.bounds import Bounds
from blindstep.private.gate import Contributions, Rows, number_of_rows
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms

Made = Float[Array, "some size"]
# Where the loss is released beside the gradient: a record counts with at most this loss.
LARGEST = 2.0
# A call for fewer records than this takes hardly less time.
_LEAST_CALL, _LEAST_IN_A_WINDOW = 32, 1024
# Numbers that the records of one call may hold together: 2^20 float64 are 8 MiB.
_AT_ONCE = 2**20


class Query(eqx.Module):
    """What a step wants to know. Public: a function of past releases and public randomness."""

    point: Float[Array, " dim"]  # x, where the gradient is wanted (w_t)
    reference: Float[Array, " dim"]  # y, the point before it (w_{t-1}); GRAD does not use it
    key: Key[Array, ""]  # public key of the step's directions
    kind: Kind = eqx.field(static=True)  # GRAD or DIFF
    # the share of the estimator's smoothing at which to probe; None: all of it
    nearness: Float[Array, ""] | None = None
    # orthonormal rows that span the subspace in which directions lie; None: the whole space
    within: Float[Array, "breadth dim"] | None = None


class Estimator(eqx.Module):
    """How a record's vector is made: what plans, the state machine and drivers know of every way.

    The vector is a GRAD or a DIFF in `gradient_size` coordinates, and, if `curve` is not 0, the loss as
    one more coordinate: curve x clip x (loss / LARGEST, clamped to [-1, 1]). The others are then
    clipped on their own, so that the whole is at most clip sqrt(1 + curve^2) long.
    """

    dim: eqx.AbstractVar[int]  # d, the number of parameters
    bounds: eqx.AbstractVar[Bounds]  # what is known of the loss
    precision: eqx.AbstractVar[str]  # "float64" or "float32", in which the loss is evaluated
    curve: eqx.AbstractVar[float]  # weight of the loss in the vector; 0: it is not there

    @property
    def shared(self) -> bool:
        """Whether all records of a block use the same directions, multiplied in after the release."""
        return False

    @property
    def gradient_size(self) -> int:
        """Coordinates of the vector that show the gradient."""
        return self.dim

    @property
    def size(self) -> int:
        """Length of a record's vector: the gradient's coordinates, and one for the loss if wanted."""
        return self.gradient_size + (self.curve > 0)

    @abc.abstractmethod
    def record_bound(self, kind: Kind) -> float:
        """The clip norm for the gate: no longer than the bounds leave a record's vector."""

    @abc.abstractmethod
    def evaluations(self, kind: Kind) -> int:
        """What a record's vector costs, in evaluations of its loss."""

    def value_of(self, release: Float[Array, " size"]) -> Float[Array, ""]:
        """The mean loss that a release shows, each record's clamped to `LARGEST`; NaN without one."""
        if self.curve == 0:
            return jnp.asarray(jnp.nan)
        return release[-1] * LARGEST / (self.curve * self.bounds.clip)

    def prepare_one(self, key: Key[Array, ""]) -> PyTree:
        """What shared directions of one key are made of; None where none are drawn."""
        return None

    def subspace(
        self, public: Key[Array, ""], number: Int[Array, ""]
    ) -> Float[Array, "breadth dim"] | None:
        """The orthonormal rows that step `number` looks along; None where it looks everywhere."""
        return None

    def working_in(self, dtype: DTypeLike) -> "Estimator":
        """The same, evaluating the loss in the precision of parameters of `dtype`."""
        single = jnp.finfo(dtype).bits <= 32
        return dataclasses.replace(self, precision="float32" if single else "float64")

    def joined(
        self, slopes: Float[Array, "*records gradient_size"], value: Float[Array, "*records"]
    ) -> Float[Array, "*records size"]:
        """The vector of these slopes and, if wanted, of this loss."""
        if self.curve == 0:
            return slopes
        clip = self.bounds.clip
        norm = jnp.sqrt(jnp.vecdot(slopes, slopes))[..., None]
        slopes = slopes * jnp.where(norm > clip, clip / norm, 1.0)
        shown = jnp.clip(value / LARGEST, -1.0, 1.0)
        return jnp.concatenate([slopes, self.curve * clip * shown[..., None]], axis=-1)


class Vectors(abc.ABC):
    """The vectors of a batch's records. A driver passes it on and looks at nothing.

    A way that draws no directions has nothing to prepare.
    """

    @abc.abstractmethod
    def contributions(self, query: Query, batch: int) -> Contributions:
        """The vectors of a batch's records for this query, as the gate asks for them.

        A record's vector depends on that record, its place in the batch and the query alone.
        """

    def ready(self, key: Key[Array, ""]) -> "Vectors":
        """The same with the shared directions of `key` prepared, if any are shared."""
        return self

    @property
    def frame(self) -> PyTree:
        """The compact shared directions, once `ready`; None where none are shared."""
        return None

    def steps_ahead(self, steps: int, batch: int) -> int:
        """For how many steps directions and noise should be drawn at once; 1: each for itself."""
        return 1

    def ahead(
        self, keys: Key[Array, " steps"], batch: int
    ) -> Callable[[Int[Array, ""]], "Vectors"]:
        """Draw the directions of several steps at once, from their keys; gives each step's vectors."""
        return lambda _: self


def worth_a_call(schedule: Schedule, kind: Kind) -> int:
    """Records that are worth evaluating together, if there is room: all of a public batch.

    Of a secret batch an eighth, so that few empty places are evaluated.
    """
    if schedule.windows:
        return max(schedule.batch_of(kind), _LEAST_IN_A_WINDOW)
    if not schedule.secret:
        return schedule.batch_of(kind)
    return min(schedule.batch_of(kind), max(_LEAST_CALL, math.ceil(schedule.divisor_of(kind) / 8)))


def together(terms: Terms, kind: Kind, held: int) -> int:
    """Records to evaluate in one call, where each holds so many numbers beside its vector."""
    return max(1, min(worth_a_call(terms.schedule, kind), _AT_ONCE // max(held, terms.size)))


def of_records(data: Any, vector: Callable[[Any], Made], batch_size: int) -> Contributions:
    """The vectors that `vector` makes of rows of the data, a pytree of arrays."""

    def of(rows: Rows, _: Rows) -> Made:
        return vector(jax.tree.map(lambda leaf: leaf[rows], data))

    return Contributions(batch_size, of, rows=number_of_rows(data))


def of_answers(
    answers: Float[Array, "batch *each"],
    vector: Callable[[Float[Array, "some *each"]], Made],
    batch_size: int,
) -> Contributions:
    """The vectors that `vector` makes of answers, one for each record, as `Gate.in_places` gives."""
    return Contributions(batch_size, lambda _, at: vector(answers[at]), answers=len(answers))
