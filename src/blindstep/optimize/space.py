"""Where a run moves: a space holds the path and applies what a learner chose.

The state machine is the same for all runs. What differs is what a point is: here a flat vector, in
`blindstep.torch` the weights of a model. A space lifts a running sum to a gradient, says the three
numbers that a learner sees, and moves. It sees releases, never a record's value.
"""

from __future__ import annotations

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.estimate.estimators import from_values
from blindstep.estimate.vectors import Estimator
from blindstep.optimize.learners import Choice, Seen
from blindstep.private.clip import Scalar

# Directions that are added at a time: on a processor as many as its cache holds, on an accelerator
# enough to be worth the start of an operation.
_ROWS, _ROWS_OF_ACCELERATOR = 8, 64

# Sums of directions, their coordinates cut into parts.
Sums = tuple[Float[Array, " _"], ...]


class Path(eqx.Module):
    """Where a run stands in a flat space. Public."""

    position: Float[Array, " dim"]  # x_t
    move: Float[Array, " dim"]  # Delta_t
    point: Float[Array, " dim"]  # w_t, where the next gradient is wanted
    previous: Float[Array, " dim"]  # w_{t-1}
    total: Float[Array, " dim"]  # sum of the round's w so far


class Space(eqx.Module):
    """What a point is, and how one moves to the next."""

    @abc.abstractmethod
    def begin(self, start: Any) -> Any:
        """The path before the first step: Delta_1 = 0, so w_1 = x_1."""

    @abc.abstractmethod
    def frame(self, estimator: Estimator, key: Key[Array, ""]) -> Any:
        """What the shared directions of this key are made of, as `lift` takes them."""

    @abc.abstractmethod
    def lift(self, estimator: Estimator, sums: Float[Array, " size"], frame: PyTree) -> Any:
        """The gradient that a running sum stands for."""

    @abc.abstractmethod
    def see(self, path: Any, gradient: Any) -> Seen:
        """The three numbers that a learner sees."""

    @abc.abstractmethod
    def advance(self, path: Any, gradient: Any, choice: Choice, fraction: Scalar) -> Any:
        """x <- x + Delta, Delta <- keep Delta + along g, w <- x + fraction Delta."""

    @abc.abstractmethod
    def end_round(self, path: Any, horizon: int, persists: bool) -> tuple[Any, Any]:
        """The path at the start of the next round, and the mean of this round's w."""


class FlatSpace(Space):
    """Points are flat float64 vectors."""

    def begin(self, start: Float[Array, " dim"]) -> Path:
        """All vectors at the start."""
        return Path(start, jnp.zeros_like(start), start, start, jnp.zeros_like(start))

    def frame(self, estimator: Estimator, key: Key[Array, ""]) -> PyTree:
        """Compact directions."""
        return estimator.prepare_one(key)

    def lift(
        self, estimator: Estimator, sums: Float[Array, " size"], frame: PyTree
    ) -> Float[Array, " dim"]:
        """The running sum itself, or sum_j y_j u_j along a shared frame."""
        return lift(estimator, sums, frame)

    def see(self, path: Path, gradient: Float[Array, " dim"]) -> Seen:
        """Inner products."""
        return Seen(
            lambda: jnp.vdot(gradient, gradient),
            lambda: jnp.vdot(path.move, path.move),
            lambda: jnp.vdot(path.move, gradient),
        )

    def advance(
        self, path: Path, gradient: Float[Array, " dim"], choice: Choice, fraction: Scalar
    ) -> Path:
        """One vector operation for each of the path's vectors."""
        position = path.position + path.move
        move = choice.along * gradient
        if not (isinstance(choice.keep, float) and choice.keep == 0.0):
            move = choice.keep * path.move + move
        point = position + fraction * move
        return Path(position, move, point, path.point, path.total + path.point)

    def end_round(
        self, path: Path, horizon: int, persists: bool
    ) -> tuple[Path, Float[Array, " dim"]]:
        """The mean of w. A learner that starts afresh drops its last move."""
        fresh, mean = self.begin(path.position), path.total / horizon
        if persists:
            fresh = Path(path.position, path.move, path.point, path.previous, fresh.total)
        return fresh, mean


def lift(estimate: Estimator, sums: Float[Array, " size"], frame: PyTree) -> Float[Array, " dim"]:
    """The gradient that a running sum stands for: itself, or sum_j y_j u_j along a shared frame.

    `frame` is what the shared directions are made of (`Estimator.prepare_one`). They are added in
    float64, whatever their own precision, a few at a time.
    """
    if not estimate.shared:
        return sums
    estimator = from_values(estimate)

    def add(total: Sums, which: Int[Array, " some"]) -> tuple[Sums, None]:
        weights, rows = sums[which], estimator.rows(frame, which)
        return tuple(map(functools.partial(_add_rows, weights), total, rows)), None

    size = _ROWS if jax.default_backend() == "cpu" else _ROWS_OF_ACCELERATOR
    every = jnp.arange(estimator.directions)
    whole = estimator.directions // size * size
    like = jax.eval_shape(lambda: estimator.rows(frame, every[:1]))
    total: Sums = tuple(jnp.zeros(part.shape[1:], jnp.float64) for part in like)
    total, _ = jax.lax.scan(add, total, every[:whole].reshape(-1, size))
    if whole < estimator.directions:
        total, _ = add(total, every[whole:])
    return jnp.concatenate(total)


def _add_rows(
    weights: Float[Array, " some"], total: Float[Array, " part"], rows: Float[Array, "some part"]
) -> Float[Array, " part"]:
    for weight, row in zip(weights, rows, strict=True):
        total = total + weight * row.astype(jnp.float64)
    return total
