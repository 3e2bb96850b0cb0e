"""The first tables. Written out: later changes of `schema` must not change what this one made."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _required(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _keys(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, primary_key=True) for name in names]


def _of_study() -> sa.Column[Any]:
    return sa.Column("study", sa.Integer, sa.ForeignKey("studies.number"), primary_key=True)


def upgrade() -> None:
    """Make all tables."""
    op.create_table("settings", *_keys(sa.String(40), "name"), *_required(sa.Text, "value"))
    op.create_table(
        "tokens",
        *_keys(sa.String(16), "id"),
        sa.Column("hash", sa.LargeBinary(32), nullable=False, unique=True),
        *_required(sa.String(8), "scope"),
        sa.Column("study", sa.String(32)),
        *_required(sa.String(100), "label"),
        *_required(sa.String(10), "made_on"),
    )
    op.create_table(
        "studies",
        *_keys(sa.Integer, "number"),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        *_required(sa.String(200), "name"),
        *_required(sa.Text, "spec", "plan"),
        *_required(sa.String(100), "cohort"),
        *_required(sa.String(16), "public_key", "attempt"),
        *_required(sa.String(10), "made_on"),
        *_required(sa.Integer, "slots"),
        *_required(sa.String(8), "status"),
        *_required(sa.Integer, "release", "frozen"),
        sa.Column("salt", sa.LargeBinary(16)),
        *_required(sa.Integer, "taken", "answered", "early"),
        *_required(sa.Float, "deadline"),
        sa.Column("remaining", sa.Float),
    )
    op.create_table(
        "asked",
        _of_study(),
        *_keys(sa.Integer, "turn"),
        *_keys(sa.LargeBinary(16), "person"),
        *_required(sa.Integer, "release", "slot"),
        sqlite_with_rowid=False,
    )
    op.create_index("asked_slot", "asked", ["slot", "release", "study"], unique=True)
    op.create_table(
        "votes",
        _of_study(),
        *_keys(sa.Integer, "release", "slot", "part"),
        *_required(sa.LargeBinary(28), "sealed"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "releases",
        _of_study(),
        *_keys(sa.Integer, "release"),
        *_required(sa.Text, "state", "outcome"),
        *_required(sa.Integer, "shown", "answered"),
    )
    ledger = [*_keys(sa.String(100), "cohort"), *_keys(sa.Integer, "number")]
    op.create_table("ledger", *ledger, *_required(sa.Text, "line"))
    traffic = [_of_study(), *_keys(sa.BigInteger, "hour")]
    op.create_table("traffic", *traffic, *_required(sa.Integer, "questions", "answers"))
