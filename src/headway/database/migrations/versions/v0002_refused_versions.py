"""Which versions of watched sources are not to be taken: they failed, or somebody rolled back from them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """One more table; what is there stays."""
    op.create_table(
        "refused_versions",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("entry_version", sa.String(100), nullable=False),
        sa.Column("stamp", sa.String(64), nullable=False),
        sa.Column("version", sa.String(200), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_refused_versions"),
        sa.ForeignKeyConstraint(
            ["id", "entry_version"],
            ["catalog_entries.id", "catalog_entries.version"],
            name="fk_refused_versions_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_refused_versions_id", "refused_versions", ["id"])


def downgrade() -> None:
    """They are forgotten."""
    op.drop_table("refused_versions")
