"""Studies in the database: made, looked at, paused, closed; and what a worker keeps of them."""

from __future__ import annotations

import contextlib
import json
import secrets as random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.ledger.account import Account
from blindstep.planning.checks import check_delta
from blindstep.planning.plan import Plan
from blindstep.private.statement import Privacy
from blindstep.serve import schema
from blindstep.serve.accounts import Run, open_ledger, read_account, require_room
from blindstep.serve.database import Database
from blindstep.serve.design import Design, Step, new_public_key
from blindstep.serve.keys import Secrets
from blindstep.serve.schema import Row
from blindstep.serve.spec import StudySpec

_MOST_STUDIES = 2**31 - 1
_TRIES = 8


class NoSuchStudy(BlindstepError):
    """There is no study of this name."""

    def __init__(self) -> None:
        super().__init__("there is no such study.")


class WrongState(BlindstepError):
    """The study is over, or is not paused, or is paused already."""


class Studies:
    """All studies of a database, as one worker sees them. Threads may share it.

    Attributes:
        database: where they are.
        secrets: the keys.
    """

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self.database, self.secrets = database, secrets
        self._designs: dict[int, Design] = {}
        self._steps: dict[int, Step] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._loading = threading.RLock()

    # -- making and changing --------------------------------------------------------------------

    def create(self, spec: StudySpec) -> str:
        """Make a study that runs from now on, and give its id.

        It is registered in its cohort's ledger in the same transaction. One that does not fit into
        the cohort's budget as a whole is refused, and nobody is asked.
        """
        plan, study, public = spec.plan(), random.token_hex(8), new_public_key()
        check_delta(plan.privacy, plan.records)
        # What is stored must be readable: a plan at the end of what numbers can say may not be.
        Design(spec, Plan.from_json(plan.to_json()), public, new_attempt())
        for _ in range(_TRIES):
            # Two studies that are made in one cohort at a time: the ledger's key lets one of them pass.
            with contextlib.suppress(IntegrityError), self.database.begin() as connection:
                self._insert(connection, spec, plan, study, public)
                return study
        raise WrongState("many studies are being made in this cohort at the same time: try again.")

    def _insert(
        self, connection: Connection, spec: StudySpec, plan: Plan, study: str, public: str
    ) -> None:
        budget = None
        if spec.budget_epsilon is not None:
            budget = Privacy(epsilon=spec.budget_epsilon, delta=plan.delta).mu
        cohort = spec.cohort or f"people of study {study}"
        ledger = open_ledger(connection, cohort, budget)
        run = Run(study, cohort, new_attempt(), plan)
        identity = run.identity(ledger, self.secrets)
        require_room(connection, ledger.account, identity)
        ledger.register(identity)
        now = self.database.now(connection)
        connection.execute(
            sa.insert(schema.studies).values(
                id=study,
                name=spec.name,
                spec=spec.model_dump_json(),
                plan=plan.to_json(),
                cohort=cohort,
                public_key=public,
                attempt=run.attempt,
                made_on=datetime.now(UTC).date().isoformat(),
                slots=plan.first_batch,
                status="running",
                release=0,
                frozen=0,
                taken=0,
                answered=0,
                early=int(spec.close == "full"),
                deadline=now + spec.deadline_seconds,
            )
        )

    def pause(self, study: str) -> None:
        """Ask nobody new and hold the deadline. Answers to what was shown are still taken."""
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("running",))
            left = max(0.0, row["deadline"] - self.database.now(connection))
            self._set(connection, row, status="paused", remaining=left)

    def resume(self, study: str) -> None:
        """Go on: the step has as long as it had when the study was paused."""
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("paused",))
            deadline = self.database.now(connection) + row["remaining"]
            self._set(connection, row, status="running", remaining=None, deadline=deadline)

    def close(self, study: str) -> None:
        """End a study for good. Votes of its open step are deleted and enter nothing."""
        with self.database.begin() as connection:
            row = self._locked(connection, study, ("running", "paused"))
            end(connection, row["number"], "closed")

    def _locked(self, connection: Connection, study: str, allowed: Sequence[str]) -> Row:
        row = self.database.locked(connection, self._find(connection, study)["number"])
        assert row is not None
        if row["status"] not in allowed:
            raise WrongState(f"the study is {row['status']}: it must be {' or '.join(allowed)}.")
        return row

    def _set(self, connection: Connection, row: Row, **values: Any) -> None:
        chosen = schema.studies.c.number == row["number"]
        connection.execute(sa.update(schema.studies).where(chosen).values(**values))

    # -- looking --------------------------------------------------------------------------------

    def _find(self, connection: Connection, study: str) -> Row:
        chosen = sa.select(schema.studies).where(schema.studies.c.id == study)
        row = connection.execute(chosen).mappings().first()
        if row is None:
            raise NoSuchStudy
        return row

    def known_number(self, study: str) -> int | None:
        """The number of a study if it is in memory already."""
        return self._numbers.get(study)

    def number(self, study: str) -> int:
        """The number of a study in the tables; it never changes, so it is looked up once."""
        known = self._numbers.get(study)
        if known is None:
            with self.database.read() as connection:
                known = self._find(connection, study)["number"]
            self._numbers[study] = known
        return known

    def name(self, number: int) -> str | None:
        """The id of the study with this number; None if there is none."""
        known = self._names.get(number)
        if known is not None or not 0 < number <= _MOST_STUDIES:
            return known
        with self.database.read() as connection:
            chosen = sa.select(schema.studies.c.id).where(schema.studies.c.number == number)
            study = connection.execute(chosen).scalar()
        if study is not None:
            self._names[number] = study
        return study

    def all(self) -> list[Row]:
        """Every study's row, the newest first."""
        with self.database.read() as connection:
            chosen = sa.select(schema.studies).order_by(schema.studies.c.number.desc())
            return list(connection.execute(chosen).mappings().all())

    def row(self, study: str) -> Row:
        """A study's row."""
        with self.database.read() as connection:
            return self._find(connection, study)

    def history(self, number: int) -> list[dict[str, Any]]:
        """What each release made public, with how many were asked and how many answers came."""
        with self.database.read() as connection:
            chosen = sa.select(schema.releases).where(schema.releases.c.study == number)
            rows = connection.execute(chosen.order_by(schema.releases.c.release)).mappings().all()
        return [
            json.loads(row["outcome"]) | {"shown": row["shown"], "answered": row["answered"]}
            for row in rows
        ]

    def account(self, cohort: str) -> Account:
        """What a cohort's ledger says."""
        with self.database.read() as connection:
            return read_account(connection, cohort)

    def traffic(self, number: int, hours: int = 48) -> list[tuple[int, int, int]]:
        """(hour since 1970, questions, answers) of the last so many hours with any."""
        with self.database.read() as connection:
            columns = schema.traffic.c
            chosen = sa.select(columns.hour, columns.questions, columns.answers)
            chosen = chosen.where(columns.study == number).order_by(columns.hour.desc())
            rows = connection.execute(chosen.limit(hours)).all()
        return [(row.hour, row.questions, row.answers) for row in reversed(rows)]

    # -- what a worker keeps --------------------------------------------------------------------

    def known(self, number: int) -> Design | None:
        """The mathematics of a study if it is in memory already."""
        return self._designs.get(number)

    def design(self, number: int) -> Design:
        """The mathematics of a study: made once, since it never changes."""
        with self._loading:
            known = self._designs.get(number)
            if known is None:
                with self.database.read() as connection:
                    chosen = sa.select(schema.studies).where(schema.studies.c.number == number)
                    row = connection.execute(chosen).mappings().first()
                if row is None:
                    raise NoSuchStudy
                spec = StudySpec.model_validate_json(row["spec"])
                plan = Plan.from_json(row["plan"])
                known = Design(spec, plan, row["public_key"], row["attempt"])
                self._designs[number] = known
            return known

    def step(self, row: Row) -> Step:
        """The questions of a study's open step: kept until the next one is open."""
        with self._loading:
            known = self._steps.get(row["number"])
            if known is None or known.release != row["release"]:
                number, release = row["number"], row["release"]
                state, parameters = self.snapshot(number, release)
                known = self.design(number).step(release, state, parameters)
                self._steps[number] = known
            return known

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


def end(connection: Connection, number: int, status: str) -> None:
    """End a study for good. What was released stays."""
    ended = {"status": status, "frozen": 0, "salt": None, "remaining": None}
    chosen = schema.studies.c.number == number
    connection.execute(sa.update(schema.studies).where(chosen).values(**ended))
    forget_people(connection, number)


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
