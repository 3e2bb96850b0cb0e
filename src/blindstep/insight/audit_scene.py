"""The worst case of a plan, and what the real driver releases in it.

An audit plays the game of the guarantee. Its adversary has in its hands what stands around the gate:
it sees every release as it is, it chooses the path, as far out as it likes, and it clamps no function
difference. The loss is so steep that every record is far beyond its clip norm. All records but one
count 0; that one stands at z = +1 in one data set and at z = -1 in its neighbour, in the batch where
that costs most. Everything else is the plan's own: schedule, gate, directions, state machine, driver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from blindstep.estimate.bounds import Bounds
from blindstep.losses.pytrees import Loss, ParameterSpace
from blindstep.optimize.learners import AdaptiveStep, Choice, Pace
from blindstep.optimize.machine import FlatSpace, Machine, Path
from blindstep.optimize.prefix import Prefix
from blindstep.planning.plan import Plan
from blindstep.private.gate import Gate, Memory, Permit
from blindstep.private.mechanisms import Mechanism, PerStep, Place, Vector
from blindstep.private.noise import STD, Keys, NoiseKey
from blindstep.private.terms import Terms
from blindstep.run.compiled import prepare, run_blocks

# Steps this much longer than `reach`, slopes this much steeper than the clip norms.
_OVERSHOOT, _STEEPER = 1000.0, 1e6


class _Watching(Prefix):
    """In the place of running sums: what the adversary keeps of every release of a block."""

    mechanism: Mechanism
    # Unit vectors onto which each release is projected; None: releases are kept whole.
    lanes: Float[Array, "lanes size"] | None

    def init(self, size: int) -> Float[Array, "steps seen"]:
        return jnp.zeros((self.mechanism.steps, size if self.lanes is None else len(self.lanes)))

    def next(
        self, state: Float[Array, "steps seen"], release: Vector, place: Place
    ) -> tuple[Float[Array, "steps seen"], Vector]:
        """Remember the release. The learner gets 0, and does not care."""
        seen = release if self.lanes is None else self.lanes @ release
        return state.at[place].set(seen), jnp.zeros_like(release)

    def matrix(self) -> Float[np.ndarray, "steps steps"]:
        return np.eye(self.mechanism.steps)

    def row_norms(self) -> PerStep:
        return np.ones(self.mechanism.steps)


class _Ahead(FlatSpace):
    """In the place of the space: straight ahead, far beyond `reach`, whatever was released."""

    reach: float | Float[Array, ""]
    heading: Float[Array, " dim"]

    def advance(self, path: Path, gradient: Any, choice: Choice, fraction: Any) -> Path:
        move = _OVERSHOOT * self.reach * self.heading
        return super().advance(path, move, Choice(choice.state, 0.0, 1.0), fraction)


class _Steep(eqx.Module):
    """The loss steepness * z * (a + bend a^2 / 2) of a = <heading, x>, which grows along the path.

    Steeper than any clip norm, with the sign of z. Gradients differ between points by the bend alone.
    """

    heading: Float[Array, " dim"]
    steepness: Float[Array, ""]
    bend: Float[Array, ""]

    def __call__(self, point: Float[Array, " dim"], z: Int[Array, ""]) -> Float[Array, ""]:
        along = jnp.dot(self.heading, point)
        return self.steepness * z * (along + self.bend * along**2 / 2.0)


class Blocks(NamedTuple):
    """Blocks of a run, by number, and the rows that the gate lets answer in each, the GRAD's first.

    A person has another row in each pass: the adversary's loss may make a record count in the one
    pass that is attacked.
    """

    number: Int[np.ndarray, " blocks"]
    rows: Int[np.ndarray, "blocks block_size"]

    def some(self, which: slice) -> Blocks:
        """Some of the blocks."""
        return Blocks(self.number[which], self.rows[which])


class _Free:
    """A port that charges nobody: an audit reads no private record."""

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Nothing is spent."""


class Scene:
    """The worst case of a plan, on the terms of its own gate."""

    def __init__(self, plan: Plan, keys: Keys) -> None:
        self.plan, self.terms, self._keys = plan, plan.terms, keys
        self.public, self.lattice_std = keys.public, STD
        heading = jax.random.normal(jax.random.fold_in(keys.public, 0), (plan.dim,), jnp.float64)
        heading = heading / jnp.linalg.norm(heading)
        first, diff = float(self.terms.first_clip), float(self.terms.diff_clip)
        differentiated = plan.differentiates
        steepest = max(first, diff if differentiated else diff * plan.smoothing / plan.reach)
        bend = 1.0 / plan.reach if differentiated else 0.0
        self.loss = _Steep(heading, *map(jnp.asarray, (_STEEPER * steepest, bend)))
        machine = Machine(
            replace(plan.estimator, bounds=Bounds(clip=first, diff_clip=diff)),
            _Watching(self.terms.mechanism, None),
            AdaptiveStep(),  # asked, and not followed
            Pace(float(plan.reach), plan.schedule.releases),
            plan.horizon,
            _Ahead(float(plan.reach), heading),
        )
        self._space = ParameterSpace.of(jnp.zeros(plan.dim))
        self._machine = prepare(machine, self._space)

    def permit(self, first: int, count: int, noise: NoiseKey | None = None) -> Permit:
        """The gate's own permit for releases first .. first + count - 1, under another noise key."""

        def take(permit: Permit, memory: Memory) -> tuple[Memory, Permit]:
            return Memory(memory.position + count, memory.buffers), permit

        memory = Gate.first_memory(self.terms, first)
        keys = self._keys if noise is None else self._keys._replace(noise=noise)
        return Gate(self.terms, keys, _Free(), memory).through(take, count)

    def blocks(self, first: int, count: int = 1) -> Blocks:
        """Blocks first .. first + count - 1 of the run, as the gate lays them out."""
        permit = self.permit(first * self.plan.period, count * self.plan.period)
        rows = [np.reshape(part, (count, -1)) for part in (permit.grad_rows, permit.diff_rows)]
        number = np.arange(first, first + count)
        turn = number // self.terms.schedule.blocks_per_pass
        return Blocks(number, np.concatenate(rows, axis=1) + self.plan.records * turn[:, None])

    def batch(self, blocks: Blocks, step: int) -> Int[np.ndarray, "blocks batch"]:
        """The rows of release number `step` (from 0) of each block."""
        first, later = self.plan.first_batch, self.plan.diff_batch
        if step == 0:
            return blocks.rows[:, :first]
        start = first + (step - 1) * later
        return blocks.rows[:, start : start + later]

    def watch(
        self,
        blocks: Blocks,
        changed: Int[np.ndarray, " changed"],
        keys: UInt32[np.ndarray, "keys 8"],
        *,
        z: float | Float[np.ndarray, " changed"] = -1.0,
        lanes: Float[np.ndarray, "lanes size"] | None = None,
    ) -> Float[np.ndarray, "keys 2 blocks steps seen"]:
        """What the adversary sees of the blocks: every release, whole or projected onto lanes.

        They run on two data sets, with the changed rows at `z` in one and at -`z` in the other and
        all other rows at 0, under each noise key.
        """
        data = np.zeros((2, self.plan.records * min(2, self.plan.passes)), np.int8)
        data[0, changed], data[1, changed] = z, np.negative(z)
        return self.watch_two(blocks, self.loss, data, keys, lanes)

    def watch_two(
        self,
        blocks: Blocks,
        loss: Loss,
        data: PyTree,
        keys: UInt32[np.ndarray, "keys 8"],
        lanes: Float[np.ndarray, "lanes size"] | None = None,
    ) -> Float[np.ndarray, "keys 2 blocks steps seen"]:
        """The same for any loss and any two data sets: each leaf of `data` has two in front."""
        machine = eqx.tree_at(
            lambda m: m.prefix.lanes,
            self._machine,
            None if lanes is None else jnp.asarray(lanes),
            is_leaf=lambda leaf: leaf is None,
        )
        first = jnp.asarray(blocks.number * self.plan.period, jnp.int32)
        terms = self.permit(0, self.plan.period).terms
        stage = (first, jnp.asarray(blocks.rows))
        data = jax.tree.map(jnp.asarray, data)
        arguments = (terms, data, stage, self._keys.public, jnp.asarray(keys))
        return np.asarray(_watch(machine, loss, self._space, *arguments))

    def exact_checks(self, releases: Float[np.ndarray, "2 *blocks steps size"]) -> dict[str, bool]:
        """What must hold of the whole releases of blocks on two neighbouring data sets."""
        moved, snapped = self.terms.costs()
        declared = np.max(moved + snapped * float(self.terms.noise_std))
        move = np.linalg.norm(releases[1] - releases[0], axis=(-2, -1))
        steps = releases / (float(self.terms.noise_std) / STD)
        return {
            "every release is finite": bool(np.isfinite(releases).all()),
            "every release lies on the lattice": bool(
                np.all(np.abs(steps - np.rint(steps)) < 1e-5)
            ),
            "a record moves a block's releases by no more than is declared": bool(
                np.all(move <= declared * (1 + 1e-6))
            ),
        }


@eqx.filter_jit
def _watch(
    machine: Machine,
    loss: Loss,
    space: ParameterSpace,
    terms: Terms,
    data: PyTree,
    stage: tuple[Int[Array, " blocks"], Int[Array, "blocks block_size"]],
    public: Key[Array, ""],
    keys: UInt32[Array, "keys 8"],
) -> Float[Array, "keys 2 blocks steps seen"]:
    """The driver's own `run_blocks`, over blocks, data sets and noise keys.

    The adversary's path does not depend on the noise, so vmap evaluates the losses once for all
    keys, and draws the noise once for all data sets.
    """
    period, schedule = machine.period, terms.schedule

    def under(key: Array) -> Array:
        def world(z: PyTree) -> Array:
            def block(one: tuple[Array, Array]) -> Array:
                first, rows = one
                grads, diffs = jnp.split(rows, [schedule.first_batch])
                permit = Permit(
                    *(terms, key, first, first + period, grads[None]),
                    *(diffs.reshape(period - 1, schedule.diff_batch), np.empty(0, int)),
                    table=schedule.records,
                )
                memory = Memory(first, Gate.first_memory(terms).buffers)
                state = eqx.tree_at(
                    lambda s: (s.round, s.step),
                    machine.begin(jnp.zeros(space.dim)),
                    (first // machine.horizon, first % machine.horizon),
                )
                _, state, _ = run_blocks(
                    machine, loss, space, permit, memory, state, z, public, blocks=1
                )
                return state.sums

            return jax.lax.map(block, stage)

        return jax.vmap(world)(data)

    return jax.vmap(under)(keys)
