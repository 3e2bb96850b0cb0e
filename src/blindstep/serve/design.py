"""The mathematics of a study: the machine and the gate of every other run, and whoever comes.

What differs from a run of `blindstep.Optimizer` is who answers: a step is a window of time, in which
whoever comes is asked along a direction that follows from their own keyed hash, and sums are divided
by the number that was planned. And where things are kept: the state between two steps is a row of the
database, and the gate is made anew for each release, which needs no memory because the plan's blocks
have one release.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from blindstep.errors import InvalidArgument
from blindstep.estimate.estimators import from_values
from blindstep.losses.pytrees import ParameterSpace
from blindstep.optimize.machine import State, StepInfo
from blindstep.planning.plan import Plan
from blindstep.private.gate import Gate, Port
from blindstep.private.noise import Keys, NoiseKey, fresh_keys, public_key
from blindstep.private.schedule import Kind
from blindstep.run.loop import step_from_answers, traced
from blindstep.run.query import points_at
from blindstep.run.result import Result, result_of
from blindstep.serve.keys import number_of
from blindstep.serve.schema import Row
from blindstep.serve.spec import StudySpec

# People whose points are made at once, which must always be as many: the last bits of a point depend
# on it. And the bytes of points that are kept, of which a person's place in the table takes some.
_CHUNK, _KEPT_BYTES, _PLACE = 32, 2**26, 256
# A window's votes are one array, of one of few sizes: each size is a compilation.
_LEAST = 1024

# One row for each person who answered: their number, and their two losses, NaN where none came.
Votes = Float[np.ndarray, "people 3"]


class ClosedStep(NamedTuple):
    """What one release made public."""

    state: str  # the state machine after it, as JSON
    parameters: dict[str, float]  # where the study stands now, in the operator's units
    mean: list[float]  # the mean of the round that it ended, in natural units
    told: list[float | None]  # norms of the noisy gradient and of the move, and the loss (None)

    def to_json(self) -> str:
        """All but the state."""
        return json.dumps({"parameters": self.parameters, "mean": self.mean, "told": self.told})


class _NoCharge:
    """The port of a gate that compiles the program on zeros, with keys that are thrown away."""

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Nothing is released, so nothing is charged."""


class Design:
    """What never changes about a study, and the functions of a step.

    Attributes:
        spec: what the operator asked for.
        plan: what the planner made of it.
        public: the public key.
        attempt: which questions and which noise are this study's; another one after a restore.
        study: its id.
        number: its number in the tables.
    """

    def __init__(self, row: Row) -> None:
        """Read it from its row; one that is not stored yet has the number 0."""
        self.study, self.number, self.attempt = row["id"], row.get("number", 0), row["attempt"]
        spec, plan = StudySpec.model_validate_json(row["spec"]), Plan.from_json(row["plan"])
        if plan.horizon != 1 or plan.directions != 1 or plan.passes != 1 or not plan.windows:
            raise InvalidArgument(
                "a study needs a plan of windows, with one pair of questions a person: that of "
                "`StudySpec.plan`."
            )
        self.spec, self.plan, self.scales = spec, plan, spec.scales()
        words = np.frombuffer(bytes.fromhex(row["public_key"]), "<u4")
        self.public = public_key(words.astype(np.uint32))
        self.space = ParameterSpace.of(np.asarray(self.scales.origin))
        with jax.enable_x64(True):
            machine = plan.build()
            self._start = machine.begin(jnp.zeros(plan.dim))
            self._machine = traced(machine)
        self._compiled: set[int] = set()

    @property
    def planned(self) -> int:
        """People expected in each step."""
        return self.plan.first_batch

    @property
    def releases(self) -> int:
        """Steps of the whole study."""
        return self.plan.schedule.releases

    def state(self, stored: str | None) -> State:
        """The state machine as it was stored; before the first release, its start."""
        if stored is None:
            return self._start
        leaves, structure = jax.tree.flatten(self._start)
        with jax.enable_x64(True):
            found = [
                jnp.asarray(np.asarray(value, leaf.dtype).reshape(leaf.shape))
                for value, leaf in zip(json.loads(stored), leaves, strict=True)
            ]
        return jax.tree.unflatten(structure, found)

    def step(self, release: int, stored: str | None, parameters: dict[str, float]) -> Step:
        """The questions of a step, from the state that the release before it stored.

        `parameters` are the released ones, for people who are not asked.
        """
        state, estimator = self.state(stored), from_values(self._machine.estimator)
        with jax.enable_x64(True):
            query = self._machine.ask(state, Kind.GRAD, self.public)

        def points(numbers: list[int]) -> Float[np.ndarray, "people 2 dim"]:
            with jax.enable_x64(True):
                found = points_at(estimator, query, jnp.asarray(numbers, jnp.int64))
            return self.spec.clamp(self.scales.place(np.asarray(found)[:, :, 0]))

        return Step(release, self.spec.names, points, parameters)

    def gate(self, noise: NoiseKey, port: Port, release: int) -> Gate:
        """The gate before a release."""
        keys = Keys(noise, self.public, seeded=False)
        return Gate(self.plan.terms, keys, port, Gate.first_memory(self.plan.terms, release))

    def release(self, gate: Gate, state: State, votes: Votes) -> ClosedStep:
        """Send a window's votes through the gate: charged by its port first, then released.

        Whoever gave one answer of two counts 0, like somebody who did not come.
        """
        release, empty = gate.position, _padded(len(votes)) - len(votes)
        with jax.enable_x64(True):
            # Empty places count 0 as well: the gate takes a vector that is NaN for one that is 0.
            rows = jnp.asarray(np.pad(votes, [(0, empty), (0, 0)], constant_values=np.nan))
            whose = jnp.nan_to_num(rows[:, 0]).astype(jnp.int64)
            values = rows[:, 1:, None] / self.scales.unit
            rest = (self._machine, state, Kind.GRAD, values, self.public, whose)
            after, info = gate.through(
                lambda permit, memory: step_from_answers(permit, memory, *rest),
                answers=votes.ravel(),
            )
            after, mean = self._machine.end_round(after)
        last = release + 1 == self.releases
        shown = np.asarray(self.scales.place(np.asarray(mean if last else after.path.point)))
        norms = [float(info.gradient_norm), float(info.move_norm), None]
        return ClosedStep(
            json.dumps([np.asarray(leaf).tolist() for leaf in jax.tree.leaves(after)]),
            self.spec.parameters_of(shown),
            np.asarray(mean).tolist(),
            norms,
        )

    def compile(self, people: int) -> None:
        """Compile a release of so many, so that the transaction that needs it is short."""
        size = _padded(people)
        if size not in self._compiled:
            gate = self.gate(fresh_keys().noise, _NoCharge(), 0)
            self.release(gate, self._start, np.zeros((size, 3)))
            self._compiled.add(size)

    def result(self, outcomes: list[dict[str, Any]]) -> Result:
        """The result of a finished study, as an `Optimizer` gives it."""
        means = [np.asarray(outcome["mean"]) for outcome in outcomes]
        told = np.asarray([[np.nan if n is None else n for n in o["told"]] for o in outcomes])
        info = StepInfo(*told.T)
        keys = Keys(fresh_keys().noise, self.public, seeded=False)  # only the public one is used
        gate = Gate(self.plan.terms, keys, _NoCharge())
        run = (self.plan, self.space, gate, means, info, self.scales)
        return result_of(*run, protected="one person")

    def heard(self, outcomes: list[dict[str, Any]]) -> list[float]:
        """How long each step's noisy gradient was, in lengths that noise alone would have.

        Near 1 nothing but noise was heard: few people came, or they saw no difference.
        """
        alone = self.plan.noise_std * math.sqrt(self.plan.dim)
        return [outcome["told"][0] / alone for outcome in outcomes]

    def noise_on_parameters(self, outcomes: list[dict[str, Any]]) -> Float[np.ndarray, "steps dim"]:
        """How far noise alone moves each parameter up to each step: one standard deviation.

        A move is -(length / |g|) g of a noisy gradient g, so noise of standard deviation s on each
        coordinate of g moves each coordinate by s length / |g|; moves add up in squares.
        """
        steps = np.asarray([outcome["told"][:2] for outcome in outcomes], float).reshape(-1, 2)
        each = self.plan.noise_std * steps[:, 1] / np.maximum(steps[:, 0], 1e-300)
        return np.sqrt(np.cumsum(each**2))[:, None] * np.asarray(self.scales.lengths)


def _padded(people: int) -> int:
    """The size of the array for so many people's votes."""
    return max(_LEAST, 1 << max(people - 1, 0).bit_length())


class Step:
    """The questions of one step. A person's two points are made when they are first asked for."""

    def __init__(
        self,
        release: int,
        names: list[str],
        points: Callable[[list[int]], Float[np.ndarray, "people 2 dim"]],
        parameters: dict[str, float],
    ) -> None:
        """`points` makes those of `_CHUNK` people from their numbers."""
        self.release, self.parameters = release, parameters
        self._names, self._points, self._one = names, points, threading.Lock()
        self._kept: OrderedDict[int, Float[np.ndarray, "2 dim"]] = OrderedDict()
        self._most = max(_CHUNK, _KEPT_BYTES // (16 * len(names) + _PLACE))

    def prepare(self) -> None:
        """Make points before anybody asks: the first ones of a study are compiled."""
        if not self._kept:
            self.make([bytes(4)])

    def make(self, people: Iterable[bytes]) -> None:
        """Make the points of these people together, which is faster than one by one."""
        with self._one:
            missing = list({number_of(person) for person in people} - self._kept.keys())
            for start in range(0, len(missing), _CHUNK):
                some = missing[start : start + _CHUNK]
                made = self._points(some + [0] * (_CHUNK - len(some)))
                self._kept.update(zip(some, made, strict=False))
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def show(self, person: bytes, part: int) -> dict[str, float]:
        """The parameters to show: the first or the second of a person's points, inside the ranges."""
        points = self._kept.get(number_of(person))
        while points is None:
            self.make([person])
            points = self._kept.get(number_of(person))
        return dict(zip(self._names, points[part].tolist(), strict=True))


def new_public_key() -> str:
    """The two words of a fresh public key, in hexadecimal."""
    words = np.asarray(jax.random.key_data(fresh_keys().public))
    return words.astype("<u4").tobytes().hex()
