"""Sessions of the dashboard, and names in the audit log. Nothing that is there is changed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table and the column."""
    op.create_table(
        "sessions",
        sa.Column("hash", sa.LargeBinary(32), primary_key=True),
        sa.Column("who", sa.String(16), nullable=False),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("token", sa.String(16)),
        sa.Column("until", sa.Float, nullable=False),
    )
    op.add_column("audit", sa.Column("label", sa.String(100)))
