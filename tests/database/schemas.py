"""Schemas of a database, read and written as the programs of their time left them."""

import sqlalchemy as sa
from alembic import command
from alembic.runtime.migration import MigrationContext

from headway.core.catalog import CatalogEntry
from headway.database import catalog as catalog_module
from headway.database import migrate as migrate_module
from headway.database import schema
from headway.database.connection import open_engine

NEWEST = "0002"


def revision_of(url: str) -> str | None:
    with open_engine(url).begin() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def write_first_schema(url: str) -> None:
    """A catalog as the first program left it: a watched entry, and another with a history."""
    with open_engine(url).begin() as connection:
        config = migrate_module._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        columns = list(schema.entries.c)
        for id_, version, is_watched in (("watched", "", True), ("m", "1", False), ("m", "2", False)):
            entry = CatalogEntry(id=id_, version=version, source="/models/x", is_watched=is_watched)
            row = catalog_module._to_row(entry)
            connection.execute(sa.insert(schema.entries).values({column.name: row[column.name] for column in columns}))
        for id_, version in (("watched", ""), ("m", "1"), ("m", "2")):
            connection.execute(sa.insert(schema.default_versions).values(id=id_, version=version))
