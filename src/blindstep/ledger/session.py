"""A run on the disk: charged before it releases, resumed after a crash, bit for bit.

    with Session(terms, plan, start, storage, known) as session:
        state = session.state                      # the start, or where the checkpoint stands
        while not session.finished:
            state = session.gate.through(program, count)      # charged first, here, as the gate's port
            session.after(state, session.position + count, lambda: {"means": ...})

The run directory (mode 0700) holds `ledger.jsonl` (what may have been seen), the checkpoint
(`checkpoint.json`, `state-N.npz`: *secret*, with the noise key) and `plan.json` (for people).

Guarantee. Nothing is released before the ledger holds it, and nothing is evaluated before the whole
run is known to fit into the budget. Steps that may have been seen are repeated under the same noise
only from a checkpoint with the same plan, data, start and loss, in the same environment.

Of several processes (`jax.distributed`) process 0 alone touches files. The others have its keys and its
state in their memory, and release what it has charged when it says so. All must have the same plan,
data, start, loss and storage: the same noise on other values would give away how they differ.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

from blindstep.errors import (
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointUnwritable,
    InvalidArgument,
    LedgerBusy,
)
from blindstep.ledger import data_ledger, files, fingerprints, storage
from blindstep.ledger.account import RunAccount, RunIdentity
from blindstep.ledger.checkpoint import (
    CURRENT,
    Arrays,
    Checkpoint,
    CheckpointMeta,
    Packed,
    pack,
    unpack,
)
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.ledger import Ledger, cohort_of
from blindstep.ledger.storage import RunSnapshot, SavingInterval, Storage
from blindstep.private.accounting import RECORD
from blindstep.private.gate import Gate
from blindstep.private.noise import fresh_keys
from blindstep.private.terms import Terms
from blindstep.processes.jax_group import JaxGroup


class Session:
    """One run, fresh or resumed. It is the port through which its gate charges (`gate.Port`).

    Attributes:
        keys: the run's keys: from the checkpoint if there is one.
        gate: the gate of this run; it stands where the run stands.
        state: the driver's state.
        position: steps done, over all passes.
        saved: the driver's own arrays, as they were last saved.
        unit: what one record is: a record, or a person with several rows.
        watch: called after each charge and each release, for whoever shows how far the run is.
    """

    def __init__(
        self,
        terms: Terms,
        plan: dict[str, Any],
        start: PyTree,
        storage: Storage,
        known: Callable[[], Fingerprints],
        *,
        seed: int | None = None,
        interval: SavingInterval | None = None,
        unit: str = RECORD,
        group: JaxGroup | None = None,
    ) -> None:
        """Start the run, or resume it from the storage.

        Args:
            terms: the terms of its releases.
            plan: ready for JSON, with the "delta" of its "privacy". Its "notes" may change.
            start: the public state of a fresh run: any pytree of arrays.
            storage: where the run is kept.
            known: gives what must be the same on resuming, and in all processes; not called by a
                single process that stores nothing and has no seed.
            seed: makes the keys of a fresh run; on resuming it must be the same one, or None.
            interval: says when to save.
            unit: what one record is, in the words of the privacy statement.
            group: the processes of the run, if the driver has more to tell them.
        """
        self._terms, self._plan, self._storage = terms, plan, storage
        self._interval, self.unit = interval or SavingInterval(), unit
        self._current = os.path.join(os.path.abspath(storage.directory or ""), CURRENT)
        self._ledger: Ledger | None = None
        self._checkpoint: Checkpoint | None = None
        self._account: RunAccount | None = None
        self.state, self.position, self.saved = start, 0, Arrays()
        self.watch: Callable[[], None] | None = None
        self._memory = Gate.first_memory(terms)
        self._group = group or JaxGroup()
        with self._group:
            try:
                self._begin(known, seed)
            except BaseException:
                self.close()
                raise
        self._charged = self.position
        # A proxy, so that a session that is dropped frees the ledger's lock at once.
        self.gate = Gate(terms, self.keys, weakref.proxy(self), self._memory)

    @property
    def finished(self) -> bool:
        """Whether every step is done; then nothing more is released."""
        return self.position == self._terms.schedule.releases

    @property
    def begun(self) -> int:
        """Steps that may have been seen; those from `position` on must be repeated bit for bit."""
        return self.position if self._account is None else self._account.next_step

    @property
    def spent(self) -> float:
        """Mu that this run has been charged; where there is a ledger, what that says of the run."""
        return self._terms.mu_per_pass() * math.sqrt(self._charges)

    @property
    def secrecy(self) -> float:
        """What secret batches cost beside `spent`."""
        return self._terms.secrecy_per_pass() * self._charges

    @property
    def _charges(self) -> int:
        if self._account is not None:
            return sum(len(attempt.charges) for attempt in self._account.attempts)
        return -(-self._charged // self._terms.schedule.releases_per_pass)

    @property
    def saves(self) -> bool:
        """Whether there is a checkpoint to save to."""
        return self._checkpoint is not None and self._ledger is not None

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Announce and charge steps first .. first + count - 1. Release when this has returned.

        Steps that were begun before a crash are free: the driver's word is that they come out bit for
        bit the same, because the loss is computed again, or because its answers were saved before.
        `answers` are what a single step is released from, if they came from outside. For these the
        driver's word is not enough: a step that was begun with other answers is refused.
        """
        if first != self.position:
            raise InvalidArgument(
                f"step {first} is not next: {self.position} steps are done. Release in order, and "
                "call `after` for each; a step that was interrupted goes on from the checkpoint."
            )
        if answers is not None and self._group.number > 1:
            self._group.require_alike({"answers": answers.tobytes().hex()})
        if self._storage:
            steps = f"steps {first} to {first + count - 1}"
            self._group.led(steps, lambda: self._charge(first, count, answers))
        self._charged = first + count
        self._notify()

    def _charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        if self._ledger is not None:
            name = (
                None if answers is None else fingerprints.answers_id(self._secret, first, answers)
            )
            self._ledger.begin(self._run, first, count, replay=True, answers=name)

    def after(
        self,
        state: PyTree,
        position: int,
        collect: Callable[[], Arrays],
        over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Go on to `position`; save if that is due, and always at the end. Says whether it saved.

        `state` is the driver's state at `position`, where the gate now stands. `collect` gives the
        driver's own arrays; it is called only for a save. `over` says whether the run ends here, though
        its plan goes on.
        """
        if position != self.gate.position:
            raise InvalidArgument(
                f"the state is that after {position} steps, but the gate has made "
                f"{self.gate.position}: hand in the state of the last release."
            )
        self.state, self.position, self._memory = state, position, self.gate.memory
        self._notify()
        last = self.finished or over()
        due = self.saves and (last or self._interval.due())
        if due:
            held, arrays = self.saved, collect()
            self.save(state, arrays)
            if held and last:
                self.save(state, arrays)  # so that the checkpoint before holds no answers either
        return due

    def save(self, state: PyTree, arrays: Mapping[str, np.ndarray]) -> None:
        """Save the state at `position` now, durably; it costs a few fsyncs.

        A driver whose answers cannot be had a second time saves them here, among `arrays`, before
        it sends the step that they belong to through the gate.
        """
        self.state, self.saved = state, dict(arrays)
        checkpoint, ledger = self._checkpoint, self._ledger
        if checkpoint is None or ledger is None:
            return
        ledger.check()  # its lock keeps other processes away from the checkpoint too
        known = self._known
        packed = pack(Packed(state, self._memory, self.keys, self._secret, known, self.saved))
        of_run = (self._run, self._plan_id, self._data_id)
        meta = CheckpointMeta(*of_run, self.position, ledger.head, self.unit)
        self._interval.measure(lambda: checkpoint.save(packed, meta))

    def led(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` gives in the first of the processes of this run, in all of them."""
        return self._group.led(what, make)

    def _notify(self) -> None:
        if self.watch is not None:
            self.watch()

    def close(self) -> None:
        """Let other runs use the ledger. May be called again."""
        if self._ledger is not None:
            self._ledger.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
        self._group.__exit__(*error)

    def _begin(self, known: Callable[[], Fingerprints], seed: int | None) -> None:
        """Open the storage, or draw keys: in process 0, for all of them."""
        group, several = self._group, self._group.number > 1
        if self._storage or several or seed is not None:
            self._known, self._plan_id = known(), fingerprints.of_plan(self._plan)
        if several:
            given = (self._known, self._plan_id, self.unit, self._storage, seed)
            self._known = storage.agree(group, *given)
        group.led("open", lambda: self._open(seed) if self._storage else self._draw(seed))
        if several:
            keys = self.keys if group.leads else None
            own = RunSnapshot(self.state, self._memory, self.position, self.saved)
            snapshot, self.keys = storage.share(group, own, keys)
            self.state, self._memory, self.position, self.saved = snapshot

    def _draw(self, seed: int | None) -> None:
        """New keys. Under a seed, noise that no run about anything else has."""
        self.keys = fresh_keys(seed, "" if seed is None else f"{self._plan_id} {self._known.about}")

    def _open(self, seed: int | None) -> None:
        found = self._calibrate()
        if found is None:
            self._start(seed)
        else:
            self._resume(*found, seed)
        if self._checkpoint is not None:
            storage.write(self._checkpoint.directory, self._plan)
            data_ledger.point(self._checkpoint.directory, self._storage.ledger_path)

    def _calibrate(self) -> tuple[Packed, CheckpointMeta] | None:
        """What the run directory holds, if it is this run's; the directory is made if need be."""
        directory = self._storage.directory
        if directory is None:
            return None
        try:
            files.make_private_directory(os.fspath(directory))
        except OSError as error:
            raise CheckpointUnwritable(
                f"the run directory {directory} cannot be made ({error.strerror}), so nothing was "
                "released: give one that can be written."
            ) from error
        self._checkpoint = Checkpoint(directory)
        found = self._checkpoint.load()
        storage.check(self._checkpoint.directory, self._plan, resuming=found is not None)
        if found is None:
            return None
        arrays, meta = found
        self._require_same(meta.run, "plan", meta.plan, self._plan_id)
        self._require_same(meta.run, "people or rows", meta.unit, self.unit)
        return unpack(arrays, self.state, self._memory, self._current), meta

    def _start(self, seed: int | None) -> None:
        self._draw(seed)
        # No seed makes this, so that names tell nothing even to someone who knows the seed.
        self._secret = fresh_keys().noise.words().tobytes()
        self._run = f"{self._storage.run_label}-{os.urandom(6).hex()}"
        ledger = self._open_ledger(None)
        own = ledger.account.runs if self._storage.ledger is None else {}
        parts = self._parts()
        for name, run in own.items():
            if run.next_step > 0 and name not in parts:
                raise CheckpointDamaged(
                    f"{self._current} is gone, but {self._storage.ledger_path} says that run "
                    f"{name!r} has begun: restore the directory from a copy, or give another one "
                    "for a new run. The ledger keeps what this one spent."
                )
        identity = self._identity(ledger)
        ledger.admit(identity)
        # The key is on the disk before the ledger names it, and so before anything is released
        # under it. After a crash in between, the run is registered when it is resumed.
        self.save(self.state, {})
        self._account = ledger.register(identity)

    def _parts(self) -> set[str]:
        """Runs that are part of this one: their checkpoints lie in folders of its directory."""
        directory = self._storage.directory
        if directory is None:
            return set()
        paths = (os.path.join(directory, name) for name in os.listdir(directory))
        found = (Checkpoint(path).load() for path in paths if os.path.isdir(path))
        return {part[1].run for part in found if part is not None}

    def _require_same(self, run: str, name: str, then: str, now: str) -> None:
        """Refuse to go on with another plan, data, params or loss than the run was begun with."""
        if then != now:
            raise CheckpointMismatch(
                f"{self._current} is of run {run!r} with another {name}: resume with the {name} it "
                "was begun with, or give another directory for a new run."
            )

    def _resume(self, packed: Packed, meta: CheckpointMeta, seed: int | None) -> None:
        self.keys, self._secret = packed.keys, packed.secret
        if seed is not None and fresh_keys(seed).public != self.keys.public:
            raise CheckpointMismatch(
                f"{self._current} is of a run with another seed, or none: leave the seed out, or "
                "give another directory for a new run."
            )
        then, now = packed.known, self._known
        moved = then.environment != now.environment
        # Other versions of JAX trace the same loss to other text.
        for name in ("data", "params") if moved else ("data", "params", "loss"):
            self._require_same(meta.run, name, getattr(then, name), getattr(now, name))
        self._run, self.position = meta.run, meta.position
        self.state, self._memory, self.saved = packed.state, packed.memory, packed.saved
        if self.finished:
            return
        ledger = self._open_ledger(meta)
        self._account = ledger.register(self._identity(ledger))
        if moved and self.begun > self.position:
            raise CheckpointMismatch(
                f"{self._current} is at step {self.position}, and steps up to {self.begun} may have "
                "been seen; they must be repeated bit for bit, but the versions, devices or "
                "compiler flags are others than before: resume where it was begun, or give another "
                "directory for a new run (the ledger keeps what this one spent)."
            )
        if moved:
            # From here on it is this environment whose bits may have to be repeated.
            self.save(self.state, self.saved)

    def _open_ledger(self, meta: CheckpointMeta | None) -> Ledger:
        """Open the ledger for the run whose checkpoint was just read."""
        path, budget = self._storage.ledger_path, self._storage.budget
        # Whoever names a ledger says that these are its people, whatever their data look like here.
        cohort = cohort_of(path) or self._storage.cohort or self._storage.run_label
        if budget is not None and budget.neighbours != self._terms.neighbours:
            raise InvalidArgument(
                f"the budget is for {budget.neighbours!r} neighbours, and the run for "
                f"{self._terms.neighbours!r}: give both the same. mu for 'replace' is twice that for "
                "'zero-out'."
            )
        self._ledger = Ledger.open(path, cohort=cohort, budget=budget, head=meta and meta.ledger)
        # Another process may have saved between our reading the checkpoint and taking the lock.
        found = None if self._checkpoint is None else self._checkpoint.load()
        if (found and found[1]) != meta:
            raise LedgerBusy(
                f"{self._current} was written by another process just now: start again."
            )
        return self._ledger

    def _identity(self, ledger: Ledger) -> RunIdentity:
        return RunIdentity.of(
            self._terms,
            run=self._run,
            plan=self._plan_id,
            data=self._data_id,
            noise_key=ledger.name_of(self.keys.noise),
            delta=self._plan["privacy"]["delta"],
            unit=self.unit,
        )

    @property
    def _data_id(self) -> str:
        """The data's name for the ledger and the public part of the checkpoint."""
        return fingerprints.data_id(self._secret, self._known.data)
