"""The tables, as the newest migration leaves them (a test compares the two).

catalog_entries   a row a version of a model; the columns are CatalogEntry's fields
default_versions  which versions each id meant, in order: the last row counts, those before it are the way back
refused_versions  what is not to be taken from watched sources; goes with its entry
catalog_state     one row: a counter that each change raises, which servers look at, and the program that wrote last
"""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(column_0_label)s",
    }
)

entries = sa.Table(
    "catalog_entries",
    metadata,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("version", sa.String(100), primary_key=True),
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
)

default_versions = sa.Table(
    "default_versions",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(200), nullable=False, index=True),
    sa.Column("version", sa.String(100), nullable=False),
    sa.ForeignKeyConstraint(["id", "version"], ["catalog_entries.id", "catalog_entries.version"], ondelete="CASCADE"),
)

refused_versions = sa.Table(
    "refused_versions",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(200), nullable=False, index=True),
    sa.Column("entry_version", sa.String(100), nullable=False),
    sa.Column("stamp", sa.String(64), nullable=False),
    sa.Column("version", sa.String(200), nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(
        ["id", "entry_version"], ["catalog_entries.id", "catalog_entries.version"], ondelete="CASCADE"
    ),
)

state = sa.Table(
    "catalog_state",
    metadata,
    sa.Column("row", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("num_changes", sa.BigInteger, nullable=False),
    sa.Column("written_by", sa.String(64), nullable=False),
)
