"""The worst case of a plan, and what the real driver releases in it.

An audit plays the game of the guarantee. Its adversary takes the place of the learner: it sees every
released gradient and chooses the path, as far out as it likes (the trusted base clamps). The loss is
so steep that every clamp and clip is at its limit. All records but one count 0; that one
stands at z = +1 in one data set and at z = -1 in its neighbour, in the batch where that costs most.
Where directions are independent, the draw is the worst one: all of a record's directions the same.
Everything else is the plan's own: schedule, estimator, noise, oracle, state machine, driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from blindstep.drivers.compiled import epochs_of_rows, prepare, run_blocks
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.optimize.conversion import Conversion, State
from blindstep.optimize.learners import Learner, Step
from blindstep.optimize.plan import Plan, build_oracle
from blindstep.trusted.directions import Directions, Parts
from blindstep.trusted.estimators import Kind, length

# Steps this much longer than `reach`, so that the distance of two queries is clamped for nearly
# every draw of the path; slopes this much steeper than the bounds.
_OVERSHOOT, _STEEPER = 1000.0, 1e6


class Seen(eqx.Module):
    """What the adversary has seen: projections of the released gradients on its lanes."""

    number: Int[Array, ""]
    values: Float[Array, "steps lanes"]


class Adversary(Learner):
    """Sees every released gradient, and goes straight ahead, whatever it sees.

    Attributes:
        reach: D of the plan.
        heading: where it goes.
        lanes: unit vectors, onto which it projects what it sees.
        steps: how much it sees: the releases of one block.
    """

    reach: float | Float[Array, ""]
    heading: Float[Array, " dim"]
    lanes: Float[Array, "lanes dim"]
    steps: int = eqx.field(static=True)

    def init(self) -> Seen:
        """Nothing seen."""
        return Seen(jnp.asarray(0, jnp.int32), jnp.zeros((self.steps, self.lanes.shape[0])))

    def update(
        self, state: Seen, move: Float[Array, " dim"], gradient: Float[Array, " dim"]
    ) -> Step:
        """Remember, and go on."""
        values = state.values.at[state.number].set(self.lanes @ gradient)
        move = _OVERSHOOT * self.reach * self.heading
        return Step(Seen(state.number + 1, values), move, length(move), length(gradient))


class Aligned(Directions):
    """The worst draw of independent directions: all of a record's equal to its first one."""

    name: ClassVar[str] = "aligned"
    orthonormal: ClassVar[bool] = False
    inner: Directions

    def prepare(
        self, keys: Key[Array, " keys"], number: int, dim: int, dtype: DTypeLike = jnp.float64
    ) -> PyTree:
        """As the real sampler."""
        return self.inner.prepare(keys, number, dim, dtype)

    def rows(
        self, prepared: PyTree, which: Int[Array, " some"] | None, number: int, dim: int
    ) -> Parts:
        """Direction 0 of the real sampler, again and again."""
        places = jnp.zeros(number, int) if which is None else jnp.zeros_like(which)
        return self.inner.rows(prepared, places, number, dim)

    def gain(self, number: int, dim: int) -> float:
        """That of the real sampler, which holds for every draw."""
        return self.inner.gain(number, dim)


class Steep(eqx.Module):
    """The loss steepness * z * <heading, x>: beyond every bound, with the sign of z."""

    heading: Float[Array, " dim"]
    steepness: Float[Array, ""]

    def __call__(self, point: Float[Array, " dim"], z: Float[Array, ""]) -> Float[Array, ""]:
        """The loss of a record."""
        return self.steepness * z * jnp.dot(self.heading, point)


@dataclass(frozen=True)
class Blocks:
    """Blocks of a run: their rows as the driver hands them out, and where they stand.

    Attributes:
        first: rows of each GRAD.
        diffs: rows of each block's DIFFs.
        epoch: the epoch of each block.
        step: the first step of each block in its epoch.
    """

    first: Int[np.ndarray, "blocks first"]
    diffs: Int[np.ndarray, "blocks steps batch"]
    epoch: Int[np.ndarray, " blocks"]
    step: Int[np.ndarray, " blocks"]

    @staticmethod
    def joined(parts: Sequence[Blocks]) -> Blocks:
        """All blocks of several parts."""
        names = ("first", "diffs", "epoch", "step")
        return Blocks(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, which: Any) -> Blocks:
        return Blocks(self.first[which], self.diffs[which], self.epoch[which], self.step[which])

    def batch(self, block: int, step: int) -> Int[np.ndarray, " batch"]:
        """The rows of release number `step` (from 0) of a block."""
        return self.first[block] if step == 0 else self.diffs[block, step - 1]

    def compact(self) -> tuple[Blocks, int]:
        """The same with rows numbered 0, 1, ... : memory is that of these blocks' records."""
        every, number = np.unique(
            np.concatenate([self.first.ravel(), self.diffs.ravel()]), return_inverse=True
        )
        first = number[: self.first.size].reshape(self.first.shape)
        diffs = number[self.first.size :].reshape(self.diffs.shape)
        return replace(self, first=first, diffs=diffs), len(every)


class Scene:
    """The worst case of a plan.

    Attributes:
        plan: the plan.
        oracle: its oracle.
        machine: the real state machine, with the adversary as its learner.
        public: the key of directions, orders and paths.
    """

    def __init__(self, plan: Plan, public: Key[Array, ""]) -> None:
        self.plan, self.public = plan, public
        # Not plan.build(): that refuses noise too small for the budget, which is for us to find.
        self.oracle = build_oracle(plan)
        estimator = self.oracle.estimator
        attacked = self.oracle
        if not estimator.sampler.orthonormal:
            estimator = replace(estimator, sampler=Aligned(estimator.sampler))
            attacked = replace(self.oracle, estimator=estimator)
        heading = jax.random.normal(jax.random.fold_in(public, 0), (plan.dim,), jnp.float64)
        heading = heading / jnp.linalg.norm(heading)
        bounds = plan.bounds
        limits = (
            bounds.lipschitz,
            bounds.width / plan.smoothing,
            bounds.first_clip,
            bounds.diff_clip,
        )
        steepest = max(limit for limit in limits if np.isfinite(limit))
        self.loss = Steep(heading, jnp.asarray(_STEEPER * steepest))
        adversary = Adversary(
            float(plan.reach), heading, jnp.zeros((1, plan.dim)), steps=plan.period
        )
        machine = Conversion(attacked, adversary, plan.horizon)
        self._space = ParameterSpace.of(jnp.zeros(plan.dim))
        self.machine = prepare(machine, self._space)

    def blocks(self) -> Iterator[Blocks]:
        """The blocks of the run, epoch by epoch, as the driver lays them out."""
        per_epoch, period = self.machine.blocks_per_epoch, self.machine.period
        for epoch, (first, diffs) in enumerate(epochs_of_rows(self.machine, self.public, 0)):
            yield Blocks(
                first, diffs, np.full(per_epoch, epoch), np.arange(0, per_epoch * period, period)
            )

    def costs(
        self, blocks: Blocks, records: int, lanes: int, keys: UInt32[np.ndarray, "keys 8"]
    ) -> Float[np.ndarray, " period"]:
        """What a changed record costs in each release of a block: how far it moves the increment,
        measured on one GRAD and one DIFF, times the norm of its column of C.

        Not by the declared sensitivities: they are on trial too.
        """
        columns = np.linalg.norm(self.oracle.mechanism.strategy(), axis=0)
        later = 1 + int(np.argmax(columns[1:])) if len(columns) > 1 else 0
        data = np.zeros((2, records))
        for world, step in enumerate((0, later)):
            data[world, blocks.batch(0, step)[0]] = 1.0
        _, sums = self.watch(blocks, data, jnp.zeros((len(blocks), lanes, self.plan.dim)), keys)
        first, diff = np.linalg.norm(sums[0, :, 0], axis=-1)
        return np.concatenate([first * columns[:1], diff * columns[1:]])

    def frame_lanes(
        self, lanes: Float[np.ndarray, "blocks lanes release"], blocks: Blocks
    ) -> Float[Array, "blocks lanes dim"]:
        """Lanes in the coordinates of the release, as the adversary sees them in each block."""
        return _lift(
            self.machine,
            self.public,
            jnp.asarray(lanes),
            jnp.asarray(blocks.epoch, jnp.int32),
            jnp.asarray(blocks.step, jnp.int32),
        )

    def watch(
        self,
        blocks: Blocks,
        data: Float[np.ndarray, "worlds records"],
        lanes: Float[Array, "blocks lanes dim"],
        noise: UInt32[np.ndarray, "keys 8"],
    ) -> tuple[Float[np.ndarray, "keys worlds blocks steps lanes"], Float[np.ndarray, "..."]]:
        """Run the blocks in each world under each noise key: what is seen, and the final sums.

        The sums are the oracle's secret state, (keys, worlds, blocks, release): for white boxes.
        """
        seen, sums = _watch(
            self.machine,
            self.loss,
            self._space,
            jnp.asarray(data),
            (
                jnp.asarray(blocks.first),
                jnp.asarray(blocks.diffs),
                jnp.asarray(blocks.epoch, jnp.int32),
                jnp.asarray(blocks.step, jnp.int32),
                lanes,
            ),
            self.public,
            jnp.asarray(noise),
        )
        return np.asarray(seen), np.asarray(sums)


def at(machine: Conversion, dim: int, epoch: Array, step: Array) -> State:
    """The state of a run that is to begin with this step of this epoch, at 0."""
    state = machine.begin(jnp.zeros(dim))
    return eqx.tree_at(lambda s: (s.epoch, s.step), state, (epoch, step))


@eqx.filter_jit
def _lift(
    machine: Conversion, public: Key[Array, ""], lanes: Array, epochs: Array, steps: Array
) -> Array:
    """Lanes lifted as the driver lifts a release of that block."""
    estimator = machine.oracle.estimator

    def block(args: tuple[Array, Array, Array]) -> Array:
        own, epoch, step = args
        key = machine.ask(at(machine, estimator.dim, epoch, step), Kind.GRAD, public).key
        return jax.vmap(lambda lane: estimator.lift(lane, key))(own)

    return jax.lax.map(block, (lanes, epochs, steps))


@eqx.filter_jit
def _watch(
    machine: Conversion,
    loss: Steep,
    space: ParameterSpace,
    data: Float[Array, "worlds records"],
    blocks: tuple[Array, ...],
    public: Key[Array, ""],
    noise: UInt32[Array, "keys 8"],
) -> tuple[Array, Array]:
    """The driver's own `run_blocks`, over blocks, worlds and noise keys.

    The adversary's path does not depend on the noise, so vmap evaluates the losses once for all
    keys, and draws the noise once for all worlds.
    """

    def under(key: Array) -> tuple[Array, Array]:
        def world(z: Array) -> tuple[Array, Array]:
            def block(args: tuple[Array, ...]) -> tuple[Array, Array]:
                first, diffs, epoch, step, lanes = args
                watching = eqx.tree_at(lambda m: m.learner.lanes, machine, lanes)
                state = at(watching, space.dim, epoch, step)
                state, _ = run_blocks(
                    watching, loss, space, state, z, first[None], diffs[None], public, key
                )
                oracle = watching.oracle
                total = oracle.arithmetic.value(state.oracle.running, oracle.noise_std)
                return state.learner.values, total

            return jax.lax.map(block, blocks)

        return jax.vmap(world)(data)

    return jax.vmap(under)(noise)
