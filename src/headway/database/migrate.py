"""Brings a database to this program's schema: all of it or nothing, once, however many processes begin at a time.

    1. nothing to do                    return
    2. newer than this program          refused, with both versions
    3. older                            take the writers' lock, look again, copy a SQLite file beside itself, migrate

The lock is SQLite's own for writers, and an advisory one of PostgreSQL's; both databases change a schema within a
transaction, so that a process that dies on the way leaves what there was.
"""

import glob
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DatabaseError, OperationalError

import headway
from headway.database import schema
from headway.database.connection import reading, shown, sqlite_path
from headway.errors import InvalidConfig

_FOLDER = Path(__file__).parent / "migrations"
_LOCK_KEY = 0x6865_6164_7761_79  # "headway"


def migrate(engine: sa.Engine) -> None:
    """See the module. Raises InvalidConfig: a newer database, one that can not be reached, one that is no catalog."""
    try:
        script = ScriptDirectory.from_config(_config())
        with reading(engine).begin() as connection:
            if not _is_old(connection, script):
                return
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
            if _is_old(connection, script):
                _back_up(engine, connection)
                _upgrade(connection)
    except OperationalError as error:
        raise _refuse(f"the catalog at {shown(engine.url)} can not be reached: {_reason(error)}") from error
    except DatabaseError as error:
        raise _refuse(f"{shown(engine.url)} can not be used as a catalog: {_reason(error)}") from error


def _is_old(connection: sa.Connection, script: ScriptDirectory) -> bool:
    """Whether there is something to migrate. Raises InvalidConfig for what a newer program has written."""
    current, newest = _revision(connection), script.get_current_head()
    if current == newest:
        return False
    known = {revision.revision for revision in script.walk_revisions()}
    if current is not None and current not in known:
        raise _refuse(
            f"the catalog at {shown(connection.engine.url)} has schema {current}, written by Headway "
            f"{_written_by(connection)}; this is Headway {headway.__version__}, which knows schemas up to {newest}: "
            "use the newer program, or another --database-url"
        )
    return True


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _written_by(connection: sa.Connection) -> str:
    """As far as a schema that is not known can be read."""
    try:
        return str(connection.execute(sa.text("SELECT written_by FROM catalog_state")).scalar_one())
    except (DatabaseError, sa.exc.NoResultFound):
        return "of a later version"


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(sa.update(schema.state).values(written_by=headway.__version__))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _back_up(engine: sa.Engine, connection: sa.Connection) -> None:
    """A copy beside a SQLite file that holds something, named after its schema; written whole or not at all."""
    path, revision = sqlite_path(engine), _revision(connection)
    if path is None or revision is None:
        return
    target = path.with_name(f"{path.name}.{revision}.bak")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        # Of one that was killed: we have the writers' lock.
        for stale in path.parent.glob(f"{glob.escape(path.name)}.*.bak.*.part"):
            stale.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise _refuse(f"{path} must be migrated, and could not be copied to {target} first: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _reason(error: DatabaseError) -> str:
    return " ".join(str(error.orig).split())


def _refuse(message: str) -> InvalidConfig:
    return InvalidConfig(message, param="database_url")
