"""The run loop, the only one: ask, evaluate, release through the gate, tell; round by round.

    ask -> the driver evaluates the loss -> the gate releases -> the machine moves -> save

Drivers differ in the middle: JAX compiles many steps into one program, others bring the answers of one
step. All of them go through `Run.advance`, which is where a release becomes a move, a round ends and a
run is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from blindstep.estimate.estimators import from_values
from blindstep.estimate.probing import probing_of_answers
from blindstep.estimate.vectors import Query, Vectors, worth_a_call
from blindstep.estimate.watching import Watching
from blindstep.ledger.session import Session
from blindstep.losses.pytrees import on_disk
from blindstep.optimize.machine import Machine, State, StepInfo, gradient_of_window
from blindstep.private.gate import Memory, Permit
from blindstep.private.schedule import Kind

# What is inside the gate: from a permit and the memory to the memory and what the steps came to.
Program = Callable[[Permit, Memory], tuple[Memory, tuple[State, StepInfo]]]
_INFO = ("gradient_norm", "move_norm", "value")


class Run:
    """One run: where it stands, and the only way to go on.

    Attributes:
        machine: the state machine, with its floats as arrays: runs that differ in one share a program.
        session: keys, gate, ledger and checkpoint.
        state: the state of the machine.
        means: the mean of each finished round; none where a mean is too large to keep.
    """

    def __init__(self, machine: Machine, session: Session, rounds: int) -> None:
        """Stand where the session stands: at the start, or where a checkpoint says."""
        self.machine, self.session, self._rounds = machine, session, rounds
        self.state: State = session.state
        saved = session.saved
        self.means: list[Any] = list(saved.get("means", ()))
        self._stopping = False
        self._steps = {name: list(saved.get(name, ())) for name in _INFO}

    @property
    def done(self) -> bool:
        """Whether every step has been released, or a round has ended after `stop`."""
        finished = int(self.state.round)
        stopped = self._stopping and finished > 0 and int(self.state.step) == 0
        return stopped or finished >= self._rounds

    def stop(self) -> None:
        """End the run with the round it is in: nothing is released after that."""
        self._stopping = True

    @property
    def kind(self) -> Kind:
        """What the next release is about."""
        gate = self.session.gate
        return gate.terms.schedule.kind_of(gate.position)

    def ask(self) -> Query:
        """What the next step wants to know."""
        return self.machine.ask(self.state, self.kind, self.session.gate.public)

    def info(self) -> StepInfo:
        """What the steps so far came to: one number for each."""
        return StepInfo(*(np.asarray(self._steps[name], np.float64) for name in _INFO))

    def advance(self, program: Program, steps: int = 1) -> None:
        """Make the next steps and go on."""
        self.release(program, steps)
        self.keep()

    def release(
        self,
        program: Program,
        steps: int = 1,
        answers: Float[np.ndarray, "..."] | None = None,
    ) -> None:
        """Charge the next steps, run `program` with the permit for them, and stand after them.

        `answers` are what a single step is made from, where they came from outside. `keep` follows.
        """
        state, info = self.session.gate.through(program, steps, answers)
        for name in _INFO:
            self._steps[name] += np.atleast_1d(np.asarray(getattr(info, name))).tolist()
        if int(state.step) == self.machine.horizon:
            state, mean = self.machine.end_round(state)
            if mean is not None:
                self.means.append(np.asarray(mean))
        self.state = state

    def keep(self, extra: Callable[[], Mapping[str, np.ndarray]] = dict) -> bool:
        """Tell the session where the run stands. It saves if that is due, and this says whether.

        `extra` gives the driver's own arrays for the checkpoint.
        """
        position = self.session.gate.position

        def collect() -> dict[str, np.ndarray]:
            return {**self.arrays(), **extra()}

        return self.session.after(self.state, position, collect, lambda: self.done)

    def values(self) -> Float[np.ndarray, " steps"]:
        """The mean loss of each step so far, as it was released."""
        return np.asarray(self._steps["value"], np.float64)

    def arrays(self) -> dict[str, np.ndarray]:
        """What changes during a run besides the machine's own state, for the checkpoint."""
        arrays = {name: np.asarray(values, np.float64) for name, values in self._steps.items()}
        return arrays | {"means": np.stack(self.means) if self.means else np.zeros((0, 0))}


def take_step(
    machine: Machine,
    vectors: Vectors,
    permit: Permit,
    memory: Memory,
    state: State,
    kind: Kind,
    public: Key[Array, ""],
) -> tuple[Memory, State, StepInfo]:
    """The next step of the machine. What the records say goes to the gate and nowhere else."""
    query = machine.ask(state, kind, public)
    vectors = vectors.ready(query.key)
    batch = worth_a_call(permit.terms.schedule, kind)
    memory, release = permit.release(memory, kind, vectors.contributions(query, batch))
    state, info = machine.tell(state, release, public, vectors.frame)
    return memory, jax.tree.map(_strong, state), info


def _strong(leaf: Array) -> Array:
    """A number of a learner's state, of one type in all steps.

    Python's numbers in a learner's formula are weakly typed in JAX, and so is what follows from them
    alone. To JAX that is another type than the one that the state began with: it would make the whole
    program a second time, for the second step.
    """
    return jnp.asarray(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf


@eqx.filter_jit
def step_from_answers(
    permit: Permit,
    memory: Memory,
    machine: Machine,
    state: State,
    kind: Kind,
    answers: Float[Array, "batch 2 q"],
    public: Key[Array, ""],
) -> tuple[Memory, tuple[State, StepInfo]]:
    """The next step from its answers, in the batch's order."""
    probing = probing_of_answers(from_values(machine.estimator), answers)
    memory, state, info = take_step(machine, probing, permit, memory, state, kind, public)
    return memory, (state, info)


def step_of_window(
    permit: Permit,
    memory: Memory,
    machine: Machine,
    state: State,
    answers: Float[Array, "people 2 1"],
    watched: Watching,
    public: Key[Array, ""],
    still: Bool[Array, ""],
) -> tuple[Memory, tuple[State, StepInfo, Float[Array, " size"]]]:
    """The next step from whoever answered in a window, and the release itself.

    Where the release says that too few came, or the study is to stand `still`, it does not move.
    """
    estimator = from_values(machine.estimator)
    probing = probing_of_answers(estimator, answers, watched.whose)
    query = machine.ask(state, Kind.GRAD, public)
    batch = worth_a_call(permit.terms.schedule, Kind.GRAD)
    vectors = watched.beside(probing.contributions(query, batch), answers)
    memory, release = permit.release(memory, Kind.GRAD, vectors)
    gradient = gradient_of_window(release, estimator.gradient_size, watched.least, still)
    state, info = machine.tell(state, gradient, public)
    return memory, (state, info, release)


def records_of(permit: Permit, data: PyTree) -> tuple[Permit, PyTree]:
    """The records for a permit, and the permit for them: all, or of a file the permit's alone."""
    if not on_disk(data):
        return permit, data
    rows, permit = permit.alone()
    return permit, jax.tree.map(lambda leaf: leaf[rows], data)


def traced(machine: Machine) -> Machine:
    """The machine with its floats as arrays: runs that differ in a step size share a program."""
    return jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, float) else v, machine)
