"""Online-to-nonconvex conversion (Algorithm alg:PONC) as a pure ask/tell state machine.

    x_{t+1} = x_t + Delta_t,   w_t = x_t + s_t Delta_t,   s_t uniform in [0, 1]

A step asks for the gradient at w_t; the learner turns it into Delta_{t+1}. A round is `horizon`
steps; its output is the mean of its w_t; the next round goes on from x_{T+1} with a fresh learner, or
with the same one if that only counts steps.
This is the only implementation: drivers differ in who evaluates the loss between `ask` and `tell`,
in nothing else. All of it is public: it sees releases, never a record's value.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.errors import InvalidArgument
from blindstep.estimate import draws
from blindstep.estimate.estimators import from_values
from blindstep.estimate.vectors import Estimator, Query
from blindstep.optimize.learners import Learner
from blindstep.optimize.prefix import Prefix
from blindstep.private.noise import public_stream
from blindstep.private.schedule import Kind

# Directions that are added at a time: on a processor as many as its cache holds, on an accelerator
# enough to be worth the start of an operation.
_ROWS, _ROWS_OF_ACCELERATOR = 8, 64

# Sums of directions, their coordinates cut into parts.
Sums = tuple[Float[Array, " _"], ...]


class State(eqx.Module):
    """Where a run stands. Public."""

    position: Float[Array, " dim"]  # x_t
    move: Float[Array, " dim"]  # Delta_t
    point: Float[Array, " dim"]  # w_t, where the next gradient is wanted
    previous: Float[Array, " dim"]  # w_{t-1}
    total: Float[Array, " dim"]  # sum of the round's w so far
    learner: PyTree  # the learner's own state
    sums: Float[Array, "slots size"]  # what the running sums of the block remember
    round: Int[Array, ""]  # rounds finished in the whole run
    step: Int[Array, ""]  # t - 1, steps finished in this round


class StepInfo(eqx.Module):
    """What the history keeps of a step: functions of releases."""

    gradient_norm: Float[Array, ""]
    move_norm: Float[Array, ""]
    value: Float[Array, ""]  # the mean loss around the point; NaN without a share for it


class Machine(eqx.Module):
    """The state machine."""

    estimator: Estimator  # how gradients are asked for
    prefix: Prefix  # how releases become running sums
    learner: Learner  # the online learner
    horizon: int = eqx.field(static=True)  # T, steps in a round; a multiple of the period

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

    def begin(self, start: Float[Array, " dim"]) -> State:
        """The state before the first step. Delta_1 = 0, so w_1 = x_1."""
        return State(
            position=start,
            move=jnp.zeros_like(start),
            point=start,
            previous=start,
            total=jnp.zeros_like(start),
            learner=self.learner.init(),
            sums=self.prefix.init(self.estimator.size),
            round=jnp.asarray(0, jnp.int32),
            step=jnp.asarray(0, jnp.int32),
        )

    def ask(self, state: State, kind: Kind, public: Key[Array, ""], later: Any = 0) -> Query:
        """What the next step wants to know; `kind` is GRAD at the first step of a block.

        With `later`, the key of the step after so many more: keys are known before their points.
        """
        key = self.direction_key(state.round, state.step + later, public)
        nearness = self.learner.probing(state.learner)
        return Query(state.point, state.previous, key, kind, nearness)

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
        """Take a release: running sum, lift to a gradient, the learner's step.

        `frame` is what shared directions are made of, where that was made before.
        """
        place = state.step % self.period
        fresh = self.prefix.init(self.estimator.size)
        sums, total = self.prefix.next(jnp.where(place == 0, fresh, state.sums), release, place)
        if frame is None and self.estimator.shared:
            key = self.direction_key(state.round, state.step, public)
            frame = self.estimator.prepare_one(key)
        gradient = lift(self.estimator, total[: self.estimator.gradient_size], frame)
        step = self.learner.update(state.learner, state.move, gradient)
        position = state.position + state.move
        fraction = draws.uniform(public_stream(public, "path"), state.step + 1, state.round)
        after = State(
            position=position,
            move=step.move,
            point=position + self.learner.place(fraction) * step.move,
            previous=state.point,
            total=state.total + state.point,
            learner=step.state,
            sums=sums,
            round=state.round,
            step=state.step + 1,
        )
        return after, StepInfo(step.gradient_norm, step.move_norm, self.estimator.value_of(total))

    def end_round(self, state: State) -> tuple[State, Float[Array, " dim"]]:
        """The round's mean of w, and the state at the start of the next one."""
        fresh = self.begin(state.position)
        fresh = eqx.tree_at(lambda s: s.round, fresh, state.round + 1)
        if self.learner.persists_across_rounds:
            kept = (state.move, state.point, state.previous, state.learner)
            fresh = eqx.tree_at(lambda s: (s.move, s.point, s.previous, s.learner), fresh, kept)
        return fresh, state.total / self.horizon


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
