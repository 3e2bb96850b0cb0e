"""The path of a run on a network: from released numbers to the weights, bit for bit, on any device.

In scaled units, a step's directions are u_j = s_j / sqrt(d), with signs s_j (`estimate.directions`).
The released gradient is g = sum_j y_j u_j, and a move is a sum of such gradients, with factors that the
learner chose. A parameter of tensor l moves by a_l times that, where a_l is its scale. It moves by a
whole number of steps of a power of two: factors y_j a_l b / sqrt(d) are rounded to 24 bits below the
largest sum. Everything that the weights depend on is public and small: the key, the plan, the scales,
the released numbers and three numbers for each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32, UInt64

from blindstep.estimate import draws
from blindstep.estimate.directions import key_number, seeds
from blindstep.estimate.scales import ScaleFinder
from blindstep.estimate.vectors import Estimator
from blindstep.optimize.learners import Choice, Seen
from blindstep.optimize.machine import Machine, Space
from blindstep.planning.plan import Plan
from blindstep.private.noise import public_key, public_stream
from blindstep.torch.evaluate import Shift
from blindstep.torch.group import ModelGroup
from blindstep.torch.weights import Move, Weights

# Sums of whole numbers up to this are exact in float32.
_BITS = 24


class ModelPath(eqx.Module):
    """What was released and chosen, step by step: all that a path of weights is made of. Public.

    Arrays have a row for each step; rows of steps to come are 0. Delta after step n is
    keep[n] Delta + along[n] g_n, the next gradient is wanted at w = x + fraction[n] Delta, and kept[n]
    is 0 where a learner that starts afresh drops that move.
    """

    releases: Float[Array | np.ndarray, "steps q"]
    keep: Float[Array | np.ndarray, " steps"]
    along: Float[Array | np.ndarray, " steps"]
    fraction: Float[Array | np.ndarray, " steps"]
    kept: Float[Array | np.ndarray, " steps"]
    done: Int[Array | np.ndarray, ""]

    @staticmethod
    def before(steps: int, directions: int) -> ModelPath:
        """The path before the first step."""
        keep, along, fraction, kept = np.zeros((4, steps))
        return ModelPath(np.zeros((steps, directions)), keep, along, fraction, kept, np.asarray(0))

    @property
    def point(self) -> Float[Array, " 1"]:
        """Stands for the weights where a query wants a point: coefficients do not depend on it."""
        return jnp.zeros(1)

    @property
    def previous(self) -> Float[Array, " 1"]:
        """The same."""
        return self.point


@dataclass(frozen=True, eq=False)
class Replay:
    """How released numbers become weights.

    Attributes:
        plan: the plan of the run.
        public: the two words of its public key.
        lengths: the scale of the parameters in each tuned tensor.
        unit: that of the loss.
        jumps: whether the loss is a staircase.
        widening: how much farther than planned probes must lie to be seen through rounding.
    """

    plan: Plan
    public: UInt32[np.ndarray, "2"]
    lengths: Float[np.ndarray, " tensors"]
    unit: float
    jumps: bool
    widening: float

    def shifts(self, number: int, nearness: float) -> list[Shift]:
        """Where a step evaluates: along each direction, then on the other side, if on both."""
        own = self._seeds(number)[: self.plan.directions]
        amounts = self.plan.smoothing * nearness * self.lengths / math.sqrt(self.plan.dim)
        return [
            Shift(each, sign * amounts) for sign in (1.0, -1.0)[: self.plan.sides] for each in own
        ]

    def norm(self, path: ModelPath, factors: dict[int, float], weights: Weights) -> float:
        """|sum of factor x g_n| in scaled units, over the steps n that have a factor."""
        every, whole, scale = self._whole(path, factors)
        if scale == 0.0:
            return 0.0
        return weights.norm(every, whole) * scale / 2.0 ** (_BITS - 1) / math.sqrt(self.plan.dim)

    def inner(
        self, path: ModelPath, one: dict[int, float], two: dict[int, float], weights: Weights
    ) -> float:
        """The inner product of two such sums."""
        (seeds_1, whole_1, scale_1), (seeds_2, whole_2, scale_2) = (
            self._whole(path, each) for each in (one, two)
        )
        if scale_1 == 0.0 or scale_2 == 0.0:
            return 0.0
        found, unit = weights.inner((seeds_1, whole_1), (seeds_2, whole_2)), 2.0 ** (_BITS - 1)
        return found * (scale_1 / unit) * (scale_2 / unit) / self.plan.dim

    def _whole(
        self, path: ModelPath, factors: dict[int, float]
    ) -> tuple[Int[np.ndarray, "q tensors"], Float[np.ndarray, " q"], float]:
        """Seeds and whole-number weights of a sum, and the size that 2^23 stands for."""
        parts = [np.asarray(path.releases[n]) * factor for n, factor in factors.items()]
        wanted = np.concatenate(parts)
        size = math.fsum(abs(each) for each in wanted)
        every = np.concatenate([self._seeds(n)[:-1] for n in factors])
        whole = np.rint(wanted * (2.0 ** (_BITS - 1) / size)) if size else wanted
        return every, whole, size

    def moves(self, path: ModelPath, number: int) -> Iterator[Move]:
        """How the weights move after step `number`, from where it evaluated to where the next one does.

        That is what is left of the move before, and then the share of the new one.
        """
        if number and path.fraction[number - 1] != 1.0:
            rest = 1.0 - float(path.fraction[number - 1])
            yield from self.along_move(path, number - 1, rest * float(path.kept[number - 1]))
        share = float(path.fraction[number]) * float(path.kept[number])
        yield from self.along_move(path, number, share)

    def to_round(self, path: ModelPath, number: int) -> Iterator[Move]:
        """The moves from the start to the mean of a round's points."""
        horizon = self.plan.horizon
        first = number * horizon
        for step in range(first):
            yield from self.moves(path, step)
        begun = max(first - 1, 0)
        for step in range(begun, first + horizon - 1):
            shares = [_share(path, point, step) for point in range(first, first + horizon)]
            share = sum(shares) / horizon - shares[0]
            if share != 0.0:
                yield from self.along_move(path, step, share)

    def along_move(self, path: ModelPath, number: int, share: float) -> Iterator[Move]:
        """A share of the move that was chosen after step `number`; nothing for no share."""
        if share == 0.0:
            return
        factors, root, parts = factors_of(path, number), math.sqrt(self.plan.dim), []
        for n, factor in factors.items():
            amounts = share * factor / root * self.lengths
            parts.append(np.asarray(path.releases[n])[:, None] * amounts)
        wanted = np.concatenate(parts)
        sums = [math.fsum(map(abs, column)) for column in wanted.T]
        # The least power of two in which the sum of all sizes has at most 24 bits, roundings included.
        unit = np.array([math.ldexp(1.0, math.frexp(each)[1] + 1 - _BITS) for each in sums])
        every = np.concatenate([self._seeds(n)[:-1] for n in factors])
        yield Move(every, np.rint(wanted / unit), unit, self._seeds(number)[-1])

    @cached_property
    def _keys(self) -> UInt64[np.ndarray, " steps"]:
        """The number of each step's key. At once: small calls of JAX are slow."""
        with jax.enable_x64(True):
            numbers = jnp.arange(self.plan.schedule.releases)
            return np.asarray(_keys_of(self.plan.build(), public_key(self.public), numbers))

    def _seeds(self, number: int) -> Int[np.ndarray, "rows tensors"]:
        """The seeds of a step's directions, and last those that it rounds by."""
        return seeds_of(self._keys[number], self.plan.directions + 1, len(self.lengths))


@dataclass(frozen=True, eq=False)
class Signed:
    """The road of a run along signs: where its rounds have been, by what was released."""

    group: ModelGroup
    replay: Replay
    path: ModelPath
    means: None = None

    def to(self, number: int | None) -> None:
        """Move the weights to the mean of a round's points; None: to the start."""
        self.group.put_back()
        for move in () if number is None else self.replay.to_round(self.path, number):
            self.group.move(move)


class ModelSpace(Space):
    """The space of a model's weights: points are never held, only what leads to them."""

    replay: Replay = eqx.field(static=True)
    weights: Weights = eqx.field(static=True)

    def begin(self, start: Any = None) -> ModelPath:
        """Nothing released yet."""
        plan = self.replay.plan
        return ModelPath.before(plan.schedule.releases, plan.directions)

    def frame(self, estimator: Estimator, key: Key[Array, ""]) -> None:
        """Signs are made where they are used."""

    def lift(
        self, estimator: Estimator, sums: Float[Array, " q"], frame: Any
    ) -> Float[np.ndarray, " q"]:
        """The coefficients stand for the gradient."""
        return np.asarray(sums)

    def see(self, path: ModelPath, gradient: Float[np.ndarray, " q"]) -> Seen:
        """Sums over all weights: the norm of the gradient, and more for a learner that asks for it."""
        replay, number, weights = self.replay, int(path.done), self.weights
        releases = np.array(path.releases)
        releases[number] = gradient
        path, own = replace(path, releases=releases), {number: 1.0}
        moved = number > 0 and bool(path.kept[number - 1])
        before = factors_of(path, number - 1) if moved else {}
        return Seen(
            lambda: _square(replay.norm(path, own, weights)),
            lambda: _square(replay.norm(path, before, weights)) if before else 0.0,
            lambda: replay.inner(path, before, own, weights) if before else 0.0,
        )

    def advance(
        self, path: ModelPath, gradient: Float[np.ndarray, " q"], choice: Choice, fraction: Any
    ) -> ModelPath:
        """Write down what was released and chosen."""
        number = int(path.done)
        written = [path.releases, path.keep, path.along, path.fraction, path.kept]
        values = [gradient, choice.keep, choice.along, fraction, 1.0]
        arrays = [np.array(each) for each in written]
        for array, value in zip(arrays, values, strict=True):
            array[number] = np.asarray(value)
        releases, keep, along, fractions, kept = arrays
        return ModelPath(releases, keep, along, fractions, kept, np.asarray(number + 1))

    def end_round(self, path: ModelPath, horizon: int, persists: bool) -> tuple[ModelPath, None]:
        """A mean of weights is too large to keep: `Replay.to_round` leads to it."""
        if persists:
            return path, None
        kept = np.array(path.kept)
        kept[int(path.done) - 1] = 0.0
        return replace(path, kept=kept), None


def _square(number: float) -> float:
    """The product, rounded once: its root is the number again. A power need not be."""
    return number * number


def factors_of(path: ModelPath, number: int) -> dict[int, float]:
    """Delta after step `number` as a sum of factor x g_n: the factor of each n.

    What is left of an old gradient after rounding to 24 bits is left out.
    """
    factors, factor = {number: float(path.along[number])}, 1.0
    while number > 0 and path.kept[number - 1]:
        factor *= float(path.keep[number])
        if abs(factor) < 2.0**-_BITS:
            break
        number -= 1
        factors[number] = factor * float(path.along[number])
    return factors


def _share(path: ModelPath, point: int, number: int) -> float:
    """How much of the move after step `number` there is in the point of step `point`."""
    if point <= number or not path.kept[number]:
        return 0.0
    return float(path.fraction[number]) if point == number + 1 else 1.0


@eqx.filter_jit
def _keys_of(
    machine: Machine, public: Key[Array, ""], numbers: Int[Array, " steps"]
) -> UInt64[Array, " steps"]:
    """The number of each step's key."""

    def of_step(number: Int[Array, ""]) -> Array:
        round_, step = number // machine.horizon, number % machine.horizon
        return key_number(machine.direction_key(round_, step, public))

    return jax.vmap(of_step)(numbers)


def calibration_shifts(
    plan: Plan,
    public: UInt32[np.ndarray, "2"],
    lengths: Float[np.ndarray, " tensors"],
    number: int,
    finder: ScaleFinder,
) -> list[Shift]:
    """Where a calibration evaluates: at the weights, then along its directions, each way.

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
