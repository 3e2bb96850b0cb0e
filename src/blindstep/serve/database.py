"""The database of a service: SQLite in one file, or PostgreSQL. Workers meet nowhere else.

Every change is made by `Database.begin`: one transaction, durable when it returns. What changes a study
locks it first (`locked`), and so waits for those who ask and answer, who share it (`turns`). SQLite
has one writer at a time, so there BEGIN IMMEDIATE is that lock; its journal is a write-ahead log, so
that readers never wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
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
from sqlalchemy.exc import ArgumentError, DatabaseError

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
# Said in each transaction, for this transaction alone.
GUARDS = (
    f"set_config('lock_timeout', '{int(1000 * _PATIENCE)}', true), "
    f"set_config('idle_in_transaction_session_timeout', '{int(1000 * _IDLE)}', true)"
)
ADVISORY_LOCK = 0x626C696E  # workers that start together migrate one after the other


class SchemaUnknown(BlindstepError):
    """The database is of another version of blindstep, or of something else."""


class Database:
    """An engine with the few statements that differ between SQLite and PostgreSQL."""

    def __init__(self, url: str, *, connections: int = 12) -> None:
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
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": _PATIENCE}
        try:
            # An error of the database must not repeat what a statement was given.
            self.engine: Engine = sa.create_engine(
                address, connect_args=connect, hide_parameters=True, **pool
            )
        except ModuleNotFoundError as error:
            raise InvalidArgument(
                f"PostgreSQL needs its driver ({error.name}): pip install '.[postgres]' in a copy "
                "of the repository."
            ) from None
        file = address.database if self.kind == "sqlite" else None
        self._file = None if file in (None, "", ":memory:") else file
        if self.kind == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            event.listen(self.engine, "begin", _begin_postgresql)

    # -- transactions ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that writes. It is durable when this returns, or it has not happened."""
        with (
            self.turn(),
            self.engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
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

    def locked(
        self, connection: Connection, number: int, *, patience: float = _PATIENCE
    ) -> Row | None:
        """The row of a study, which nobody else can change or share before this transaction ends."""
        if self.kind == "postgresql":
            waited = {"number": number, "patience": str(int(1000 * patience))}
            connection.execute(_ALONE, waited)
        return connection.execute(_STUDY, {"number": number}).mappings().first()

    @contextlib.contextmanager
    def working(self, connection: Connection) -> Iterator[None]:
        """Say a word in this transaction now and then, while something is computed.

        So PostgreSQL does not take it for that of a host that has stopped; and if the host does stop,
        the words do too.
        """
        if self.kind != "postgresql":
            yield
            return
        ended, driver = threading.Event(), connection.connection.driver_connection
        assert driver is not None

        def say() -> None:
            while not ended.wait(_IDLE / 4):
                with contextlib.suppress(
                    Exception
                ):  # what is wrong, the transaction itself finds out
                    driver.execute("SELECT 1")

        saying = threading.Thread(target=say, name="blindstep-working", daemon=True)
        saying.start()
        try:
            yield
        finally:
            ended.set()
            saying.join()

    def forget(self) -> bool:
        """Remove from SQLite's write-ahead log what was deleted; says whether nobody was in the way.

        `secure_delete` overwrites the pages of the database, and only there: the log holds each page as
        it was, until it is cut off. PostgreSQL keeps its own for as long as it is told to.
        """
        if self.kind != "sqlite":
            return True
        with self.turn(), self.engine.connect().execution_options(outside=True) as connection:
            # Who reads is waited for, and writers wait meanwhile: not for long.
            connection.exec_driver_sql("PRAGMA busy_timeout=100")
            busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(1000 * _PATIENCE)}")
        return not busy

    def try_to_write(self) -> None:
        """Write something, durably: a database on a full disk can be read and says nothing."""
        with self.begin() as connection:
            _put(self, connection, "written", str(time.time()))

    def now(self, connection: Connection) -> float:
        """Seconds since 1970, by one clock for all workers where there is one: the database's."""
        return float(connection.execute(sa.select(self.clock())).scalar_one())

    def clock(self) -> sa.Label[float]:
        """What `now` reads, as a column."""
        if self.kind == "sqlite":
            return sa.literal(time.time()).label("now")
        return sa.literal_column(_CLOCK).label("now")

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

    def is_empty(self) -> bool:
        """Whether nothing was ever stored here."""
        if self._file is not None and not os.path.exists(self._file):
            return True
        with self.engine.connect() as connection:
            return not sa.inspect(connection).get_table_names()

    def migrate(self) -> None:
        """Bring an empty or older database to this version's schema; an unknown one is refused.

        A file that is made here is for its owner alone, and so are those that SQLite puts beside it.
        """
        if self._file is not None:
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        with self.begin() as connection:
            if self.kind == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
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
            _put(self, connection, "serves_from", f"{schema.REVISION} {schema.SERVES_FROM}")
        self.forget()

    def check(self, secrets: Secrets) -> None:
        """Refuse a schema that this version does not know, and a key that is not the database's."""
        found = self.revision()
        if found is None or not _serves(found, self._setting("serves_from")):
            raise _unknown(found)
        if self._setting("key") is None:  # a new one: from now on it belongs to this key
            with self.begin() as connection:
                new = self.insert_new(schema.settings)
                connection.execute(new.values(name="key", value=secrets.name))
        if self._setting("key") != secrets.name:
            raise InvalidArgument(
                "the key does not belong to this database: start with the key file that was made "
                "with it, or with another database."
            )

    def belongs_to(self, secrets: Secrets) -> str:
        """What is wrong with schema and key, or nothing: asked every second, in one statement."""
        with self.read() as connection:
            found = connection.execute(_REVISION_AND_KEY).first()
        if found is None or not _serves(found.version_num, found.serves_from):
            return "the database has another schema"
        return "" if found.key == secrets.name else "the key is not the database's"

    def _setting(self, name: str) -> str | None:
        chosen = sa.select(schema.settings.c.value).where(schema.settings.c.name == name)
        with self.read() as connection:
            return connection.execute(chosen).scalar()


_EARLIER: tuple[str, ...] = ("0001", "0002", "0003")  # revisions that `migrate` can start from
_CLOCK = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
_REVISION_AND_KEY = sa.text(
    "SELECT version_num, (SELECT value FROM settings WHERE name = 'key') AS key, "
    "(SELECT value FROM settings WHERE name = 'serves_from') AS serves_from FROM alembic_version"
)
_STUDY = sa.select(schema.studies).where(schema.studies.c.number == sa.bindparam("number"))
# A lock of PostgreSQL that ends with its transaction, and for which all wait in one line. (A lock on
# the study's row would do, but a stream of those who share one keeps out who wants it alone.)
_ALONE = sa.text(
    "SELECT set_config('lock_timeout', :patience, true), "
    f"pg_advisory_xact_lock({ADVISORY_LOCK}, :number)"
)


def _serves(found: str, serves_from: str | None) -> bool:
    """Whether this version can work on these tables: its own, or later ones that allow it."""
    if found == schema.REVISION:
        return True
    revision, _, oldest = (serves_from or "").partition(" ")
    return found == revision and found > schema.REVISION >= oldest > ""


def _put(database: Database, connection: Connection, name: str, value: str) -> None:
    """Write a setting, whether it is there or not."""
    dialect = sqlite if database.kind == "sqlite" else postgresql
    made = dialect.insert(schema.settings).values(name=name, value=value)
    connection.execute(made.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def _unknown(found: str | None) -> SchemaUnknown:
    return SchemaUnknown(
        f"the database has schema {found or 'none'}, this version of blindstep has "
        f"{schema.REVISION}: run `blindstep serve migrate` with the newest version that serves it."
    )


def is_passing(error: Exception) -> bool:
    """Whether a statement failed because the database was away, locked or full: try again later."""
    # SQLAlchemy's own, or the driver's, which has the same name in all drivers.
    names = {kind.__name__ for kind in type(error).__mro__}
    return "OperationalError" in names or bool(getattr(error, "connection_invalidated", False))


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


def _begin_postgresql(connection: Connection) -> None:
    # In each transaction: of a session PgBouncer lends each transaction another one, and it refuses
    # these as options of a connection.
    connection.exec_driver_sql(f"SELECT {GUARDS}")


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("outside", False):  # of a transaction
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("writes", False) else "BEGIN")
