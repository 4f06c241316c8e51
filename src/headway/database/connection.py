"""An engine for a URL: SQLite in a file of the user's, unless PostgreSQL is named.

A connection is opened for each transaction: they are rare, and one that stayed open might be broken when it is needed.
SQLite: write-ahead log, so that readers and the one writer do not wait for each other; a writer takes the lock when it
begins, so that nothing that it read has changed when it writes; who waits for another does so for BUSY_TIMEOUT_S.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from headway.errors import InvalidConfig

BUSY_TIMEOUT_S = 30.0
_PATIENCE: Mapping[str, Any] = {
    "connect_timeout": 10,
    "options": "-c statement_timeout=30s",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's: a server that hangs, or that the network has lost, fails a transaction within about 30 s."""
_READS_ONLY = "headway_reads_only"
_FORMS = "sqlite:////path/to/catalog.db or postgresql://USER:PASSWORD@HOST/NAME"


def default_data_dir() -> Path:
    """XDG_DATA_HOME/headway, or ~/.local/share/headway."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "headway"


def default_url() -> str:
    """The user's own catalog."""
    return f"sqlite:///{default_data_dir() / 'catalog.db'}"


def open_engine(url: str) -> sa.Engine:
    """An engine, not connected yet; the folder of a SQLite file is made.

    Raises InvalidConfig for a URL of another kind, and for PostgreSQL without its driver.
    """
    parsed = _parse(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            return _open_sqlite(parsed)
        patience = {name: value for name, value in _PATIENCE.items() if name not in parsed.query}
        return sa.create_engine(parsed, poolclass=NullPool, connect_args=patience)
    except ModuleNotFoundError as error:
        raise _refuse(f"PostgreSQL needs a driver: pip install 'headway[postgres]' ({error})") from error
    except OSError as error:
        raise _refuse(f"the catalog at {shown(parsed)} can not be made: {error}") from error


def sqlite_path(engine: sa.Engine) -> Path | None:
    """The file of a SQLite database; None: it is another kind."""
    return Path(engine.url.database) if engine.dialect.name == "sqlite" and engine.url.database else None


def reading(engine: sa.Engine) -> sa.Engine:
    """The same engine for transactions that only read: they take no lock."""
    return engine.execution_options(**{_READS_ONLY: True})


def shown(url: URL) -> str:
    """The URL for people, without its passwords: PostgreSQL takes some among its parameters too."""
    hidden = {name: "***" for name in url.query if "password" in name.lower()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        name = parsed.get_backend_name()
        if name == "postgresql" and parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
    except (ArgumentError, NoSuchModuleError) as error:
        raise _refuse(f"database_url is no URL of a database: give {_FORMS}") from error
    if name not in ("sqlite", "postgresql"):
        raise _refuse(f"database_url is one of {name}; Headway knows SQLite and PostgreSQL: give {_FORMS}")
    if name == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise _refuse(f"database_url names no file: a catalog in memory would be lost at once; give {_FORMS}")
    return parsed


def _open_sqlite(url: URL) -> sa.Engine:
    path = Path(url.database or "").expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url.set(database=str(path)), poolclass=NullPool, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _on_begin, not by the driver in front of a change
    for pragma in ("journal_mode = WAL", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: sa.Connection) -> None:
    reads_only = connection.get_execution_options().get(_READS_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def _refuse(message: str) -> InvalidConfig:
    return InvalidConfig(message, param="database_url")
