"""Runs migrations on the connection that database/migrate.py hands over, within its transaction."""

from alembic import context

from headway.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
