"""The write-ahead ledger of one body of records: what may have been seen is written down before.

    with Ledger.open("people.jsonl", records="clinic 2024", budget=1.0) as ledger:
        run = ledger.register(identity)       # a new run, or one that is being resumed
        ledger.begin(identity.run, step)      # on the disk when it returns; now release the step
        checkpoint.save(arrays, CheckpointMeta(..., ledger=ledger.head))

`begin` charges each pass of the run at its first step, in the same durable entry that announces the
step, so a release without its charge cannot exist. Steps of a run count from 0 over all passes.

Guarantee. `spent` is at least the Gaussian-DP parameter of everything that was released by runs
that call `begin` first and release only if it returns. A crash can cost budget (a step announced
and never released), it cannot hide any. After a crash, a step that may have been seen is

- *replayed*: `begin(..., replay=True)` under the same noise key, free of charge, because the same
  release twice tells nothing new. The caller declares that it is the same, bit for bit: same state,
  same records and *same loss values*. If a loss could answer otherwise the second time (people,
  chance, clocks), its answers must come from the checkpoint, saved before `begin`: the same noise
  on a different value would hand over the difference in the clear. There the declaration is not
  taken on trust: the entry names the answers (`answers_id`), and others are refused;
- or *charged again*: `register(..., recharge=True)` with a fresh noise key.

It is never re-noised for free. The file holds no secret, no loss value and no record.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import asdict
from types import TracebackType

import numpy as np

from blindstep.errors import HorizonExceeded, InvalidArgument, count, positive
from blindstep.trusted import accounting
from blindstep.trusted.account import SCHEMA, Account, RunAccount, RunIdentity
from blindstep.trusted.journal import Head, Journal, read_bytes, scan
from blindstep.trusted.refusals import (
    BudgetExceeded,
    LedgerMismatch,
    NoiseReused,
    RecordsConsumed,
)


def noise_key_id(key: np.ndarray) -> str:
    """The public name of a secret noise key: its SHA-256. 256 random bits cannot be found from it."""
    if key.dtype != np.uint32 or key.shape != (8,):
        raise InvalidArgument(
            f"a noise key is 8 words of 32 bits, got {key.dtype} of shape {key.shape}."
        )
    return hashlib.sha256(key.astype("<u4").tobytes()).hexdigest()


def answers_id(key: np.ndarray, step: int, answers: np.ndarray) -> str:
    """The public name of the answers that a step is released from: HMAC-SHA256 by the noise key.

    Keyed, because answers can be guessed: a vote is one bit. Who has the key needs no guess.
    """
    noise_key_id(key)  # refuses what is no key
    secret = hmac.digest(key.astype("<u4").tobytes(), b"blindstep answers", "sha256")
    values = np.where(np.isnan(answers), np.nan, answers).astype("<f8")  # one NaN, not many
    content = step.to_bytes(8, "little") + values.tobytes()
    return hmac.digest(secret, content, "sha256").hex()


def data_id(key: np.ndarray, fingerprint: str) -> str:
    """The public name of a data set in one run: HMAC-SHA256 of its fingerprint by the noise key.

    Keyed, because data can be guessed: who knows all records but one could try every value of that
    one against a plain hash, and privacy would be gone. Without the key it is a random number.
    """
    noise_key_id(key)  # refuses what is no key
    secret = hmac.digest(key.astype("<u4").tobytes(), b"blindstep data", "sha256")
    return hmac.digest(secret, fingerprint.encode(), "sha256").hex()


def read_ledger(path: str | os.PathLike[str]) -> Account:
    """What the ledger says, verified, for looking at: takes no lock and changes nothing.

    An unfinished last line (of a crash, or of a writer at work) is left out: its release has not
    happened.
    """
    account, name = Account(), os.path.realpath(path)
    if scan(name, read_bytes(name), account.apply).head is None:
        raise LedgerMismatch(f"{name} holds no ledger: it is empty. Give the path of a ledger.")
    return account


def people_of(path: str | os.PathLike[str]) -> str | None:
    """What the ledger calls its people; None where there is none, or one that was never begun."""
    if not os.path.exists(path):
        return None
    try:
        return read_ledger(path).records
    except LedgerMismatch:
        return None


class Ledger:
    """The one writer of a ledger. Make it with `Ledger.open`; close it, or use it in a `with`."""

    def __init__(self, journal: Journal, account: Account) -> None:
        self._journal = journal
        self._account = account
        self._active: dict[str, int] = {}  # run -> its attempt in this session

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        records: str,
        budget: float | None = None,
        head: Head | None = None,
    ) -> Ledger:
        """Open the ledger for writing, or start one where there is none.

        Args:
            path: the file. Beside it come PATH.lock and, after a crash, PATH.torn-1.
            records: which people these are: a name (no hash of their data: see `data_id`). A ledger of
                other people is refused. Runs on the same people must share it to compose.
            budget: the largest mu that all runs together may spend. It is kept in the ledger; it
                can be lowered later, never raised. None: what the ledger says.
            head: where the ledger stood at the checkpoint. Give it whenever there is one: it is
                what shows that a ledger was cut short, rolled back or mixed up.
        """
        if not isinstance(records, str) or not records:
            raise InvalidArgument(f"records must be a string, not empty, got {records!r}.")
        budget = None if budget is None else positive("budget", budget, "give a mu above 0")
        account = Account()
        journal = Journal(os.fspath(path), account.apply, head)
        try:
            if account.records not in (None, records):
                raise LedgerMismatch(
                    f"{journal.path} is the ledger of {account.records!r}, not of {records!r}: use "
                    "the ledger of these people. If they are the same people, give the name that "
                    "the ledger has."
                )
            if budget is not None and account.budget is not None and budget > account.budget:
                raise LedgerMismatch(
                    f"{journal.path} has a budget of mu = {account.budget:g}, asked for "
                    f"{budget:g}: a budget can be lowered, never raised. Leave it out."
                )
            journal.prepare()
            ledger = cls(journal, account)
            if account.records is None:
                first = {"kind": "ledger", "schema": SCHEMA, "id": os.urandom(16).hex()}
                ledger._write({**first, "records": records})
            if budget is not None and budget != account.budget:
                ledger._write({"kind": "budget", "mu": budget})
        except BaseException:
            journal.close()
            raise
        return ledger

    def register(self, identity: RunIdentity, *, recharge: bool = False) -> RunAccount:
        """Announce a run before its first step, or recognise it when it is resumed.

        Refuses a plan, data or cost other than the run had; a noise key that another run used; a
        new run that would not fit into the budget as a whole. A run under another noise key than
        before is refused too, once it has begun any step, unless `recharge` accepts to pay again
        for every pass it touches from now on.

        Returns the run's account. `next_step` tells which steps may have been seen: all before it.
        """
        path, name = self._journal.path, identity.run
        for other in self._account.runs.values():
            if other.identity.run != name and other.attempt(identity.noise_key) is not None:
                raise NoiseReused(
                    f"{path}: the noise key of run {name!r} was used by run "
                    f"{other.identity.run!r}. Two releases with the same noise cancel it: take "
                    "fresh keys (no seed, or another seed)."
                )
        run = self._account.runs.get(name)
        attempt = None if run is None else run.attempt(identity.noise_key)
        if run is not None and (changed := identity.changed_from(run.identity)):
            raise LedgerMismatch(
                f"{path}: run {name!r} was begun with another "
                + ", ".join(f"{n} ({getattr(run.identity, n)!r})" for n in changed)
                + f", now {', '.join(repr(getattr(identity, n)) for n in changed)}: resume it with "
                "what it was begun with, or start a new run under another name."
            )
        if attempt is None:
            if run is not None and run.next_step > 0 and not recharge:
                raise RecordsConsumed(
                    f"{path}: run {name!r} began {run.next_step} steps under another noise key. "
                    "Resume it from its checkpoint, which holds that key. If the key is lost, "
                    "recharge=True goes on with a new one and pays for the records again."
                )
            if run is None:
                self._require_budget(name, [identity.mu_per_pass] * identity.passes)
            self._write({"kind": "run", **asdict(identity)})
            run = self._account.runs[name]
            attempt = len(run.attempts) - 1
        assert run is not None
        self._active[name] = attempt
        return run

    def begin(
        self,
        run: str,
        first: int,
        number: int = 1,
        *,
        replay: bool = False,
        answers: str | None = None,
    ) -> None:
        """Announce that steps first .. first + number - 1 of a run will now be released.

        Release only when this has returned. A pass is charged when its first step is begun; steps
        begun before under the same key are refused, unless `replay` declares that they will be
        repeated bit for bit (see the module's text); the others of the range are begun as usual.
        `answers` names what a single step is released from (`answers_id`); a step that was begun
        with others is refused even so. Costs one fsync.
        """
        path = self._journal.path
        if answers is not None and number != 1:
            raise InvalidArgument(f"answers belong to one step, not to {number}: begin each alone.")
        if run not in self._active:
            raise InvalidArgument(f"run {run!r} is not registered: call register first.")
        first, number = count("first", first, 0), count("number", number)
        account = self._account.runs[run]
        identity, attempt = account.identity, account.attempts[self._active[run]]
        if first + number > identity.steps:
            raise HorizonExceeded(
                f"{path}: step {first + number - 1} of run {run!r}, which was planned for "
                f"{identity.steps} (0 .. {identity.steps - 1}): plan a longer run."
            )
        reached = account.next_step if attempt.start is None else attempt.stop
        if first > reached:
            raise LedgerMismatch(
                f"{path}: run {run!r} goes on at step {first}, but the ledger knows only of steps "
                f"before {reached}: the checkpoint is newer than the ledger. Restore the ledger "
                "that belongs to it."
            )
        if first < attempt.begun.start or (attempt.again(first, number) and not replay):
            raise RecordsConsumed(
                f"{path}: run {run!r} goes on at step {first}, but steps {attempt.begun.start} .. "
                f"{attempt.stop - 1} were begun before and may have been seen: their records are "
                "consumed in this pass (the checkpoint is older than the ledger). Repeat them bit "
                "for bit from a checkpoint with the same noise key (replay=True), or take a fresh "
                "key and pay again (recharge=True)."
            )
        if attempt.again(first, number) and attempt.answers.get(first) != answers:
            raise RecordsConsumed(
                f"{path}: step {first} of run {run!r} was begun with other answers and may have been "
                "seen: the same noise on these would give away how they differ, so nothing was "
                "released. Restore the checkpoint that holds the answers it had, or start a new run "
                "in another directory (the ledger keeps what this one spent)."
            )
        touched = identity.passes_of(first, number)
        new = [[index, identity.mu_per_pass] for index in touched if index not in attempt.charges]
        self._require_budget(run, [mu for _, mu in new])
        body = {"kind": "intent", "run": run, "attempt": self._active[run], "first": first}
        body |= {"count": number, "replay": replay, "charges": new}
        self._write(body if answers is None else {**body, "answers": answers})

    def check(self) -> None:
        """Refuse if this is no longer the one writer: closed, forked, failed, its file replaced."""
        self._journal.check()

    def spent(self, run: str | None = None) -> float:
        """Mu of everything charged to these records, or of one run (`Account.spent`)."""
        return self._account.spent(run)

    def remaining(self) -> float:
        """The largest mu that may still be charged; infinity without a budget."""
        return self._account.remaining()

    def would_exceed(self, mu: float) -> bool:
        """Whether spending `mu` more breaks the budget (`Account.would_exceed`)."""
        return self._account.would_exceed(mu)

    @property
    def head(self) -> Head:
        """Where the ledger stands: keep it in the checkpoint."""
        head = self._journal.head
        assert head is not None
        return head

    @property
    def account(self) -> Account:
        """All that the ledger says, to look at: do not change it."""
        return self._account

    def close(self) -> None:
        """Let other writers in. May be called again."""
        self._journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, body: dict[str, object]) -> None:
        self._account.apply(self._journal.append(body))

    def _require_budget(self, run: str, charges: list[float]) -> None:
        more = accounting.compose(charges)
        if charges and self._account.would_exceed(more):
            raise BudgetExceeded(
                f"{self._journal.path}: run {run!r} asks for mu = {more:g}, but of the budget "
                f"{self._account.budget:g} only {self.remaining():g} is left ({self.spent():g} "
                "spent): nothing was released. Plan a run with fewer passes or more noise."
            )
