"""The mathematics of a study: the machine and the gate of every other run, and whoever comes.

What differs from a run of `blindstep.Optimizer` is who answers: a step is a window of time, in which
whoever comes is asked along a direction that follows from their own keyed hash, and sums are divided
by the number that was planned. And where things are kept: the state between two steps is a row of the
database, and the gate is made anew for each release, which needs no memory because the plan's blocks
have one release.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from blindstep.errors import InvalidArgument
from blindstep.estimate.estimators import from_values
from blindstep.estimate.watching import BESIDE, NOW_FIRST, START_FIRST, Watching
from blindstep.losses.pytrees import ParameterSpace
from blindstep.optimize.machine import State
from blindstep.planning.plan import Plan
from blindstep.private.gate import Gate, Port
from blindstep.private.noise import Keys, NoiseKey, fresh_keys, public_key
from blindstep.private.schedule import Kind
from blindstep.run.loop import traced
from blindstep.run.query import points_at
from blindstep.serve import reading
from blindstep.serve.keys import number_of, share_of, turn_of
from blindstep.serve.programs import program_of
from blindstep.serve.spec import StudySpec

if TYPE_CHECKING:
    from blindstep.serve.schema import Row

# People whose points are made at once, which must always be as many: the last bits of a point depend
# on it. And the bytes of points that are kept, of which a person's place in the table takes some.
_CHUNK, _KEPT_BYTES, _PLACE = 32, 2**26, 256
# A window's votes are one array, of one of few sizes: each size is a compilation.
_LEAST = 1024

# One row for each person who answered: their number, what they were asked (a role of `watching`), and
# their two losses, NaN where none came.
Votes = Float[np.ndarray, "people 4"]
# What a release made public: parameters, the mean of the round that it ended in natural units, norms of
# the noisy gradient and of the move, and the noisy vector itself.
Outcome = dict[str, Any]
# The bytes of a person's keyed hash that say what they are shown.
_KNOWN_BY = 9


class ClosedStep(NamedTuple):
    """What one release made public."""

    state: str  # the state machine after it, as JSON
    outcome: Outcome


class Shown(NamedTuple):
    """What a person is shown: parameters, or in a comparison two options beside them."""

    parameters: dict[str, float]
    options: list[dict[str, float]] | None = None


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
        program: of a release; studies with the same plan share it.
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
        if plan.watch is None:
            raise InvalidArgument("a study's plan says what its windows show beside the gradient.")
        self.spec, self.plan, self.scales, self.watch = spec, plan, spec.scales(), plan.watch
        # The longest that a gradient's part of a person's vector is.
        self.clip = plan.clips[0] / plan.watch.longer
        words = np.frombuffer(bytes.fromhex(row["public_key"]), "<u4")
        self.public = public_key(words.astype(np.uint32))
        self.space = ParameterSpace.of(np.asarray(self.scales.origin))
        with jax.enable_x64(True):
            machine = plan.build()
            self._start = machine.begin(jnp.zeros(plan.dim))
            self._machine = traced(machine)
        self.program = program_of(row["plan"])

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
        start = np.asarray(self.scales.origin)
        now = self.spec.clamp(np.asarray(self.scales.place(np.asarray(state.path.point))))
        pairs = {START_FIRST: np.stack([start, now]), NOW_FIRST: np.stack([now, start])}

        def points(people: Sequence[bytes]) -> Float[np.ndarray, "people 2 dim"]:
            numbers = [number_of(person) for person in people]
            with jax.enable_x64(True):
                found = points_at(estimator, query, jnp.asarray(numbers, jnp.int64))
            shown = self.spec.clamp(self.scales.place(np.asarray(found)[:, :, 0]), now)
            for place, person in enumerate(people):
                if (role := self.role(person, release)) != BESIDE:
                    shown[place] = pairs[role]
            return shown

        return Step(release, self.spec, points, parameters)

    def role(self, person: bytes, release: int) -> int:
        """What this person is asked in a step: it follows from their keyed hash and the plan alone."""
        if share_of(person) >= self.watch.control and not self.compares(release):
            return BESIDE
        return START_FIRST if turn_of(person) else NOW_FIRST

    def compares(self, release: int) -> bool:
        """Whether everybody is asked about the start in this step."""
        return self.watch.final and release + 1 == self.releases

    def gate(self, noise: NoiseKey, port: Port, release: int) -> Gate:
        """The gate before a release."""
        keys = Keys(noise, self.public, seeded=False)
        return Gate(self.plan.terms, keys, port, Gate.first_memory(self.plan.terms, release))

    def release(
        self, gate: Gate, state: State, votes: Votes, history: Sequence[Outcome] = ()
    ) -> ClosedStep:
        """Send a window's votes through the gate: charged by its port first, then released.

        Whoever gave one answer of two counts 0, like somebody who did not come. `history` is what was
        released before.
        """
        release, empty = gate.position, _padded(len(votes)) - len(votes)
        with jax.enable_x64(True):
            # Empty places count 0 as well: the gate takes a vector that is NaN for one that is 0.
            rows = jnp.asarray(np.pad(votes, [(0, empty), (0, 0)], constant_values=np.nan))
            whose, role = jnp.nan_to_num(rows[:, :2]).astype(jnp.int64).T
            watching = Watching(whose, role, jnp.asarray(self.clip), jnp.asarray(self.watch.weight))
            still = jnp.asarray(self.compares(release))
            rest = (self._machine, state, rows[:, 2:, None], watching, self.public, still)
            after, info, told = gate.through(
                lambda permit, memory: self.program.step_of_window(permit, memory, *rest),
                answers=votes.ravel(),
            )
            after, mean = self._machine.end_round(after)
        outcome: Outcome = {
            "mean": np.asarray(mean).tolist(),
            "told": [float(info.gradient_norm), float(info.move_norm), None],
            "release": np.asarray(told).tolist(),
        }
        shown = np.asarray(self.scales.place(np.asarray(after.path.point)))
        if release + 1 == self.releases:
            shown = reading.result(self, [*history, outcome]).params
        outcome["parameters"] = self.spec.parameters_of(np.asarray(shown))
        leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(after)]
        return ClosedStep(json.dumps(leaves), outcome)

    def compile(self, people: int) -> None:
        """Compile a release of so many, so that the transaction that needs it is short."""
        size = _padded(people)
        if size not in self.program.sizes:
            gate = self.gate(fresh_keys().noise, _NoCharge(), 0)
            self.release(gate, self._start, np.zeros((size, 4)))
            self.program.sizes.add(size)


def _padded(people: int) -> int:
    """The size of the array for so many people's votes."""
    return max(_LEAST, 1 << max(people - 1, 0).bit_length())


class Step:
    """The questions of one step. A person's two points are made when they are first asked for."""

    def __init__(
        self,
        release: int,
        spec: StudySpec,
        points: Callable[[Sequence[bytes]], Float[np.ndarray, "people 2 dim"]],
        parameters: dict[str, float],
    ) -> None:
        """`points` makes those of `_CHUNK` people."""
        self.release, self.parameters = release, parameters
        self._names, self.points, self._one = spec.names, points, threading.Lock()
        self.questions = spec.answer.questions
        self._kept: OrderedDict[bytes, Float[np.ndarray, "2 dim"]] = OrderedDict()
        self._each = 16 * len(spec.names) + _PLACE
        self._most = max(_CHUNK, _KEPT_BYTES // self._each)

    def prepare(self) -> None:
        """Make points before anybody asks: the first ones of a study are compiled."""
        if not self._kept:
            self.make([bytes(_KNOWN_BY)])

    def make(self, people: Iterable[bytes]) -> None:
        """Make the points of these people together, which is faster than one by one."""
        with self._one:
            missing = list({person[:_KNOWN_BY] for person in people} - self._kept.keys())
            for start in range(0, len(missing), _CHUNK):
                some = missing[start : start + _CHUNK]
                made = self.points(some + [bytes(_KNOWN_BY)] * (_CHUNK - len(some)))
                self._kept.update(zip(some, made, strict=False))
            self._drop(len(self._kept) - self._most)

    @property
    def size(self) -> int:
        """The bytes of the points that are kept."""
        return len(self._kept) * self._each

    def shrink(self) -> int:
        """Drop the older half of the points, which are made again when they are asked for."""
        with self._one:
            return self._drop(len(self._kept) // 2) * self._each

    def _drop(self, many: int) -> int:
        for _ in range(many):
            self._kept.popitem(last=False)
        return max(many, 0)

    def show(self, person: bytes, part: int) -> Shown:
        """What to show: the first or the second of a person's points, inside the ranges.

        In a comparison both beside each other, and the released parameters for the rest of the page.
        """
        points = self._kept.get(person[:_KNOWN_BY])
        while points is None:
            self.make([person])
            points = self._kept.get(person[:_KNOWN_BY])
        named = [dict(zip(self._names, each, strict=True)) for each in points.tolist()]
        if self.questions == 1:
            return Shown(self.parameters, named)
        return Shown(named[part])


def new_public_key() -> str:
    """The two words of a fresh public key, in hexadecimal."""
    words = np.asarray(jax.random.key_data(fresh_keys().public))
    return words.astype("<u4").tobytes().hex()
