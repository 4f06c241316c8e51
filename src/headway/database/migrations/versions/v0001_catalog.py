"""The catalog: entries, their default versions, and the counter of changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "catalog_entries",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("version", sa.String(100), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("framework", sa.String(64), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("expected_bytes", sa.BigInteger),
        sa.Column("expected_load_s", sa.Float),
        sa.Column("measured_bytes", sa.BigInteger),
        sa.Column("measured_load_s", sa.Float),
        sa.Column("aliases", sa.JSON, nullable=False),
        sa.Column("presets", sa.JSON, nullable=False),
        sa.Column("is_pinned", sa.Boolean, nullable=False),
        sa.Column("idle_timeout_s", sa.Float),
        sa.Column("is_watched", sa.Boolean, nullable=False),
        sa.Column("interpreter", sa.Text),
        sa.Column("infer", sa.JSON, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", "version", name="pk_catalog_entries"),
    )
    op.create_table(
        "default_versions",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("version", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_default_versions"),
        sa.ForeignKeyConstraint(
            ["id", "version"],
            ["catalog_entries.id", "catalog_entries.version"],
            name="fk_default_versions_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_default_versions_id", "default_versions", ["id"])
    state = op.create_table(
        "catalog_state",
        sa.Column("row", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("num_changes", sa.BigInteger, nullable=False),
        sa.Column("written_by", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("row", name="pk_catalog_state"),
    )
    op.bulk_insert(state, [{"row": 1, "num_changes": 0, "written_by": ""}])


def downgrade() -> None:
    """Back to an empty database."""
    for table in ("catalog_state", "default_versions", "catalog_entries"):
        op.drop_table(table)
