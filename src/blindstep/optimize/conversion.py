"""Online-to-nonconvex conversion (Algorithm alg:PONC) as a pure ask/tell state machine.

    x_{t+1} = x_t + Delta_t,   w_t = x_t + s_t Delta_t,   s_t uniform in [0, 1]

The oracle is asked for a gradient at w_t, the learner turns it into Delta_{t+1}. An epoch is
`horizon` steps; its output is the mean of its w_t; the next epoch goes on from x_{T+1} with a fresh
learner. This is the only implementation: drivers differ in who evaluates the loss between `ask` and
`tell`, in nothing else.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.errors import InvalidArgument
from blindstep.optimize.learners import Learner
from blindstep.trusted import draws
from blindstep.trusted.estimators import Kind, Query, Sharing
from blindstep.trusted.oracle import NoiseAhead, Oracle, OracleState
from blindstep.trusted.randomness import NoiseKey, public_stream


class State(eqx.Module):
    """Where a run stands. Public, except for `oracle`.

    Attributes:
        position: x_t.
        move: Delta_t.
        point: w_t, where the next gradient is wanted.
        previous: w_{t-1}.
        total: sum of the epoch's w so far.
        learner: the learner's own state.
        oracle: secret state of the oracle.
        epoch: epochs finished in the whole run.
        step: t - 1, steps finished in this epoch.
    """

    position: Float[Array, " dim"]
    move: Float[Array, " dim"]
    point: Float[Array, " dim"]
    previous: Float[Array, " dim"]
    total: Float[Array, " dim"]
    learner: PyTree
    oracle: OracleState
    epoch: Int[Array, ""]
    step: Int[Array, ""]


class Released(eqx.Module):
    """Public quantities of one step, for the history."""

    gradient_norm: Float[Array, ""]
    move_norm: Float[Array, ""]


class Conversion(eqx.Module):
    """The state machine: oracle, learner and horizon.

    Attributes:
        oracle: the private gradient oracle.
        learner: the online learner.
        horizon: T, steps in an epoch; a multiple of the oracle's period.
    """

    oracle: Oracle
    learner: Learner
    horizon: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.horizon % self.period:
            raise InvalidArgument(
                f"horizon {self.horizon} is not a multiple of the period {self.period}: an epoch "
                "is a whole number of blocks. Change one of them."
            )

    @property
    def period(self) -> int:
        """Releases in a block."""
        return self.oracle.schedule.period

    @property
    def blocks_per_epoch(self) -> int:
        """Blocks in an epoch."""
        return self.horizon // self.period

    @property
    def epochs(self) -> int:
        """Epochs in the whole run, over all passes."""
        return self.oracle.schedule.blocks // self.blocks_per_epoch

    def begin(self, start: Float[Array, " dim"]) -> State:
        """The state before the first step. Delta_1 = 0, so w_1 = x_1."""
        return State(
            position=start,
            move=jnp.zeros_like(start),
            point=start,
            previous=start,
            total=jnp.zeros_like(start),
            learner=self.learner.init(),
            oracle=self.oracle.init(),
            epoch=jnp.asarray(0, jnp.int32),
            step=jnp.asarray(0, jnp.int32),
        )

    def ask(self, state: State, kind: Kind, public: Key[Array, ""]) -> Query:
        """What the next step wants to know; `kind` is GRAD at the first step of a block."""
        key = self._direction_key(state, public)
        return Query(point=state.point, reference=state.previous, key=key, kind=kind)

    def _direction_key(self, state: State, public: Key[Array, ""]) -> Key[Array, ""]:
        """The public key of this step's directions: one for each step, or for each block."""
        step = state.step
        if self.oracle.estimator.sharing is Sharing.BLOCK:
            step = step // self.period * self.period
        return draws.fold_in(public_stream(public, "directions"), step, state.epoch)

    def tell(
        self,
        state: State,
        increment: Float[Array, " release_dim"],
        public: Key[Array, ""],
        noise: NoiseKey | NoiseAhead,
        frame: PyTree | None = None,
    ) -> tuple[State, Released]:
        """Release the increment through the oracle and take the learner's step.

        `frame` is what a shared frame's directions are made of, where that was made before.
        """
        block, in_block = self._release_of(state)
        oracle, released = self.oracle.release(state.oracle, increment, block, in_block, noise)
        key = self._direction_key(state, public)
        gradient = self.oracle.estimator.lift(released, key, frame)
        step = self.learner.update(state.learner, state.move, gradient)
        position = state.position + state.move
        fraction = draws.uniform(public_stream(public, "path"), state.step + 1, state.epoch)
        after = State(
            position=position,
            move=step.move,
            point=position + fraction * step.move,
            previous=state.point,
            total=state.total + state.point,
            learner=step.state,
            oracle=oracle,
            epoch=state.epoch,
            step=state.step + 1,
        )
        return after, Released(step.gradient_norm, step.move_norm)

    def noise_ahead(self, state: State, number: int, noise: NoiseKey) -> NoiseAhead:
        """The noise of the next `number` steps, for `tell`: drawn at once, used one by one."""
        return self.oracle.noise_ahead(*self._release_of(state), number, noise)

    def _release_of(self, state: State) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Block, and place in it from 1 on, of the release that comes next."""
        block = state.epoch * self.blocks_per_epoch + state.step // self.period
        return block, state.step % self.period + 1

    def end_epoch(self, state: State) -> tuple[State, Float[Array, " dim"]]:
        """The epoch's mean of w, and the state at the start of the next one."""
        fresh = self.begin(state.position)
        fresh = eqx.tree_at(lambda s: s.epoch, fresh, state.epoch + 1)
        return fresh, state.total / self.horizon
