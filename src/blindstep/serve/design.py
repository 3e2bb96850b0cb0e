"""The mathematics of a study: the same state machine and the same gate as `blindstep.Optimizer`.

A study's step is a step of the run that `Optimizer(plan, start, scales=...)` would make from the same
answers under the same keys, bit for bit (`test_a_study_is_the_run_of_an_optimizer`). What differs is
where things are kept: the state between two steps is a row of the database, and the gate is made anew
for each release, which needs no memory because the plan's blocks have one release.
"""

from __future__ import annotations

import functools
import json
import threading
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
from blindstep.run.query import BatchQuery
from blindstep.run.result import Result, result_of
from blindstep.serve.schema import Row
from blindstep.serve.spec import StudySpec

# The number of slots whose points are made at once, and the bytes of points that are kept.
_CHUNK, _KEPT_BYTES = 1024, 2**26


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
        if plan.period != 1 or plan.horizon != 1 or plan.directions != 1:
            raise InvalidArgument(
                "a study needs a plan of single releases and one pair of questions a person: make it "
                "with blindstep.plan(questions=2)."
            )
        self.spec, self.plan, self.scales = spec, plan, spec.scales()
        words = np.frombuffer(bytes.fromhex(row["public_key"]), "<u4")
        self.public = public_key(words.astype(np.uint32))
        self.space = ParameterSpace.of(np.asarray(self.scales.origin))
        with jax.enable_x64(True):
            machine = plan.build()
            self._start = machine.begin(jnp.zeros(plan.dim))
            self._machine = traced(machine)
        self._compiled = False

    @property
    def slots(self) -> int:
        """People asked in each step."""
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
        state = self.state(stored)
        with jax.enable_x64(True):
            query = BatchQuery(
                run="",
                round=int(state.round),
                step=int(state.step),
                rows=np.arange(self.slots),
                space=self.space,
                _estimator=from_values(self._machine.estimator),
                _query=self._machine.ask(state, Kind.GRAD, self.public),
                _scales=self.scales,
            )
        return Step(release, self.spec, query, parameters)

    def gate(self, noise: NoiseKey, port: Port, release: int) -> Gate:
        """The gate before a release, with the order of its pass made: it takes time for many people."""
        keys = Keys(noise, self.public, seeded=False)
        gate = Gate(self.plan.terms, keys, port, Gate.first_memory(self.plan.terms, release))
        gate.rows(release)
        return gate

    def release(
        self, gate: Gate, state: State, answers: Float[np.ndarray, "slots 2"]
    ) -> ClosedStep:
        """Send a step's answers through the gate: charged by its port first, then released.

        An answer that is NaN never came: that person counts 0.
        """
        release = gate.position
        with jax.enable_x64(True):
            values = jnp.asarray(answers.reshape(self.slots, 2, 1)) / self.scales.unit
            rest = (self._machine, state, Kind.GRAD, values, self.public)
            after, info = gate.through(
                lambda permit, memory: step_from_answers(permit, memory, *rest),
                answers=answers.ravel(),
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

    def compile(self) -> None:
        """Compile the program of a release, so that the transaction that needs it is short."""
        if not self._compiled:
            zeros = np.zeros((self.slots, 2))
            self.release(self.gate(fresh_keys().noise, _NoCharge(), 0), self._start, zeros)
            self._compiled = True

    def result(self, outcomes: list[dict[str, Any]]) -> Result:
        """The result of a finished study, as an `Optimizer` gives it."""
        means = [np.asarray(outcome["mean"]) for outcome in outcomes]
        told = np.asarray([[np.nan if n is None else n for n in o["told"]] for o in outcomes])
        info = StepInfo(*told.T)
        keys = Keys(fresh_keys().noise, self.public, seeded=False)  # only the public one is used
        gate = Gate(self.plan.terms, keys, _NoCharge())
        run = (self.plan, self.space, gate, means, info, self.scales)
        return result_of(*run, protected="one person")

    def noise_on_parameters(self, outcomes: list[dict[str, Any]]) -> Float[np.ndarray, "steps dim"]:
        """How far noise alone moves each parameter up to each step: one standard deviation.

        A move is -(length / |g|) g of a noisy gradient g, so noise of standard deviation s on each
        coordinate of g moves each coordinate by s length / |g|; moves add up in squares.
        """
        steps = np.asarray([outcome["told"][:2] for outcome in outcomes], float).reshape(-1, 2)
        each = self.plan.noise_std * steps[:, 1] / np.maximum(steps[:, 0], 1e-300)
        return np.sqrt(np.cumsum(each**2))[:, None] * np.asarray(self.scales.lengths)


class Step:
    """The questions of one step. A slot's two points are made when they are first asked for."""

    def __init__(
        self, release: int, spec: StudySpec, query: BatchQuery, parameters: dict[str, float]
    ) -> None:
        self.release, self.parameters = release, parameters
        self._names, self._one = spec.names, threading.Lock()
        most = max(2, _KEPT_BYTES // (_CHUNK * 2 * len(spec.names) * 8))

        @functools.lru_cache(most)
        def points(chunk: int) -> Float[np.ndarray, "some 2 dim"]:
            return spec.clamp(query.points_of(chunk * _CHUNK, _CHUNK))

        self._points, self._query = points, query

    def prepare(self) -> None:
        """Make the first points before anybody asks: the first ones of a study are compiled."""
        if not self._points.cache_info().currsize:
            for slot in (0, _CHUNK):
                self.show(slot % self._query.shape[0], 0)

    def show(self, slot: int, part: int) -> dict[str, float]:
        """The parameters to show: the first or the second point of a slot, inside the ranges."""
        chunk, place = divmod(slot, _CHUNK)
        with self._one:  # no chunk is made twice at the same time
            points = self._points(chunk)
        return dict(zip(self._names, points[place, part].tolist(), strict=True))


def new_public_key() -> str:
    """The two words of a fresh public key, in hexadecimal."""
    words = np.asarray(jax.random.key_data(fresh_keys().public))
    return words.astype("<u4").tobytes().hex()
