"""The write-ahead ledger of one cohort: what may be seen is written down before it can be.

    with Ledger.open("people.jsonl", cohort="clinic 2024", budget=1.0) as ledger:
        run = ledger.register(identity)       # a new run, or one that is being resumed
        ledger.begin(identity.run, step)      # on the disk when it returns; now release the step
        checkpoint.save(arrays, CheckpointMeta(..., ledger=ledger.head))

`begin` charges each pass of the run at its first step, in the same durable entry that announces the
step, so a release without its charge cannot exist. Steps of a run count from 0 over all passes.

Guarantee. `account.spent()` is at least the Gaussian-DP parameter of everything that was released by
runs that call `begin` first and release only if it returns. A crash can cost budget (a step announced
and never released), it cannot hide any. After a crash, a step that may have been seen is

- *replayed*: `begin(..., replay=True)` under the same noise key, free of charge, because the same
  release twice tells nothing new. The caller declares that it is the same, bit for bit: same state,
  same records and *same loss values*. If a loss could answer otherwise the second time (people,
  chance, clocks), its answers must come from the checkpoint, saved before `begin`: the same noise
  on a different value would hand over the difference in the clear. There the ledger does not trust
  the declaration: the entry names the answers (`fingerprints.answers_id`), and others are refused;
- or *charged again*: `register(..., recharge=True)` with a fresh noise key.

It is never re-noised for free. The file holds no secret, no loss value, no record and no time of day.
"""

from __future__ import annotations

import os
from dataclasses import asdict

from blindstep import errors
from blindstep.errors import (
    BudgetExceeded,
    HorizonExceeded,
    InvalidArgument,
    LedgerMismatch,
    NoiseReused,
    RecordsConsumed,
    positive,
)
from blindstep.ledger import fingerprints
from blindstep.ledger.account import SCHEMA, Account, RunAccount, RunIdentity
from blindstep.ledger.budget import Privacy
from blindstep.ledger.journal import Entries, Head, Journal, read_bytes, scan
from blindstep.private import accounting


def read_ledger(path: str | os.PathLike[str]) -> Account:
    """What a ledger says, verified. Takes no lock and changes nothing.

    An unfinished last line, of a crash or of a writer at work, is left out: its release has not
    happened.
    """
    account, name = Account(), os.path.realpath(path)
    if scan(name, read_bytes(name), account.apply).head is None:
        raise LedgerMismatch(f"{name} holds no ledger: it is empty. Give the path of a ledger.")
    return account


def cohort_of(path: str | os.PathLike[str]) -> str | None:
    """What the ledger at `path` calls its people; None if there is no ledger, or an empty one."""
    account, name = Account(), os.path.realpath(path)
    if os.path.exists(name):
        scan(name, read_bytes(name), account.apply)
    return account.cohort


class Ledger:
    """The one writer of a ledger. Make it with `Ledger.open`; close it, or use it in a `with`."""

    def __init__(self, journal: Entries, account: Account) -> None:
        self._journal = journal
        self.account = account  # all that the ledger says, to look at: do not change it
        self._active: dict[str, int] = {}  # run -> the number of its attempt in this process

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        cohort: str,
        budget: Privacy | float | None = None,
        head: Head | None = None,
    ) -> Ledger:
        """Open a ledger for writing, or start one where there is none.

        Args:
            path: the file. Beside it come PATH.lock and, after a crash, PATH.torn-1.
            cohort: a name for the people whose records these are (no hash of their data: see
                `fingerprints`). The ledger of another cohort is refused. Runs on the same people must
                share a ledger, or what they spend is not added up.
            budget: what all runs together may spend, or its mu alone. The ledger keeps it; it can be
                lowered later, never raised. None: what the ledger says.
            head: where the ledger stood at the checkpoint. Give it whenever there is one: it shows
                that a ledger was cut short, rolled back or mixed up.
        """
        account = Account()
        journal = Journal(os.fspath(path), account.apply, head)
        try:
            return cls.on(journal, account, cohort=cohort, budget=budget)
        except BaseException:
            journal.close()
            raise

    @classmethod
    def on(
        cls,
        journal: Entries,
        account: Account,
        *,
        cohort: str,
        budget: Privacy | float | None = None,
    ) -> Ledger:
        """The ledger that these entries keep, begun if there are none; `account` is what they say.

        Refuses the ledger of another cohort, and a budget above the one that it has.
        """
        if not isinstance(cohort, str) or not cohort:
            raise InvalidArgument(f"cohort must be a string, not empty, got {cohort!r}.")
        mu = budget.mu if isinstance(budget, Privacy) else budget
        mu = None if mu is None else positive("budget", mu, "give a mu above 0")
        if account.cohort not in (None, cohort):
            raise LedgerMismatch(
                f"{journal.path} is the ledger of {account.cohort!r}, not of {cohort!r}: use the "
                "ledger of these people. If they are the same people, give the name that the ledger "
                "has."
            )
        require_lowered(account, mu, journal.path)
        if isinstance(budget, Privacy):
            require_neighbours(account, budget.neighbours, journal.path)
        journal.prepare()
        ledger = cls(journal, account)
        if account.cohort is None:
            first = {"kind": "ledger", "schema": SCHEMA, "id": os.urandom(16).hex()}
            ledger._write({**first, "cohort": cohort})
        newly_known = isinstance(budget, Privacy) and account.made_from is None
        if mu is not None and (mu != account.budget or newly_known):
            ledger._write({"kind": "budget", "mu": mu, **_made_from(budget)})
        return ledger

    def name_of(self, key: fingerprints.NoiseWords) -> str:
        """The name of a noise key (`fingerprints`): one in all of this ledger, another elsewhere."""
        return fingerprints.key_id(key, self.account.id)

    def admit(self, identity: RunIdentity, *, recharge: bool = False, past: bool = False) -> None:
        """Raise what `register` would raise for this run; write nothing."""
        path, name = self._journal.path, identity.run
        for other in self.account.runs.values():
            if other.identity.run != name and other.attempt(identity.noise_key) is not None:
                raise NoiseReused(
                    f"{path}: the noise key of run {name!r} was used by run "
                    f"{other.identity.run!r}. Two releases with the same noise cancel it: take "
                    "fresh keys (no seed, or another seed)."
                )
        if self.account.unit not in (None, identity.protects):
            raise LedgerMismatch(
                f"{path}: its runs protect {self.account.unit}, and run {name!r} would protect "
                f"{identity.protects}: their mus do not add up. Give all runs on these people "
                "`people=` and the same neighbours; or give this one another ledger, and count for "
                "somebody with k rows k times the mu of one record (`Statement.for_rows`), and twice "
                "the mu of leaving a record out for replacing it."
            )
        require_neighbours(self.account, identity.neighbours, path)
        run = self.account.runs.get(name)
        if run is None:
            if not past:
                self._require_budget(identity, [identity.mu_per_pass] * identity.passes)
            return
        if changed := identity.changed_from(run.identity):
            raise LedgerMismatch(
                f"{path}: run {name!r} was begun with another {', '.join(changed)}: resume it with "
                "what it was begun with, or start a new run under another name."
            )
        if run.attempt(identity.noise_key) is None and run.next_step > 0 and not recharge:
            raise RecordsConsumed(
                f"{path}: run {name!r} began {run.next_step} steps under another noise key. "
                "Resume it from its checkpoint, which holds that key. If the key is lost, "
                "recharge=True goes on with a new one and pays for the records again."
            )

    def register(
        self, identity: RunIdentity, *, recharge: bool = False, past: bool = False
    ) -> RunAccount:
        """Announce a run before its first step, or recognise it when it is resumed.

        Refuses a plan, data, cost or delta other than the run had; a unit other than the ledger's
        runs have; a noise key that another run used; a new run that does not fit into the budget as
        a whole. After a run's first step it
        also refuses a new noise key, unless `recharge` accepts to pay again for every pass touched
        from now on. `past` says that the run has happened and is only written down: it is taken into
        account even beyond the budget. Of the account that it returns, steps before `next_step` may
        have been seen.
        """
        self.admit(identity, recharge=recharge, past=past)
        run = self.account.runs.get(identity.run)
        if run is None or run.attempt(identity.noise_key) is None:
            self._write({"kind": "run", **asdict(identity)})
            run = self.account.runs[identity.run]
        attempt = run.attempt(identity.noise_key)
        assert attempt is not None
        self._active[identity.run] = attempt
        return run

    def begin(
        self,
        run: str,
        first: int,
        count: int = 1,
        *,
        replay: bool = False,
        past: bool = False,
        answers: str | None = None,
    ) -> None:
        """Announce that steps first .. first + count - 1 of a run will now be released.

        Release only when this has returned. A pass is charged when its first step is begun. Steps
        begun before under the same key are refused, unless `replay` declares that they will be
        repeated bit for bit (see the module's text); other steps of the range are begun as usual.
        `answers` names what a single step is released from (`fingerprints.answers_id`); a step that was
        begun with other answers is refused in any case. `past` says that these steps were released
        and are only written down: they are charged even beyond the budget. Costs one fsync.
        """
        path = self._journal.path
        if run not in self._active:
            raise InvalidArgument(f"run {run!r} is not registered: call register first.")
        first, count = errors.count("first", first, 0), errors.count("count", count)
        if answers is not None and count != 1:
            raise InvalidArgument(f"answers belong to one step, not to {count}: begin each alone.")
        account = self.account.runs[run]
        identity, attempt = account.identity, account.attempts[self._active[run]]
        if first + count > identity.steps:
            raise HorizonExceeded(
                f"{path}: step {first + count - 1} of run {run!r}, which was planned for "
                f"{identity.steps} (0 .. {identity.steps - 1}): plan a longer run."
            )
        reached = account.next_step if attempt.start is None else attempt.stop
        if first > reached:
            raise LedgerMismatch(
                f"{path}: run {run!r} goes on at step {first}, but the ledger knows only of steps "
                f"before {reached}: the checkpoint is newer than the ledger. Restore the ledger "
                "that belongs to it."
            )
        again = attempt.again(first, count)
        if first < attempt.begun.start or (again and not replay):
            raise RecordsConsumed(
                f"{path}: run {run!r} goes on at step {first}, but steps {attempt.begun.start} .. "
                f"{attempt.stop - 1} were begun before and may have been seen: their records are "
                "consumed in this pass (the checkpoint is older than the ledger). Repeat them bit "
                "for bit from a checkpoint with the same noise key (replay=True), or take a fresh "
                "key and pay again (recharge=True)."
            )
        if any(attempt.answers.get(step) != answers for step in again):
            raise RecordsConsumed(
                f"{path}: step {first} of run {run!r} was begun with other answers and may have been "
                "seen: the same noise on these would give away how they differ, so nothing was "
                "released. Restore the checkpoint that holds the answers it had, or start a new run "
                "in another directory (the ledger keeps what this one spent)."
            )
        touched = identity.passes_of(first, count)
        new = [[index, identity.mu_per_pass] for index in touched if index not in attempt.charges]
        if not past:
            self._require_budget(identity, [mu for _, mu in new])
        body = {"kind": "intent", "run": run, "attempt": self._active[run], "first": first}
        named = {} if answers is None else {"answers": answers}
        self._write({**body, "count": count, "charges": new, **named})

    def check(self) -> None:
        """Refuse if this is no longer the one writer: closed, forked, failed, its file replaced."""
        self._journal.check()

    @property
    def head(self) -> Head:
        """Where the ledger stands: keep it in the checkpoint."""
        head = self._journal.head
        assert head is not None
        return head

    def close(self) -> None:
        """Let other writers in. May be called again."""
        self._journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, body: dict[str, object]) -> None:
        self.account.apply(self._journal.append(body))

    def _require_budget(self, run: RunIdentity, charges: list[float]) -> None:
        more, account = accounting.compose(charges), self.account
        secrecy = len(charges) * run.secrecy_per_pass
        if charges and account.would_exceed(more, secrecy):
            beside = f" and {secrecy:.2g} of delta" if secrecy else ""
            raise BudgetExceeded(
                f"{self._journal.path}: run {run.run!r} asks for mu = {more:g}{beside}, but of the "
                f"budget {account.budget:g} only {account.remaining():g} is left ({account.spent():g} "
                "spent): nothing was released. Plan a run with fewer passes or more noise."
            )


def require_lowered(account: Account, mu: float | None, path: str) -> None:
    """Refuse a budget above the one that the ledger has."""
    if mu is not None and account.budget is not None and mu > account.budget:
        raise LedgerMismatch(
            f"{path} has a budget of mu = {account.budget:g}, asked for {mu:g}: a budget can be "
            "lowered, never raised. Leave it out."
        )


def require_neighbours(account: Account, neighbours: str, path: str) -> None:
    """Refuse what is about other neighbours than the ledger's budget: one mu is twice the other."""
    made = account.made_from
    if made is not None and made.neighbours != neighbours:
        raise LedgerMismatch(
            f"{path} has a budget for {made.neighbours!r} neighbours, and this is for {neighbours!r}: "
            "mu for 'replace' is twice that for 'zero-out'. Give both the same."
        )


def _made_from(budget: Privacy | float | None) -> dict[str, object]:
    """What a budget's mu was made from, if that is known."""
    if not isinstance(budget, Privacy):
        return {}
    epsilon = budget.epsilon if budget.spends_delta else None
    return {"epsilon": epsilon, "delta": budget.delta, "neighbours": budget.neighbours}
