"""Ask/tell: the same state machine, for losses that are evaluated somewhere else.

    with Optimizer(plan, params, checkpoint="run/") as opt:
        while not opt.done:
            query = opt.ask()        # query.points[i] is to be shown to record query.record[i]
            opt.tell(query, values)  # all at once, or in parts and in any order
        result = opt.result()

Answers may come late, twice, or not at all. A step is released when the last of its answers is
there, or when `give_up` said that the rest will never come.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from blindstep.errors import HorizonExceeded, InvalidArgument, answers_typos, warn
from blindstep.estimate.estimators import from_values
from blindstep.estimate.scales import Scales, by_start
from blindstep.ledger import fingerprints
from blindstep.ledger.budget import Privacy
from blindstep.ledger.checkpoint import Arrays
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses.pytrees import ParameterSpace, rounding
from blindstep.planning.checks import check_delta, check_prospects
from blindstep.planning.plan import Plan
from blindstep.planning.statement import Statement
from blindstep.private.accounting import RECORD
from blindstep.private.noise import Uncopied
from blindstep.run.loop import Run, step_from_answers, traced
from blindstep.run.planned import refuse_for_networks, refuse_gradients
from blindstep.run.progress import RunProgress, how_to_go_on, placed_by, stopped
from blindstep.run.query import BatchQuery, numbers
from blindstep.run.result import Result, result_of


class Optimizer(Uncopied):
    """A private run whose loss is evaluated by the caller.

        plan = bs.plan(bs.Questions(), dim=3, records=1000, privacy=bs.Privacy(epsilon=1))
        with bs.Optimizer(plan, np.zeros(3)) as optimizer:
            query = optimizer.ask()  # query.points[i] is for record query.record[i]
            optimizer.tell(query, [loss(*each) for each in zip(query.points, data[query.record])])

    Threads may share it: calls take turns. (Between `done` and `ask` another thread may finish the
    run; `ask` then raises HorizonExceeded.)

    Everything public is a plain attribute. What must stay secret (the noise key, the answers) is in
    no public attribute or method; it is in the run directory, if there is one. It cannot be copied
    or pickled: two copies, told different answers, would release both under the same noise.

    Attributes:
        plan: the plan of the run.
        space: how flat vectors map to parameters.
        run: the public name of this run, from its public key; the same after a crash.
        seeded: whether a user's seed made the keys.
    """

    @answers_typos
    def __init__(
        self,
        plan: Plan,
        params: PyTree,
        *,
        data: PyTree = None,
        seed: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        budget: Privacy | None = None,
        cohort: str | None = None,
        unit: str = RECORD,
        scales: Scales | None = None,
    ) -> None:
        """Begin a run, or go on with the one in `checkpoint`.

        Args:
            plan: from `blindstep.plan`. Record numbers are 0 .. plan.records - 1.
            params: where to start: a pytree of floating-point arrays.
            data: the records, if they are here; on resuming the same. Read for their fingerprint alone.
            seed: for reproduction only: a seeded run is not private against anyone who knows or can
                guess the seed. Without `data` two runs under one seed have the same noise: one seed
                for each set of answers.
            checkpoint: a directory for the run. The same call goes on after a crash where it was:
                with every answer that a `tell` has returned from, and with the same releases bit
                for bit. A step that may have been seen is released again from the answers it had,
                never from others. *The directory holds the noise key and the answers*: keep it as
                secret as the data. One optimizer at a time has it open, until `close`.
            ledger: a file in which several runs on the same people add up what they spend; left
                out, the run directory has its own. It is locked until `close`.
            budget: what all runs in the ledger together may spend; a run that would spend more is
                refused before anything is asked.
            cohort: which people these are, in words, such as "survey 2026": the name they get in a
                ledger that is begun here. On resuming it must be the same.
            unit: what one record is, in the words of the privacy statement: "one person" where the
                answers of a person to all questions of a step count as one record.
            scales: the units of a plan in natural units: the axes of the parameters, and the unit of
                the answers. Public. On resuming they must be the same. Left out, each parameter's
                unit is four times the root mean square of the start, or 1 at a start of 0.
        """
        self.plan, self.space = plan, ParameterSpace.of(params)
        if plan.dim != self.space.dim:
            raise InvalidArgument(
                f"the plan is for {plan.dim} parameters, but params has {self.space.dim}: plan again."
            )
        refuse_for_networks(plan)
        refuse_gradients(plan)
        check_delta(plan.privacy, plan.records)
        check_delta(budget, plan.records, "budget")
        check_prospects(plan, rounding(params))
        if plan.calibrations and scales is None:
            raise InvalidArgument(
                "the plan has calibrations, which find its units: give the scales that they found, or "
                "run it with blindstep.minimize."
            )
        if plan.natural_units and scales is None:
            with jax.enable_x64(True):
                scales = by_start(np.asarray(self.space.flatten(params)))
        self._turn, self._scales = threading.RLock(), scales

        def known() -> fingerprints.Fingerprints:
            start = params if scales is None else (params, scales)
            return fingerprints.of_questions(cohort, start, data)

        storage, self._directory = Storage(checkpoint, ledger, budget, cohort), checkpoint
        with jax.enable_x64(True):
            machine = plan.build(jumps=scales is not None and scales.jumps)
            start = self.space.flatten(params)
            start = machine.begin(start if scales is None else jnp.zeros_like(start))
            self._session = Session(
                plan.terms, plan.to_dict(), start, storage, known, seed=seed, unit=unit
            )
            self._gate = self._session.gate
            self._run = Run(traced(machine), self._session, plan.rounds)
            try:
                self._go_on()
            except BaseException:
                self._session.close()
                raise

    def _go_on(self) -> None:
        """Take over what the session found: nothing, or where the run was when it was cut short."""
        public, saved = self._gate.public, self._session.saved
        self.seeded = self._gate.seeded
        words = np.asarray(jax.random.key_data(public)).astype("<u4").tobytes()
        self.run = hashlib.sha256(b"blindstep run " + words).hexdigest()[:16]
        self._enter()
        # Where a callback had ended the run there are none.
        if "answers" in saved and saved["answers"].size == self._answers.size:
            self._answers, self._answered = saved["answers"].copy(), saved["answered"].copy()
        self._unsaved = False
        # A step whose answers are all there was perhaps seen; it is released from these answers.
        self._release_if_complete()
        if self._session.begun > self._session.position:
            warn(
                f"the checkpoint is older than the ledger: steps {self._session.position} .. "
                f"{self._session.begun - 1} may have been seen, and are released again only from "
                "the very answers they had. If those cannot be had again, restore a newer copy of "
                "the run directory before you ask anybody, or start a new run."
            )

    @property
    def means(self) -> list[Float[np.ndarray, " dim"]]:
        """The mean of each finished round, as flat vectors."""
        return self._run.means

    @property
    def rounds(self) -> int:
        """Rounds in the whole run."""
        return self.plan.rounds

    @property
    def round(self) -> int:
        """Rounds finished."""
        return int(self._run.state.round)

    @property
    def step(self) -> int:
        """Steps finished in this round."""
        return int(self._run.state.step)

    @property
    def done(self) -> bool:
        """Whether every step of the plan has been released, or a callback has ended the run."""
        return self._run.done

    @property
    def point(self) -> PyTree:
        """The parameters around which the current step probes (w_t)."""
        return self.space.unflatten(self._placed(self._run.state.path.point))

    @property
    def position(self) -> PyTree:
        """Where the path stands (x_t)."""
        return self.space.unflatten(self._placed(self._run.state.path.position))

    def _placed(self, vector: Any) -> Float[np.ndarray, " dim"]:
        """A vector of the machine in the user's units."""
        return np.asarray(vector if self._scales is None else self._scales.place(vector))

    @property
    def privacy(self) -> Statement:
        """The privacy statement of the whole run, finished or not."""
        return self.plan.statement(seeded=self.seeded, unit=self._session.unit)

    def __repr__(self) -> str:
        where = "done" if self.done else f"round {self.round + 1}, step {self.step + 1}"
        return f"Optimizer(run {self.run}: {where} of {self.rounds} x {self.plan.horizon})"

    def ask(self) -> BatchQuery:
        """All questions of the current step; asking again gives the same ones."""
        asked = self._asked
        if asked is None:
            raise HorizonExceeded(
                f"all {self.rounds} rounds of the plan are done: take result(), or plan a longer run."
            )
        return asked

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

        When all questions are answered, the step is released and `ask` has the next one. With a
        checkpoint, the answers are on the disk when this returns; that takes a few fsyncs, so hand
        in many answers at a time where there are many.
        """
        values = numbers(values)
        with self._turn:
            places = self._places(query, len(values), where)
            if places is None:
                return
            places, first = np.unique(places, return_index=True)
            fresh = ~self._answered[places]
            self._take(places[fresh], values[first[fresh]])

    def give_up(self, query: BatchQuery) -> None:
        """Say that the missing answers will never come: their records count 0, the step goes on.

        A record that has answered only some of its questions counts 0 as well. Answers that come
        afterwards are ignored. Nothing ever counts 0 for silence unless this was called.
        """
        with self._turn:
            if self._places(query, 0, ()) is not None:
                self._take(np.flatnonzero(~self._answered), np.nan)

    def unanswered(self) -> Int[np.ndarray, " open"]:
        """The questions of the current step that have no answer yet.

        Who has answered may be private in itself: for the operator, not for publication.
        """
        with self._turn:
            return np.flatnonzero(~self._answered)

    def missing(self) -> Int[np.ndarray, " records"]:
        """Row numbers of the records that owe an answer in the current step (see `unanswered`)."""
        with self._turn:
            if self._asked is None:
                return np.empty(0, np.int64)
            waiting = ~self._answered.reshape(len(self._asked.rows), -1).all(axis=1)
            return self._asked.rows[waiting]

    def result(self) -> Result:
        """The answer, once the run is done."""
        with self._turn:
            if not self.done:
                raise InvalidArgument(
                    f"the run stands at round {self.round + 1} of {self.rounds}, step "
                    f"{self.step + 1}: answer the rest first, or read the finished rounds in `means`."
                )
            run = (self._gate, self._run.means, self._run.info(), self._scales)
            return result_of(self.plan, self.space, *run, protected=self._session.unit)

    def shown_by(self, bar: RunProgress) -> None:
        """Let a progress bar show this run's steps and what they cost."""
        run = self._run
        bar.follow(self._session, run.values, run, placed_by(self.space, self._scales))
        self._enter_if_done()

    def close(self) -> None:
        """Let others use the run directory and the ledger. May be called again.

        Nothing is lost without it: what was told is on the disk already. It saves the last release,
        which would otherwise be computed again on resuming.
        """
        with self._turn:
            try:
                if self._unsaved:
                    self._save()
            finally:
                self._session.close()

    def __enter__(self) -> Optimizer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            self.close()
        else:  # as after a crash: what was told is on the disk
            self._session.close()
        if kind is KeyboardInterrupt:
            raise stopped(how_to_go_on(self._directory)) from None

    def _take(
        self, places: Int[np.ndarray, " some"], values: Float[np.ndarray, " some"] | float
    ) -> None:
        """New answers: kept first, and then released, if they were the last ones."""
        self._answers[places], self._answered[places] = values, True
        # One that could not be saved before is saved now, though it is no longer new.
        self._unsaved |= places.size > 0
        if self._unsaved:
            self._save()
        self._release_if_complete()

    def _save(self) -> None:
        if self._session.saves:
            self._session.save(self._run.state, {**self._run.arrays(), **self._arrays()})
        self._unsaved = False

    def _arrays(self) -> Arrays:
        """The answers of the current step."""
        return {"answers": self._answers, "answered": self._answered}

    def _enter(self) -> None:
        """Stand before the next step: its query, and room for its answers."""
        self._asked = None if self.done else self._query()
        number = 0 if self._asked is None else len(self._asked)
        self._answers = np.zeros(number)
        self._answered = np.zeros(number, dtype=bool)

    def _enter_if_done(self) -> None:
        """A callback may have ended the run when it was told the last step: nothing more is asked."""
        if self.done:
            self._enter()

    def _query(self) -> BatchQuery:
        return BatchQuery(
            run=self.run,
            round=self.round,
            step=self.step,
            rows=self._gate.rows(self._gate.position),
            space=self.space,
            _estimator=from_values(self._run.machine.estimator),
            _query=self._run.ask(),
            _scales=self._scales,
        )

    def _places(
        self, query: BatchQuery, number: int, where: Sequence[Any] | np.ndarray | None
    ) -> Int[np.ndarray, " some"] | None:
        """The questions that answers are for; None if their step was released before."""
        if not isinstance(query, BatchQuery) or query.run != self.run:
            raise InvalidArgument(
                f"nobody asked: not one of run {self.run}. Tell it to the optimizer that asked."
            )
        places = query.places(number, where)
        if query.id < (self.round, self.step):
            return None
        if query.id > (self.round, self.step):
            raise InvalidArgument(
                f"nobody asked yet for round {query.round}, step {query.step}: the run stands at "
                f"round {self.round}, step {self.step}. Was it restored from an older checkpoint?"
            )
        return places

    def _release_if_complete(self) -> None:
        if self._asked is None or not self._answered.all():
            return
        with jax.enable_x64(True):
            unit = 1.0 if self._scales is None else self._scales.unit
            answers = self._answers.reshape(self._asked.shape)
            answers = jnp.asarray(self._gate.in_places(self._gate.position, answers)) / unit
            run, public = self._run, self._gate.public
            rest = (run.machine, run.state, run.kind, answers, public)
            run.release(
                lambda permit, memory: step_from_answers(permit, memory, *rest),
                answers=self._answers,
            )
            self._enter()
            self._unsaved = True  # should saving fail, it is done before the next release
            self._unsaved = not run.keep(self._arrays)
            self._enter_if_done()
