"""The course of a run: from released numbers to the weights, bit for bit, on any device.

In natural units a step's directions are u_j = s_j / sqrt(d), with signs s_j (`estimate.signs`), and a
step moves along the released gradient g = sum_j y_j u_j by

    - length_t g / |g|.

A parameter of tensor l moves by a_l times that, where a_l is its natural unit. It moves by a whole
number of steps of a power of two: factors y_j a_l length_t / (|g| sqrt(d)) are rounded to 24 bits
below the largest sum. Everything that the weights depend on is public and small: the key, the plan, the
units, the released numbers and one factor a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32, UInt64

from blindstep.estimate import draws
from blindstep.estimate.directions import key_number, seeds
from blindstep.estimate.scales import ScaleFinder
from blindstep.optimize.learners import Falling
from blindstep.optimize.machine import Machine
from blindstep.planning.plan import Plan
from blindstep.private.noise import public_key, public_stream
from blindstep.torch.evaluate import Shift
from blindstep.torch.weights import Move, Weights

# Sums of whole numbers up to this are exact in float32.
_BITS = 24


class _Schedule(NamedTuple):
    keys: UInt64[np.ndarray, " steps"]
    length: Float[np.ndarray, " steps"]
    nearness: Float[np.ndarray, " steps"]


@dataclass
class Replay:
    """Where the weights of a run are after each of its steps.

    Attributes:
        plan: the plan of the run.
        public: the two words of its public key.
        lengths: the natural unit of the parameters in each tuned tensor.
        unit: that of the loss.
        jumps: whether the loss is a staircase.
        widening: how much farther than planned probes must lie to be seen through rounding.
        releases: the released coefficients, steps x directions.
        factors: how far each step moves along its release: length / |g|.
    """

    plan: Plan
    public: UInt32[np.ndarray, "2"]
    lengths: Float[np.ndarray, " tensors"]
    unit: float
    jumps: bool
    widening: float
    releases: list[Float[np.ndarray, " q"]] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps done."""
        return len(self.releases)

    def distance(self) -> float:
        """How far out the next step probes, in natural units."""
        return self.plan.smoothing * self.nearness()

    def nearness(self) -> float:
        """The same as a share of the plan's smoothing."""
        return self.widening * float(self._schedule.nearness[self.steps])

    def shifts(self) -> list[Shift]:
        """Where the next step evaluates: along each direction, then on the other side, if on both."""
        own = self._seeds(self.steps)[: self.plan.directions]
        amounts = self.distance() * self.lengths / math.sqrt(self.plan.dim)
        return [
            Shift(each, sign * amounts) for sign in (1.0, -1.0)[: self.plan.sides] for each in own
        ]

    def norm(self, release: Float[np.ndarray, " q"], weights: Weights) -> float:
        """|g| of the next step, whose release this is."""
        size = math.fsum(abs(each) for each in release)
        if size == 0.0:
            return 0.0
        whole = np.rint(release * (2.0 ** (_BITS - 1) / size))
        seeds = self._seeds(self.steps)[:-1]
        norm = weights.norm(seeds, whole) * size / 2.0 ** (_BITS - 1)
        return norm / math.sqrt(self.plan.dim)

    def add(self, release: Float[np.ndarray, " q"], norm: float) -> float:
        """Take the release of the next step, and its |g|. Gives the length of the move."""
        length = float(self._schedule.length[self.steps]) if norm > 0 else 0.0
        self.releases.append(release)
        self.factors.append(length / norm if norm > 0 else 0.0)
        return length

    def move(self, number: int, share: float = 1.0) -> Move:
        """How a step that was added moves the weights, or a share of it."""
        along = -share * self.factors[number] / math.sqrt(self.plan.dim)
        wanted = self.releases[number][:, None] * (along * self.lengths)
        sums = [math.fsum(map(abs, column)) for column in wanted.T]
        # The least power of two in which the sum of all sizes has at most 24 bits, roundings included.
        unit = np.array([math.ldexp(1.0, math.frexp(each)[1] + 1 - _BITS) for each in sums])
        seeds = self._seeds(number)
        return Move(seeds[:-1], np.rint(wanted / unit), unit, seeds[-1])

    def to_round(self, number: int) -> Iterator[Move]:
        """The moves from the start to the mean of a round's points.

        Points p_0 .. p_{H-1} of a round are a step apart, so their mean is p_0 and then (H - k) / H of
        step k, for k from 1 to H - 1.
        """
        horizon = self.plan.horizon
        first = number * horizon
        yield from map(self.move, range(first))
        for later in range(1, horizon):
            yield self.move(first + later - 1, (horizon - later) / horizon)

    @cached_property
    def _schedule(self) -> _Schedule:
        """What every step has, whatever is released. At once: small calls of JAX are slow."""
        machine = self.plan.build(jumps=self.jumps)
        with jax.enable_x64(True):
            numbers = jnp.arange(self.plan.schedule.releases)
            made = _schedule_of(machine, public_key(self.public), numbers)
        return _Schedule(*(np.asarray(each) for each in made))

    def _seeds(self, number: int) -> Int[np.ndarray, "q+1 tensors"]:
        """The seeds of a step's directions, and last those that it rounds by."""
        key = self._schedule.keys[number]
        return seeds_of(key, self.plan.directions + 1, len(self.lengths))


@eqx.filter_jit
def _schedule_of(
    machine: Machine, public: Key[Array, ""], numbers: Int[Array, " steps"]
) -> tuple[UInt64[Array, " steps"], Float[Array, " steps"], Float[Array, " steps"]]:
    """The number of each step's key, how long its move is, and how near it probes."""
    learner = machine.learner
    assert isinstance(learner, Falling)

    def of_step(number: Int[Array, ""]) -> tuple[Array, Array, Array]:
        round_, step = number // machine.horizon, number % machine.horizon
        key, done = machine.direction_key(round_, step, public), number.astype(jnp.float64)
        return key_number(key), learner.length(done), learner.probing(done)

    return jax.vmap(of_step)(numbers)


def calibration_shifts(
    plan: Plan,
    public: UInt32[np.ndarray, "2"],
    lengths: Float[np.ndarray, " tensors"],
    number: int,
    finder: ScaleFinder,
) -> list[Shift]:
    """Where a look evaluates: at the weights, then along its directions, each way.

    A direction is signs in one leaf, and nothing elsewhere. `lengths` are units to begin with.
    """
    calibration, tensors = plan.calibration_query, len(lengths)
    with jax.enable_x64(True):
        key = draws.fold_in(public_stream(public_key(public), "looks"), number)
        own = seeds_of(np.asarray(key_number(key)), sum(calibration.counts), tensors)
    pairs = []
    for leaf, (size, directions) in enumerate(
        zip(calibration.leaves, calibration.counts, strict=True)
    ):
        amount = finder.distance * finder.even[leaf] / math.sqrt(size)
        inside = np.ones(tensors) if len(calibration.leaves) == 1 else np.arange(tensors) == leaf
        pairs += [amount * lengths * inside] * directions
    both = [
        Shift(seed, sign * amounts)
        for sign in (1.0, -1.0)
        for seed, amounts in zip(own, pairs, strict=True)
    ]
    return [Shift(own[0], np.zeros(tensors)), *both]


def seeds_of(number: Any, directions: int, tensors: int) -> Int[np.ndarray, "q tensors"]:
    """The seeds of directions 0, 1, .. in every tensor, as signed numbers, from a key's number."""
    each, tensor = np.arange(directions, dtype=np.uint64), np.arange(tensors, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return seeds(number, each[:, None], tensor).view(np.int64)
