"""Every kind of ledger, behind one form: what tests of their contract go through."""

import pytest

from blindstep.ledger.ledger import cohort_of, read_ledger
from blindstep.serve import schema
from blindstep.serve.accounts import open_ledger as open_sql
from blindstep.serve.accounts import read_account
from blindstep.serve.database import Database
from storage_helpers import open_ledger


class FileLedger:
    """The ledger in a file, as seen by the contract."""

    def __init__(self, folder):
        self.path = folder / "ledger.jsonl"

    def open(self, **options):
        """The one writer of the ledger of 'people'."""
        return open_ledger(self.path, **options)

    def read(self):
        """The account as somebody else reads it now."""
        return read_ledger(self.path)

    def cohort(self):
        return cohort_of(self.path)

    def stored(self):
        """Everything that is stored: equal if and only if nothing was written."""
        return self.path.read_bytes()

    def close(self):
        """Nothing of it stays open: its writer has a `close` of its own."""


class SqlLedger:
    """The ledger of a cohort in a database: every call is a transaction of its own, as for a vote."""

    def __init__(self, folder):
        self.database = Database(f"sqlite:///{folder}/people.db")
        schema.metadata.create_all(self.database.engine)

    def open(self, *, cohort="people", budget=None, head=None):
        """One of many workers. A head is of no use: each transaction reads all lines again."""
        return SqlWorker(self, cohort, budget)

    def read(self):
        with self.database.read() as connection:
            return read_account(connection, "people")

    def cohort(self):
        return self.read().cohort

    def stored(self):
        with self.database.read() as connection:
            rows = connection.execute(schema.ledger.select().order_by(schema.ledger.c.number))
            return "".join(f"{row.line}\n" for row in rows).encode()

    def close(self):
        """Give its connections back: Python 3.13 warns of those that are forgotten."""
        self.database.close()


class SqlWorker:
    """What a worker does with a ledger: in each transaction it opens the ledger and registers again."""

    def __init__(self, people, cohort, budget):
        self._people, self._cohort, self._registered = people, cohort, {}
        with people.database.begin() as connection:
            self.head = open_sql(connection, cohort, budget).head

    def _within(self, do):
        with self._people.database.begin() as connection:
            ledger = open_sql(connection, self._cohort)
            done = do(ledger)
            self.head = ledger.head
        return done

    def name_of(self, key):
        return self._within(lambda ledger: ledger.name_of(key))

    def admit(self, identity, **options):
        self._within(lambda ledger: ledger.admit(identity, **options))

    def register(self, identity, **options):
        found = self._within(lambda ledger: ledger.register(identity, **options))
        self._registered[identity.run] = identity
        return found

    def begin(self, run, *steps, **options):
        def do(ledger):
            if run in self._registered:
                ledger.register(self._registered[run])
            ledger.begin(run, *steps, **options)

        self._within(do)

    @property
    def account(self):
        return _Now(self._people)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Its transactions are over."""


class _Now:
    """The account as it is whenever it is asked for something."""

    def __init__(self, people):
        self._people = people

    def __getattr__(self, name):
        return getattr(self._people.read(), name)


IMPLEMENTATIONS = [FileLedger, SqlLedger]


@pytest.fixture(params=IMPLEMENTATIONS, name="people")
def kinds_of_ledger(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()
