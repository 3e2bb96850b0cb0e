"""The transaction in which people are asked and answer, in the database driver's own words.

A vote is one of a thousand a second, and SQLAlchemy costs more for each of its five statements than
the statement does. So this one transaction, and no other, is written by hand: two round trips to
PostgreSQL, as text of several statements, which also passes through PgBouncer. All that is put into the
text is whole numbers and bytes in hexadecimal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from blindstep.serve.database import ADVISORY_LOCK, GUARDS, Database
from blindstep.serve.schema import Row

# A vote's row: person, part, and the sealed value.
Given = tuple[bytes, int, bytes]
_ROW = ("number", "id", "status", "release", "frozen")
_STUDY = f"SELECT {', '.join(_ROW)} FROM studies WHERE number = "


class Turn(Protocol):
    """One transaction on one study, which nobody changes before it ends; many may have one at a time.

    `row` is what a vote must know of the study; `known`, of the people it was opened for, says who was
    asked before and in which step.
    """

    @property
    def row(self) -> Row:  # noqa: D102
        ...

    @property
    def known(self) -> Mapping[bytes, int]:  # noqa: D102
        ...

    def given(self, people: Sequence[bytes]) -> set[tuple[bytes, int]]:
        """Which questions of the open step these people have answered."""
        ...

    def commit(self, asked: Sequence[bytes], votes: Sequence[Given]) -> None:
        """Write down who is asked in the open step, and votes; what is there already stays. Commit."""
        ...


@contextlib.contextmanager
def turn(database: Database, number: int, people: Sequence[bytes]) -> Iterator[Turn]:
    """A turn for these people. It is durable when `commit` returns; without it nothing has happened."""
    with contextlib.ExitStack() as held:
        held.enter_context(database.turn())
        fairy = database.engine.raw_connection()
        driver: Any = fairy.driver_connection
        try:
            kind = _OnSqlite if database.kind == "sqlite" else _OnPostgresql
            yield kind(driver, number, people)
        except BaseException:
            with contextlib.suppress(Exception):
                driver.rollback()
            raise
        finally:
            if database.kind != "sqlite":
                with contextlib.suppress(Exception):  # of a connection that is gone
                    driver.autocommit = False
            if getattr(driver, "closed", False):
                fairy.invalidate()
            else:
                fairy.close()


class _OnSqlite:
    """A turn on SQLite, which has one writer at a time: nobody else writes before it ends."""

    def __init__(self, driver: Any, number: int, people: Sequence[bytes]) -> None:
        self._run, self._many, self._number = driver.execute, driver.executemany, number
        self._run("BEGIN IMMEDIATE")
        found = self._run(f"{_STUDY}?", (number,)).fetchone()
        self.row = dict(zip(_ROW, found, strict=True))
        self.known: dict[bytes, int] = {}
        for person in people:
            sought = "SELECT release FROM asked WHERE study = ? AND person = ?"
            if (one := self._run(sought, (number, person)).fetchone()) is not None:
                self.known[person] = one[0]

    def given(self, people: Sequence[bytes]) -> set[tuple[bytes, int]]:
        """Which questions of the open step these people have answered."""
        sought = "SELECT part FROM votes WHERE study = ? AND release = ? AND person = ?"
        at = (self._number, self.row["release"])
        return {(p, part) for p in people for (part,) in self._run(sought, (*at, p)).fetchall()}

    def commit(self, asked: Sequence[bytes], votes: Sequence[Given]) -> None:
        """Write and commit."""
        study, release = self._number, self.row["release"]
        put = "INSERT INTO {} ON CONFLICT DO NOTHING"
        if votes:
            rows = [(study, release, *vote) for vote in votes]
            columns = "votes (study, release, person, part, sealed) VALUES (?, ?, ?, ?, ?)"
            self._many(put.format(columns), rows)
        if asked:
            rows = [(study, person, release) for person in asked]
            self._many(put.format("asked (study, person, release) VALUES (?, ?, ?)"), rows)
        self._run("COMMIT")


class _OnPostgresql:
    """A turn on PostgreSQL: all that it asks for is sent at once, and so is all that it stores."""

    def __init__(self, driver: Any, number: int, people: Sequence[bytes]) -> None:
        driver.autocommit = True  # it says itself where its transaction begins and ends
        self._cursor, self._number = driver.cursor(), number
        self._cursor.execute(
            f"BEGIN; SELECT {GUARDS}, pg_advisory_xact_lock_shared({ADVISORY_LOCK}, {number}); "
            f"{_STUDY}{number}; SELECT person, release FROM asked "
            f"WHERE study = {number} AND person IN ({_listed(people)})"
        )
        for _ in range(2):
            self._cursor.nextset()
        self.row = dict(zip(_ROW, self._cursor.fetchone(), strict=True))
        self._cursor.nextset()
        self.known = {bytes(person): release for person, release in self._cursor.fetchall()}

    def given(self, people: Sequence[bytes]) -> set[tuple[bytes, int]]:
        """Which questions of the open step these people have answered."""
        self._cursor.execute(
            f"SELECT person, part FROM votes WHERE study = {self._number} "
            f"AND release = {self.row['release']} AND person IN ({_listed(people)})"
        )
        return {(bytes(person), part) for person, part in self._cursor.fetchall()}

    def commit(self, asked: Sequence[bytes], votes: Sequence[Given]) -> None:
        """Write and commit."""
        study, release, said = self._number, self.row["release"], []
        if votes:
            rows = ", ".join(
                f"({study}, {release}, {_hex(person)}, {part}, {_hex(sealed)})"
                for person, part, sealed in votes
            )
            said.append(
                f"INSERT INTO votes (study, release, person, part, sealed) VALUES {rows} "
                "ON CONFLICT DO NOTHING; "
            )
        if asked:
            rows = ", ".join(f"({study}, {_hex(person)}, {release})" for person in asked)
            said.append(
                f"INSERT INTO asked (study, person, release) VALUES {rows} ON CONFLICT DO NOTHING; "
            )
        self._cursor.execute("".join(said) + "COMMIT")


def _hex(content: bytes) -> str:
    return f"'\\x{content.hex()}'::bytea"


def _listed(people: Sequence[bytes]) -> str:
    return ", ".join(map(_hex, people)) or "NULL"
