"""Online-to-nonconvex conversion (Algorithm alg:PONC) as a pure ask/tell state machine.

    x_{t+1} = x_t + Delta_t,   w_t = x_t + s_t Delta_t,   s_t uniform in [0, 1]

A step asks for the gradient at w_t; the learner turns it into Delta_{t+1}. A round is `horizon`
steps; its output is the mean of its w_t; the next round goes on from x_{T+1} with a fresh learner, or
with the same one if that persists.

This is the only implementation, for every driver: JAX, any Python callable, ask/tell, PyTorch and the
service. They differ in who evaluates the loss between `ask` and `tell`, and in what a point is
(a `Space`). All of it is public: it sees releases, never a record's value.
"""

from __future__ import annotations

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from blindstep.errors import InvalidArgument
from blindstep.estimate import draws
from blindstep.estimate.estimators import from_values
from blindstep.estimate.vectors import Estimator, Query
from blindstep.optimize.learners import Choice, Learner, Pace, Seen, move_norm
from blindstep.optimize.prefix import Prefix
from blindstep.private.clip import Scalar
from blindstep.private.noise import public_stream
from blindstep.private.schedule import Kind

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


class State(eqx.Module):
    """Where a run stands. Public."""

    path: Any  # the space's own: points and moves
    learner: PyTree  # the learner's own
    sums: Float[Array, "slots size"]  # what the running sums of the block remember
    round: Int[Array, ""]  # rounds finished in the whole run
    step: Int[Array, ""]  # t - 1, steps finished in this round


class StepInfo(eqx.Module):
    """What the history keeps of a step, or of several with a leading axis: functions of releases."""

    gradient_norm: Float[Array | np.ndarray, "*steps"]
    move_norm: Float[Array | np.ndarray, "*steps"]
    value: Float[
        Array | np.ndarray, "*steps"
    ]  # the mean loss around the point; NaN without a share for it


class Machine(eqx.Module):
    """The state machine."""

    estimator: Estimator  # how gradients are asked for
    prefix: Prefix  # how releases become running sums
    learner: Learner  # the online learner
    pace: Pace  # what the plan says about the length of its moves
    horizon: int = eqx.field(static=True)  # T, steps in a round; a multiple of the period
    space: Space = FlatSpace()

    def __check_init__(self) -> None:
        if self.horizon % self.period:
            raise InvalidArgument(
                f"horizon {self.horizon} is not a multiple of the period {self.period}: a round is a "
                "whole number of blocks. Change one of them."
            )

    @property
    def period(self) -> int:
        """Releases in a block."""
        return self.prefix.mechanism.steps

    def begin(self, start: Any) -> State:
        """The state before the first step."""
        return self._fresh(self.space.begin(start), jnp.asarray(0, jnp.int32))

    def _fresh(self, path: Any, round_: Int[Array, ""]) -> State:
        sums = self.prefix.init(self.estimator.size)
        begun = self.learner.begin(self.estimator.dim, self.pace)
        return State(path, begun, sums, round_, jnp.asarray(0, jnp.int32))

    def ask(self, state: State, kind: Kind, public: Key[Array, ""], later: Any = 0) -> Query:
        """What the next step wants to know; `kind` is GRAD at the first step of a block.

        With `later`, the key of the step after that many more: keys are known before their points.
        """
        key = self.direction_key(state.round, state.step + later, public)
        nearness = self.learner.probing(state.learner, self.pace)
        within = self.subspace(state, public)
        return Query(state.path.point, state.path.previous, key, kind, nearness, within)

    def subspace(self, state: State, public: Key[Array, ""]) -> Float[Array, "breadth dim"] | None:
        """Along which rows this step looks; None where it looks everywhere."""
        return self.estimator.subspace(public, state.round * self.horizon + state.step)

    def direction_key(
        self, round_: Int[Array, ""], step: Int[Array, ""], public: Key[Array, ""]
    ) -> Key[Array, ""]:
        """The public key of a step's directions: one for each step, or for each block."""
        if self.estimator.shared:
            step = step // self.period * self.period
        return draws.fold_in(public_stream(public, "directions"), step, round_)

    def tell(
        self,
        state: State,
        release: Float[Array, " size"],
        public: Key[Array, ""],
        frame: PyTree = None,
    ) -> tuple[State, StepInfo]:
        """Take a release: running sum, lift to a gradient, the learner's move.

        `frame` is what shared directions are made of, where that was made before.
        """
        place = state.step % self.period
        fresh = self.prefix.init(self.estimator.size)
        sums, total = self.prefix.next(jnp.where(place == 0, fresh, state.sums), release, place)
        if frame is None and self.estimator.shared:
            key = self.direction_key(state.round, state.step, public)
            frame = self.space.frame(self.estimator, key)
        gradient = self.space.lift(self.estimator, total[: self.estimator.gradient_size], frame)
        within = self.subspace(state, public)
        if within is not None:  # what lies outside of it is noise alone
            gradient = (gradient @ within.T) @ within
        released, value = self.space.see(state.path, gradient), self.estimator.value_of(total)
        learner, turned = self.learner.turn(state.learner, gradient, value, self.pace)
        seen = released if turned is gradient else self.space.see(state.path, turned)
        seen.value = value
        choice = self.learner.update(learner, seen, self.pace)
        uniform = draws.uniform(public_stream(public, "path"), state.step + 1, state.round)
        fraction = self.learner.place(uniform)
        path = self.space.advance(state.path, turned, choice, fraction)
        norms = jnp.sqrt(released.gradient_square), jnp.asarray(move_norm(seen, choice))
        after = State(path, choice.state, sums, state.round, state.step + 1)
        return after, StepInfo(*norms, seen.value)

    def end_round(self, state: State) -> tuple[State, Any]:
        """The state at the start of the next round, and the round's mean of w."""
        persists = self.learner.persists_across_rounds
        path, mean = self.space.end_round(state.path, self.horizon, persists)
        fresh = self._fresh(path, state.round + 1)
        if persists:
            fresh = eqx.tree_at(lambda s: s.learner, fresh, state.learner)
        return fresh, mean


def gradient_of_window(
    release: Float[Array, " size"], size: int, least: Scalar, still: Bool[Array, ""]
) -> Float[Array, " gradient"]:
    """The gradient in a window's release; 0 where too few came, or the study is to stand `still`.

    How many came is its last coordinate.
    """
    moves = ~(still | (release[-1] < least))
    return jnp.where(moves, release[:size], 0.0)
