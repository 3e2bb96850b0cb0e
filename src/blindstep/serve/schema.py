"""The tables of a service. What is secret in them is a keyed hash or sealed (`keys`).

A person is in `asked` once in a study; that is the primary key, so the database itself keeps a person
from answering in two steps. A vote is in `votes` once, by its address, until its step is released.
Nothing is counted. Everything else is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Float, Integer, LargeBinary, String, Table, Text

# A row of a table, by the names of its columns.
Row = Mapping[Any, Any]
# The Alembic revision that these tables are.
REVISION = "0004"
# The oldest revision whose programs can go on with these tables while they are replaced one by one. It
# is written into the database with the revision. A migration that only adds leaves it as it is.
SERVES_FROM = "0002"

metadata = sa.MetaData()


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _of_study() -> Column[Any]:
    return Column("study", Integer, sa.ForeignKey("studies.number"), primary_key=True)


settings = Table(
    "settings",
    metadata,
    Column("name", String(40), primary_key=True),
    _required("value", Text),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("hash", LargeBinary(32), nullable=False, unique=True),
    _required("scope", String(8)),  # "admin", "viewer", "site" or "metrics"
    Column("study", String(32)),  # a site token's study
    _required("label", String(100)),
    _required("made_on", String(10)),
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", LargeBinary(32), primary_key=True),  # of the cookie
    _required("who", String(16)),  # a token's id, or what somebody of a provider is called here
    _required("scope", String(8)),  # "admin" or "viewer"
    _required("label", String(100)),
    Column("token", String(16)),  # the token that it ends with, if it was opened with one
    _required("until", Float),  # seconds since 1970
)

studies = Table(
    "studies",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(32), nullable=False, unique=True),
    _required("name", String(200)),
    _required("spec", Text),  # what the operator asked for, as JSON
    _required("plan", Text),  # what the planner made of it, as JSON
    _required("cohort", String(100)),  # whose ledger it is in
    _required("public_key", String(16)),  # in hexadecimal: directions and orders
    _required("attempt", String(16)),  # random; another one after a copy was restored
    _required("made_on", String(10)),
    _required("status", String(8)),  # "running", "paused", "closed" or "finished"
    _required("release", Integer),  # steps released, so the number of the open one
    _required("frozen", Integer),  # 1: no answer is taken any more, release it
    Column("salt", LargeBinary(16)),  # of the frozen step's noise; deleted with its votes
    _required("deadline", Float),  # when the open window ends, in seconds since 1970
    Column("remaining", Float),  # seconds to the deadline, while paused
    Column("holder", String(16)),  # the worker that releases the frozen step: no other one can
    Column("held_until", Float),  # when another worker may take it over
)

asked = Table(
    "asked",
    metadata,
    _of_study(),
    Column("person", LargeBinary(16), primary_key=True),  # a keyed hash
    _required("release", Integer),
    sqlite_with_rowid=False,
)

votes = Table(
    "votes",
    metadata,
    _of_study(),
    Column("release", Integer, primary_key=True),
    Column("person", LargeBinary(16), primary_key=True),
    Column("part", Integer, primary_key=True),
    _required("sealed", LargeBinary(28)),
    sqlite_with_rowid=False,
)

releases = Table(
    "releases",
    metadata,
    _of_study(),
    Column("release", Integer, primary_key=True),
    _required("state", Text),  # of the state machine after it, as JSON
    _required("outcome", Text),  # parameters, mean and norms, as JSON
)

ledger = Table(
    "ledger",
    metadata,
    Column("cohort", String(100), primary_key=True),
    Column("number", Integer, primary_key=True),
    _required("line", Text),  # sealed, and chained to the line before it
)

audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True),
    _required("at", Float),  # seconds since 1970
    _required("who", String(16)),  # of a session, a token's id, "command line" or "retention"
    _required("action", String(40)),
    Column("study", String(32)),
    _required("detail", Text),
    Column("label", String(100)),  # the name that went with `who`
)
