"""A step is a window of time: no slots, nothing counted, and a worker holds the step that it closes.

A study that is open ends here: its plan promises less about who takes part than a plan of windows does,
and its ledger holds it to that plan. What it released stays, and so do its ledger and its tokens; its
open votes, which nobody has seen, and the hashes of its people are deleted.

The plans of older studies are made anew from what their operators asked for, since only plans of this
version can be read: with the same people, steps and budget, and so the same epsilon.
"""

import json

import sqlalchemy as sa
from alembic import op

from blindstep.serve.spec import StudySpec

revision = "0002"
down_revision = "0001"


def _of_study() -> sa.Column[int]:
    return sa.Column("study", sa.Integer, sa.ForeignKey("studies.number"), primary_key=True)


def upgrade() -> None:
    """Change the tables, then the studies."""
    connection = op.get_bind()
    for table in ("votes", "asked", "traffic"):
        op.drop_table(table)
    op.create_table(
        "asked",
        _of_study(),
        sa.Column("person", sa.LargeBinary(16), primary_key=True),
        sa.Column("release", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "votes",
        _of_study(),
        sa.Column("release", sa.Integer, primary_key=True),
        sa.Column("person", sa.LargeBinary(16), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("sealed", sa.LargeBinary(28), nullable=False),
        sqlite_with_rowid=False,
    )
    for table, columns in (
        ("studies", ("slots", "taken", "answered", "early")),
        ("releases", ("shown", "answered")),
    ):
        for column in columns:
            op.drop_column(table, column)
    op.add_column("studies", sa.Column("holder", sa.String(16)))
    op.add_column("studies", sa.Column("held_until", sa.Float))
    rows = connection.execute(sa.text("SELECT number, spec FROM studies")).all()
    for number, spec in rows:
        asked = windowed(json.loads(spec))
        changed = {
            "number": number,
            "spec": asked.model_dump_json(),
            "plan": asked.plan().to_json(),
        }
        connection.execute(
            sa.text("UPDATE studies SET spec = :spec, plan = :plan WHERE number = :number"), changed
        )
    connection.execute(
        sa.text(
            "UPDATE studies SET status = 'closed', frozen = 0, salt = NULL, remaining = NULL "
            "WHERE status IN ('running', 'paused')"
        )
    )


def windowed(spec: dict[str, object]) -> StudySpec:
    """What an operator of 0.2 asked for, in the words of windows."""
    spec.pop("close", None)
    spec["people_per_step"] = spec.pop("slots", None)
    spec["window_seconds"] = max(1.0, float(str(spec.pop("deadline_seconds", 86_400.0))))
    return StudySpec.model_validate(spec)
