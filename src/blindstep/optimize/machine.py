"""Online-to-nonconvex conversion (Algorithm alg:PONC) as a pure ask/tell state machine.

    x_{t+1} = x_t + Delta_t,   w_t = x_t + s_t Delta_t,   s_t uniform in [0, 1]

A step asks for the gradient at w_t; the learner turns it into Delta_{t+1}. A round is `horizon`
steps; its output is the mean of its w_t; the next round goes on from x_{T+1} with a fresh learner, or
with the same one if that persists.

This is the only implementation, for every driver: JAX, any Python callable, ask/tell, PyTorch and the
service. They differ in who evaluates the loss between `ask` and `tell`, and in what a point is
(`optimize.space`). All of it is public: it sees releases, never a record's value.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.errors import InvalidArgument
from blindstep.estimate import draws
from blindstep.estimate.vectors import Estimator, Query
from blindstep.optimize.learners import Learner, Pace, move_norm
from blindstep.optimize.prefix import Prefix
from blindstep.optimize.space import FlatSpace, Space
from blindstep.private.noise import public_stream
from blindstep.private.schedule import Kind


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
        return State(path, self.learner.init(), sums, round_, jnp.asarray(0, jnp.int32))

    def ask(self, state: State, kind: Kind, public: Key[Array, ""], later: Any = 0) -> Query:
        """What the next step wants to know; `kind` is GRAD at the first step of a block.

        With `later`, the key of the step after that many more: keys are known before their points.
        """
        key = self.direction_key(state.round, state.step + later, public)
        nearness = self.learner.probing(state.learner, self.pace)
        return Query(state.path.point, state.path.previous, key, kind, nearness)

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
        seen = self.space.see(state.path, gradient)
        choice = self.learner.update(state.learner, seen, self.pace)
        uniform = draws.uniform(public_stream(public, "path"), state.step + 1, state.round)
        fraction = self.learner.place(uniform)
        path = self.space.advance(state.path, gradient, choice, fraction)
        norms = jnp.sqrt(seen.gradient_square), jnp.asarray(move_norm(seen, choice))
        after = State(path, choice.state, sums, state.round, state.step + 1)
        return after, StepInfo(*norms, self.estimator.value_of(total))

    def end_round(self, state: State) -> tuple[State, Any]:
        """The state at the start of the next round, and the round's mean of w."""
        persists = self.learner.persists_across_rounds
        path, mean = self.space.end_round(state.path, self.horizon, persists)
        fresh = self._fresh(path, state.round + 1)
        if persists:
            fresh = eqx.tree_at(lambda s: s.learner, fresh, state.learner)
        return fresh, mean
