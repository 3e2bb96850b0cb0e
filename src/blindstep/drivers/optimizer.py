"""Ask/tell: the same state machine, for losses that are evaluated somewhere else.

    opt = Optimizer(plan, params)
    while not opt.done:
        query = opt.ask()            # query.points[i] is to be shown to record query.record[i]
        opt.tell(query, values)      # all at once, or in parts and in any order
    result = opt.result()

Answers may come late, twice, or not at all. A step is released when the last of its answers is
there, or when `give_up` said that the rest will never come.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from blindstep.drivers.answers import numbers, release
from blindstep.drivers.pytrees import ParameterSpace
from blindstep.drivers.query import BatchQuery
from blindstep.drivers.result import History, Result
from blindstep.errors import HorizonExceeded, InvalidArgument
from blindstep.optimize.conversion import State
from blindstep.optimize.plan import Plan
from blindstep.trusted.estimators import Kind
from blindstep.trusted.privacy import Statement, statement
from blindstep.trusted.randomness import Keys, fresh_keys, public_stream

_PUBLIC = ("position", "move", "point", "previous", "total", "learner", "epoch", "step")


class Optimizer:
    """A private run whose loss is evaluated by the caller.

    Everything public is a plain attribute; `secrets` alone hands out what must stay secret.

    Attributes:
        plan: the plan of the run.
        space: how flat vectors map to parameters.
        run: the public name of this run, from its public key.
        seeded: whether a user's seed made the keys.
        means: the mean of each finished epoch.
    """

    def __init__(self, plan: Plan, params: PyTree, *, seed: int | None = None) -> None:
        """Begin a run.

        Args:
            plan: from `blindstep.plan`. Record numbers are 0 .. plan.records - 1.
            params: where to start: a pytree of floating-point arrays.
            seed: for reproduction only: a seeded run is not private against who knows the seed.
        """
        with jax.enable_x64(True):
            self._begin(plan, params, fresh_keys(seed))

    def _begin(self, plan: Plan, params: PyTree, keys: Keys) -> None:
        space = ParameterSpace.of(params)
        if plan.dim != space.dim:
            raise InvalidArgument(
                f"the plan is for {plan.dim} parameters, but params has {space.dim}: plan again."
            )
        self.plan, self.space, self.seeded = plan, space, keys.seeded
        self._machine, self._public, self._noise = plan.build(), keys.public, keys.noise
        # Floats become traced arguments: runs that differ in noise or step size share a program.
        self._traced = jax.tree.map(
            lambda v: jnp.asarray(v) if isinstance(v, float) else v, self._machine
        )
        words = np.asarray(jax.random.key_data(keys.public)).astype("<u4").tobytes()
        self.run = hashlib.sha256(b"blindstep run " + words).hexdigest()[:16]
        self.means: list[Float[np.ndarray, " dim"]] = []
        self._norms: list[tuple[float, float]] = []
        self._seconds: list[float] = []
        self._began = time.perf_counter()
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))
        self._enter(self._machine.begin(space.flatten(params)))

    # -- public state --------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Epochs in the whole run."""
        return self._machine.epochs

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return int(self._state.epoch)

    @property
    def step(self) -> int:
        """Steps finished in this epoch."""
        return int(self._state.step)

    @property
    def done(self) -> bool:
        """Whether every step of the plan has been released."""
        return self.epoch >= self.epochs

    @property
    def point(self) -> PyTree:
        """The parameters around which the current step probes (w_t)."""
        return self.space.unflatten(np.asarray(self._state.point))

    @property
    def position(self) -> PyTree:
        """Where the path stands (x_t)."""
        return self.space.unflatten(np.asarray(self._state.position))

    @property
    def privacy(self) -> Statement:
        """The privacy statement of the whole run, finished or not."""
        return statement(self._machine.oracle, self.plan.delta, seeded=self.seeded)

    def __repr__(self) -> str:
        where = "done" if self.done else f"epoch {self.epoch + 1}, step {self.step + 1}"
        return f"Optimizer(run {self.run}: {where} of {self.epochs} x {self.plan.horizon})"

    # -- ask and tell --------------------------------------------------------------------------

    def ask(self) -> BatchQuery:
        """All questions of the current step; asking again gives the same ones."""
        if self.done:
            raise HorizonExceeded(
                f"all {self.epochs} epochs of the plan are done: take result(), or plan a longer run."
            )
        assert self._asked is not None
        return self._asked

    def tell(
        self,
        query: BatchQuery,
        values: Sequence[Any] | Shaped[np.ndarray | Array, " some"],
        where: Sequence[Any] | np.ndarray | None = None,
    ) -> None:
        """Hand in answers: `values[k]` answers question `where[k]`, or question k without `where`.

        Any order, any parts. What is not a finite number (NaN, None, an exception object) makes
        that record count 0 in this step. The first answer to a question holds: repeats are ignored,
        whether or not they agree, and so are answers to steps that were released long ago. (To say
        that two answers differ would say something about them; to take the second would release a
        step on other values than those that may already have been saved.)

        When all questions are answered, the step is released and `ask` has the next one.
        """
        places = self._places(query, len(values), where)
        if places is None:
            return
        values = numbers(values)
        places, first = np.unique(places, return_index=True)
        fresh = ~self._answered[places]
        self._answers[places[fresh]] = values[first[fresh]]
        self._answered[places] = True
        self._release_if_complete()

    def give_up(self, query: BatchQuery) -> None:
        """Say that the missing answers will never come: their records count 0, the step goes on.

        A record that has answered only some of its questions counts 0 as well. Answers that come
        afterwards are ignored. Nothing ever counts 0 for silence unless this was called.
        """
        if self._places(query, 0, ()) is None:
            return
        self._answers[~self._answered] = np.nan
        self._answered[:] = True
        self._release_if_complete()

    def unanswered(self) -> Int[np.ndarray, " open"]:
        """The questions of the current step that have no answer yet.

        Who has answered may be private in itself: for the operator, not for publication.
        """
        return np.flatnonzero(~self._answered)

    def missing(self) -> Int[np.ndarray, " records"]:
        """Row numbers of the records that owe an answer in the current step (see `unanswered`)."""
        if self._asked is None:
            return np.empty(0, np.int64)
        waiting = ~self._answered.reshape(len(self._asked.rows), -1).all(axis=1)
        return self._asked.rows[waiting]

    def result(self) -> Result:
        """The answer, once the run is done."""
        if not self.done:
            raise InvalidArgument(
                f"the run stands at epoch {self.epoch + 1} of {self.epochs}, step {self.step + 1}: "
                "answer the rest first, or read the finished epochs in `means`."
            )
        with jax.enable_x64(True):
            stream = public_stream(self._public, "chosen epoch")
            chosen = int(jax.random.randint(stream, (), 0, self.epochs))
        norms = np.asarray(self._norms).reshape(self.epochs, self.plan.horizon, 2)
        return Result(
            params=self.space.unflatten(self.means[chosen]),
            last=self.space.unflatten(self.means[-1]),
            final=self.position,
            chosen_epoch=chosen,
            means=np.stack(self.means),
            privacy=self.privacy,
            plan=self.plan,
            history=History(norms[..., 0], norms[..., 1], np.asarray(self._seconds)),
            space=self.space,
        )

    # -- for checkpoints -----------------------------------------------------------------------

    def public(self) -> dict[str, np.ndarray]:
        """All that is public and changes during the run, as arrays: for a checkpoint."""
        arrays = {name: np.asarray(getattr(self._state, name)) for name in _PUBLIC}
        arrays["means"] = np.asarray(self.means).reshape(-1, self.space.dim)
        arrays["norms"] = np.asarray(self._norms).reshape(-1, 2)
        arrays["seconds"] = np.asarray(self._seconds, dtype=np.float64)
        arrays["public_key"] = np.asarray(jax.random.key_data(self._public))
        arrays["seeded"] = np.asarray(self.seeded)
        return arrays

    def secrets(self) -> dict[str, np.ndarray]:
        """All that must stay secret, as arrays: noise key, sums without noise, answers so far.

        Whoever reads these can undo the privacy of the run: keep them as safe as the data.
        """
        return {
            "noise_key": np.asarray(self._noise),
            "running": np.asarray(self._state.oracle.running),
            "noise": np.asarray(self._state.oracle.noise),
            "answers": self._answers.copy(),
            "answered": self._answered.copy(),
        }

    @classmethod
    def restore(
        cls,
        plan: Plan,
        params: PyTree,
        public: dict[str, np.ndarray],
        secrets: dict[str, np.ndarray],
    ) -> Optimizer:
        """The run that `public` and `secrets` were taken from; it goes on bit for bit.

        `plan` and `params` must be those of the run. Where every answer of a step was saved and its
        release was not, `tell(ask(), [], where=[])` releases it again, the same. Never go on from the
        same checkpoint twice with other answers: the same noise on other answers would hand over
        their difference. A ledger refuses that; this method alone cannot know.
        """
        self = cls.__new__(cls)
        with jax.enable_x64(True):
            key = jax.random.wrap_key_data(jnp.asarray(public["public_key"]), impl="threefry2x32")
            keys = Keys(jnp.asarray(secrets["noise_key"]), key, bool(public["seeded"]))
            self._begin(plan, params, keys)
            state = eqx.tree_at(
                lambda s: (
                    *(getattr(s, name) for name in _PUBLIC),
                    s.oracle.running,
                    s.oracle.noise,
                ),
                self._state,
                (
                    *(jnp.asarray(public[name]) for name in _PUBLIC),
                    jnp.asarray(secrets["running"]),
                    jnp.asarray(secrets["noise"]),
                ),
            )
            self.means = [row.copy() for row in public["means"]]
            self._norms = [(float(a), float(b)) for a, b in public["norms"]]
            self._seconds = public["seconds"].tolist()
            self._began -= self._seconds[-1] if self._seconds else 0.0
            self._enter(state)
        self._answers, self._answered = secrets["answers"].copy(), secrets["answered"].copy()
        return self

    # -- inside --------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """Stand before the next step: its query, and room for its answers."""
        self._state = state
        self._asked = None if self.done else self._query()
        number = 0 if self._asked is None else len(self._asked)
        self._answers = np.zeros(number)
        self._answered = np.zeros(number, dtype=bool)

    def _query(self) -> BatchQuery:
        machine = self._machine
        schedule, period = machine.oracle.schedule, machine.period
        block = self.epoch * machine.blocks_per_epoch + self.step // period
        turn = block // schedule.blocks_per_pass
        if self._order[0] != turn:
            self._order = (turn, schedule.order(self._public, turn))
        first, diffs = schedule.split(schedule.rows(self._order[1], block))
        in_block = self.step % period
        return BatchQuery(
            run=self.run,
            epoch=self.epoch,
            step=self.step,
            rows=first if in_block == 0 else diffs[in_block - 1],
            space=self.space,
            _estimator=machine.oracle.estimator,
            _query=machine.ask(self._state, self._kind(), self._public),
        )

    def _kind(self) -> Kind:
        return Kind.DIFF if self.step % self._machine.period else Kind.GRAD

    def _places(
        self, query: BatchQuery, number: int, where: Sequence[Any] | np.ndarray | None
    ) -> Int[np.ndarray, " some"] | None:
        """The questions that answers are for; None if their step was released before."""
        if not isinstance(query, BatchQuery) or query.run != self.run:
            raise InvalidArgument(
                f"nobody asked: this query is not one of run {self.run}. Tell answers to the "
                "optimizer that asked."
            )
        places = query.places(number, where)
        if query.id < (self.epoch, self.step):
            return None
        if query.id > (self.epoch, self.step):
            raise InvalidArgument(
                f"nobody asked yet for epoch {query.epoch}, step {query.step}: the run stands at "
                f"epoch {self.epoch}, step {self.step}. Was it restored from an older checkpoint?"
            )
        return places

    def _release_if_complete(self) -> None:
        if not self._answered.all():
            return
        assert self._asked is not None
        with jax.enable_x64(True):
            answers = jnp.asarray(self._answers.reshape(self._asked.shape))
            state, released = release(
                self._traced, self._state, self._kind(), answers, self._public, self._noise
            )
            mean = None
            if int(state.step) == self._machine.horizon:
                state, mean = self._machine.end_epoch(state)
            self._norms.append((float(released.gradient_norm), float(released.move_norm)))
            if mean is not None:
                self.means.append(np.asarray(mean))
                self._seconds.append(time.perf_counter() - self._began)
            self._enter(state)
