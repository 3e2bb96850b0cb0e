"""A run on the disk: charged before it releases, resumed after a crash, bit for bit.

    with Session(machine, plan, start, storage, known, seed=None) as session:
        state = session.state                      # the start, or where the checkpoint stands
        while not session.finished:
            session.before_release(session.position, number, replay=True)   # durable; now release
            state = ...
            session.after(state, session.position + number, lambda: {"means": ...})

The run directory (mode 0700) holds `ledger.jsonl` (what may have been seen), the checkpoint
(`checkpoint.json`, `state-N.npz`: *secret*, with the noise key) and `plan.json` (for people).

Guarantee. Nothing is released before the ledger holds it, and nothing is evaluated before the whole
run is known to fit into the budget. Steps that may have been seen are repeated under the same noise
only from a checkpoint with the same plan, data, start and loss, in the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float

from blindstep.drivers import fingerprints, plan_file
from blindstep.drivers.fingerprints import Fingerprints
from blindstep.drivers.packing import Packed, pack, unpack
from blindstep.drivers.storage import SavingInterval, Storage
from blindstep.errors import HorizonExceeded, InvalidArgument
from blindstep.optimize.conversion import Conversion, State
from blindstep.optimize.plan import Plan
from blindstep.trusted import durable
from blindstep.trusted.account import RunAccount, RunIdentity
from blindstep.trusted.checkpoint import CURRENT, Arrays, Checkpoint, CheckpointMeta
from blindstep.trusted.journal import Head
from blindstep.trusted.ledger import Ledger, answers_id, data_id, noise_key_id, people_of
from blindstep.trusted.randomness import Keys, fresh_keys
from blindstep.trusted.refusals import (
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointUnwritable,
    LedgerBusy,
)


class Session:
    """One run, fresh or resumed.

    Attributes:
        keys: the run's keys: from the checkpoint if there is one.
        state: where the run stands.
        position: steps done, over all passes.
        steps: of the whole run.
        saved: the driver's own arrays, as they were last saved.
    """

    def __init__(
        self,
        machine: Conversion,
        plan: Plan,
        start: State,
        storage: Storage,
        known: Callable[[], Fingerprints],
        *,
        seed: int | None = None,
        interval: SavingInterval | None = None,
    ) -> None:
        """Start the run, or resume it from the storage.

        Args:
            machine: the state machine of `plan`.
            plan: the plan.
            start: the state of a fresh run.
            storage: where it is kept.
            known: gives what must be the same on resuming; not called if nothing is stored.
            seed: makes the keys of a fresh run; on resuming it must be the same one, or None.
            interval: when to save.
        """
        self._machine, self._plan, self._storage = machine, plan, storage
        self._interval = interval or SavingInterval()
        self._ledger: Ledger | None = None
        self._checkpoint: Checkpoint | None = None
        self._run = ""
        self._account: RunAccount | None = None
        schedule = machine.oracle.schedule
        self.steps = schedule.blocks * schedule.period
        self.state, self.position, self.saved = start, 0, Arrays()
        if not storage:
            self.keys = _agreed_keys(seed)
            return
        if jax.process_count() > 1:
            raise InvalidArgument(
                "checkpoint, ledger and budget are for runs in one process; this one has "
                f"{jax.process_count()}: leave them out."
            )
        self._known, self._plan_id = known(), fingerprints.of_plan(plan)
        try:
            found = self._look()
            if found is None:
                self._start(seed)
            else:
                self._resume(*found, seed)
        except BaseException:
            self.close()
            raise

    @property
    def finished(self) -> bool:
        """Whether every step is done; then nothing more is released."""
        return self.position == self.steps

    @property
    def begun(self) -> int:
        """Steps that may have been seen; those from `position` on must be repeated bit for bit."""
        return self.position if self._account is None else self._account.next_step

    @property
    def saves(self) -> bool:
        """Whether there is a checkpoint to save to."""
        return self._checkpoint is not None and self._ledger is not None

    def before_release(
        self,
        first: int,
        number: int = 1,
        *,
        replay: bool,
        answers: Float[np.ndarray, " n"] | None = None,
    ) -> None:
        """Announce and charge steps first .. first + number - 1. Release when this has returned.

        `replay` is the driver's word that steps which were begun before a crash come out bit for
        bit the same: because the loss is computed again, or because its answers were saved before.
        Without it, such steps are refused. `answers` are what a single step will be released from,
        where they came from outside: a step that was begun with others is refused even so.
        """
        if first != self.position:
            raise InvalidArgument(
                f"step {first} is not next: {self.position} steps are done. Release in order."
            )
        if first + number > self.steps:
            raise HorizonExceeded(
                f"steps {first} .. {first + number - 1} of a run of {self.steps}: plan a longer run."
            )
        if self._ledger is not None:
            key = np.asarray(self.keys.noise)
            name = None if answers is None else answers_id(key, first, answers)
            self._ledger.begin(self._run, first, number, replay=replay, answers=name)

    def after(self, state: State, position: int, collect: Callable[[], Arrays]) -> bool:
        """Go on to `position`; save if that is due, and always at the end. Whether it was saved.

        `collect` gives the driver's own arrays; it is called only for a save.
        """
        self.state, self.position = state, position
        due = self.saves and (self.finished or self._interval.due())
        if due:
            self.save(state, position, collect())
        return due

    def save(self, state: State, position: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Save now, durably; it costs a few fsyncs.

        A driver whose answers cannot be had a second time saves them here, among `arrays`, before
        it calls `before_release` for the step they belong to.
        """
        self.state, self.position, self.saved = state, position, dict(arrays)
        checkpoint, ledger = self._checkpoint, self._ledger
        if checkpoint is None or ledger is None:
            return
        ledger.check()  # its lock keeps other processes away from the checkpoint too
        packed = pack(Packed(state, self.keys, self._known, self.saved))
        meta = CheckpointMeta(self._run, self._plan_id, self._data_id, position, ledger.head)
        self._interval.measure(lambda: checkpoint.save(packed, meta))

    def close(self) -> None:
        """Let other runs use the ledger. May be called again."""
        if self._ledger is not None:
            self._ledger.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> tuple[Packed, CheckpointMeta] | None:
        """What the run directory holds, if it is this run's; the directory is made if need be."""
        directory = self._storage.directory
        if directory is None:
            return None
        try:
            durable.make_private_directory(os.fspath(directory))
        except OSError as error:
            raise CheckpointUnwritable(
                f"the run directory {directory} cannot be made ({error.strerror}), so nothing was "
                "released: give one that can be written."
            ) from error
        self._checkpoint = Checkpoint(directory)
        found = self._checkpoint.load()
        plan_file.check(self._checkpoint.directory, self._plan, resuming=found is not None)
        if found is None:
            return None
        arrays, meta = found
        self._checkpoint.check(meta, plan=self._plan_id, data=meta.data)
        packed = unpack(arrays, self.state, self._name(CURRENT))
        self.keys = packed.keys
        self._checkpoint.check(meta, plan=self._plan_id, data=self._data_id)
        return packed, meta

    def _start(self, seed: int | None) -> None:
        self.keys = _agreed_keys(seed)
        self._run = f"{self._word}-{os.urandom(6).hex()}"
        ledger = self._open_ledger(None)
        self._check_unchanged(None)
        own = ledger.account.runs if self._storage.ledger is None else {}
        for name, run in own.items():
            if run.next_step > 0:
                raise CheckpointDamaged(
                    f"{self._name(CURRENT)} is gone, but {self._storage.ledger_path} says that run "
                    f"{name!r} has begun: restore the directory from a copy, or give another one "
                    "for a new run. The ledger keeps what this one spent."
                )
            if run.attempt(noise_key_id(np.asarray(self.keys.noise))) is not None:
                self._run = name  # a crash came before its first checkpoint, and before any release
        self._register(ledger)
        # The key is on the disk before anything is released under it.
        self.save(self.state, 0, {})
        self._write_plan()

    def _resume(self, packed: Packed, meta: CheckpointMeta, seed: int | None) -> None:
        if seed is not None and np.any(fresh_keys(seed).noise != packed.keys.noise):
            raise CheckpointMismatch(
                f"{self._name(CURRENT)} is of a run with another seed, or none: leave the seed out, "
                "or give another directory for a new run."
            )
        moved = packed.known.environment != self._known.environment
        # Other versions of JAX trace the same loss to other text.
        for name in ("params",) if moved else ("params", "loss"):
            if getattr(packed.known, name) != getattr(self._known, name):
                raise CheckpointMismatch(
                    f"{self._name(CURRENT)} is of run {meta.run!r} with another {name}: resume with "
                    f"the {name} it was begun with, or give another directory for a new run."
                )
        self.keys, self._run = packed.keys, meta.run
        self.state, self.position, self.saved = packed.state, meta.position, packed.saved
        if self.finished:
            return
        ledger = self._open_ledger(meta.ledger)
        self._check_unchanged(meta)
        run = self._register(ledger)
        if moved and run.next_step > self.position:
            raise CheckpointMismatch(
                f"{self._name(CURRENT)} is at step {self.position}, and steps up to {run.next_step} "
                "may have been seen; they must be repeated bit for bit, but the versions, devices "
                "or compiler flags are others than before: resume where it was begun, or give "
                "another directory for a new run (the ledger keeps what this one spent)."
            )
        if moved:
            # From here on it is this environment whose bits may have to be repeated.
            self.save(self.state, self.position, self.saved)
        self._write_plan()

    def _check_unchanged(self, meta: CheckpointMeta | None) -> None:
        """The checkpoint was read before the ledger's lock was had: nobody was faster in between."""
        found = None if self._checkpoint is None else self._checkpoint.load()
        if (None if found is None else found[1]) != meta:
            raise LedgerBusy(
                f"{self._name(CURRENT)} was written by another process just now: start again."
            )

    def _write_plan(self) -> None:
        if self._checkpoint is not None:
            plan_file.write(self._checkpoint.directory, self._plan)

    def _open_ledger(self, head: Head | None) -> Ledger:
        path, budget = self._storage.ledger_path, self._storage.budget
        # Who names a ledger says that these are its people, whatever was made of their data.
        self._ledger = Ledger.open(
            path,
            records=people_of(path) or self._storage.records or self._word,
            budget=None if budget is None else budget.rho,
            head=head,
        )
        return self._ledger

    def _register(self, ledger: Ledger) -> RunAccount:
        oracle = self._machine.oracle
        self._account = ledger.register(
            RunIdentity(
                run=self._run,
                plan=self._plan_id,
                data=self._data_id,
                noise_key=noise_key_id(np.asarray(self.keys.noise)),
                mu_per_pass=oracle.mu_per_pass(),
                steps_per_pass=oracle.schedule.blocks_per_pass * oracle.schedule.period,
                passes=oracle.schedule.passes,
            )
        )
        return self._account

    @property
    def _word(self) -> str:
        """What people will recognise the run by; it must not depend on the data."""
        return os.path.basename(os.path.abspath(self._storage.directory or "run")) or "run"

    @property
    def _data_id(self) -> str:
        """What others may read about the data: nothing, without the noise key."""
        return data_id(np.asarray(self.keys.noise), self._known.data)

    def _name(self, file: str) -> str:
        return os.path.join(os.path.abspath(self._storage.directory or ""), file)


def _agreed_keys(seed: int | None) -> Keys:
    """Fresh keys, the same in all processes of a multi-host run.

    Every process would draw its own otherwise, and the same sum would be released under several
    noises.
    """
    keys = fresh_keys(seed)
    if jax.process_count() == 1:
        return keys
    words = np.concatenate([keys.noise, jax.random.key_data(keys.public)])
    words = jnp.asarray(np.asarray(multihost_utils.broadcast_one_to_all(words)))
    return Keys(words[:8], jax.random.wrap_key_data(words[8:], impl="threefry2x32"), keys.seeded)
