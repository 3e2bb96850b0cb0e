"""The database of a service: SQLite in one file, or PostgreSQL. Workers meet nowhere else.

Every change is made by `Database.begin`: one transaction, durable when it returns. What changes a study
locks it first (`locked`), and so waits for those who ask and answer, who share it (`shared`). SQLite
has one writer at a time, so there BEGIN IMMEDIATE is that lock; its journal is a write-ahead log, so
that readers never wait.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.ledger.files import taking_turns
from blindstep.serve import schema
from blindstep.serve.keys import Secrets
from blindstep.serve.schema import Row

# Seconds that a writer waits for another one before it gives up.
_PATIENCE = 10.0
# Seconds after which PostgreSQL ends a transaction whose host says nothing: one that was stopped, or
# cut off, would keep its locks, and keep everybody else waiting.
_IDLE = 2.0
# A connection whose other end is gone is found dead within seconds, not hours.
_KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": int(1000 * _PATIENCE),
}
_ADVISORY_LOCK = 0x626C696E  # workers that start together migrate one after the other


class SchemaUnknown(BlindstepError):
    """The database is of another version of blindstep, or of something else."""


class Database:
    """An engine with the few statements that differ between SQLite and PostgreSQL."""

    def __init__(self, url: str, *, connections: int = 4) -> None:
        """Nothing is opened before it is needed. `url` is sqlite:///PATH or postgresql://..."""
        try:
            address = sa.make_url(url)
        except (ArgumentError, ValueError):
            raise InvalidArgument(
                "the database's address cannot be read: give sqlite:///PATH or "
                "postgresql://USER@HOST/NAME."
            ) from None
        if address.drivername in ("postgresql", "postgres"):
            address = address.set(drivername="postgresql+psycopg")
        self.kind = address.get_backend_name()
        if self.kind not in ("sqlite", "postgresql"):
            raise InvalidArgument(
                f"a database of kind {self.kind!r}: give sqlite:///PATH or postgresql://..."
            )
        connect: dict[str, Any] = {"timeout": _PATIENCE, "check_same_thread": False}
        if self.kind == "postgresql":
            # A prepared statement keeps the plan that was made for it, perhaps while a table was
            # small, and would go by the wrong index when it has millions of rows.
            connect = {"connect_timeout": 5, "prepare_threshold": None, **_KEEPALIVES}
        pool = {"pool_size": connections, "max_overflow": 2}
        try:
            # An error of the database must not repeat what a statement was given.
            self.engine: Engine = sa.create_engine(
                address, connect_args=connect, hide_parameters=True, **pool
            )
        except ModuleNotFoundError as error:
            raise InvalidArgument(
                f"PostgreSQL needs its driver ({error.name}): pip install 'blindstep[postgres]'."
            ) from None
        file = address.database if self.kind == "sqlite" else None
        self._file = None if file in (None, "", ":memory:") else file
        if self.kind == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            event.listen(self.engine, "connect", _prepare_postgresql)

    # -- transactions ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that writes. It is durable when this returns, or it has not happened."""
        with (
            self._turn(),
            self.engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for one's turn to write to an SQLite file.

        SQLite itself waits by sleeping, up to 100 ms at a time; a lock on a file beside it is found
        free within one. The writer that waits in front holds a second lock, so that a busy worker
        cannot take turn after turn. Both are there for speed alone: BEGIN IMMEDIATE is what keeps
        writers apart, and a writer that has waited too long goes on to it.
        """
        with contextlib.ExitStack() as held:
            if self._file is not None:
                with taking_turns(f"{self._file}-turn-next", _PATIENCE):
                    held.enter_context(taking_turns(f"{self._file}-turn", _PATIENCE))
            yield

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads; it waits for nobody."""
        with self.engine.connect() as connection:
            yield connection

    def locked(self, connection: Connection, number: int) -> Row | None:
        """The row of a study, which nobody else can change or share before this transaction ends."""
        if self.kind == "postgresql":
            connection.execute(_ALONE, {"number": number})
        return connection.execute(_STUDY, {"number": number}).mappings().first()

    def working(self, connection: Connection, seconds: float) -> None:
        """Let this transaction pause for so many seconds more: it computes between two statements."""
        if self.kind == "postgresql":
            longest = int(1000 * (_IDLE + seconds))
            connection.execute(
                sa.text(f"SET LOCAL idle_in_transaction_session_timeout = {longest}")
            )

    def shared(self, connection: Connection, number: int) -> Row:
        """The row of a study, which nobody can change before this transaction ends; many may share it.

        A lock on the row would do, but a stream of those who share one keeps out who wants it alone.
        """
        if self.kind == "postgresql":
            connection.execute(_TOGETHER, {"number": number})
        return connection.execute(_STUDY, {"number": number}).mappings().one()

    def forget(self) -> bool:
        """Remove from SQLite's write-ahead log what was deleted; says whether nobody was in the way.

        `secure_delete` overwrites the pages of the database, and only there: the log holds each page as
        it was, until it is cut off. PostgreSQL keeps its own for as long as it is told to.
        """
        if self.kind != "sqlite":
            return True
        with self._turn(), self.engine.connect().execution_options(outside=True) as connection:
            # Who reads is waited for, and writers wait meanwhile: not for long.
            connection.exec_driver_sql("PRAGMA busy_timeout=100")
            busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(1000 * _PATIENCE)}")
        return not busy

    def now(self, connection: Connection) -> float:
        """Seconds since 1970, by one clock for all workers where there is one: the database's."""
        if self.kind == "sqlite":
            return time.time()
        return float(connection.execute(_CLOCK).scalar_one())

    def insert_new(self, table: sa.Table) -> Any:
        """An INSERT that leaves alone what is there already, without an error."""
        dialect = sqlite if self.kind == "sqlite" else postgresql
        return dialect.insert(table).on_conflict_do_nothing()

    def add_to(
        self, connection: Connection, table: sa.Table, key: Mapping[str, Any], by: Mapping[str, int]
    ) -> None:
        """Add to the counts of a row; a row that is not there begins at 0."""
        dialect = sqlite if self.kind == "sqlite" else postgresql
        row = dialect.insert(table).values(**key, **by)
        more = {name: table.c[name] + value for name, value in by.items()}
        connection.execute(row.on_conflict_do_update(index_elements=list(key), set_=more))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what a database says of itself when it is first used into one line for an operator."""
        try:
            yield
        except (DatabaseError, OSError) as error:
            said = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise InvalidArgument(
                f"the database cannot be used ({said}): see that it is there, that it is of this "
                "service, and that you may write to it."
            ) from None

    # -- the schema -----------------------------------------------------------------------------

    def revision(self) -> str | None:
        """The Alembic revision of the tables; None for an empty database."""
        with self.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def migrate(self) -> None:
        """Bring an empty or older database to this version's schema; an unknown one is refused.

        A file that is made here is for its owner alone, and so are those that SQLite puts beside it.
        """
        if self._file is not None:
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        with self.begin() as connection:
            if self.kind == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            found = MigrationContext.configure(connection).get_current_revision()
            if found is None and sa.inspect(connection).get_table_names():
                raise SchemaUnknown(
                    "the database has tables that are not this service's: give an empty one."
                )
            if found not in (None, schema.REVISION, *_EARLIER):
                raise _unknown(found)
            config = Config()
            config.set_main_option("script_location", str(files("blindstep.serve") / "migrations"))
            config.attributes["connection"] = connection
            command.upgrade(config, schema.REVISION)
        self.forget()

    def check(self, secrets: Secrets) -> None:
        """Refuse a schema that this version does not know, and a key that is not the database's."""
        found = self.revision()
        if found != schema.REVISION:
            raise _unknown(found)
        if self._key_name() is None:  # a new one: from now on it belongs to this key
            with self.begin() as connection:
                new = self.insert_new(schema.settings)
                connection.execute(new.values(name="key", value=secrets.name))
        if self._key_name() != secrets.name:
            raise InvalidArgument(
                "the key does not belong to this database: start with the key file that was made "
                "with it, or with another database."
            )

    def _key_name(self) -> str | None:
        chosen = sa.select(schema.settings.c.value).where(schema.settings.c.name == "key")
        with self.read() as connection:
            return connection.execute(chosen).scalar()


_EARLIER: tuple[str, ...] = ("0001",)  # revisions that `migrate` can start from
_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp())")
_STUDY = sa.select(schema.studies).where(schema.studies.c.number == sa.bindparam("number"))
# Locks of PostgreSQL that end with their transaction, and for which all wait in one line.
_LOCK = f"SELECT pg_advisory_xact_lock%s({_ADVISORY_LOCK}, :number)"
_ALONE, _TOGETHER = sa.text(_LOCK % ""), sa.text(_LOCK % "_shared")


def _unknown(found: str | None) -> SchemaUnknown:
    return SchemaUnknown(
        f"the database has schema {found or 'none'}, this version of blindstep has "
        f"{schema.REVISION}: run `blindstep serve migrate` with the newest version that serves it."
    )


def is_passing(error: Exception) -> bool:
    """Whether a statement failed because the database was away, locked or full: try again later."""
    return isinstance(error, OperationalError) or bool(
        getattr(error, "connection_invalidated", False)
    )


def _prepare_sqlite(connection: Any, _: Any) -> None:
    # Transactions begin where `_begin_sqlite` says, not where the driver guesses.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",  # what was acknowledged survives a power cut
        "foreign_keys=ON",
        "secure_delete=ON",  # votes that were deleted are overwritten
        f"busy_timeout={int(1000 * _PATIENCE)}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _prepare_postgresql(connection: Any, _: Any) -> None:
    # Said once connected: PgBouncer refuses it as an option of the connection.
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(1000 * _PATIENCE)}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {int(1000 * _IDLE)}")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("outside", False):  # of a transaction
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("writes", False) else "BEGIN")
