"""The tables of a service. What is secret in them is a keyed hash or sealed (`keys`).

A person is in `asked` once a pass; that is the primary key, so the database itself keeps a person from
answering twice. A vote is in `votes` once, by its address, until its step is released. Everything else
is public, or counts of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

# A row of a table, by the names of its columns.
Row = Mapping[Any, Any]
# The Alembic revision that these tables are: a database of another one is refused.
REVISION = "0001"

metadata = MetaData()

settings = Table(
    "settings",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("hash", LargeBinary(32), nullable=False, unique=True),
    Column("scope", String(8), nullable=False),  # "admin", "site" or "metrics"
    Column("study", String(32)),  # a site token's study
    Column("label", String(100), nullable=False),
    Column("made_on", String(10), nullable=False),
)

studies = Table(
    "studies",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("spec", Text, nullable=False),  # what the operator asked for, as JSON
    Column("plan", Text, nullable=False),  # what the planner made of it, as JSON
    Column("cohort", String(100), nullable=False),  # whose ledger it is in
    Column("public_key", String(16), nullable=False),  # in hexadecimal: directions and orders
    Column("attempt", String(16), nullable=False),  # random; another one after a copy was restored
    Column("made_on", String(10), nullable=False),
    Column("slots", Integer, nullable=False),  # of each step
    Column("status", String(8), nullable=False),  # "running", "paused", "closed" or "finished"
    Column("release", Integer, nullable=False),  # steps released, so the number of the open one
    Column("frozen", Integer, nullable=False),  # 1: no answer is taken any more, release it
    Column("salt", LargeBinary(16)),  # of the frozen step's noise; deleted with its votes
    Column("taken", Integer, nullable=False),  # slots shown in the open step
    Column("answered", Integer, nullable=False),  # answers in the open step; two fill a slot
    Column("early", Integer, nullable=False),  # 1: a step closes as soon as it is full
    Column("deadline", Float, nullable=False),  # of the open step, in seconds since 1970
    Column("remaining", Float),  # seconds to the deadline, while paused
)

asked = Table(
    "asked",
    metadata,
    Column("study", Integer, ForeignKey("studies.number"), primary_key=True),
    Column("turn", Integer, primary_key=True),  # the pass
    Column("person", LargeBinary(16), primary_key=True),  # a keyed hash
    Column("release", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    # Nor can a slot ever be two people's. The slot comes first, so that nobody looks for a person by
    # this index: with old statistics PostgreSQL would, and read all people of a study.
    Index("asked_slot", "slot", "release", "study", unique=True),
    sqlite_with_rowid=False,
)

votes = Table(
    "votes",
    metadata,
    Column("study", Integer, ForeignKey("studies.number"), primary_key=True),
    Column("release", Integer, primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("sealed", LargeBinary(28), nullable=False),
    sqlite_with_rowid=False,
)

releases = Table(
    "releases",
    metadata,
    Column("study", Integer, ForeignKey("studies.number"), primary_key=True),
    Column("release", Integer, primary_key=True),
    Column("state", Text, nullable=False),  # of the state machine after it, as JSON
    Column("outcome", Text, nullable=False),  # parameters, mean and norms, as JSON
    Column("shown", Integer, nullable=False),
    Column("answered", Integer, nullable=False),
)

ledger = Table(
    "ledger",
    metadata,
    Column("cohort", String(100), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("line", Text, nullable=False),  # sealed, and chained to the line before it
)

traffic = Table(
    "traffic",
    metadata,
    Column("study", Integer, ForeignKey("studies.number"), primary_key=True),
    Column("hour", BigInteger, primary_key=True),  # hours since 1970
    Column("questions", Integer, nullable=False),
    Column("answers", Integer, nullable=False),
)
