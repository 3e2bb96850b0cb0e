"""The first tables. Written out: later changes of `schema` must not change what this one made."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "settings",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("hash", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("study", sa.String(32)),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("made_on", sa.String(10), nullable=False),
    )
    op.create_table(
        "studies",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("cohort", sa.String(100), nullable=False),
        sa.Column("public_key", sa.String(16), nullable=False),
        sa.Column("attempt", sa.String(16), nullable=False),
        sa.Column("made_on", sa.String(10), nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("status", sa.String(8), nullable=False),
        sa.Column("release", sa.Integer, nullable=False),
        sa.Column("frozen", sa.Integer, nullable=False),
        sa.Column("salt", sa.LargeBinary(16)),
        sa.Column("taken", sa.Integer, nullable=False),
        sa.Column("answered", sa.Integer, nullable=False),
        sa.Column("early", sa.Integer, nullable=False),
        sa.Column("deadline", sa.Float, nullable=False),
        sa.Column("remaining", sa.Float),
    )
    study = ("study", sa.Integer, sa.ForeignKey("studies.number"))
    op.create_table(
        "asked",
        sa.Column(*study, primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True),
        sa.Column("person", sa.LargeBinary(16), primary_key=True),
        sa.Column("release", sa.Integer, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("asked_slot", "asked", ["slot", "release", "study"], unique=True)
    op.create_table(
        "votes",
        sa.Column("study", sa.Integer, sa.ForeignKey("studies.number"), primary_key=True),
        sa.Column("release", sa.Integer, primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("sealed", sa.LargeBinary(28), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "releases",
        sa.Column("study", sa.Integer, sa.ForeignKey("studies.number"), primary_key=True),
        sa.Column("release", sa.Integer, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("shown", sa.Integer, nullable=False),
        sa.Column("answered", sa.Integer, nullable=False),
    )
    op.create_table(
        "ledger",
        sa.Column("cohort", sa.String(100), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("line", sa.Text, nullable=False),
    )
    op.create_table(
        "traffic",
        sa.Column("study", sa.Integer, sa.ForeignKey("studies.number"), primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("questions", sa.Integer, nullable=False),
        sa.Column("answers", sa.Integer, nullable=False),
    )
