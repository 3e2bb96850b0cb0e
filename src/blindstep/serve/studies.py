"""Studies in the database: made, looked at, paused, closed; and what a worker keeps of them.

After an older copy of the database was restored, steps that were released since may be missing in it,
and people who were asked since may be asked again. No noise is shared, whatever is restored
(`Secrets.noise`). But the copy's ledger does not know those releases, and only the operator knows that
a copy was restored, how often, and which studies were made since: `Studies.restored`.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets as random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from blindstep.errors import BlindstepError, BudgetExceeded, InvalidArgument, positive
from blindstep.ledger.account import Account, RunIdentity
from blindstep.ledger.budget import Privacy
from blindstep.planning.checks import check_delta
from blindstep.planning.plan import Plan
from blindstep.private.accounting import PERSON
from blindstep.run.result import Result
from blindstep.serve import reading, schema
from blindstep.serve.accounts import OPEN, identity_of, open_ledger, read_account, require_room
from blindstep.serve.database import Database
from blindstep.serve.design import Design, new_public_key
from blindstep.serve.forecast import require_hope
from blindstep.serve.kept import Kept
from blindstep.serve.keys import Secrets
from blindstep.serve.schema import Row
from blindstep.serve.spec import StudySpec

_MOST_STUDIES = 2**31 - 1
# What a study's row holds while its step is not frozen.
THAWED: Mapping[str, Any] = {"frozen": 0, "salt": None, "holder": None, "held_until": None}
_TRIES = 8


class NoSuchStudy(BlindstepError):
    """There is no study of this name."""

    def __init__(self) -> None:
        super().__init__("there is no such study.")


class WrongState(BlindstepError):
    """The study is over, or is not paused, or is paused already."""


class Released(NamedTuple):
    """What a study's releases came to.

    `mu` is what they cost; `came`, in the last one, who answered as a share of those who were planned.
    """

    mu: float
    came: float | None


class Studies:
    """All studies of a database, as one worker sees them. Threads may share it.

    Attributes:
        database: where they are.
        secrets: the keys.
        kept: what is in memory; `design` and `step` are its.
    """

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self.database, self.secrets = database, secrets
        self.kept = Kept(self.row, self.snapshot)
        self.design, self.step = self.kept.design, self.kept.step
        self._released: dict[int, tuple[tuple[int, str], Released]] = {}

    # -- making and changing --------------------------------------------------------------------

    def create(self, spec: StudySpec) -> str:
        """Make a study that runs from now on, and give its id.

        It is registered in its cohort's ledger in the same transaction. One that does not fit into
        the cohort's budget as a whole is refused, and nobody is asked.
        """
        if not spec.despite_noise:
            require_hope(len(spec.parameters), spec.people, spec.epsilon)
        plan, study = spec.plan(), random.token_hex(8)
        check_delta(plan.privacy, plan.records)
        row = {
            "id": study,
            "name": spec.name,
            "spec": spec.model_dump_json(),
            "plan": plan.to_json(),
            "cohort": spec.cohort or f"people of study {study}",
            "public_key": new_public_key(),
            "attempt": new_attempt(),
            "made_on": datetime.now(UTC).date().isoformat(),
            "status": "running",
            **dict.fromkeys(("release", "frozen"), 0),
        }
        # What is stored must be readable: a plan at the end of what numbers can say may not be.
        Design(row)
        budget = None
        if spec.budget_epsilon is not None:
            budget = Privacy(epsilon=spec.budget_epsilon, delta=plan.delta)
        for _ in range(_TRIES):
            # Two studies that are made in one cohort at a time: the ledger's key lets one of them pass.
            with contextlib.suppress(IntegrityError), self.database.begin() as connection:
                ledger = open_ledger(connection, row["cohort"], budget)
                identity = identity_of(row, ledger, self.secrets)
                require_room(connection, ledger.account, identity)
                ledger.register(identity)
                row["deadline"] = self.database.now(connection) + spec.window_seconds
                connection.execute(sa.insert(schema.studies), row)
                return study
        raise WrongState("many studies are being made in this cohort at the same time: try again.")

    def pause(self, study: str) -> None:
        """Ask nobody new and hold the window's end. Answers to what was shown are still taken."""
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("running",))
            left = max(0.0, row["deadline"] - self.database.now(connection))
            now = self.database.now(connection)  # since when, for retention
            change(connection, row["number"], status="paused", remaining=left, deadline=now)

    def resume(self, study: str) -> None:
        """Go on: the step has as long as it had when the study was paused."""
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("paused",))
            going_on = {"status": "running", "remaining": None}
            deadline = self.database.now(connection) + row["remaining"]
            change(connection, row["number"], **going_on, deadline=deadline)

    def end_window(self, study: str, step: int | None = None) -> None:
        """End the open window now. The next one is as long as all are, from here on.

        With `step`, counted from 1, only if that one is open: so a repeat does not end the next one.
        """
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("running",))
            if step not in (None, row["release"] + 1):
                raise WrongState(f"step {row['release'] + 1} is open now.")
            now = self.database.now(connection)
            change(connection, row["number"], deadline=min(now, row["deadline"]))

    def end_window_in_time(self, number: int) -> None:
        """Bring the end of a window that is farther off than a window is long back, on its grid.

        The clock had jumped ahead when it was set, and is back.
        """
        length = self.design(number).spec.window_seconds
        with self.database.begin() as connection:
            row = self.database.locked(connection, number)
            now = self.database.now(connection)
            if row is not None and not row["frozen"] and row["deadline"] > now + length:
                later = math.ceil((row["deadline"] - now - length) / length)
                change(connection, number, deadline=row["deadline"] - later * length)

    def close(self, study: str) -> None:
        """End a study for good. Votes of its open step are deleted and enter nothing."""
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("running", "paused"))
            end(connection, row["number"], "closed")
        self.database.forget()

    def _locked(self, connection: Connection, study: str, allowed: Sequence[str]) -> Row:
        row = self.database.locked(connection, self._find(connection, study)["number"])
        assert row is not None
        if row["status"] not in allowed:
            raise WrongState(f"the study is {row['status']}: it must be {' or '.join(allowed)}.")
        return row

    def restored(self, lost: Mapping[str, float]) -> list[str]:
        """Charge what may have been lost with the database that this copy replaces.

        All that an open study had still to release is charged as if it had been, even beyond a budget.
        Then the study goes on as a new attempt, which its ledger charges again; questions of the old
        attempt can no longer be answered. A study for which its cohort has no room any more is closed.
        Studies that were made after the copy are not in it: `lost` says what they took, as mu by the
        name of the cohort.

        Call it once for each time that this copy was restored, before any worker starts. Gives the ids
        of the studies that go on.
        """
        chosen = sa.select(schema.studies).where(OPEN).order_by(schema.studies.c.number)
        self.kept.clear()  # it knows the attempts of before
        with self.database.begin() as connection:
            for cohort, mu in lost.items():
                _charge_unknown(connection, cohort, mu)
            rows = connection.execute(chosen).mappings().all()
            for row in rows:
                self._charge_rest(connection, row)
            return [row["id"] for row in rows if self._goes_on(connection, row)]

    def _charge_rest(self, connection: Connection, row: Row) -> None:
        """Charge what a study had still to release under its old attempt."""
        ledger = open_ledger(connection, row["cohort"])
        releases = Plan.from_json(row["plan"]).schedule.releases
        ledger.register(identity_of(row, ledger, self.secrets), past=True)
        ledger.begin(row["id"], row["release"], releases - row["release"], past=True)

    def _goes_on(self, connection: Connection, row: Row) -> bool:
        """Give a study a new attempt, or close it; says whether it goes on."""
        ledger, attempt = open_ledger(connection, row["cohort"]), new_attempt()
        identity = identity_of({**row, "attempt": attempt}, ledger, self.secrets)
        try:
            require_room(connection, ledger.account, identity)
        except BudgetExceeded:
            end(connection, row["number"], "closed")
            return False
        ledger.register(identity, recharge=True)
        change(connection, row["number"], attempt=attempt)
        return True

    # -- looking --------------------------------------------------------------------------------

    def _find(self, connection: Connection, study: str | int) -> Row:
        """The row of a study, by its id or its number."""
        columns = schema.studies.c
        wanted = columns.number == study if isinstance(study, int) else columns.id == study
        row = None
        if not isinstance(study, int) or 0 < study <= _MOST_STUDIES:
            row = connection.execute(sa.select(schema.studies).where(wanted)).mappings().first()
        if row is None:
            raise NoSuchStudy
        return row

    def number(self, study: str) -> int:
        """The number of a study in the tables."""
        return self.design(study).number

    def all(self, most: int | None = None, before: str | None = None) -> list[Row]:
        """Every study's row, the newest first; at most so many, of those made before that study."""
        columns = schema.studies.c
        chosen = sa.select(schema.studies).order_by(columns.number.desc()).limit(most)
        if before is not None:
            chosen = chosen.where(columns.number < self.row(before)["number"])
        with self.database.read() as connection:
            return list(connection.execute(chosen).mappings().all())

    def row(self, study: str | int) -> Row:
        """The row of a study, by its id or its number."""
        with self.database.read() as connection:
            return self._find(connection, study)

    def history(self, number: int) -> list[dict[str, Any]]:
        """What each release made public."""
        with self.database.read() as connection:
            chosen = sa.select(schema.releases.c.outcome).where(schema.releases.c.study == number)
            rows = connection.execute(chosen.order_by(schema.releases.c.release)).scalars().all()
        return [json.loads(outcome) for outcome in rows]

    def released(self, row: Row) -> Released:
        """What a study's releases so far came to: read once for each, however often it is asked."""
        at = (row["release"], row["attempt"])
        known = self._released.get(row["number"])
        if known is None or known[0] != at:
            came, last = None, self.history(row["number"])[-1:]
            if row["status"] == "running" and last:
                came = reading.came(self.design(row["number"]), last[0])
            known = at, Released(self.account(row["cohort"]).spent(row["id"]), came)
            self._released[row["number"]] = known
        return known[1]

    def account(self, cohort: str) -> Account:
        """What a cohort's ledger says."""
        with self.database.read() as connection:
            return read_account(connection, cohort)

    def result(self, study: str) -> Result:
        """The result of a finished study."""
        row = self.row(study)
        if row["status"] != "finished":
            raise WrongState("the report is there when the last step is released.")
        return reading.result(self.design(row["number"]), self.history(row["number"]))

    def snapshot(self, number: int, release: int) -> tuple[str | None, dict[str, float]]:
        """The stored state in which a step begins (None: the first), and the released parameters."""
        if release == 0:
            spec = self.design(number).spec
            return None, {each.name: each.begins for each in spec.parameters}
        columns = schema.releases.c
        chosen = sa.select(columns.state, columns.outcome).where(
            columns.study == number, columns.release == release - 1
        )
        with self.database.read() as connection:
            found = connection.execute(chosen).one()
        return found.state, json.loads(found.outcome)["parameters"]

    def parameters(self, study: str) -> tuple[int, dict[str, float]]:
        """The released parameters and how many steps made them: for everybody who is not asked."""
        row = self.row(study)
        return row["release"], self.snapshot(row["number"], row["release"])[1]


def new_attempt() -> str:
    """A fresh name for an attempt: never one that a lost copy of the database has used."""
    return random.token_hex(8)


def delete_votes(connection: Connection, number: int, release: int) -> None:
    """Delete the votes of a study's step."""
    columns = schema.votes.c
    chosen = (columns.study == number) & (columns.release == release)
    connection.execute(sa.delete(schema.votes).where(chosen))


def forget_people(connection: Connection, number: int) -> None:
    """Delete the votes of a study that is over, and who was asked: nobody will be asked again."""
    for table in (schema.votes, schema.asked):
        connection.execute(sa.delete(table).where(table.c.study == number))


def change(connection: Connection, number: int, **values: Any) -> None:
    """Write new values into the row of a study."""
    chosen = schema.studies.c.number == number
    connection.execute(sa.update(schema.studies).where(chosen).values(**values))


def end(connection: Connection, number: int, status: str) -> None:
    """End a study for good. What was released stays."""
    change(connection, number, status=status, remaining=None, **THAWED)
    forget_people(connection, number)


def _charge_unknown(connection: Connection, cohort: str, mu: float) -> None:
    """Charge a cohort for studies that are gone."""
    ledger = open_ledger(connection, cohort)
    if not ledger.account.runs:
        raise InvalidArgument(f"no study of this copy has the cohort {cohort!r}: see its spelling.")
    name = f"lost {random.token_hex(8)}"
    delta = next(iter(ledger.account.runs.values())).identity.delta
    charge = positive("lost", mu, "give a mu above 0")
    ledger.register(
        RunIdentity(name, "lost", "lost", random.token_hex(16), charge, 1, 1, delta, PERSON),
        past=True,
    )
    ledger.begin(name, 0, past=True)


def spending(account: Account, study: str, delta: float) -> dict[str, float | None]:
    """What a study and its cohort have spent, and what is left of the cohort's budget."""
    left = None if account.budget is None else account.remaining()
    return {
        "mu": account.spent(study),
        "epsilon": account.epsilon(delta, study),
        "cohort_mu": account.spent(),
        "cohort_epsilon": account.epsilon(delta),
        "cohort_mu_left": left,
    }


def check_value(spec: StudySpec, value: float) -> float:
    """An answer as a loss, or an error that does not repeat it."""
    loss = spec.answer.loss(value)
    if loss is None:
        low, high = spec.answer.range
        kind = "a number" if spec.answer.kind == "number" else "a whole number"
        raise InvalidArgument(f"an answer to this study is {kind} from {low:g} to {high:g}.")
    return loss
